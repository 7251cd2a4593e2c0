//! Finds the chat template of a model folder.

use super::{ChatTemplate, SpecialTokens};
use crate::error::TextError;
use crate::file::{MAX_CONFIG_BYTES, field_error, read_json_object, read_optional};
use serde_json::{Map, Value};
use std::path::Path;

impl ChatTemplate {
    /// Loads `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`: one text, or
    /// a list of named ones of which `default` and `tool_use` are taken. `None` when the model
    /// has no template.
    pub fn load(folder: &Path) -> Result<Option<Self>, TextError> {
        let special = SpecialTokens::load(folder)?;
        let path = folder.join("chat_template.jinja");
        if let Some(bytes) = read_optional(&path, MAX_CONFIG_BYTES)? {
            let source = String::from_utf8(bytes).map_err(|e| TextError::Template {
                line: None,
                message: format!("{} is not UTF-8: {e}", path.display()),
            })?;
            return Self::from_source(&source, special).map(Some);
        }
        let path = folder.join("tokenizer_config.json");
        match read_json_object(&path)? {
            Some(config) => Self::from_config(&path.display().to_string(), &config, special),
            None => Ok(None),
        }
    }

    /// Takes the template out of a parsed `tokenizer_config.json`; `file` names it in errors.
    pub fn from_config(
        file: &str,
        config: &Map<String, Value>,
        special: SpecialTokens,
    ) -> Result<Option<Self>, TextError> {
        match config.get("chat_template") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(source)) => Self::from_source(source, special).map(Some),
            Some(Value::Array(named)) => {
                let find = |wanted: &str| {
                    let named_so = |t: &&Value| t.get("name").is_some_and(|name| name == wanted);
                    named.iter().find(named_so)?.get("template")?.as_str()
                };
                let (default, tool_use) = (find("default"), find("tool_use"));
                if default.is_none() && tool_use.is_none() {
                    let value = Value::Array(named.clone());
                    const EXPECTED: &str = "a list with a `default` or `tool_use` template";
                    return Err(field_error(file, "chat_template", &value, EXPECTED));
                }
                Self::from_sources(default, tool_use, special).map(Some)
            }
            Some(value) => Err(field_error(file, "chat_template", value, "a text or a list")),
        }
    }
}
