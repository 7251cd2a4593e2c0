//! Random schemas whose answers are short.

use crate::setup::Luck;
use serde_json::{Map, Value, json};

const NAMES: [&str; 8] = ["name", "age", "is it so?", "größe", "a\"b", "tags", "id", "x"];

/// A schema of some levels; the outermost is an object.
pub(crate) fn schema(luck: &mut Luck) -> Value {
    let mut schema = object(luck, 2);
    if luck.once_in(3) {
        let node = json!({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]});
        schema["$defs"] = json!({"node": node, "leaf": leaf(luck)});
        schema["properties"]["next"] = json!({"$ref": "#/$defs/node"});
    }
    schema
}

fn object(luck: &mut Luck, levels: usize) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for _ in 0..1 + luck.below(4) {
        let name = NAMES[luck.below(NAMES.len())];
        properties.insert(name.to_owned(), any(luck, levels));
        if !luck.once_in(3) && !required.contains(&name) {
            required.push(name);
        }
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn any(luck: &mut Luck, levels: usize) -> Value {
    match luck.below(if levels > 0 { 6 } else { 3 }) {
        0..3 => leaf(luck),
        3 => object(luck, levels - 1),
        4 => {
            let least = luck.below(2);
            let most = least + 1 + luck.below(2);
            json!({"type": "array", "items": any(luck, levels - 1), "minItems": least, "maxItems": most})
        }
        _ => json!({"anyOf": [leaf(luck), object(luck, 0)]}),
    }
}

fn leaf(luck: &mut Luck) -> Value {
    match luck.below(11) {
        0 => json!({"type": "boolean"}),
        1 => json!({"type": "null"}),
        2 => json!({"type": "integer", "minimum": -5, "maximum": 1200}),
        3 => json!({"type": "number", "minimum": 0, "maximum": 10}),
        4 => json!({"enum": ["red", "blåbær", 7, null, "a \"quoted\" one"]}),
        5 => json!({"const": "a constant, long enough to be forced token by token"}),
        6 => json!({"type": "string", "pattern": "^[0-9]{2,4}$"}),
        7 => json!({"type": ["string", "null"], "maxLength": 5}),
        8 => {
            json!({"anyOf": [{"type": "boolean"}, {"type": "string", "minLength": 1, "maxLength": 4},
            {"type": "integer", "minimum": 3, "maximum": 30}]})
        }
        9 => json!({"enum": ["7", 7, true, [1, "two"], {"a": null}]}),
        _ => {
            let least = luck.below(3);
            json!({"type": "string", "minLength": least, "maxLength": least + 1 + luck.below(12)})
        }
    }
}
