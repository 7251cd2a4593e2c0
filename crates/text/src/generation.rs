//! What a model asks for when the user asks for nothing: end tokens and sampling settings.
//!
//! - Token ids come from `generation_config.json` where it has the key, else from `config.json`,
//!   else from its `text_config` (multimodal models keep them there). A key of `null` counts as
//!   absent.
//! - Sampling settings come from `generation_config.json`. Only without that file does
//!   `config.json` count, as in `transformers`: old configurations list library defaults there
//!   that nobody chose.
//! - A GGUF file has no such file; its `general.sampling.*` metadata counts instead
//!   ([`GenerationDefaults::with_settings`]).
//! - For chat, the `eos_token` of `tokenizer_config.json` is a further end token
//!   ([`GenerationDefaults::with_chat_eos`]), as chat front ends do: several models end a turn
//!   with a token that their generation configuration does not list.
//!
//! A value of the wrong type or range is an error that names file, key and value.

use crate::error::TextError;
use crate::file::{MAX_CONFIG_BYTES, config_object, field_error, json_object, read_optional};
use crate::template::SpecialTokens;
use crate::tokenizer::Tokenizer;
use forerun_base::Token;
use serde_json::{Map, Value};
use std::path::Path;

/// Settings from a model's files; `None` and empty mean the files do not say.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "fields carry the names and meanings of the files' keys")]
pub struct GenerationDefaults {
    /// Any of these ends the answer.
    pub eos_token_ids: Vec<Token>,
    pub bos_token_id: Option<Token>,
    pub pad_token_id: Option<Token>,
    pub do_sample: Option<bool>,
    /// At least 0; 0 means greedy.
    pub temperature: Option<f32>,
    /// 0 means off.
    pub top_k: Option<u32>,
    /// From 0 to 1.
    pub top_p: Option<f32>,
    /// From 0 to 1.
    pub min_p: Option<f32>,
    /// Above 0; 1 means off.
    pub repetition_penalty: Option<f32>,
    /// At least 1.
    pub max_new_tokens: Option<u32>,
}

/// More end tokens than any model has; a longer list is a broken file.
const MAX_EOS: usize = 1_024;

/// A parsed file with the name errors give it.
struct Named {
    file: String,
    values: Map<String, Value>,
}

impl GenerationDefaults {
    /// Reads the files of a model folder; both may be missing.
    pub fn load(folder: &Path) -> Result<Self, TextError> {
        let read = |name: &str| {
            let path = folder.join(name);
            Ok::<_, TextError>((
                path.display().to_string(),
                read_optional(&path, MAX_CONFIG_BYTES)?,
            ))
        };
        let (generation, config) = (read("generation_config.json")?, read("config.json")?);
        Self::parse((&generation.0, generation.1.as_deref()), (&config.0, config.1.as_deref()))
    }

    /// Like [`Self::load`], from the bytes of `generation_config.json` and `config.json`.
    pub fn from_bytes(generation: Option<&[u8]>, config: Option<&[u8]>) -> Result<Self, TextError> {
        Self::parse(("generation_config.json", generation), ("config.json", config))
    }

    fn parse(
        generation: (&str, Option<&[u8]>),
        config: (&str, Option<&[u8]>),
    ) -> Result<Self, TextError> {
        let named = |file: &str, values| Named { file: file.to_owned(), values };
        let (file, bytes) = generation;
        let generation = bytes.map(|bytes| json_object(file, bytes)).transpose()?;
        let generation = generation.map(|values| named(file, values));
        let (file, bytes) = config;
        let config = bytes.map(|bytes| config_object(file, bytes)).transpose()?;
        let config = config.map(|values| named(file, values));
        let text_config = config.as_ref().and_then(|config| {
            let values = config.values.get("text_config")?.as_object()?.clone();
            Some(Named { file: format!("{} text_config", config.file), values })
        });
        let has_generation = generation.is_some();
        let files: Vec<Named> = [generation, config, text_config].into_iter().flatten().collect();
        let sampling_files = if has_generation { &files[..1] } else { &files[..] };
        Self::default().with_token_ids(&files)?.with_sampling(sampling_files)
    }

