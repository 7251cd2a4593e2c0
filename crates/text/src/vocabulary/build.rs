//! From a checked vocabulary to a tokenizer.

use super::check::{broken, shown};
use super::model::Merger;
use super::pre::{self, WordSplit};
use super::scores::{SPACE, ScoreMerger};
use super::{TokenKind, Vocabulary};
use crate::error::TextError;
use crate::tokenizer::guarded;
use forerun_base::Token;
use std::collections::HashSet;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence as Normalizers};
use tokenizers::pattern::Pattern;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::utils::SysRegex;
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, Offsets, PostProcessorWrapper,
    PreTokenizedString, PreTokenizer, SplitDelimiterBehavior, TokenizerImpl,
};

/// The library's machinery around our merging and cutting.
pub(crate) type Library = TokenizerImpl<
    Merger,
    NormalizerWrapper,
    PreTokenizeSteps,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// A tokenizer made from a vocabulary.
pub(crate) struct Rebuilt {
    pub(crate) library: Library,
    /// Put before and after a text that asks for special tokens.
    pub(crate) bos: Option<Token>,
    pub(crate) eos: Option<Token>,
}

/// The parts of a tokenizer, not put together yet.
pub(super) struct TokenizerParts {
    pub(super) merger: Merger,
    pub(super) normalizers: Vec<NormalizerWrapper>,
    pub(super) steps: Vec<PreTokenizeStep>,
    pub(super) decoder: DecoderWrapper,
    pub(super) added: Vec<AddedToken>,
    pub(super) bos: Option<Token>,
    pub(super) eos: Option<Token>,
}

/// What a model does apart from the special tokens.
struct ModelParts {
    merger: Merger,
    normalizers: Vec<NormalizerWrapper>,
    steps: Vec<PreTokenizeStep>,
    decoder: DecoderWrapper,
    /// Whether BOS is added where the file does not say.
    bos: bool,
}

impl TokenizerParts {
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<Self, TextError> {
        let tokens = vocabulary.checked_tokens()?;
        let added = vocabulary.added_tokens(&tokens);
        let body = match vocabulary.model.as_str() {
            "gpt2" => byte_level(vocabulary, tokens)?,
            "llama" => scored(vocabulary, tokens)?,
            "gemma4" => spaced(vocabulary, tokens)?,
            other => {
                let model = shown(other);
                return broken(format!(
                    "`model` is {model}; only `gpt2`, `llama` and `gemma4` are supported"
                ));
            }
        };
        let bos = vocabulary.bos_or_default();
        let eos = vocabulary.eos_or_default();
        // The first published Gemma 4 files say that they want none, which is wrong.
        let add_bos = vocabulary.model == "gemma4" || vocabulary.add_bos.unwrap_or(body.bos);
        let bos = wanted(add_bos, bos, "bos")?;
        let eos = wanted(vocabulary.add_eos.unwrap_or(false), eos, "eos")?;
        let ModelParts { merger, normalizers, steps, decoder, .. } = body;
        Ok(Self { merger, normalizers, steps, decoder, added, bos, eos })
    }
}

impl Rebuilt {
    pub(crate) fn new(vocabulary: &Vocabulary) -> Result<Self, TextError> {
        let plan = TokenizerParts::new(vocabulary)?;
        let (bos, eos) = (plan.bos, plan.eos);
        let library = guarded("building", || {
            let mut library = Library::new(plan.merger);
            let normalizer = Normalizers::new(plan.normalizers);
            library.with_normalizer(Some(NormalizerWrapper::Sequence(normalizer)))?;
            library.with_pre_tokenizer(Some(PreTokenizeSteps(plan.steps)));
            library.with_decoder(Some(plan.decoder));
            library.add_tokens(plan.added)?;
            Ok(library)
        })?;
        Ok(Self { library, bos, eos })
    }
}

/// A token the file wants around each text must exist.
fn wanted(add: bool, id: Option<Token>, name: &str) -> Result<Option<Token>, TextError> {
    match (add, id) {
        (false, _) => Ok(None),
        (true, Some(id)) => Ok(Some(id)),
        (true, None) => {
            broken(format!("texts are to get a token `{name}`, but `{name}_token_id` is missing"))
        }
    }
}

impl Vocabulary {
    /// The tokens that are found in a text before anything else is.
    fn added_tokens(&self, tokens: &[String]) -> Vec<AddedToken> {
        let ends: HashSet<Token> = self.ends_by_spelling().into_iter().collect();
        let added = (0..).zip(tokens).filter_map(|(id, text)| {
            let kind = self.kind(id as usize);
            // Some files list the end of a turn as an ordinary token.
            let is_end = ends.contains(&id) && kind != TokenKind::UserDefined;
            let special = is_end || matches!(kind, TokenKind::Control | TokenKind::Unknown);
            let token = AddedToken::from(text.as_str(), special).normalized(false);
            (is_end || kind.is_matched()).then_some(token)
        });
        added.collect()
    }

