//! A vocabulary as the files that a published model has.
//!
//! `tokenizer.json` knows merges by rank only, so scores become ranks ([`ranks`](super::ranks))
//! and whole lines become merges ([`lines`](super::lines)). Where that cannot be done exactly
//! there is no file: what is written was read back and compared on texts of every token.

use super::Vocabulary;
use super::build::{PreTokenizeStep, TokenizerParts};
use super::check::{broken, shown};
use super::model::Merger;
use crate::error::TextError;
use crate::tokenizer::{Tokenizer, guarded};
use forerun_base::Token;
use serde_json::{Map, Value, json};
use tokenizers::normalizers::Sequence as Normalizers;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
};

/// Texts of files that say what a vocabulary says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFiles {
    /// `tokenizer.json`.
    pub tokenizer: String,
    /// `tokenizer_config.json`: named special tokens and the chat template.
    pub tokenizer_config: String,
}

impl Vocabulary {
    /// The files of a tokenizer that gives the same tokens and texts as
    /// [`Tokenizer::from_vocabulary`]; an error where there is none.
    pub fn to_files(&self, chat_template: Option<&str>) -> Result<TextFiles, TextError> {
        let plan = TokenizerParts::new(self)?;
        let tokenizer_config = self.tokenizer_config(&plan, chat_template)?.to_string();
        let tokenizer = self.tokenizer_json(plan)?;
        let (ours, theirs) =
            (Tokenizer::from_vocabulary(self)?, Tokenizer::from_bytes(tokenizer.as_bytes())?);
        compare(&ours, &theirs, self.tokens.len())?;
        Ok(TextFiles { tokenizer, tokenizer_config })
    }

    /// The text of `generation_config.json`: tokens that start, end and pad a text.
    pub fn generation_config(&self) -> Result<String, TextError> {
        let defaults = self.generation_defaults()?;
        let mut file = Map::new();
        if !defaults.eos_token_ids.is_empty() {
            file.insert("eos_token_id".into(), json!(defaults.eos_token_ids));
        }
        let others =
            [("bos_token_id", defaults.bos_token_id), ("pad_token_id", defaults.pad_token_id)];
        for (name, id) in others {
            file.extend(id.map(|id| (name.to_owned(), json!(id))));
        }
        Ok(Value::Object(file).to_string())
    }

    fn tokenizer_config(
        &self,
        plan: &TokenizerParts,
        chat_template: Option<&str>,
    ) -> Result<Value, TextError> {
        let mut file = json!({
            "add_bos_token": plan.bos.is_some(),
            "add_eos_token": plan.eos.is_some(),
            "clean_up_tokenization_spaces": false,
            "tokenizer_class": "PreTrainedTokenizerFast",
        });
        for (name, text) in self.special_tokens()?.iter() {
            file[name] = json!(text);
        }
        if let Some(template) = chat_template {
            file["chat_template"] = json!(template);
        }
        Ok(file)
    }

    fn tokenizer_json(&self, plan: TokenizerParts) -> Result<String, TextError> {
        let (bpe, cut) = match plan.merger {
            Merger::Ranks(bpe) => (bpe, None),
            Merger::RanksAndLines(bpe) => self.with_lines(bpe)?,
            Merger::Scores(scores) => (scores.ranked(&plan.added)?, None),
        };
        let around = post_processor(plan.bos, plan.eos, &self.tokens);
        guarded("writing", || {
            let mut steps: Vec<PreTokenizerWrapper> =
                plan.steps.into_iter().map(in_file).collect::<tokenizers::Result<_>>()?;
            if let Some(cut) = cut {
                steps.push(isolated(&cut)?);
            }
            let mut library = tokenizers::Tokenizer::new(bpe);
            if !plan.normalizers.is_empty() {
                let normalizer = NormalizerWrapper::Sequence(Normalizers::new(plan.normalizers));
                library.with_normalizer(Some(normalizer))?;
            }
            if !steps.is_empty() {
                let steps = PreTokenizerWrapper::Sequence(PreTokenizers::new(steps));
                library.with_pre_tokenizer(Some(steps));
            }
            if let Some(around) = around {
                let around: PostProcessorWrapper = serde_json::from_value(around)?;
                library.with_post_processor(Some(around));
            }
            library.with_decoder(Some(plan.decoder));
            library.add_tokens(plan.added)?;
            library.to_string(false)
        })
    }
}

fn in_file(step: PreTokenizeStep) -> tokenizers::Result<PreTokenizerWrapper> {
    match step {
        PreTokenizeStep::Cut(split) => Ok(PreTokenizerWrapper::Split(split)),
        PreTokenizeStep::Bytes(bytes) => Ok(PreTokenizerWrapper::ByteLevel(bytes)),
        // The same cuts; our own search takes one look at a run of digits, this one many.
        PreTokenizeStep::Thousands(_) => isolated(r"(?=(\d{3})+(?!\d))"),
    }
}

fn isolated(regex: &str) -> tokenizers::Result<PreTokenizerWrapper> {
    let pattern = SplitPattern::Regex(regex.to_owned());
    Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map(PreTokenizerWrapper::Split)
}

/// Puts tokens around a text that asks for special ones.
fn post_processor(bos: Option<Token>, eos: Option<Token>, tokens: &[String]) -> Option<Value> {
    if bos.is_none() && eos.is_none() {
        return None;
    }
    let text = |id: Token| tokens.get(id as usize);
    let mut known = Map::new();
    for id in [bos, eos].into_iter().flatten() {
        let text = text(id)?;
        known.insert(text.clone(), json!({ "id": text, "ids": [id], "tokens": [text] }));
    }
    let special = |id: Option<Token>, part: u8| {
        let text = id.and_then(text)?;
        Some(json!({ "SpecialToken": { "id": text, "type_id": part } }))
    };
    let one = |name: &str, part: u8| -> Vec<Value> {
        let sequence = json!({ "Sequence": { "id": name, "type_id": part } });
        special(bos, part).into_iter().chain([sequence]).chain(special(eos, part)).collect()
    };
    let pair = [one("A", 0), one("B", 1)].concat();
    Some(json!({
        "type": "TemplateProcessing",
        "single": one("A", 0),
        "pair": pair,
        "special_tokens": known,
    }))
}

/// Encodes and decodes with both: every token at least twice, in runs that differ.
fn compare(ours: &Tokenizer, theirs: &Tokenizer, count: usize) -> Result<(), TextError> {
    const TOKENS: usize = 1 << 13;
    let rounds = (TOKENS / count.max(1)).max(2);
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((random >> 33) as usize) % below.max(1)
    };
    let mut order: Vec<Token> = (0..).take(count).collect();
    for _ in 0..rounds {
        for last in (1..count).rev() {
            order.swap(last, next(last + 1));
        }
        let mut rest = &order[..];
        while !rest.is_empty() {
            let (run, after) = rest.split_at(rest.len().min(1 + next(8)));
            rest = after;
            let text = ours.decode(run, false)?;
            let same = theirs.decode(run, false)? == text
                && theirs.decode(run, true)? == ours.decode(run, true)?
                && theirs.encode(&text, true)? == ours.encode(&text, true)?;
            if !same {
                let text = shown(&text);
                return broken(format!(
                    "no tokenizer.json is known that treats texts such as {text} alike"
                ));
            }
        }
    }
    Ok(())
}
