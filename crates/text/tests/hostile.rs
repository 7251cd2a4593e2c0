//! Broken and malicious files: errors are fine, panics, hangs and large allocations are not.
//!
//! The corpus is what a person thought of; the mutations are what nobody did. Both are the same
//! on every run.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use forerun_text::{
    ChatInput, ChatTemplate, Detokenizer, GenerationDefaults, SpecialTokens, TextError, Tokenizer,
};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Far above the slowest on an idle machine (5 s, the render's own deadline): a hang is meant.
const HANG: Duration = Duration::from_secs(60);
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus");

fn corpus(kind: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(CORPUS).join(kind);
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_stem().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    assert!(files.len() > 10, "{kind}");
    files
}

/// Loads, encodes, decodes and streams with whatever came out.
fn use_tokenizer(bytes: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_bytes(bytes) else { return };
    let text = "aab ba<|im_end|>\u{0}é猫 aaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let mut tokens = tokenizer.encode(text, true).unwrap_or_default();
    tokens.truncate(1_000);
    tokens.extend([0, 1, 2, 3, u32::MAX]);
    let mut stream = Detokenizer::new(&tokenizer, true);
    for &token in &tokens {
        let _ = (stream.push(token), tokenizer.token_text(token), tokenizer.is_special(token));
    }
    let _ = (stream.finish(), tokenizer.decode(&tokens, false), tokenizer.decode(&[], true));
}

fn render(source: &str) -> Result<String, TextError> {
    let messages: Vec<Value> = (0..4)
        .map(|i| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": "Hi"}))
        .collect();
    let tools = [json!({"function": {"name": "f", "parameters": {"a": [1, 2.5, null]}}})];
    let extra = Map::new();
    let input = ChatInput {
        messages: &messages,
        tools: &tools,
        add_generation_prompt: true,
        extra: &extra,
    };
    ChatTemplate::from_source(source, SpecialTokens::default())?.with_clock(|| 0).render(&input)
}

/// A xorshift generator: the same mutations on every run and machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 as usize
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() % n.max(1)
    }

    /// Overwrites, removes, repeats or swaps in a few places.
    fn mutate(&mut self, original: &[u8]) -> Vec<u8> {
        const TOKENS: [&str; 16] = [
            "-1",
            "1e999",
            "null",
            "[",
            "]",
            "{",
            "}",
            "\"",
            "%}",
            "{{",
            "99999999999",
            "*",
            "~",
            "|",
            "\\",
            "\u{fffd}",
        ];
        let mut bytes = original.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            let end = (at + 1 + self.below(12)).min(bytes.len());
            let random = self.next() as u8;
            match self.below(5) {
                0 if at < bytes.len() => bytes[at] = random,
                1 => drop(bytes.drain(at..end)),
                2 => {
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
                3 => drop(bytes.splice(at..end, TOKENS[self.below(TOKENS.len())].bytes())),
                _ => bytes.truncate(bytes.len() - self.below(bytes.len() / 8)),
            }
        }
        bytes
    }
}

#[test]
fn no_tokenizer_of_the_corpus_breaks_out() {
    for (name, bytes) in corpus("tokenizer") {
        let start = Instant::now();
        use_tokenizer(&bytes);
        assert!(start.elapsed() < HANG, "{name} took {:?}", start.elapsed());
    }
}

#[test]
fn no_template_of_the_corpus_breaks_out() {
    // These are hostile in form only and may well render.
    const HARMLESS: [&str; 9] = [
        "lazy_slices",
        "lazy_filters",
        "lazy_select",
        "caller",
        "many_elifs",
        "slice_extremes",
        "namespace_in_namespace",
        "groupby",
        "recursive_loop",
    ];
    for (name, bytes) in corpus("template") {
        let start = Instant::now();
        let result = render(&String::from_utf8(bytes).unwrap());
        assert!(start.elapsed() < HANG, "{name} took {:?}", start.elapsed());
        let harmless = HARMLESS.contains(&name.as_str());
        assert!(harmless || result.is_err(), "{name} gave {} bytes", result.unwrap().len());
    }
}

#[test]
fn every_broken_generation_file_of_the_corpus_is_refused_or_read() {
    for (name, bytes) in corpus("generation") {
        let _ = GenerationDefaults::from_bytes(Some(&bytes), None);
        let result = GenerationDefaults::from_bytes(None, Some(&bytes));
        assert!(result.is_err() || name == "text_config_wrong", "{name}");
    }
}

#[test]
fn mutated_tokenizers_do_not_break_out() {
    let mut random = Random(0x5eed_0001);
    let file = include_bytes!("data/tokenizer.json");
    for _ in 0..1_500 {
        use_tokenizer(&random.mutate(file));
    }
}

#[test]
fn mutated_templates_do_not_break_out() {
    let mut random = Random(0x5eed_0002);
    let files = [
        include_bytes!("data/tools_and_thinking.jinja").as_slice(),
        include_bytes!("data/headers_and_date.jinja"),
        include_bytes!("data/turns_and_parts.jinja"),
    ];
    let mut rendered = 0;
    for i in 0..3_000 {
        let source = random.mutate(files[i % files.len()]);
        rendered += usize::from(render(&String::from_utf8_lossy(&source)).is_ok());
    }
    // Mutations that all fail to compile would test little.
    assert!(rendered > 100, "{rendered}");
}

#[test]
fn mutated_configurations_do_not_break_out() {
    let mut random = Random(0x5eed_0003);
    let file = br#"{"eos_token_id": [0, 2], "pad_token_id": 0, "do_sample": true, "top_k": 20,
        "temperature": 0.7, "top_p": 0.9, "text_config": {"bos_token_id": 1, "min_p": 0.1}}"#;
    let tokenizer_config = include_bytes!("data/tokenizer_config.json");
    for _ in 0..5_000 {
        let bytes = random.mutate(file);
        let _ = GenerationDefaults::from_bytes(Some(&bytes), Some(file));
        let _ = GenerationDefaults::from_bytes(None, Some(&bytes));
        let config = random.mutate(tokenizer_config);
        let Ok(Value::Object(config)) = serde_json::from_slice(&config) else { continue };
        let mut special = SpecialTokens::default();
        let _ = special.add("mutated", &config);
        let _ = ChatTemplate::from_config("mutated", &config, special);
    }
}

#[test]
fn a_message_nested_too_deep_is_refused() {
    let mut deep = json!(1);
    for _ in 0..500 {
        deep = Value::Array(vec![deep]);
    }
    let template = ChatTemplate::from_source("{{ messages }}", SpecialTokens::default()).unwrap();
    let messages = [deep];
    let extra = Map::new();
    let input =
        ChatInput { messages: &messages, tools: &[], add_generation_prompt: true, extra: &extra };
    let error = template.render(&input).unwrap_err();
    assert!(error.to_string().contains("nested over"), "{error}");
}