    /// The merges as pairs of tokens.
    pub(super) fn pairs(&self, vocab: &Vocab) -> Result<Merges, TextError> {
        if self.merges.is_empty() {
            return broken("it has no merges");
        }
        let mut joined = String::new();
        let pair = |merge: &String| {
            // A first space belongs to the token, so the search starts after the first character.
            let first = merge.chars().next().map_or(0, char::len_utf8);
            let space = merge[first..].find(' ').map(|at| first + at);
            let Some((a, b)) = space.map(|at| (&merge[..at], &merge[at + 1..])) else {
                return broken(format!("the merge {} is not two tokens", shown(merge)));
            };
            joined.clear();
            joined.push_str(a);
            joined.push_str(b);
            match [a, b, &joined].into_iter().find(|part| !vocab.contains_key(*part)) {
                Some(part) => {
                    let (part, merge) = (shown(part), shown(merge));
                    broken(format!("{part} of the merge {merge} is not a token"))
                }
                None => Ok((a.to_owned(), b.to_owned())),
            }
        };
        self.merges.iter().map(pair).collect()
    }

    fn ranked(
        &self,
        tokens: Vec<String>,
        byte_fallback: bool,
        whole_words: bool,
    ) -> Result<BPE, TextError> {
        let vocab: Vocab = tokens.into_iter().zip(0..).collect();
        let merges = self.pairs(&vocab)?;
        let builder = BPE::builder().vocab_and_merges(vocab, merges);
        let builder = builder.byte_fallback(byte_fallback).ignore_merges(whole_words);
        guarded("building", || builder.build())
    }
}

/// `gpt2`: bytes in their visible alphabet, cut into words by the named pre-tokenizer.
fn byte_level(vocabulary: &Vocabulary, tokens: Vec<String>) -> Result<ModelParts, TextError> {
    let Some(name) = vocabulary.pre.as_deref() else {
        return broken(
            "`pre` is missing, which says how text is cut into words; convert the model again",
        );
    };
    let Some(entry) = pre::find(name) else {
        let known: Vec<_> = pre::names().collect();
        let (name, known) = (shown(name), known.join(", "));
        return broken(format!("`pre` is {name}, which is not known; known are {known}"));
    };
    let merger = Merger::Ranks(vocabulary.ranked(tokens, false, entry.whole_words)?);
    let steps: Result<Vec<PreTokenizeStep>, TextError> =
        entry.cuts.iter().map(PreTokenizeStep::new).collect();
    let mut steps = steps?;
    let bytes = ByteLevel::new(false, true, false);
    steps.push(PreTokenizeStep::Bytes(bytes));
    let normalizers = if entry.nfc { vec![NormalizerWrapper::NFC(NFC)] } else { Vec::new() };
    let decoder = DecoderWrapper::ByteLevel(bytes);
    Ok(ModelParts { merger, normalizers, steps, decoder, bos: entry.bos })
}

/// `llama`: merged by score.
fn scored(vocabulary: &Vocabulary, tokens: Vec<String>) -> Result<ModelParts, TextError> {
    if vocabulary.scores.is_empty() {
        return broken("it has no scores");
    }
    if let Some(id) = vocabulary.scores.iter().position(|score| score.is_nan()) {
        return broken(format!("the score of token {id} is not a number"));
    }
    let scores = ScoreMerger::new(tokens, &vocabulary.scores, vocabulary.unknown_or_default());
    if !scores.covers_everything() {
        return broken("it has neither all 256 byte tokens nor an unknown token");
    }
    let prefix = vocabulary.add_space_prefix.unwrap_or(true);
    let mut normalizers = vec![NormalizerWrapper::Replace(space_to_mark()?)];
    if prefix {
        normalizers.push(NormalizerWrapper::Prepend(Prepend::new(SPACE.to_string())));
    }
    let (merger, decoder) = (Merger::Scores(scores), mark_to_space(prefix)?);
    Ok(ModelParts { merger, normalizers, steps: Vec::new(), decoder, bos: true })
}

/// `gemma4`: merged by rank, without words; lines are pieces of their own.
fn spaced(vocabulary: &Vocabulary, tokens: Vec<String>) -> Result<ModelParts, TextError> {
    let merger = Merger::RanksAndLines(vocabulary.ranked(tokens, true, false)?);
    let normalizers = vec![NormalizerWrapper::Replace(space_to_mark()?)];
    let steps = vec![PreTokenizeStep::new(&WordSplit::Matches(r"\n+"))?];
    Ok(ModelParts { merger, normalizers, steps, decoder: mark_to_space(false)?, bos: true })
}

fn space_to_mark() -> Result<Replace, TextError> {
    guarded("building", || Replace::new(" ", SPACE.to_string()))
}

/// Tokens to text. With a prefix, the first space of a text is not part of it.
fn mark_to_space(prefix: bool) -> Result<DecoderWrapper, TextError> {
    let replace = guarded("building", || Replace::new(SPACE.to_string(), " "))?;
    let mut parts = vec![
        DecoderWrapper::Replace(replace),
        DecoderWrapper::ByteFallback(ByteFallback::new()),
        DecoderWrapper::Fuse(Fuse::new()),
    ];
    if prefix {
        parts.push(DecoderWrapper::Strip(Strip::new(' ', 1, 0)));
    }
    Ok(DecoderWrapper::Sequence(Decoders::new(parts)))
}

