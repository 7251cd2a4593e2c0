//! Answers that are held to a form: `--json-schema`, `--regex`, `--grammar`, `--choice`.

use crate::program::{bundled, copy_of, forerun, json, stderr, token_ids};
use serde_json::Value;
use std::path::Path;

const SCHEMA: &str = r#"{"type": "object", "required": ["place", "seats"], "additionalProperties": false,
    "properties": {"place": {"enum": ["garden", "inside"]}, "seats": {"type": "integer", "minimum": 1, "maximum": 9}}}"#;
const LARK: &str = "start: greeting \", \" WHO \"!\"\ngreeting: \"Good morning\" | \"Good evening\"\nWHO: /[a-z]{3,9}/\n";

fn answer(options: &[&str]) -> Value {
    json(&[&["run", "Book a table", "--max-tokens", "64"], options].concat())
}

fn text(report: &Value) -> &str {
    assert_eq!(report["finish_reason"], "stop", "{report}");
    report["text"].as_str().unwrap()
}

fn written(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn an_answer_is_one_of_the_choices() {
    let said =
        answer(&["--choice", "--fish", "--choice", "bread and salt", "--choice", "soup (hot)"]);
    assert!(["--fish", "bread and salt", "soup (hot)"].contains(&text(&said)), "{said}");
}

#[test]
fn an_answer_matches_the_expression_as_a_whole() {
    let said = answer(&["--regex", "-[0-9]{3}:[a-f]{2}"]);
    let (digits, letters) = text(&said).strip_prefix('-').unwrap().split_once(':').unwrap();
    assert!(digits.len() == 3 && digits.bytes().all(|c| c.is_ascii_digit()), "{said}");
    assert!(letters.len() == 2 && letters.bytes().all(|c| (b'a'..=b'f').contains(&c)), "{said}");
}

#[test]
fn a_schema_says_the_same_typed_or_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "schema.json", SCHEMA);
    let options = ["--temperature", "1", "--seed", "4"];
    let typed = answer(&[&["--json-schema", SCHEMA], &options[..]].concat());
    let said: Value = serde_json::from_str(text(&typed)).unwrap();
    assert!((1..=9).contains(&said["seats"].as_i64().unwrap()), "{said}");
    assert!(["garden", "inside"].contains(&said["place"].as_str().unwrap()), "{said}");
    let read = answer(&[&["--json-schema", &file], &options[..]].concat());
    assert_eq!(typed["token_ids"], read["token_ids"]);
}

#[test]
fn drafts_change_no_token_of_an_answer_with_a_form() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "greeting.lark", LARK);
    for form in
        [&["--grammar", &file][..], &["--json-schema", SCHEMA], &["--regex", "([a-z]{1,5} ){4}end"]]
    {
        let sampled = ["--temperature", "1", "--seed", "11"];
        let plain = answer(&[form, &sampled[..], &["--draft", "0"]].concat());
        for draft in ["3", "auto"] {
            let drafted = answer(&[form, &sampled[..], &["--draft", draft]].concat());
            assert_eq!(token_ids(&plain), token_ids(&drafted), "{form:?} {draft}");
        }
    }
}

#[test]
fn token_ids_are_continued_in_a_form() {
    let said = json(&["run", &bundled(), "--ids", "442,628", "--regex", " (man|woman) said"]);
    assert!([" man said", " woman said"].contains(&text(&said)), "{said}");
}

#[test]
fn a_form_begins_where_reasoning_that_the_template_opened_ends() {
    let folder = copy_of("qwen3_5");
    let config = folder.path().join("tokenizer_config.json");
    let mut read: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    read["chat_template"] = "{{ messages[0].content }}<think>{# </think> #}".into();
    std::fs::write(&config, read.to_string()).unwrap();
    let model = folder.path().display().to_string();
    let words = ["run", &model, "hi", "--choice", "yes", "--choice", "no", "--max-tokens", "40"];
    let told_not_to = json(&[&words[..], &["--no-think"]].concat());
    assert!(["yes", "no"].contains(&text(&told_not_to)), "{told_not_to}");
    let mark = json(&["tokenize", &model, "</think>"])["token_ids"][0].clone();
    assert_eq!(told_not_to["token_ids"][0], mark, "what ends the reasoning comes first");
    let free = json(&[&words[..], &["--temperature", "0"]].concat());
    assert_ne!(free["token_ids"][0], mark, "reasoning is free");
    let raw = json(&[&words[..], &["--raw"]].concat());
    assert!(["yes", "no"].contains(&text(&raw)), "{raw}");
}

#[test]
fn what_is_wrong_with_a_form_is_told_with_the_option_and_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let lark = written(folder.path(), "bad.lark", "start: \"a\" other\nother: nobody\n");
    let schema = written(folder.path(), "bad.json", "{\"type\":\n\"object\",}");
    let strange = r#"{"properties": {"x": {"type": "array", "uniqueItems": true}}}"#;
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["--regex", "ab[0-9"], 1, &["--regex", "unclosed character class", "at character 3"]),
        (&["--json-schema", "{\"a\": 1,}"], 1, &["--json-schema", "line 1 column 9"]),
        (&["--json-schema", &schema], 1, &["--json-schema", "bad.json", "line 2"]),
        (&["--json-schema", strange], 1, &["uniqueItems", "#/properties/x/uniqueItems"]),
        (&["--json-schema", "nowhere.json"], 1, &["--json-schema", "nowhere.json"]),
        (&["--json-schema", "[1]"], 1, &["--json-schema", "[1]"]),
        (&["--grammar", &lark], 1, &["--grammar", "2(8)", "nobody"]),
        (&["--grammar", "nowhere.lark"], 1, &["--grammar", "nowhere.lark"]),
        (&["--choice", "a", "--regex", "b"], 2, &["--choice", "--regex"]),
        (&["--grammar", &lark, "--json-schema", "{}"], 2, &["--grammar", "--json-schema"]),
    ];
    for &(options, code, names) in cases {
        let output = forerun(&[&["run", "hi"], options].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {said}");
        assert!(output.stdout.is_empty(), "{options:?}");
        for name in names {
            assert!(said.contains(name), "{options:?} should name `{name}`: {said}");
        }
    }
}

#[test]
fn a_form_needs_a_tokenizer() {
    let folder = copy_of("qwen3");
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let model = folder.path().display().to_string();
    let refused = forerun(&["run", &model, "--ids", "1,2", "--choice", "a"]);
    assert_eq!(refused.status.code(), Some(1));
    let said = stderr(&refused);
    assert!(said.contains("--choice") && said.contains("tokenizer.json"), "{said}");
}

#[test]
fn the_receipt_says_that_a_form_keeps_the_host_between_drafts() {
    let rounds = |options: &[&str]| {
        let report = answer(&[&["--draft", "3", "--ngram", "off"], options].concat());
        report["speculation"]["rounds_with_host"].as_u64()
    };
    assert_eq!(rounds(&["--temperature", "0"]), Some(0));
    assert!(rounds(&["--regex", "([a-z]{2,5} ){12}end"]) > Some(2));
}
