//! Any text as an answer of a model that thinks and calls, in each form, whole and character by character.
#![no_main]

use forerun_text::{AnswerParser, ChatTemplate, Dialect, Piece, SpecialTokens, Tokenizer, Tool};
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use std::sync::LazyLock;

/// Templates that say no more than which form is theirs.
const FORMS: [&str; 4] = [
    "</think><tool_call>",
    "</think><tool_call><function=<parameter=",
    "tool_calls parameters <|start_header_id|>",
    "<|channel><channel|><|tool_call><tool_call|>",
];

static DIALECTS: LazyLock<Vec<Dialect>> = LazyLock::new(|| {
    let tokenizer = include_bytes!("../../models/tales-28m/tokenizer.json");
    let tokenizer = Tokenizer::from_bytes(tokenizer).expect("the bundled tokenizer");
    let dialect = |source: &&str| {
        let template = ChatTemplate::from_source(source, SpecialTokens::default());
        Dialect::of(&template.expect("plain text is a template"), &tokenizer)
    };
    FORMS.iter().map(dialect).collect()
});

fuzz_target!(|text: &str| {
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {
        "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}}})];
    let tools = Tool::parse_all(&tools).expect("a tool");
    for dialect in DIALECTS.iter() {
        for inside in [false, true] {
            let mut whole: Vec<Piece> = Vec::new();
            let mut parser = AnswerParser::new(dialect, inside, &tools);
            parser.push(text, &mut whole);
            let mut cut = whole.clone();
            parser.clone().cut(&mut cut);
            parser.finish(&mut whole);
            let mut single: Vec<Piece> = Vec::new();
            let mut parser = AnswerParser::new(dialect, inside, &tools);
            text.chars().for_each(|c| parser.push(c.encode_utf8(&mut [0; 4]), &mut single));
            parser.finish(&mut single);
            assert_eq!(whole, single);
        }
    }
});
