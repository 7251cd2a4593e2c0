//! The tools a client offers.

use super::schema;
use crate::error::TextError;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// A tool as far as calling it goes. The template gets the client's own JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// The name the model calls.
    pub name: String,
    /// JSON Schema of the arguments; of type `object`.
    pub parameters: Map<String, Value>,
}

/// Which tools must be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// At least one call, of any tool.
    Required,
    /// One call of this tool.
    Named(String),
}

/// Longer names are nobody's; a reader of answers gives up there.
pub(super) const MAX_NAME_CHARS: usize = 128;

impl Tool {
    /// Reads the `tools` of a chat request: `{"type": "function", "function": {…}}` each.
    pub fn parse_all(tools: &[Value]) -> Result<Vec<Self>, TextError> {
        let mut names = HashSet::new();
        tools
            .iter()
            .enumerate()
            .map(|(index, tool)| {
                let path = format!("tools[{index}]");
                let tool = Self::parse(&path, tool)?;
                if !names.insert(tool.name.clone()) {
                    let problem = format!("`{}` is defined twice", tool.name);
                    return Err(refused(format!("{path}.function.name"), problem));
                }
                Ok(tool)
            })
            .collect()
    }

    /// The tool with what `$ref` and `allOf` say of its arguments written out.
    pub(super) fn flattened(&self) -> Self {
        Self { name: self.name.clone(), parameters: schema::flattened(&self.parameters) }
    }

    fn parse(path: &str, tool: &Value) -> Result<Self, TextError> {
        match tool.get("type").map(Value::as_str) {
            Some(Some("function")) => {}
            Some(Some(kind)) => {
                let problem = format!("{kind} is not supported; only function is");
                return Err(refused(format!("{path}.type"), problem));
            }
            _ => return Err(refused(format!("{path}.type"), "must be \"function\"")),
        }
        let function = tool.get("function").and_then(Value::as_object);
        let path = format!("{path}.function");
        let function = function.ok_or_else(|| refused(&path, "must be an object"))?;
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        check_name(&format!("{path}.name"), name)?;
        if !matches!(function.get("strict"), None | Some(Value::Null | Value::Bool(_))) {
            return Err(refused(format!("{path}.strict"), "must be true or false"));
        }
        if !matches!(function.get("description"), None | Some(Value::Null | Value::String(_))) {
            return Err(refused(format!("{path}.description"), "must be a string"));
        }
        let mut parameters = match function.get("parameters") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(schema)) => schema.clone(),
            Some(_) => {
                return Err(refused(format!("{path}.parameters"), "must be a JSON Schema object"));
            }
        };
        match parameters.get("type").map(Value::as_str) {
            None => drop(parameters.insert("type".to_owned(), "object".into())),
            Some(Some("object")) => {}
            Some(_) => {
                return Err(refused(format!("{path}.parameters.type"), "must be \"object\""));
            }
        }
        Ok(Self { name: name.to_owned(), parameters })
    }
}

/// Names appear inside marks, so they must not be able to end one.
fn check_name(path: &str, name: &str) -> Result<(), TextError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
    if name.is_empty() || name.len() > MAX_NAME_CHARS || !name.chars().all(fits) {
        let problem =
            format!("must be 1 to {MAX_NAME_CHARS} letters, digits, or any of `_ - . : /`");
        return Err(refused(path, problem));
    }
    Ok(())
}

pub(super) fn refused(path: impl Into<String>, problem: impl Into<String>) -> TextError {
    TextError::Message { path: path.into(), problem: problem.into() }
}
