//! Arguments between tags: strings stand as they are, everything else as JSON.
//!
//! What is read back decides what may be written. Where an argument may be a string or something else, text that would
//! be read as something else is no string of it.

use super::super::schema::{self, Kinds, constants, properties, resolved};
use super::super::xml::json_of;
use super::super::{Tool, tool::refused};
use super::strings::{conditions, without};
use super::{Lark, check_key, json_rule, literal};
use crate::error::TextError;
use serde_json::{Map, Value, json};

const CLOSE: &str = "\n</parameter>";
const TAG: &str = "</parameter>";

/// The parameters of call `n`, in the order of the schema.
pub(super) fn parameters(lark: &mut Lark<'_>, n: usize, tool: &Tool) -> Result<String, TextError> {
    let root = &tool.parameters;
    if !root.contains_key("properties") && root.get("additionalProperties") == Some(&true.into()) {
        return Ok(free_parameters(lark, n));
    }
    let mut names = Vec::new();
    for (index, (key, schema, required)) in properties(root).into_iter().enumerate() {
        check_key(tool, key, "<>\n")?;
        let rule = format!("parameter_{n}_{index}");
        let head = literal(&format!("<parameter={key}>\n"));
        let branches = XmlWriter { lark, root, rule: &rule, terminals: 0 }.value(schema);
        if branches.is_empty() {
            let problem = format!(
                "this model's call form has no way to write a value of the argument {}",
                literal(key)
            );
            return Err(refused(format!("tool `{}`", tool.name), problem));
        }
        lark.rule(&rule, &format!(r#"{head} ({}) "\n""#, branches.join(" | ")));
        names.push(if required { rule } else { format!("{rule}?") });
    }
    Ok(names.join(" "))
}

/// Arguments of a tool that says nothing but that there may be some: any names, any text.
fn free_parameters(lark: &mut Lark<'_>, n: usize) -> String {
    let rule = format!("parameter_{n}");
    lark.rule(&format!("{rule}_head"), r"/<parameter=[^<>\n]+>\n/");
    lark.rule(&format!("{rule}_text[lazy]"), r"/(.|\n)*<\/parameter>/");
    lark.rule(&rule, &format!(r#"{rule}_head {rule}_text "\n""#));
    format!("{rule}*")
}

struct XmlWriter<'l, 'd, 's> {
    lark: &'l mut Lark<'d>,
    root: &'s Map<String, Value>,
    rule: &'l str,
    terminals: usize,
}

/// What an argument may be, apart from strings.
#[derive(Default)]
struct Parts<'s> {
    /// Values that are given.
    constants: Vec<Value>,
    /// Schemas of strings.
    texts: Vec<&'s Map<String, Value>>,
    /// Schemas of numbers, lists and objects.
    others: Vec<Value>,
}

impl<'s> XmlWriter<'_, '_, 's> {
    /// Expressions for a value with its closing tag, one of which it has to be.
    fn value(&mut self, schema: &'s Value) -> Vec<String> {
        let mut parts = Parts::default();
        if !self.sort(schema, &mut parts) {
            return vec![self.free()];
        }
        let kinds = Kinds::of(self.root, schema);
        let mut branches = Vec::new();
        for value in &parts.constants {
            let text = match value {
                Value::String(text) if text.contains(TAG) => continue,
                Value::String(text) if json_of(text, kinds).is_some() => continue,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            branches.push(literal(&(text + CLOSE)));
        }
        for text in parts.texts {
            branches.push(self.text(text, kinds));
        }
        for other in parts.others {
            let other = schema::standalone(self.root, &other);
            branches.push(format!("{} {}", json_rule(other), literal(CLOSE)));
        }
        branches
    }

    /// Any text.
    fn free(&mut self) -> String {
        let value = format!("{}_text", self.rule);
        self.lark.rule(&format!("{value}[lazy]"), r"/(.|\n)*<\/parameter>/");
        value
    }

    /// Text of this schema that is not read as anything else.
    fn text(&mut self, schema: &Map<String, Value>, kinds: Kinds) -> String {
        let mut all = conditions(schema);
        if all.is_empty() && kinds.only_text() {
            return self.free();
        }
        all.push(without(TAG));
        for (admitted, looks) in [
            (kinds.null, r"\s*(null|None)\s*"),
            (kinds.boolean, r"\s*(true|false|True|False)\s*"),
            (kinds.number, r"\s*-?[0-9](.|\n)*"),
            (kinds.array, r"\s*\[(.|\n)*"),
            (kinds.object, r"\s*\{(.|\n)*"),
        ] {
            if admitted {
                all.push(format!("~/{looks}/"));
            }
        }
        self.terminals += 1;
        let terminal = format!("{}_{}", self.rule.to_uppercase(), self.terminals);
        self.lark.rule(&terminal, &format!("({}) {}", all.join(" & "), literal(CLOSE)));
        terminal
    }

    /// Sorts what a schema admits; false where it cannot be told apart.
    fn sort(&self, schema: &'s Value, parts: &mut Parts<'s>) -> bool {
        if let Some(values) = constants(self.root, schema) {
            parts.constants.extend(values.iter().cloned());
            return true;
        }
        let found = resolved(self.root, schema).and_then(Value::as_object);
        let Some(schema) = found else { return false };
        if let Some(kind) = schema.get("type") {
            let kinds = match kind {
                Value::Array(kinds) => &kinds[..],
                one => std::slice::from_ref(one),
            };
            return kinds.iter().all(|kind| self.sort_kind(kind, schema, parts));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(branches)) = schema.get(key) {
                return branches.iter().all(|branch| {
                    // Alternatives inside alternatives are for those who write JSON.
                    let flat = branch.get("anyOf").or(branch.get("oneOf")).is_none();
                    flat && self.sort(branch, parts)
                });
            }
        }
        false
    }

    fn sort_kind(
        &self,
        kind: &Value,
        schema: &'s Map<String, Value>,
        parts: &mut Parts<'s>,
    ) -> bool {
        match kind.as_str() {
            Some("string") => parts.texts.push(schema),
            // As words they are told apart from text that only begins like them.
            Some("null") => parts.constants.push(Value::Null),
            Some("boolean") => parts.constants.extend([json!(true), json!(false)]),
            Some("integer" | "number" | "array" | "object") => {
                let mut one = schema.clone();
                one.insert("type".to_owned(), kind.clone());
                parts.others.push(Value::Object(one));
            }
            _ => return false,
        }
        true
    }
}
