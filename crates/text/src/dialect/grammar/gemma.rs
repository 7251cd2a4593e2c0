//! Arguments in Gemma's own notation: JSON with bare keys and strings in quote marks.

use super::super::schema::{properties, resolved};
use super::super::{GEMMA_QUOTE, Tool};
use super::{Lark, check_key, literal};
use crate::error::TextError;
use serde_json::{Map, Value};

/// Deeper schemas are held to the notation only.
const MAX_DEPTH: usize = 16;
const FORBIDDEN_IN_KEYS: &str = "<>{}[],:\" \n";

/// The rules for the arguments of call `n`; returns the name of the first.
pub(super) fn arguments(lark: &mut Lark<'_>, n: usize, tool: &Tool) -> Result<String, TextError> {
    if n == 0 {
        common(lark);
    }
    let mut writer = Writer { lark, tool, n, rules: 0 };
    writer.object(&tool.parameters, 0)
}

/// What every tool uses: values of any shape.
fn common(lark: &mut Lark<'_>) {
    let quote = lark.mark(GEMMA_QUOTE);
    if lark.dialect.special_token(GEMMA_QUOTE).is_some() {
        lark.rule("string", &format!("{quote} quoted {quote}"));
        lark.rule("quoted", "QUOTED");
        lark.rule("QUOTED", r"/(.|\n)*/");
    } else {
        lark.rule("string", &format!("{quote} quoted"));
        lark.rule("quoted[lazy]", &format!("QUOTED {quote}"));
        lark.rule("QUOTED", r"/(.|\n)*/");
    }
    lark.rule("any", r#"string | NUMBER | BOOLEAN | "null" | object | list"#);
    lark.rule("object", r#""{" (pair ("," pair)*)? "}""#);
    lark.rule("pair", r#"KEY ":" any"#);
    lark.rule("list", r#""[" (any ("," any)*)? "]""#);
    lark.rule("KEY", "/[A-Za-z_][A-Za-z0-9_-]*/");
    lark.rule("INTEGER", "/-?(0|[1-9][0-9]{0,17})/");
    lark.rule("NUMBER", r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?/");
    lark.rule("BOOLEAN", r#""true" | "false""#);
}

struct Writer<'l, 'd, 't> {
    lark: &'l mut Lark<'d>,
    tool: &'t Tool,
    n: usize,
    rules: usize,
}

impl<'t> Writer<'_, '_, 't> {
    fn fresh(&mut self) -> String {
        self.rules += 1;
        format!("value_{}_{}", self.n, self.rules)
    }

    /// An object with the properties of `schema`, sorted as the template sorts them.
    fn object(
        &mut self,
        schema: &'t Map<String, Value>,
        depth: usize,
    ) -> Result<String, TextError> {
        let mut named = properties(schema);
        if named.is_empty() {
            return Ok("object".to_owned());
        }
        named.sort_by_key(|(key, ..)| key.to_lowercase());
        // From the last to the first: what may follow when an item came before, and when none did.
        let (mut after, mut first) = (r#""}""#.to_owned(), r#""}""#.to_owned());
        for (key, schema, required) in named.into_iter().rev() {
            check_key(self.tool, key, FORBIDDEN_IN_KEYS)?;
            let value = self.value(schema, depth + 1)?;
            let pair = format!("{} {value}", literal(&format!("{key}:")));
            let (next_after, next_first) = (self.fresh(), self.fresh());
            let skip = |rest: &str| if required { String::new() } else { format!(" | {rest}") };
            self.lark.rule(&next_after, &format!(r#""," {pair} {after}{}"#, skip(&after)));
            self.lark.rule(&next_first, &format!("{pair} {after}{}", skip(&first)));
            (after, first) = (next_after, next_first);
        }
        let rule = self.fresh();
        self.lark.rule(&rule, &format!(r#""{{" {first}"#));
        Ok(rule)
    }

    /// An expression for a value of this schema.
    fn value(&mut self, schema: &'t Value, depth: usize) -> Result<String, TextError> {
        const ANY: &str = "any";
        let found = resolved(&self.tool.parameters, schema).and_then(Value::as_object);
        let Some(schema) = found.filter(|_| depth < MAX_DEPTH) else { return Ok(ANY.to_owned()) };
        if let Some(value) = schema.get("const") {
            return Ok(self.constant(value));
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            let values: Vec<String> = values.iter().map(|value| self.constant(value)).collect();
            return Ok(alternatives(&values));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(branches)) = schema.get(key) {
                let branches = branches.iter().map(|branch| self.value(branch, depth + 1));
                return Ok(alternatives(&branches.collect::<Result<Vec<_>, _>>()?));
            }
        }
        match schema.get("type") {
            Some(Value::String(kind)) => self.typed(kind, schema, depth),
            Some(Value::Array(kinds)) => {
                let kinds = kinds.iter().filter_map(Value::as_str);
                let kinds = kinds.map(|kind| self.typed(kind, schema, depth));
                Ok(alternatives(&kinds.collect::<Result<Vec<_>, _>>()?))
            }
            _ => Ok(ANY.to_owned()),
        }
    }

    fn typed(
        &mut self,
        kind: &str,
        schema: &'t Map<String, Value>,
        depth: usize,
    ) -> Result<String, TextError> {
        Ok(match kind {
            "string" => "string".to_owned(),
            "integer" => "INTEGER".to_owned(),
            "number" => "NUMBER".to_owned(),
            "boolean" => "BOOLEAN".to_owned(),
            "null" => r#""null""#.to_owned(),
            "object" => self.object(schema, depth)?,
            "array" => {
                let item = match schema.get("items") {
                    Some(items) => self.value(items, depth + 1)?,
                    None => "any".to_owned(),
                };
                let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
                let optional = if least == 0 { "?" } else { "" };
                format!(r#"("[" ({item} ("," {item})*){optional} "]")"#)
            }
            _ => "any".to_owned(),
        })
    }

    /// A value the schema gives word for word.
    fn constant(&self, value: &Value) -> String {
        let quote = self.lark.mark(GEMMA_QUOTE);
        match value {
            Value::String(text) if text.is_empty() => format!("({quote} {quote})"),
            Value::String(text) => format!("({quote} {} {quote})", literal(text)),
            Value::Array(_) | Value::Object(_) => "any".to_owned(),
            scalar => literal(&scalar.to_string()),
        }
    }
}

fn alternatives(branches: &[String]) -> String {
    if branches.is_empty() { "any".to_owned() } else { format!("({})", branches.join(" | ")) }
}
