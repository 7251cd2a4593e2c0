//! The named special tokens of a model: `bos_token`, `eos_token` and the like.

use crate::error::TextError;
use crate::file::{field_error, read_json_object};
use serde_json::{Map, Value};
use std::path::Path;

/// Named special tokens as texts, from `tokenizer_config.json` and, for names missing there,
/// `special_tokens_map.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    tokens: Vec<(String, String)>,
}

const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl SpecialTokens {
    /// Reads the two files of a model folder; either may be missing.
    pub fn load(folder: &Path) -> Result<Self, TextError> {
        let mut found = Self::default();
        for name in ["tokenizer_config.json", "special_tokens_map.json"] {
            let path = folder.join(name);
            if let Some(object) = read_json_object(&path)? {
                found.add(&path.display().to_string(), &object)?;
            }
        }
        Ok(found)
    }

    /// Takes the names that are not known yet from a JSON object; `file` names it in errors.
    pub fn add(&mut self, file: &str, object: &Map<String, Value>) -> Result<(), TextError> {
        for name in NAMES {
            let text = match object.get(name) {
                None | Some(Value::Null) => continue,
                Some(Value::String(text)) => text,
                // The form of an added token: the text with its matching rules.
                Some(value) => match value.get("content") {
                    Some(Value::String(text)) => text,
                    _ => return Err(field_error(file, name, value, "a token text")),
                },
            };
            if self.get(name).is_none() {
                self.tokens.push((name.to_owned(), text.clone()));
            }
        }
        Ok(())
    }

    /// The text of one, by its name (`eos_token`).
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == name).map(|(_, text)| text)
    }

    /// All that are known, as name and text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tokens.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }
}

impl FromIterator<(&'static str, String)> for SpecialTokens {
    fn from_iter<I: IntoIterator<Item = (&'static str, String)>>(named: I) -> Self {
        let tokens = named.into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
        Self { tokens }
    }
}
