//! Arguments in Gemma's own notation: JSON with bare keys and strings in quote marks.

use super::super::schema::{properties, resolved};
use super::super::{GEMMA_QUOTE, Tool};
use super::strings::{conditions, without};
use super::{Lark, check_key, json_rule, literal};
use crate::error::TextError;
use serde_json::{Map, Value, json};

/// Deeper schemas are held to the notation only.
const MAX_DEPTH: usize = 16;
/// More items are not counted.
const MAX_ITEMS: u64 = 1000;
const FORBIDDEN_IN_KEYS: &str = "<>{}[],:\" \n";

/// The rules for the arguments of call `n`; returns the name of the first.
pub(super) fn arguments(lark: &mut Lark<'_>, n: usize, tool: &Tool) -> Result<String, TextError> {
    if n == 0 {
        common(lark);
    }
    let mut writer = GemmaWriter { lark, tool, n, rules: 0 };
    writer.object(&tool.parameters, 0)
}

/// What every tool uses: values of any shape.
fn common(lark: &mut Lark<'_>) {
    let quote = lark.mark(GEMMA_QUOTE);
    if lark.dialect.special_token(GEMMA_QUOTE).is_some() {
        lark.rule("string", &format!("{quote} quoted {quote}"));
        lark.rule("quoted", "QUOTED");
        // Spelled letter by letter, the mark would be read as the end.
        lark.rule("QUOTED", &format!(r"/(.|\n)*/ & {}", without(GEMMA_QUOTE)));
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

struct GemmaWriter<'l, 'd, 't> {
    lark: &'l mut Lark<'d>,
    tool: &'t Tool,
    n: usize,
    rules: usize,
}

impl<'t> GemmaWriter<'_, '_, 't> {
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
            let none = schema.get("additionalProperties") == Some(&Value::Bool(false));
            return Ok(if none { r#"("{" "}")"# } else { "object" }.to_owned());
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
            "string" => self.string(schema),
            "integer" | "number" => number(kind, schema),
            "boolean" => "BOOLEAN".to_owned(),
            "null" => r#""null""#.to_owned(),
            "object" => self.object(schema, depth)?,
            "array" => {
                let item = match schema.get("items") {
                    Some(items) => self.value(items, depth + 1)?,
                    None => "any".to_owned(),
                };
                list(&item, schema)
            }
            _ => "any".to_owned(),
        })
    }

    /// A string in its marks.
    fn string(&mut self, schema: &Map<String, Value>) -> String {
        let mut all = conditions(schema);
        if all.is_empty() {
            return "string".to_owned();
        }
        all.push(without(GEMMA_QUOTE));
        let (quote, terminal) = (self.lark.mark(GEMMA_QUOTE), self.fresh().to_uppercase());
        let text = all.join(" & ");
        if self.lark.dialect.special_token(GEMMA_QUOTE).is_some() {
            self.lark.rule(&terminal, &text);
            format!("({quote} {terminal} {quote})")
        } else {
            self.lark.rule(&terminal, &format!("({text}) {quote}"));
            format!("({quote} {terminal})")
        }
    }

    /// A value the schema gives word for word.
    fn constant(&self, value: &Value) -> String {
        let quote = self.lark.mark(GEMMA_QUOTE);
        match value {
            Value::String(text) if text.is_empty() => format!("({quote} {quote})"),
            Value::String(text) => format!("({quote} {} {quote})", literal(text)),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| self.constant(item)).collect();
                format!(r#"("[" {} "]")"#, items.join(r#" "," "#))
            }
            Value::Object(fields)
                if fields.keys().any(|key| key.contains(|c| FORBIDDEN_IN_KEYS.contains(c))) =>
            {
                "object".to_owned()
            }
            Value::Object(fields) => {
                let field = |(key, value): (&String, &Value)| {
                    format!("{} {}", literal(&format!("{key}:")), self.constant(value))
                };
                let fields: Vec<String> = fields.iter().map(field).collect();
                format!(r#"("{{" {} "}}")"#, fields.join(r#" "," "#))
            }
            scalar => literal(&scalar.to_string()),
        }
    }
}

/// A number; bounds are for those who know JSON.
fn number(kind: &str, schema: &Map<String, Value>) -> String {
    let mut bounds = Map::new();
    for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"] {
        if let Some(bound) = schema.get(key) {
            bounds.insert(key.to_owned(), bound.clone());
        }
    }
    if bounds.is_empty() {
        return if kind == "integer" { "INTEGER" } else { "NUMBER" }.to_owned();
    }
    bounds.insert("type".to_owned(), json!(kind));
    json_rule(Value::Object(bounds))
}

/// A list of so many items.
fn list(item: &str, schema: &Map<String, Value>) -> String {
    let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
    let (least, most) = (bound("minItems").unwrap_or(0).min(MAX_ITEMS), bound("maxItems"));
    let most = most.filter(|&most| most <= MAX_ITEMS);
    if most == Some(0) {
        return r#"("[" "]")"#.to_owned();
    }
    let (rest, optional) = (least.saturating_sub(1), if least == 0 { "?" } else { "" });
    let rest = match most {
        Some(1) => String::new(),
        Some(most) => format!(r#" ("," {item}){{{rest},{}}}"#, (most - 1).max(rest)),
        None => format!(r#" ("," {item}){{{rest},}}"#),
    };
    format!(r#"("[" ({item}{rest}){optional} "]")"#)
}

fn alternatives(branches: &[String]) -> String {
    if branches.is_empty() { "any".to_owned() } else { format!("({})", branches.join(" | ")) }
}