/// The cuts of a text in order.
pub(crate) struct PreTokenizeSteps(Vec<PreTokenizeStep>);

pub(super) enum PreTokenizeStep {
    Cut(Split),
    Thousands(SysRegex),
    Bytes(ByteLevel),
}

impl PreTokenizeStep {
    fn new(cut: &WordSplit) -> Result<Self, TextError> {
        guarded("building", || match cut {
            WordSplit::Matches(regex) => {
                let pattern = SplitPattern::Regex((*regex).to_owned());
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map(Self::Cut)
            }
            WordSplit::Thousands => SysRegex::new(r"\d+").map(Self::Thousands),
        })
    }
}

impl PreTokenizer for PreTokenizeSteps {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        self.0.iter().try_for_each(|step| match step {
            PreTokenizeStep::Cut(split) => split.pre_tokenize(text),
            PreTokenizeStep::Bytes(bytes) => bytes.pre_tokenize(text),
            PreTokenizeStep::Thousands(digits) => text
                .split(|_, piece| piece.split(Thousands(digits), SplitDelimiterBehavior::Isolated)),
        })
    }
}

/// Cuts before every digit that a multiple of three digits follows up to the end of its run.
struct Thousands<'a>(&'a SysRegex);

impl Pattern for Thousands<'_> {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        let mut pieces = Vec::new();
        let mut start = 0;
        let runs = self.0.find_matches(inside)?;
        for ((from, to), _) in runs.into_iter().filter(|(_, is_digits)| *is_digits) {
            let run = &inside[from..to];
            let count = run.chars().count();
            for (n, (at, _)) in run.char_indices().enumerate() {
                let cut = from + at;
                if (count - n).is_multiple_of(3) && cut > start {
                    pieces.push(((start, cut), false));
                    start = cut;
                }
            }
        }
        pieces.push(((start, inside.len()), false));
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::{OffsetReferential, OffsetType};

    fn pieces(name: &str, text: &str) -> Vec<String> {
        let entry = pre::find(name).expect("in the table");
        let steps =
            entry.cuts.iter().map(|cut| PreTokenizeStep::new(cut).expect("compiles")).collect();
        let mut cut = PreTokenizedString::from(text);
        PreTokenizeSteps(steps).pre_tokenize(&mut cut).expect("cuts any text");
        let splits = cut.get_splits(OffsetReferential::Normalized, OffsetType::None);
        splits.into_iter().map(|(piece, _, _)| piece.to_owned()).collect()
    }

    #[test]
    fn every_entry_compiles_and_loses_no_text() {
        let text = "I'LL pay $12345.67 (now)\r\n\n  \t你好カタ한국어 Äpfel_\u{e01}\u{e34}²٣٤٥  ";
        for name in pre::names() {
            assert_eq!(pieces(name, text).concat(), text, "{name}");
        }
    }

    #[test]
    fn words_numbers_and_signs_are_cut_as_each_model_was_trained() {
        let cases: [(&str, &str, &[&str]); 16] = [
            ("gpt-2", "I'LL go 12345", &["I", "'", "LL", " go", " 12345"]),
            ("smollm", "go 123", &["go", " ", "1", "2", "3"]),
            ("default", "a$b 1234", &["a", "$", "b", " ", "123", "4"]),
            ("falcon", "a`b 1234", &["a", "`", "b", " ", "123", "4"]),
            ("llama-bpe", "I'LL go 12345", &["I", "'LL", " go", " ", "123", "45"]),
            ("qwen2", "I'LL go 123", &["I", "'LL", " go", " ", "1", "2", "3"]),
            ("qwen2", "\u{e01}\u{e34}\u{e01}", &["\u{e01}", "\u{e34}\u{e01}"]),
            ("qwen35", "\u{e01}\u{e34}\u{e01}", &["\u{e01}\u{e34}\u{e01}"]),
            ("gpt-4o", "camelCase's/\n", &["camel", "Case's", "/\n"]),
            ("tekken", "camelCase's 12", &["camel", "Case", "'s", " ", "1", "2"]),
            ("kimi-k2", "a你好b1234", &["a", "你好", "b", "123", "4"]),
            ("deepseek-v3", "a你好(b 1234", &["a", "你好", "(b", " ", "123", "4"]),
            ("deepseek-llm", "a你好 b\n", &["a", "你好", " b", "\n"]),
            ("superbpe", "in 1234567.5", &["in ", "1", "234", "567", ".", "5"]),
            ("bailingmoe", "a'LL 12", &["a", "'LL", " ", "1", "2"]),
            ("seed-coder", "a!\n\nb", &["a", "!", "\n\n", "b"]),
        ];
        for (name, text, expected) in cases {
            assert_eq!(pieces(name, text), expected, "{name}");
        }
    }
}
