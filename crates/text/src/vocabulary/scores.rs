//! Merging by score, as SentencePiece vocabularies do it.
//!
//! A text starts as its characters. Of all neighbours that together are a token, those with the
//! highest score become one, the leftmost first among equals, until no two neighbours are a
//! token. A character that is no token becomes its UTF-8 bytes as `<0xHH>` tokens, or the
//! unknown token where the vocabulary lacks one of those.
//!
//! A merge only ever makes a token, so it never crosses a place that no token has inside. Where
//! no token has a space after something else, words are therefore merged one by one: the same
//! result, with short queues in place of one as long as the text.

use forerun_base::Token;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use tokenizers::models::bpe::Vocab;

/// The character that stands for a space.
pub(super) const SPACE: char = '\u{2581}';

/// A vocabulary with scores.
pub(crate) struct ScoreMerger {
    pub(super) ids: Vocab,
    pub(super) texts: Vec<String>,
    pub(super) scores: Vec<f32>,
    /// The tokens of single bytes.
    pub(super) bytes: Vec<Option<Token>>,
    pub(super) unknown: Option<Token>,
    /// Bytes of the longest token: nothing longer needs to be looked up.
    longest: usize,
    /// Whether no token has a space after something else.
    by_words: bool,
}

/// A run of the text that is one token, or one character. Runs are linked in text order.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    /// 0 once it has become part of the run on its left.
    len: usize,
    left: Option<usize>,
    right: Option<usize>,
}

/// Two neighbours that are a token together.
struct Bigram {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when found; other lengths later mean that one of them has changed.
    len: usize,
}

impl Ord for Bigram {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then_with(|| other.left.cmp(&self.left))
            .then_with(|| other.len.cmp(&self.len))
    }
}

impl PartialOrd for Bigram {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Bigram {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Bigram {}

impl ScoreMerger {
    /// `texts` and `scores` are of one length, the texts distinct and the scores numbers.
    pub(super) fn new(texts: Vec<String>, scores: &[f32], unknown: Option<Token>) -> Self {
        let ids: Vocab = texts.iter().cloned().zip(0..).collect();
        let bytes = (0..=255u8).map(|b| ids.get(&format!("<0x{b:02X}>")).copied()).collect();
        // Adding 0 turns -0 into 0, which the total order of floats tells apart.
        let scores = scores.iter().map(|score| score + 0.0).collect();
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        let by_words = !texts.iter().any(|text| has_inner_space(text));
        Self { ids, texts, scores, bytes, unknown, longest, by_words }
    }

    /// Whether every character has tokens to fall back on.
    pub(super) fn covers_everything(&self) -> bool {
        self.unknown.is_some() || self.bytes.iter().all(Option::is_some)
    }

    pub(super) fn id(&self, text: &str) -> Option<Token> {
        self.ids.get(text).copied()
    }

    pub(super) fn text(&self, token: Token) -> Option<&str> {
        self.texts.get(usize::try_from(token).ok()?).map(String::as_str)
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Cuts `text`, whose spaces have become [`SPACE`], and calls `emit` with each token and the
    /// byte range it covers.
    pub(super) fn encode(&self, text: &str, mut emit: impl FnMut(Token, (usize, usize))) {
        let mut merging =
            Merging { scores: self, text, runs: Vec::new(), queue: BinaryHeap::new() };
        let mut start = 0;
        while start < text.len() {
            let end = if self.by_words { word_end(text, start) } else { text.len() };
            merging.word(start, end);
            for run in merging.runs.iter().filter(|run| run.len > 0) {
                self.emit_run(text, run, &mut emit);
            }
            start = end;
        }
    }

    fn emit_run(&self, text: &str, run: &Symbol, emit: &mut impl FnMut(Token, (usize, usize))) {
        let range = (run.start, run.start + run.len);
        let piece = &text[range.0..range.1];
        if let Some(&token) = self.ids.get(piece) {
            return emit(token, range);
        }
        let of_byte = |b: u8| self.bytes[usize::from(b)];
        if piece.bytes().all(|b| of_byte(b).is_some()) {
            for (at, token) in (range.0..).zip(piece.bytes().filter_map(of_byte)) {
                emit(token, (at, at + 1));
            }
        } else if let Some(unknown) = self.unknown {
            emit(unknown, range);
        }
    }
}

/// The working state for one text, kept between its words.
struct Merging<'a> {
    scores: &'a ScoreMerger,
    text: &'a str,
    runs: Vec<Symbol>,
    queue: BinaryHeap<Bigram>,
}

impl Merging<'_> {
    /// Leaves the merged runs of one word in `self.runs`.
    fn word(&mut self, start: usize, end: usize) {
        self.runs.clear();
        let chars = self.text[start..end].char_indices();
        self.runs.extend(chars.enumerate().map(|(n, (at, c))| Symbol {
            start: start + at,
            len: c.len_utf8(),
            left: n.checked_sub(1),
            right: Some(n + 1),
        }));
        if let Some(last) = self.runs.last_mut() {
            last.right = None;
        }
        for right in 1..self.runs.len() {
            self.offer(right - 1, right);
        }
        while let Some(pair) = self.queue.pop() {
            let (left, right) = (self.runs[pair.left], self.runs[pair.right]);
            if left.len > 0 && right.len > 0 && left.len + right.len == pair.len {
                self.join(pair.left, pair.right);
            }
        }
    }

    fn join(&mut self, left: usize, right: usize) {
        let gone = self.runs[right];
        self.runs[right].len = 0;
        self.runs[left].len += gone.len;
        self.runs[left].right = gone.right;
        if let Some(next) = gone.right {
            self.runs[next].left = Some(left);
            self.offer(left, next);
        }
        if let Some(previous) = self.runs[left].left {
            self.offer(previous, left);
        }
    }

    /// Queues two neighbours if they are a token together.
    fn offer(&mut self, left: usize, right: usize) {
        let start = self.runs[left].start;
        let len = self.runs[left].len + self.runs[right].len;
        if len > self.scores.longest {
            return;
        }
        let Some(token) = self.scores.id(&self.text[start..start + len]) else { return };
        let score = self.scores.scores[token as usize];
        self.queue.push(Bigram { score, left, right, len });
    }
}

fn has_inner_space(text: &str) -> bool {
    text.trim_start_matches(SPACE).contains(SPACE)
}

/// The end of the word at `start`: its spaces and what follows them up to the next space.
fn word_end(text: &str, start: usize) -> usize {
    let rest = &text[start..];
    let spaces = rest.len() - rest.trim_start_matches(SPACE).len();
    rest[spaces..].find(SPACE).map_or(text.len(), |at| start + spaces + at)
}
