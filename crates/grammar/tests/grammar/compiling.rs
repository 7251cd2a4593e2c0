//! Grammars that cannot be, and grammars that want too much.

use crate::setup::{ENDS, VOCABULARY, allowed, grammars, is_done, tokenizer};
use forerun_grammar::{GrammarError, GrammarSource, Grammars};
use serde_json::{Value, json};

fn why(source: GrammarSource) -> String {
    match grammars().compile(&source) {
        Ok(_) => panic!("{source:?} compiles"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_wrong_is_named() {
    let schema = |value: Value| GrammarSource::JsonSchema(value);
    for (source, said) in [
        (schema(json!({"items": [{"type": "objekt"}]})), "objekt, at #/items/0/type"),
        (schema(json!({"properties": {"a": {"type": "string", "pattern": "(("}}})), "(("),
        (schema(json!({"$ref": "https://example.com/schema.json"})), "example.com"),
        (schema(json!({"$ref": "#/$defs/missing"})), "missing"),
        (schema(json!({"type": "integer", "minimum": 3, "maximum": 2})), "minimum"),
        (schema(json!({"a/b": {"uniqueItems": true}, "not": {}})), "at #/not"),
        (schema(json!("text")), "object"),
        (schema(json!(false)), "object"),
        (GrammarSource::Regex("a(b".to_owned()), "unclosed group, at character 2"),
        (GrammarSource::Regex(r"(?=a)b".to_owned()), "look"),
        (GrammarSource::Choice(Vec::new()), "at least one"),
        (GrammarSource::Lark("start: missing".to_owned()), "missing"),
        (GrammarSource::Lark("begin: \"a\"".to_owned()), "start"),
        (GrammarSource::Lark(String::new()), "start"),
    ] {
        let told = why(source.clone());
        assert!(told.contains(said), "{source:?}: {told}");
        assert!(told.contains(source.kind()) || told.contains("choice"), "{source:?}: {told}");
        assert!(!told.contains('\n') && told.len() < 500, "one short line: {told}");
    }
}

#[test]
fn what_is_too_large_is_refused_before_any_work() {
    let deep = (0..200).fold(json!({"type": "null"}), |inner, _| json!({"items": inner}));
    let text = "x".repeat(2 << 20);
    let many = vec!["a".to_owned(); 20_000];
    let wide: serde_json::Map<String, Value> =
        (0..9000).map(|i| (format!("f{i}"), json!({}))).collect();
    for source in [
        GrammarSource::JsonSchema(deep),
        GrammarSource::JsonSchema(json!({"const": text})),
        GrammarSource::JsonSchema(json!({"properties": wide})),
        GrammarSource::Lark(format!("start: %json {{\"properties\": {}}}", json!(wide))),
        GrammarSource::Regex("(".repeat(300) + &")".repeat(300)),
        GrammarSource::Regex(text.clone()),
        GrammarSource::Lark(text),
        GrammarSource::Lark(format!("start: {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000))),
        GrammarSource::Choice(many),
    ] {
        let error = grammars().compile(&source).err().expect("refused");
        assert!(matches!(error, GrammarError::TooLarge { .. }), "{error}");
    }
}

#[test]
fn hostile_grammars_end_in_an_error_or_a_constraint() {
    let words: Vec<String> = (0..9000).map(|i| format!("word number {i} of many")).collect();
    let chain: serde_json::Map<String, Value> = (0..800)
        .map(|i| (format!("d{i}"), json!({"anyOf": [{"type": "null"}, {"$ref": format!("#/$defs/d{}", (i + 1) % 800)}]})))
        .collect();
    let wide: serde_json::Map<String, Value> =
        (0..1000).map(|i| (format!("field {i}"), json!({"type": "integer"}))).collect();
    let rules: String =
        (0..5000).map(|i| format!("\nr{i}: \"a\" r{} | \"b\"", (i + 1) % 5000)).collect();
    let ambiguous = "start: x\nx: x x | \"a\"? | \"aa\"? x".to_owned();
    for source in [
        GrammarSource::JsonSchema(json!({"enum": words})),
        GrammarSource::Choice(words),
        GrammarSource::JsonSchema(json!({"$ref": "#/$defs/d0", "$defs": chain})),
        GrammarSource::JsonSchema(json!({"type": "object", "properties": wide})),
        GrammarSource::JsonSchema(json!({"$ref": "#"})),
        GrammarSource::JsonSchema(json!({"type": "string", "maxLength": 1_000_000_000})),
        GrammarSource::JsonSchema(
            json!({"type": "array", "items": {"type": "null"}, "minItems": 1_000_000_000}),
        ),
        GrammarSource::JsonSchema(
            json!({"type": "array", "items": {"type": "null"}, "minItems": u64::MAX}),
        ),
        GrammarSource::Regex("(a*)*b".to_owned()),
        GrammarSource::Regex("((a{0,1000}){0,1000}){0,1000}".to_owned()),
        GrammarSource::Regex("(.*a){1,60}".to_owned()),
        GrammarSource::Regex("(x|y)*x(x|y){40}".to_owned()),
        GrammarSource::Lark(format!("start: r0{rules}")),
        GrammarSource::Lark(ambiguous),
        GrammarSource::Lark("start: start".to_owned()),
        GrammarSource::Lark("start: /(a|b)*a(a|b){18}/ /(a|b)*a(a|b){18}/".to_owned()),
    ] {
        let name = format!("{source:?}").chars().take(80).collect::<String>();
        let said = match grammars().compile(&source) {
            Err(error) => error.to_string(),
            Ok(mut constraint) => {
                // Its first steps are bounded too.
                let mut mask = vec![0; VOCABULARY.div_ceil(32)];
                let mut said = "compiles".to_owned();
                for _ in 0..20 {
                    if let Err(why) = constraint.mask(&mut mask) {
                        said = why;
                        break;
                    }
                    let first = allowed(&mut *constraint).expect("a say").first().copied();
                    if !constraint.take(first.expect("a token")) || is_done(&mut *constraint) {
                        break;
                    }
                }
                said
            }
        };
        assert!(!said.is_empty(), "{name}");
    }
}

#[test]
fn the_same_grammar_again_starts_anew() {
    let grammars = grammars();
    let source = GrammarSource::Regex("[ab]{4}".to_owned());
    let mut first = grammars.compile(&source).expect("compiled");
    let all = allowed(&mut *first);
    assert!(first.take(all.as_ref().expect("a say")[0]));
    let mut second = grammars.compile(&source).expect("compiled");
    assert_eq!(allowed(&mut *second), all);
}

#[test]
fn a_vocabulary_that_cannot_be_is_refused() {
    let tokenizer = tokenizer();
    for (size, ends) in [(0, &[][..]), (1 << 24, &[]), (100, &[100]), (VOCABULARY, &[u32::MAX])] {
        assert!(Grammars::new(tokenizer, size, ends).is_err(), "{size} {ends:?}");
    }
    // Padded heads and heads without an end are fine.
    Grammars::new(tokenizer, VOCABULARY + 77, &ENDS).expect("padded");
    let endless = Grammars::new(tokenizer, VOCABULARY, &[]).expect("without ends");
    let mut constraint = endless.compile(&GrammarSource::Regex("a+".to_owned())).expect("compiled");
    assert!(allowed(&mut *constraint).expect("a say").iter().all(|t| !ENDS.contains(t)));
}
