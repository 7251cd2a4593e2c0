//! Tools of the Responses API as functions, which is what chat templates know, and calls of functions as calls of
//! these.
//!
//! ```text
//!   function                     the same
//!   custom, whose input is text  a function with one argument, `input`
//!   namespace of tools           its tools, with its name and a dot before theirs
//! ```

use crate::api::{Ignored, RequestFields, fields};
use crate::error::ServerError;
use crate::wire::responses::{CustomFormat, CustomTool, FunctionTool, Namespace};
use serde_json::{Value, json};
use std::collections::HashMap;

/// The argument of a custom tool's function.
const INPUT: &str = "input";

/// The tools of a request.
#[derive(Debug, Default)]
pub(super) struct ResponsesTools {
    /// As chat templates know them.
    pub(super) functions: Vec<Value>,
    /// Where each is in the request.
    pub(super) places: Vec<String>,
    pub(super) names: ToolNames,
}

/// How functions are called by the client where it does not call them as the model does.
#[derive(Clone, Debug, Default)]
pub(super) struct ToolNames(HashMap<String, CalledTool>);

/// A tool as the client calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CalledTool {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// The input is text.
    pub(super) custom: bool,
}

impl ToolNames {
    /// How the client calls a function.
    pub(super) fn called(&self, function: &str) -> CalledTool {
        let same = || CalledTool { namespace: None, name: function.to_owned(), custom: false };
        self.0.get(function).cloned().unwrap_or_else(same)
    }
}

/// The name of a function for the model.
pub(super) fn function_name(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}.{name}"))
}

/// The arguments of a custom tool's function.
pub(super) fn arguments_of(input: &str) -> String {
    json!({INPUT: input}).to_string()
}

/// The input of a custom tool from the arguments of its function; of arguments that broke off, what there is.
pub(super) fn input_of(arguments: &str) -> String {
    let input = |text: &str| match serde_json::from_str::<Value>(text) {
        Ok(arguments) => arguments.get(INPUT).and_then(Value::as_str).map(str::to_owned),
        Err(_) => None,
    };
    /// The longest escape, `\ud83d\ude00`, can be cut anywhere.
    const LONGEST: usize = 12;
    let cuts = (0..=LONGEST).filter_map(|cut| arguments.get(..arguments.len().checked_sub(cut)?));
    let closed = |text: &str| input(&format!("{text}\"}}"));
    input(arguments).or_else(|| cuts.map(closed).find_map(|input| input)).unwrap_or_default()
}

impl ResponsesTools {
    /// Reads the tools of a request. Those that only another server could run are ignored.
    pub(super) fn read(tools: &[Value], ignored: &Ignored) -> Result<Self, ServerError> {
        let mut read = Self::default();
        for (i, tool) in tools.iter().enumerate() {
            read.take(&format!("tools[{i}]"), tool, None, ignored)?;
        }
        Ok(read)
    }

    fn take(
        &mut self,
        place: &str,
        tool: &Value,
        namespace: Option<&str>,
        ignored: &Ignored,
    ) -> Result<(), ServerError> {
        let kind = tool.get("type").and_then(Value::as_str).unwrap_or("function");
        let whole = || match tool {
            Value::Object(tool) => RequestFields::new(place, tool.clone(), ignored).rest(),
            other => Ok(other.clone()),
        };
        match kind {
            "function" => {
                let tool: FunctionTool = fields::read(place, whole()?)?;
                self.offer(place, called(namespace, &tool.name, false), function(tool));
            }
            "custom" => {
                let mut tool =
                    RequestFields::new(place, fields::read(place, tool.clone())?, ignored);
                let format = tool.take("format")?;
                if let Some(CustomFormat::Grammar { .. }) = format {
                    tool.ignored("format")?;
                }
                let tool: CustomTool = fields::read(place, tool.rest()?)?;
                self.offer(place, called(namespace, &tool.name, true), custom(tool, format));
            }
            "namespace" if namespace.is_none() => {
                let space: Namespace = fields::read(place, whole()?)?;
                for (i, tool) in space.tools.iter().enumerate() {
                    self.take(&format!("{place}.tools[{i}]"), tool, Some(&space.name), ignored)?;
                }
            }
            kind if ignored.tool(place, kind)? => {}
            kind => {
                let (field, kind) = (format!("{place}.type"), crate::app::shortened(kind));
                let message = format!(
                    "`{field}`: {kind} is not supported; only tools of the client can be called"
                );
                return Err(ServerError::invalid(&field, message));
            }
        }
        Ok(())
    }

    fn offer(&mut self, place: &str, called: CalledTool, mut function: Value) {
        let name = function_name(called.namespace.as_deref(), &called.name);
        function["name"] = name.as_str().into();
        self.functions.push(json!({"type": "function", "function": function}));
        self.places.push(place.to_owned());
        if called.custom || called.namespace.is_some() {
            self.names.0.insert(name, called);
        }
    }
}

fn called(namespace: Option<&str>, name: &str, custom: bool) -> CalledTool {
    CalledTool { namespace: namespace.map(str::to_owned), name: name.to_owned(), custom }
}

fn function(tool: FunctionTool) -> Value {
    let mut function = json!({"name": tool.name});
    if let Some(description) = tool.description {
        function["description"] = description.into();
    }
    if let Some(parameters) = tool.parameters {
        function["parameters"] = parameters.into();
    }
    function
}

fn custom(tool: CustomTool, format: Option<CustomFormat>) -> Value {
    let mut input = json!({"type": "string"});
    if let Some(CustomFormat::Grammar { syntax, definition }) = format {
        input["description"] = format!("Text of this {syntax} grammar:\n{definition}").into();
    }
    let mut function = json!({"name": tool.name});
    if let Some(description) = tool.description {
        function["description"] = description.into();
    }
    function["parameters"] = json!({
        "type": "object", "properties": {INPUT: input}, "required": [INPUT],
        "additionalProperties": false,
    });
    function
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_of_a_custom_tool_comes_out_of_its_arguments_as_far_as_they_go() {
        let input = "*** Begin \"Patch\"\n+ä😀\\";
        let whole = arguments_of(input);
        assert_eq!(input_of(&whole), input);
        let escaped = r#"{"input": "a\ud83d\ude00b"}"#;
        assert_eq!(input_of(escaped), "a😀b");
        for text in [whole.as_str(), escaped] {
            let full = input_of(text);
            for cut in (0..text.len()).filter(|&cut| text.is_char_boundary(cut)) {
                let part = input_of(&text[..cut]);
                assert!(full.starts_with(&part), "{:?} of {:?}", part, &text[..cut]);
            }
        }
        assert_eq!(input_of(r#"{"input": "a\ud83d\ude00b"#), "a😀b");
        assert_eq!(input_of(r#"{"input": "a\ud83d\ude0"#), "a");
        assert_eq!(input_of("[]"), "");
    }
}
