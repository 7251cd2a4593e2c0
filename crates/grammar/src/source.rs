//! Grammars as clients write them.

use crate::GrammarError;
use crate::limits::MULTIPLE;
use crate::loosen::{Loosen, loosen};
use llguidance::JsonCompileOptions;
use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};
use std::fmt::Write;

/// Brackets inside brackets.
const MAX_DEPTH: usize = 100;
/// Texts of a choice.
const MAX_CHOICES: usize = 10_000;
/// Texts in quotes in a Lark grammar, which may hold schemas.
const MAX_QUOTED: usize = 8192;
/// Fields of all objects in a schema. One costs about a millisecond, once.
const MAX_FIELDS: usize = 4096;

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSource {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema describes.
    JsonSchema(Value),
    /// The whole answer matches a regular expression.
    Regex(String),
    /// One of some texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's form of Lark.
    Lark(String),
}

impl GrammarSource {
    /// Bytes of a grammar's text that are read.
    pub const MAX_BYTES: usize = 256 << 10;

    /// What it is, in words.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::JsonObject => "JSON object",
            Self::JsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Choice(_) => "choice",
            Self::Lark(_) => "Lark grammar",
        }
    }

    /// The text that tells it apart from all others, checked for size.
    pub(crate) fn key(&self) -> Result<String, GrammarError> {
        let text = match self {
            Self::JsonObject => String::new(),
            Self::JsonSchema(schema) => {
                let (fields, depth) = extent(schema);
                self.limit(depth, "levels", MAX_DEPTH)?;
                self.limit(fields, "fields", MAX_FIELDS)?;
                self.limit_multiples(schema)?;
                schema.to_string()
            }
            Self::Regex(text) | Self::Lark(text) => {
                self.limit(nesting(text), "levels of brackets", MAX_DEPTH)?;
                let quotes = text.bytes().filter(|&byte| byte == b'"').count();
                self.limit(quotes / 2, "texts in quotes", MAX_QUOTED)?;
                self.limit(text.len(), "bytes", Self::MAX_BYTES)?;
                schemas_in(text).iter().try_for_each(|schema| self.limit_multiples(schema))?;
                text.clone()
            }
            Self::Choice(texts) => {
                if texts.is_empty() {
                    return Err(GrammarError::NoChoice);
                }
                self.limit(texts.len(), "texts", MAX_CHOICES)?;
                json!(texts).to_string()
            }
        };
        self.limit(text.len(), "bytes", Self::MAX_BYTES)?;
        Ok(format!("{}:{text}", self.kind()))
    }

    fn limit(&self, size: usize, unit: &'static str, most: usize) -> Result<(), GrammarError> {
        let kind = self.kind();
        if size > most { Err(GrammarError::TooLarge { kind, size, unit, most }) } else { Ok(()) }
    }

    /// The lexer has a state for each remainder of `multipleOf`. Several that meet in one number count as their least
    /// common multiple; those of a schema without references and `allOf` never meet.
    fn limit_multiples(&self, schema: &Value) -> Result<(), GrammarError> {
        let (mut steps, mut meet) = (Vec::new(), false);
        each_field(schema, &mut |key, value| match (key, value.as_f64()) {
            ("multipleOf", Some(value)) => steps.push(units(value)),
            ("allOf" | "$ref" | "$dynamicRef", _) => meet = true,
            _ => {}
        });
        let most = steps.iter().copied().fold(0.0, f64::max);
        let together = steps.iter().copied().fold(1.0, least_common_multiple);
        let size = if meet { together.max(most) } else { most };
        self.limit(size as usize, "steps of `multipleOf`", MULTIPLE as usize)
    }

    /// The same for llguidance.
    pub(crate) fn grammar(&self) -> Result<TopLevelGrammar, GrammarError> {
        Ok(match self {
            Self::JsonObject => {
                TopLevelGrammar::from_json_schema(compact(&json!({"type": "object"})))
            }
            Self::JsonSchema(Value::Bool(true)) => {
                TopLevelGrammar::from_json_schema(compact(&json!({})))
            }
            Self::JsonSchema(schema @ Value::Object(_)) => {
                TopLevelGrammar::from_json_schema(compact(schema))
            }
            Self::JsonSchema(_) => {
                let why = "a schema is an object, or `true`".to_owned();
                return Err(GrammarError::Invalid { kind: self.kind(), why });
            }
            Self::Regex(text) => TopLevelGrammar::from_regex(whole(text)),
            Self::Choice(texts) => TopLevelGrammar::from_regex(&alternatives(texts)),
            Self::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        })
    }
}

/// A schema whose JSON has no spaces: a small model that may write some may write them forever. What constrains nothing
/// is left out, since the compiler refuses formats it does not know.
fn compact(schema: &Value) -> Value {
    let (mut schema, _) = loosen(schema, Loosen::Annotations);
    let options =
        JsonCompileOptions { whitespace_flexible: false, ..JsonCompileOptions::default() };
    options.apply_to(&mut schema);
    schema
}

/// An expression that is anchored at both ends anyway.
fn whole(text: &str) -> &str {
    let text = text.strip_prefix('^').unwrap_or(text);
    let escapes = |before: &str| before.chars().rev().take_while(|&c| c == '\\').count();
    text.strip_suffix('$').filter(|before| escapes(before) % 2 == 0).unwrap_or(text)
}

/// An expression for one of some texts, each taken by the letter.
fn alternatives(texts: &[String]) -> String {
    let mut expression = String::new();
    for (i, text) in texts.iter().enumerate() {
        expression.push(if i == 0 { '(' } else { '|' });
        for c in text.chars() {
            if c.is_alphanumeric() || c == ' ' || c == '_' {
                expression.push(c);
            } else {
                write!(expression, "\\x{{{:x}}}", u32::from(c)).expect("a string takes all");
            }
        }
    }
    expression + ")"
}

/// A number in units of its last digit, as far as that matters.
fn units(mut value: f64) -> f64 {
    while value.fract() != 0.0 && value <= MULTIPLE {
        value *= 10.0;
    }
    value
}

/// Of integers; more than allowed where it would be.
fn least_common_multiple(a: f64, b: f64) -> f64 {
    if a > MULTIPLE || b > MULTIPLE || a < 1.0 || b < 1.0 {
        return a.max(b);
    }
    let (mut x, mut y) = (a as u64, b as u64);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x as f64 * b
}

/// The JSON schemas in a Lark grammar.
fn schemas_in(text: &str) -> Vec<Value> {
    let behind = text.split("%json").skip(1);
    let schema = |rest| serde_json::Deserializer::from_str(rest).into_iter().next();
    behind.filter_map(|rest| schema(rest)?.ok()).collect()
}

/// Shows every field of all objects in a value; found without recursion.
fn each_field<'a>(value: &'a Value, see: &mut dyn FnMut(&'a str, &'a Value)) {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(object) => {
                for (key, field) in object {
                    see(key, field);
                    open.push(field);
                }
            }
            _ => {}
        }
    }
}

/// Fields of all objects in a value, and its levels; counted without recursion.
fn extent(value: &Value) -> (usize, usize) {
    let (mut fields, mut deepest, mut open) = (0, 0, vec![(value, 1)]);
    while let Some((value, depth)) = open.pop() {
        deepest = deepest.max(depth);
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(object) => {
                fields += object.len();
                open.extend(object.values().map(|field| (field, depth + 1)));
            }
            _ => {}
        }
    }
    (fields, deepest)
}

/// How deep brackets of any kind stand in each other, at most. Quoted ones count too, which only makes it stricter.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}
