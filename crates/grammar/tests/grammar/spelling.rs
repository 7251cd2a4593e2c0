//! Vocabularies that are not byte-level.

use crate::setup::{Luck, allowed_of, is_done};
use forerun_base::Token;
use forerun_grammar::{GrammarSource, Grammars};
use forerun_text::{Tokenizer, Vocabulary};
use serde_json::{Value, json};

/// A SentencePiece vocabulary of the bytes and a few words, which puts a space before every text.
fn sentence_piece() -> Tokenizer {
    let special =
        [("<unk>", 2), ("<s>", 3), ("</s>", 3)].map(|(text, kind)| (text.to_owned(), kind));
    let bytes = (0..256).map(|byte| (format!("<0x{byte:02X}>"), 6));
    let words = [
        "\u{2581}",
        "{\"",
        "\":",
        "n",
        "a",
        "m",
        "e",
        "am",
        "name",
        "\u{2581}a",
        "\"}",
        "{",
        "\"",
        "}",
        ":",
    ];
    let words = words.into_iter().map(|word| (word.to_owned(), 1));
    let (tokens, kinds): (Vec<String>, Vec<i32>) =
        special.into_iter().chain(bytes).chain(words).unzip();
    let scores = (0..tokens.len()).map(|i| -(i as f32)).collect();
    let vocabulary =
        Vocabulary { model: "llama".to_owned(), tokens, kinds, scores, ..Vocabulary::default() };
    Tokenizer::from_vocabulary(&vocabulary).expect("a tokenizer")
}

#[test]
fn bytes_and_spaces_of_sentence_piece_spell_json() {
    let tokenizer = sentence_piece();
    let size = tokenizer.vocab_size();
    let grammars = Grammars::new(&tokenizer, size, &[2]).expect("a vocabulary");
    let schema = json!({
        "type": "object",
        "properties": {"name": {"enum": ["a name", "größe 🦊", "\n"]}},
        "required": ["name"],
        "additionalProperties": false,
    });
    let source = GrammarSource::JsonSchema(schema);
    let mut luck = Luck(5);
    let mut seen: Vec<Value> = Vec::new();
    for _ in 0..30 {
        let mut constraint = grammars.compile(&source).expect("compiled");
        let mut tokens: Vec<Token> = Vec::new();
        while !is_done(&mut *constraint) {
            let all = allowed_of(&mut *constraint, size).expect("a say");
            let token = all[luck.below(all.len())];
            assert!(constraint.take(token));
            tokens.push(token);
        }
        let text = tokenizer.decode(&tokens, true).expect("text");
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    assert_eq!(seen.len(), 3, "every value comes: {seen:?}");
    // What is forced starts without the space of a text's start.
    let mut constraint = grammars.compile(&source).expect("compiled");
    let mut forced = Vec::new();
    constraint.forced(20, &mut forced);
    let spelled: Vec<u8> =
        forced.iter().flat_map(|&t| tokenizer.token_bytes(t).expect("a token")).collect();
    assert!(!forced.is_empty() && b"{\"name\":\"".starts_with(&spelled), "{spelled:?}");
}
