//! Text to tokens, step by step as the library does it, with two differences: special tokens that a client's text
//! spells are put back as text once the template's own were recognised, and a file's regular expressions can be
//! stopped.

use crate::literal::Literals;
use crate::vocabulary::PreTokenizeSteps;
use std::sync::atomic::{AtomicBool, Ordering};
use tokenizers::pattern::Pattern;
use tokenizers::utils::SysRegex;
use tokenizers::{
    Decoder, Encoding, Model, Normalizer, OffsetReferential, OffsetType, Offsets, PostProcessor,
    PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Result, TokenizerImpl,
};

/// Matches between two looks at whether to stop.
const MATCHES: usize = 16;

/// Where text is cut before the model sees it.
pub(crate) trait PreTokenize {
    /// Cuts the pieces further, unless it is told to stop.
    fn cut(&self, pieces: &mut PreTokenizedString, stop: &AtomicBool) -> Result<()>;
}

impl PreTokenize for PreTokenizerWrapper {
    fn cut(&self, pieces: &mut PreTokenizedString, stop: &AtomicBool) -> Result<()> {
        match self {
            Self::Sequence(steps) => {
                steps.as_ref().iter().try_for_each(|step| step.cut(pieces, stop))
            }
            Self::Split(split) => pieces.split(|_, piece| {
                let (regex, invert) = (&split.regex, split.invert);
                piece.split(Matches { regex, invert, stop }, split.behavior)
            }),
            // Their expressions are the library's own.
            other => other.pre_tokenize(pieces),
        }
    }
}

impl PreTokenize for PreTokenizeSteps {
    fn cut(&self, pieces: &mut PreTokenizedString, _: &AtomicBool) -> Result<()> {
        // Their expressions are ours.
        self.pre_tokenize(pieces)
    }
}

/// The matches of a file's regular expression, as the library finds them.
struct Matches<'a> {
    regex: &'a SysRegex,
    invert: bool,
    stop: &'a AtomicBool,
}

impl Pattern for Matches<'_> {
    fn find_matches(&self, inside: &str) -> Result<Vec<(Offsets, bool)>> {
        if inside.is_empty() {
            return Ok(vec![((0, 0), self.invert)]);
        }
        let (mut parts, mut before) = (Vec::new(), 0);
        for (count, (start, end)) in self.regex.find_iter(inside).enumerate() {
            if count % MATCHES == 0 && self.stop.load(Ordering::Relaxed) {
                return Err("stopped".into());
            }
            if before != start {
                parts.push(((before, start), self.invert));
            }
            parts.push(((start, end), !self.invert));
            before = end;
        }
        if before != inside.len() {
            parts.push(((before, inside.len()), self.invert));
        }
        Ok(parts)
    }
}

/// Encodes a text; `None` where the spelling of a special token would become that token all the same.
pub(crate) fn encode<M, N, PT, PP, D>(
    library: &TokenizerImpl<M, N, PT, PP, D>,
    text: &str,
    literals: &Literals,
    is_special: impl Fn(u32) -> bool,
    stop: &AtomicBool,
) -> Result<Option<Encoding>>
where
    M: Model,
    N: Normalizer,
    PT: PreTokenizer + PreTokenize,
    PP: PostProcessor,
    D: Decoder,
{
    let added = library.get_added_vocabulary();
    let mut pieces = added.extract_and_normalize(library.get_normalizer(), text);
    let stand_ins = |text: &str| text.chars().filter(|&c| literals.text_of(c).is_some()).count();
    let mut before = 0;
    if !literals.is_empty() {
        let mut left = 0;
        for (piece, _, tokens) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::None)
        {
            before += tokens.iter().flatten().filter(|token| is_special(token.id)).count();
            left += stand_ins(piece);
        }
        if left != stand_ins(text) {
            return Ok(None);
        }
        restore(&mut pieces, literals)?;
    }
    if let Some(steps) = library.get_pre_tokenizer() {
        steps.cut(&mut pieces, stop)?;
    }
    library.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
    let encoding = pieces.into_encoding(None, 0, OffsetType::None)?;
    let after = || encoding.get_ids().iter().filter(|&&id| is_special(id)).count();
    Ok((literals.is_empty() || after() == before).then_some(encoding))
}

/// Puts the spellings into the pieces that are not special tokens.
fn restore(pieces: &mut PreTokenizedString, literals: &Literals) -> Result<()> {
    pieces.normalize(|piece| {
        if piece.get().chars().all(|c| literals.text_of(c).is_none()) {
            return Ok(());
        }
        let mut restored = Vec::with_capacity(piece.get().len());
        for c in piece.get().chars() {
            match literals.text_of(c) {
                // The first character takes the place of the stand-in, the others are inserted.
                Some(text) => {
                    let letters = text.chars().enumerate();
                    restored.extend(letters.map(|(at, c)| (c, isize::from(at > 0))));
                }
                None => restored.push((c, 0)),
            }
        }
        piece.transform(restored, 0);
        Ok(())
    })
}
