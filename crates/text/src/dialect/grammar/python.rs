//! Arguments by name, as in a call of Python: values are JSON, but for the words that Python spells otherwise.

use super::super::Tool;
use super::super::schema::{self, properties, resolved};
use super::{Lark, check_key, json_rule, literal};
use crate::error::TextError;
use serde_json::{Map, Value};

const FORBIDDEN_IN_KEYS: &str = "<>(){}[]=,:'\" \n";

/// The arguments of call `n` and the closing bracket, in the order of the schema; returns the name of the first rule.
pub(super) fn arguments(lark: &mut Lark<'_>, n: usize, tool: &Tool) -> Result<String, TextError> {
    let root = &tool.parameters;
    // From the last to the first: what may follow when an argument came before, and when none did.
    let (mut after, mut first) = (r#"")""#.to_owned(), r#"")""#.to_owned());
    for (index, (key, schema, required)) in properties(root).into_iter().enumerate().rev() {
        check_key(tool, key, FORBIDDEN_IN_KEYS)?;
        let pair = format!("{} {}", literal(&format!("{key}=")), value(root, schema));
        let rules = [format!("after_{n}_{index}"), format!("first_{n}_{index}")];
        let skip = |rest: &str| if required { String::new() } else { format!(" | {rest}") };
        lark.rule(&rules[0], &format!(r#"", " {pair} {after}{}"#, skip(&after)));
        lark.rule(&rules[1], &format!("{pair} {after}{}", skip(&first)));
        [after, first] = rules;
    }
    Ok(first)
}

/// An expression for a value of this schema.
fn value(root: &Map<String, Value>, schema: &Value) -> String {
    let kind = resolved(root, schema).and_then(|schema| schema.get("type")).and_then(Value::as_str);
    match kind {
        Some("boolean") => r#"("True" | "False")"#.to_owned(),
        Some("null") => r#""None""#.to_owned(),
        _ => json_rule(schema::standalone(root, schema)),
    }
}
