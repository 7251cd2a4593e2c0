//! Streamed text equals whole text: detokenizer and stop strings.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod vocabularies;

use forerun_text::{Detokenizer, StopMatcher, TextError, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;

struct StreamVocabulary {
    name: &'static str,
    tokenizer: Tokenizer,
    ids: u32,
}

fn load(name: &'static str, file: &Value, ids: u32) -> StreamVocabulary {
    let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap();
    StreamVocabulary { name, tokenizer, ids }
}

fn rebuild(name: &'static str, tables: &forerun_text::Vocabulary) -> StreamVocabulary {
    let tokenizer = Tokenizer::from_vocabulary(tables).unwrap();
    StreamVocabulary { name, tokenizer, ids: tables.tokens.len() as u32 }
}

/// The tables of GGUF files of each kind.
fn rebuilt() -> [StreamVocabulary; 4] {
    let bytes = vocabularies::of_tokenizer_json(include_str!("data/tokenizer.json"), "qwen35");
    let mut prefixed = vocabularies::scored(&[("▁", 0.0), ("▁▁", 0.0), ("é", 0.0), ("▁the", 0.0)]);
    prefixed.tokens.extend(["  ".to_owned(), "<0x4".to_owned(), "[TOOL]".to_owned()]);
    prefixed.kinds.extend([4, 1, 3]);
    prefixed.scores.extend([0.0; 3]);
    let plain = forerun_text::Vocabulary { add_space_prefix: Some(false), ..prefixed.clone() };
    let gemma = vocabularies::spaced(&["\n", "▁", "a", "▁a", "猫"], &["▁ a"]);
    [
        rebuild("byte level from tables", &bytes),
        rebuild("scores, with a space in front", &prefixed),
        rebuild("scores", &plain),
        rebuild("gemma 4", &gemma),
    ]
}

/// A vocabulary of 256 byte tokens, words with and without leading space, and a special token.
fn sentence_piece(decoder: Value) -> Value {
    let words =
        ["<unk>", "▁", "▁▁", "a", "▁a", "b", "▁the", "é", "猫", "�", "##c", "d</w>", "<0x4"];
    let bytes = (0..256).map(|b| format!("<0x{b:02X}>"));
    let all = bytes.chain(words.iter().map(|w| (*w).to_owned()));
    let vocab: serde_json::Map<_, _> = all.zip(0..).map(|(w, id)| (w, json!(id))).collect();
    let next = vocab.len();
    json!({
        "version": "1.0",
        "added_tokens": [
            {"id": next, "content": "<s>", "single_word": false, "lstrip": false,
             "rstrip": false, "normalized": false, "special": true},
            {"id": next + 1, "content": "two words", "single_word": false, "lstrip": false,
             "rstrip": false, "normalized": false, "special": false},
        ],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "vocab": vocab,
                  "merges": []},
    })
}

static VOCABULARIES: LazyLock<Vec<StreamVocabulary>> = LazyLock::new(|| {
    let byte_level: Value = serde_json::from_str(include_str!("data/tokenizer.json")).unwrap();
    let mut nested = byte_level.clone();
    nested["decoder"] = json!({"type": "Sequence", "decoders": [byte_level["decoder"]]});
    let to_space = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let strip = |n: usize| json!({"type": "Strip", "content": " ", "start": n, "stop": 0});
    let llama = |n| {
        json!({"type": "Sequence", "decoders":
            [to_space, {"type": "ByteFallback"}, {"type": "Fuse"}, strip(n)]})
    };
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
        "split": true});
    let word_piece = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    let bpe = json!({"type": "BPEDecoder", "suffix": "</w>"});
    let ids = 256 + 13 + 2 + 1;
    let from_files = [
        load("byte level", &byte_level, 384),
        load("byte level in a sequence", &nested, 384),
        load("byte fallback, one space stripped", &sentence_piece(llama(1)), ids),
        load("byte fallback, three spaces stripped", &sentence_piece(llama(3)), ids),
        load("metaspace", &sentence_piece(metaspace), ids),
        load("word piece", &sentence_piece(word_piece), ids),
        load("bpe suffix", &sentence_piece(bpe), ids),
        load("no decoder", &sentence_piece(Value::Null), ids),
    ];
    from_files.into_iter().chain(rebuilt()).collect()
});

fn assert_streams_as_decoded(vocabulary: &StreamVocabulary, tokens: &[u32], skip_special: bool) {
    let mut stream = Detokenizer::new(&vocabulary.tokenizer, skip_special);
    let mut text = String::new();
    for &token in tokens {
        text.push_str(&stream.push(token).unwrap());
    }
    text.push_str(&stream.finish().unwrap());
    let whole = vocabulary.tokenizer.decode(tokens, skip_special).unwrap();
    assert_eq!(text, whole, "{} skip={skip_special} {tokens:?}", vocabulary.name);
}

