//! Schemas beyond the grammar compiler: what is taken out of them, and that the rest compiles.

use crate::setup::{Luck, grammars, stroll};
use forerun_grammar::{GrammarSource, Loosen, loosen};
use serde_json::{Value, json};

fn compiles(schema: &Value) -> bool {
    grammars().compile(&GrammarSource::JsonSchema(schema.clone())).is_ok()
}

#[test]
fn what_the_compiler_lacks_is_taken_out_and_told_with_its_place() {
    let inside = |schema: Value| json!({"type": "object", "properties": {"a/b": schema, "kept": {"type": "null"}}});
    for (schema, path) in [
        (json!({"not": {"const": 1}}), "#/properties/a~1b/not"),
        (
            json!({"type": "object", "propertyNames": {"pattern": "^a"}}),
            "#/properties/a~1b/propertyNames",
        ),
        (json!({"type": "array", "uniqueItems": true}), "#/properties/a~1b/uniqueItems"),
        (json!({"type": "array", "contains": {"const": 1}}), "#/properties/a~1b/contains"),
        (json!({"if": {"type": "null"}}), "#/properties/a~1b/if"),
        (json!({"dependentRequired": {"a": ["b"]}}), "#/properties/a~1b/dependentRequired"),
        (json!({"unevaluatedProperties": false}), "#/properties/a~1b/unevaluatedProperties"),
        (json!({"anyOf": [{"type": "null"}, {"not": {}}]}), "#/properties/a~1b/anyOf/1/not"),
        (json!({"items": [{"type": "text"}]}), "#/properties/a~1b/items/0/type"),
        (json!({"type": "object", "required": true}), "#/properties/a~1b/required"),
        (json!({"type": "string", "minLength": -1}), "#/properties/a~1b/minLength"),
        (json!({"$ref": "https://example.com/a.json"}), "#/properties/a~1b/$ref"),
        (json!({"$ref": "#/$defs/missing"}), "#/properties/a~1b/$ref"),
        (json!("string"), "#/properties/a~1b"),
    ] {
        let whole = inside(schema);
        assert!(!compiles(&whole), "{whole}: nothing to loosen");
        let (loose, told) = loosen(&whole, Loosen::Unsupported);
        assert!(compiles(&loose), "{loose}");
        assert_eq!(told.iter().map(|one| &*one.path).collect::<Vec<_>>(), [path], "{whole}");
        assert_eq!(loose["properties"]["kept"], json!({"type": "null"}));
    }
}

#[test]
fn what_only_some_schemas_may_have_goes_at_the_next_level() {
    for property in [
        json!({"oneOf": [{"type": "number"}, {"type": "integer"}]}),
        json!({"oneOf": [{"type": "number"}, {"type": "integer"}], "anyOf": [{"type": "number"}]}),
        json!({"type": "string", "pattern": r"^(?=a)b\1"}),
        json!({"type": "object", "patternProperties": {"^a": {}, "a$": {"type": "null"}}}),
        json!({"type": "object", "properties": {"b": {}, "c": {}}, "minProperties": 2}),
        json!({"type": "number", "multipleOf": 0.000_000_000_000_1}),
    ] {
        let whole = json!({"type": "object", "properties": {"a": property}, "required": ["a"]});
        let (as_before, told) = loosen(&whole, Loosen::Unsupported);
        assert!(told.is_empty() && !compiles(&as_before), "{whole}: nothing to loosen");
        let (loose, told) = loosen(&whole, Loosen::Uncertain);
        assert!(compiles(&loose) && !told.is_empty(), "{whole}: {loose}");
    }
}

#[test]
fn what_constrains_nothing_is_no_reason_to_refuse_a_schema() {
    let schema = json!({
        "$schema": "https://example.com/own", "type": "object", "description": "((((", "required": ["at"],
        "properties": {
            "at": {"type": "string", "format": "money", "pattern": "^[0-9]{2}$"},
            "format": {"enum": ["money"], "default": {"not": 1}},
            "list": {"type": "array", "uniqueItems": false, "items": {"const": 1}, "maxItems": 2},
        },
        "additionalProperties": false,
    });
    let (loose, told) = loosen(&schema, Loosen::Annotations);
    assert!(told.is_empty(), "{told:?}");
    let kept = json!({
        "type": "object", "required": ["at"],
        "properties": {
            "at": {"type": "string", "pattern": "^[0-9]{2}$"},
            "format": {"enum": ["money"]},
            "list": {"type": "array", "items": {"const": 1}, "maxItems": 2},
        },
        "additionalProperties": false,
    });
    assert_eq!(loose.to_string(), kept.to_string(), "in the same order");
    let source = GrammarSource::JsonSchema(schema);
    let text = stroll(&source, grammars(), &mut Luck(5)).expect("an end");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["at"].as_str().map(str::len), Some(2), "the rest of the schema holds: {text}");
}

#[test]
fn known_formats_are_held_to_and_schemas_without_faults_stay_as_they_are() {
    let schema = json!({
        "type": "object", "properties": {
            "day": {"type": "string", "format": "date"}, "self": {"$ref": "#"}, "n": {"$ref": "#/$defs/n"},
            "not": {"type": "null"}, "oneOf": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
        },
        "$defs": {"n": {"type": ["integer", "null"], "minimum": 0, "exclusiveMaximum": 5}},
    });
    let (loose, told) = loosen(&schema, Loosen::Unsupported);
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(loose.to_string(), schema.to_string());
    assert!(compiles(&loose));
}