    fn with_token_ids(mut self, files: &[Named]) -> Result<Self, TextError> {
        self.eos_token_ids =
            find(files, "eos_token_id", "a token id or a list of them", token_ids)?
                .unwrap_or_default();
        // Some models list several; the first is the one to put in front.
        self.bos_token_id = find(files, "bos_token_id", "a token id", |v| {
            token_ids(v).and_then(|ids| ids.first().copied())
        })?;
        self.pad_token_id = find(files, "pad_token_id", "a token id", count)?;
        Ok(self)
    }

    fn with_sampling(mut self, files: &[Named]) -> Result<Self, TextError> {
        const FROM_0: &str = "a number of at least 0";
        const SHARE: &str = "a number from 0 to 1";
        const COUNT: &str = "an integer of at least 0";
        let share = |v: &Value| number(v).filter(|&x| x <= 1.0);
        self.do_sample = find(files, "do_sample", "true or false", Value::as_bool)?;
        self.temperature = find(files, "temperature", FROM_0, number)?;
        self.top_k = find(files, "top_k", COUNT, count)?;
        self.top_p = find(files, "top_p", SHARE, share)?;
        self.min_p = find(files, "min_p", SHARE, share)?;
        self.repetition_penalty = find(files, "repetition_penalty", "a number above 0", |v| {
            number(v).filter(|&x| x > 0.0)
        })?;
        self.max_new_tokens = find(files, "max_new_tokens", "an integer of at least 1", |v| {
            count(v).filter(|&n| n > 0)
        })?;
        Ok(self)
    }

    /// Takes sampling settings from elsewhere, under the names of `generation_config.json`; `file` names them in
    /// errors.
    pub fn with_settings(self, file: &str, values: Map<String, Value>) -> Result<Self, TextError> {
        self.with_sampling(&[Named { file: file.to_owned(), values }])
    }

    /// Whether anything says how tokens are sampled.
    pub fn says_sampling(&self) -> bool {
        let numbers = [self.temperature, self.top_p, self.min_p];
        numbers.iter().any(Option::is_some) || self.top_k.is_some()
    }

    /// Adds the tokenizer's own `eos_token` to the end tokens. One that is not in the vocabulary
    /// can never be generated and is left out.
    #[must_use]
    pub fn with_chat_eos(mut self, tokenizer: &Tokenizer, special: &SpecialTokens) -> Self {
        let id = special.get("eos_token").and_then(|text| tokenizer.token_to_id(text));
        self.eos_token_ids.extend(id.filter(|id| !self.eos_token_ids.contains(id)));
        self
    }
}

/// The first file that has the key decides.
fn find<T>(
    files: &[Named],
    key: &str,
    expected: &'static str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, TextError> {
    let present = |named: &&Named| named.values.get(key).is_some_and(|v| !v.is_null());
    let Some(named) = files.iter().find(present) else { return Ok(None) };
    let value = &named.values[key];
    read(value).map(Some).ok_or_else(|| field_error(&named.file, key, value, expected))
}

fn count(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|n| u32::try_from(n).ok())
}

fn token_ids(value: &Value) -> Option<Vec<Token>> {
    let Value::Array(list) = value else { return count(value).map(|id| vec![id]) };
    if list.is_empty() || list.len() > MAX_EOS {
        return None;
    }
    let mut ids = Vec::new();
    for id in list {
        let id = count(id)?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Some(ids)
}

/// A finite number of at least 0 that stays finite as `f32`.
fn number(value: &Value) -> Option<f32> {
    let x = value.as_f64()? as f32;
    (x.is_finite() && x >= 0.0).then_some(x)
}
