//! The tokenizer against recorded answers of the reference implementation.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use forerun_text::{
    ChatInput, ChatTemplate, GenerationDefaults, SpecialTokens, TextError, Tokenizer,
};
use serde_json::{Map, Value};
use std::path::Path;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
const TALES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m");

fn golden() -> Value {
    serde_json::from_str(include_str!("data/cases.json")).unwrap()
}

fn tokenizer() -> Tokenizer {
    Tokenizer::open(Path::new(DATA)).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn encoding_and_decoding_match_the_reference() {
    let (golden, tokenizer) = (golden(), tokenizer());
    let cases = golden["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let expected = ids(&case["ids"]);
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{case}");
        assert_eq!(tokenizer.decode(&expected, false).unwrap(), case["decoded"], "{case}");
        let skipped = tokenizer.decode(&expected, true).unwrap();
        assert_eq!(skipped, case["decoded_skip_special"], "{case}");
    }
}

#[test]
fn chats_match_the_reference() {
    let golden = golden();
    let template = ChatTemplate::load(Path::new(DATA)).unwrap().unwrap();
    let extra = Map::new();
    for chat in golden["chats"].as_array().unwrap() {
        let messages = chat["messages"].as_array().unwrap();
        let input = ChatInput { messages, tools: &[], add_generation_prompt: true, extra: &extra };
        assert_eq!(template.render(&input).unwrap(), chat["text"], "{chat}");
    }
}

#[test]
fn special_tokens_are_known_by_name_and_id() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.vocab_size(), 384);
    let end = tokenizer.token_to_id("<|im_end|>").unwrap();
    assert_eq!(tokenizer.token_text(end).as_deref(), Some("<|im_end|>"));
    assert!(tokenizer.is_special(end));
    assert!(!tokenizer.is_special(64));
    assert_eq!(tokenizer.token_text(1_000_000), None);
    assert_eq!(tokenizer.token_to_id("no such token"), None);
    assert_eq!(tokenizer.decode(&[64, 1_000_000, 65], false).unwrap(), "ab");
}

#[test]
fn padding_and_truncation_in_the_file_are_ignored() {
    let mut file: Value = serde_json::from_str(include_str!("data/tokenizer.json")).unwrap();
    file["truncation"] = serde_json::json!(
        {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    file["padding"] = serde_json::json!(
        {"strategy": {"Fixed": 4_000_000_000u32}, "direction": "Right", "pad_to_multiple_of": null,
         "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("Hello, world!", false).unwrap().len(), 11);
}

#[test]
fn a_missing_or_broken_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let message = |r: Result<Tokenizer, TextError>| r.err().unwrap().to_string();
    let missing = message(Tokenizer::open(folder.path()));
    assert!(missing.contains("tokenizer.json") && missing.contains("cannot read"), "{missing}");
    std::fs::write(folder.path().join("tokenizer.json"), "{\"model\": 3}").unwrap();
    let broken = message(Tokenizer::open(folder.path()));
    assert!(broken.contains("tokenizer.json"), "{broken}");
}

#[test]
fn the_bundled_model_loads_and_speaks() {
    let folder = Path::new(TALES);
    let tokenizer = Tokenizer::open(folder).unwrap();
    assert_eq!(tokenizer.vocab_size(), 8_192);
    let text = "<|im_start|>Once upon a time, a naïve 猫 said: “hi”.\n\n\t<think>";
    let tokens = tokenizer.encode(text, false).unwrap();
    assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text);
    let special = SpecialTokens::load(folder).unwrap();
    let defaults = GenerationDefaults::load(folder).unwrap().with_chat_eos(&tokenizer, &special);
    assert_eq!(defaults.eos_token_ids, [0, 2]);
    assert_eq!((defaults.temperature, defaults.top_p), (Some(0.7), Some(0.9)));
    let template = ChatTemplate::load(folder).unwrap().unwrap();
    let messages = [serde_json::json!({"role": "user", "content": "Hi"})];
    let extra = Map::new();
    let input =
        ChatInput { messages: &messages, tools: &[], add_generation_prompt: true, extra: &extra };
    let prompt = template.render(&input).unwrap();
    assert_eq!(prompt, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(tokenizer.encode(&prompt, false).unwrap()[0], 1);
}

fn bundled() -> std::path::PathBuf {
    std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m"))
}

#[test]
fn a_text_that_must_be_too_long_is_refused_without_being_encoded() {
    let tokenizer = Tokenizer::open(&bundled()).unwrap();
    let text = "word ".repeat(3 << 20);
    let start = std::time::Instant::now();
    let error = tokenizer.check_length(&text, 4096).unwrap_err().to_string();
    assert!(error.contains("at least") && error.contains("> 4096 maximum"), "{error}");
    assert!(start.elapsed() < std::time::Duration::from_secs(2), "{:?}", start.elapsed());
    // Nothing that fits is refused.
    for text in ["", "a", "Once upon a time", "  \n\n", "e\u{301}é猫"] {
        let tokens = tokenizer.encode(text, false).unwrap().len();
        tokenizer.check_length(text, tokens + 1).unwrap();
        tokenizer.check_length(&text.repeat(500), 500 * tokens + 1).unwrap();
    }
}

#[test]
fn an_expression_that_looks_at_the_whole_text_for_every_character_is_stopped() {
    let file = std::fs::read(bundled().join("tokenizer.json")).unwrap();
    let mut file: serde_json::Value = serde_json::from_slice(&file).unwrap();
    file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?=[ab]*?c)x|[ab]".into();
    let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap();
    tokenizer.encode(&"ab".repeat(1_000), false).unwrap();
    let start = std::time::Instant::now();
    let error = tokenizer.encode(&"ab".repeat(200_000), false).unwrap_err().to_string();
    assert!(error.contains("expressions"), "{error}");
    assert!(start.elapsed() < std::time::Duration::from_secs(30), "{:?}", start.elapsed());
}

#[cfg(unix)]
#[test]
fn a_fifo_in_place_of_a_file_is_refused_instead_of_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "chat_template.jinja", "generation_config.json"] {
        let made = std::process::Command::new("mkfifo").arg(folder.path().join(name)).status();
        assert!(made.unwrap().success());
    }
    for error in [
        Tokenizer::open(folder.path()).unwrap_err(),
        forerun_text::ChatTemplate::load(folder.path()).unwrap_err(),
        forerun_text::GenerationDefaults::load(folder.path()).unwrap_err(),
    ] {
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
