//! Whether a value is what a schema describes, for the schemas that [`crate::schemas`] makes.

use serde_json::Value;

pub(crate) fn is_valid(schema: &Value, value: &Value) -> bool {
    holds(schema, schema, value)
}

fn holds(root: &Value, schema: &Value, value: &Value) -> bool {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.strip_prefix("#/$defs/").expect("local references");
        return holds(root, &root["$defs"][name], value);
    }
    if let Some(options) = schema["anyOf"].as_array() {
        return options.iter().any(|option| holds(root, option, value));
    }
    if let Some(options) = schema["enum"].as_array() {
        return options.contains(value);
    }
    if let Some(constant) = schema.get("const") {
        return constant == value;
    }
    if let Some(kinds) = schema["type"].as_array() {
        let as_kind = |kind: &Value| {
            let mut schema = schema.clone();
            schema["type"] = kind.clone();
            holds(root, &schema, value)
        };
        return kinds.iter().any(as_kind);
    }
    match schema["type"].as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        // −0 and 1.0 are integers too.
        Some("integer") => value.as_f64().is_some_and(|n| n.fract() == 0.0 && in_range(schema, n)),
        Some("number") => value.as_f64().is_some_and(|n| in_range(schema, n)),
        Some("string") => value.as_str().is_some_and(|text| {
            let len = text.chars().count() as u64;
            let digits =
                schema.get("pattern").is_none() || text.bytes().all(|b| b.is_ascii_digit());
            len >= at_least(schema, "minLength") && len <= at_most(schema, "maxLength") && digits
        }),
        Some("array") => value.as_array().is_some_and(|items| {
            let len = items.len() as u64;
            let count = len >= at_least(schema, "minItems") && len <= at_most(schema, "maxItems");
            count && items.iter().all(|item| holds(root, &schema["items"], item))
        }),
        Some("object") => value.as_object().is_some_and(|fields| {
            let known = schema["properties"].as_object().expect("properties");
            let required = schema["required"].as_array().expect("required");
            required.iter().all(|name| fields.contains_key(name.as_str().expect("a name")))
                && fields.iter().all(|(name, field)| {
                    known.get(name).is_some_and(|schema| holds(root, schema, field))
                })
        }),
        other => panic!("no type this checks: {other:?}"),
    }
}

fn in_range(schema: &Value, n: f64) -> bool {
    schema["minimum"].as_f64().is_none_or(|least| n >= least)
        && schema["maximum"].as_f64().is_none_or(|most| n <= most)
}

fn at_least(schema: &Value, key: &str) -> u64 {
    schema[key].as_u64().unwrap_or(0)
}

fn at_most(schema: &Value, key: &str) -> u64 {
    schema[key].as_u64().unwrap_or(u64::MAX)
}

#[test]
fn the_check_itself_finds_what_is_wrong() {
    let schema = serde_json::json!({
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 9}, "b": {"enum": ["x", 1]}},
        "required": ["a"],
    });
    for (text, fits) in [
        (r#"{"a":3}"#, true),
        (r#"{"a":3,"b":"x"}"#, true),
        (r#"{"a":10}"#, false),
        (r#"{"b":1}"#, false),
        (r#"{"a":1,"b":2}"#, false),
        (r#"{"a":1,"c":2}"#, false),
        ("[]", false),
    ] {
        let value = serde_json::from_str(text).expect("JSON");
        assert_eq!(is_valid(&schema, &value), fits, "{text}");
    }
}