/// Ids as runs, so that long byte runs and runs of spaces come up.
fn token_runs() -> impl Strategy<Value = Vec<u32>> {
    let id = prop_oneof![0u32..400, 225u32..245, 256u32..275];
    prop::collection::vec((id, 1usize..6), 0..40)
        .prop_map(|runs| runs.into_iter().flat_map(|(id, n)| std::iter::repeat_n(id, n)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn streamed_tokens_give_the_decoded_text(tokens in token_runs(), skip in any::<bool>()) {
        for vocabulary in VOCABULARIES.iter() {
            // A few ids beyond the vocabulary stay in: they decode to nothing.
            let tokens: Vec<u32> = tokens.iter().map(|t| t % (vocabulary.ids + 3)).collect();
            assert_streams_as_decoded(vocabulary, &tokens, skip);
        }
    }

    #[test]
    fn streamed_text_streams_at_once(text in "\\PC{0,40}") {
        // Complete characters never wait for the next token in a byte-level vocabulary.
        let tokenizer = &VOCABULARIES[0].tokenizer;
        let mut stream = Detokenizer::new(tokenizer, false);
        let mut seen = String::new();
        let tokens = tokenizer.encode(&text, false).unwrap();
        for token in &tokens {
            seen.push_str(&stream.push(*token).unwrap());
        }
        prop_assert_eq!(&seen, &tokenizer.decode(&tokens, false).unwrap());
        prop_assert_eq!(stream.finish().unwrap(), "");
    }

    #[test]
    fn stop_strings_are_found_wherever_the_text_is_cut(
        text in "[abé]{0,30}",
        stops in prop::collection::vec("[abé]{1,4}", 0..4),
        cuts in prop::collection::vec(0usize..60, 0..12),
    ) {
        let mut matcher = StopMatcher::new(stops.clone()).unwrap();
        let mut released = String::new();
        let mut hit = None;
        for piece in pieces(&text, cuts) {
            let step = matcher.push(piece);
            released.push_str(&step.text);
            hit = hit.or(step.hit);
        }
        if hit.is_none() {
            released.push_str(&matcher.finish());
        }
        prop_assert_eq!((released, hit.map(|i| &stops[i])), naive(&text, &stops));
    }

    #[test]
    fn nothing_is_held_that_cannot_become_a_stop_string(
        text in "[abc]{0,20}", stop in "[ab]{1,4}",
    ) {
        let mut matcher = StopMatcher::new(vec![stop.clone()]).unwrap();
        let step = matcher.push(&text);
        if step.hit.is_none() {
            let held = &text[step.text.len()..];
            prop_assert!(stop.starts_with(held) && held.len() < stop.len());
        }
    }
}

fn pieces(text: &str, mut cuts: Vec<usize>) -> Vec<&str> {
    cuts.retain(|&cut| text.is_char_boundary(cut));
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

/// The first prefix of the whole text that ends in a stop string, cut before the longest one.
fn naive<'s>(text: &str, stops: &'s [String]) -> (String, Option<&'s String>) {
    for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
        let ends = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
        // `max_by_key` takes the last of equals; equal strings are the same answer.
        if let Some(stop) = ends.max_by_key(|stop| stop.len()) {
            return (text[..end - stop.len()].to_owned(), Some(stop));
        }
    }
    (text.to_owned(), None)
}

#[test]
fn a_character_in_three_tokens_comes_out_with_the_last() {
    let vocabulary = &VOCABULARIES[0];
    let tokens = vocabulary.tokenizer.encode("世", false).unwrap();
    assert!(tokens.len() > 1);
    let mut stream = Detokenizer::new(&vocabulary.tokenizer, false);
    let (last, open) = tokens.split_last().unwrap();
    for token in open {
        assert_eq!(stream.push(*token).unwrap(), "");
    }
    assert_eq!(stream.push(*last).unwrap(), "世");
    assert_eq!(stream.finish().unwrap(), "");
}

#[test]
fn an_unfinished_character_at_the_end_is_one_replacement_character() {
    let vocabulary = &VOCABULARIES[0];
    let tokens = vocabulary.tokenizer.encode("世", false).unwrap();
    assert_streams_as_decoded(vocabulary, &tokens[..1], false);
    let mut stream = Detokenizer::new(&vocabulary.tokenizer, false);
    assert_eq!(stream.push(tokens[0]).unwrap(), "");
    assert_eq!(stream.finish().unwrap(), "\u{fffd}");
}

#[test]
fn an_empty_stop_string_is_refused_and_no_stop_string_is_fine() {
    let error = StopMatcher::new(vec!["a".into(), String::new()]).unwrap_err();
    assert!(matches!(error, TextError::EmptyStop { index: 1 }), "{error}");
    let mut none = StopMatcher::new(Vec::new()).unwrap();
    assert_eq!(none.push("abc").text, "abc");
    assert_eq!(none.finish(), "");
}

#[test]
fn after_a_hit_nothing_more_is_released() {
    let mut matcher = StopMatcher::new(vec!["\nUser:".into(), "##".into()]).unwrap();
    assert_eq!(matcher.push("fine\nUs").text, "fine");
    let step = matcher.push("er: more");
    assert_eq!((step.text.as_str(), step.hit), ("", Some(0)));
    assert_eq!(matcher.push("again").text, "");
    assert_eq!(matcher.finish(), "");
    assert_eq!(matcher.hit(), Some(0));
}
