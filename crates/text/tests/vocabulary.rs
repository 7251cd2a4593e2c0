//! Tokenizers rebuilt from the tables of GGUF files.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod vocabularies;

use forerun_text::{Tokenizer, Vocabulary};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::LazyLock;
use vocabularies::{of_tokenizer_json, scored, spaced};

/// Id of the first word, after three special tokens and the bytes.
const FIRST: u32 = 3 + 256;
const TOKENIZER_JSON: &str = include_str!("data/tokenizer.json");

fn build(vocabulary: &Vocabulary) -> Tokenizer {
    Tokenizer::from_vocabulary(vocabulary).unwrap()
}

fn encode(vocabulary: &Vocabulary, text: &str) -> Vec<u32> {
    build(vocabulary).encode(text, false).unwrap()
}

/// The tokens as the vocabulary spells them.
fn spelled(vocabulary: &Vocabulary, text: &str) -> Vec<String> {
    let tokens = encode(vocabulary, text);
    tokens.iter().map(|&id| vocabulary.tokens[id as usize].clone()).collect()
}

static FROM_FILE: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_bytes(TOKENIZER_JSON.as_bytes()).unwrap());
static FROM_TABLES: LazyLock<Tokenizer> =
    LazyLock::new(|| build(&of_tokenizer_json(TOKENIZER_JSON, "qwen2")));

#[test]
fn tables_of_the_golden_tokenizer_give_the_reference_answers() {
    let golden: Value = serde_json::from_str(include_str!("data/cases.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(FROM_TABLES.encode(case["text"].as_str().unwrap(), false).unwrap(), ids);
        assert_eq!(FROM_TABLES.decode(&ids, false).unwrap(), case["decoded"], "{case}");
        let skipped = FROM_TABLES.decode(&ids, true).unwrap();
        assert_eq!(skipped, case["decoded_skip_special"], "{case}");
    }
}

#[test]
fn tables_and_file_agree_on_every_token() {
    assert_eq!(FROM_TABLES.vocab_size(), FROM_FILE.vocab_size());
    for id in 0..400 {
        assert_eq!(FROM_TABLES.token_text(id), FROM_FILE.token_text(id), "{id}");
        assert_eq!(FROM_TABLES.is_special(id), FROM_FILE.is_special(id), "{id}");
    }
}

/// Merges one pair at a time over the whole text, as the rule is written down.
fn merged_naively(vocabulary: &Vocabulary, text: &str) -> Vec<u32> {
    let ids: HashMap<&str, u32> = vocabulary.tokens.iter().map(String::as_str).zip(0..).collect();
    let text = text.replace(' ', "▁");
    let mut runs: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for (at, pair) in runs.windows(2).enumerate() {
            let Some(&id) = ids.get(pair.concat().as_str()) else { continue };
            let score = vocabulary.scores[id as usize];
            if best.is_none_or(|(highest, _)| score > highest) {
                best = Some((score, at));
            }
        }
        let Some((_, at)) = best else { break };
        let right = runs.remove(at + 1);
        runs[at].push_str(&right);
    }
    let of_run = |run: &String| match ids.get(run.as_str()) {
        Some(&id) => vec![id],
        None => run.bytes().map(|b| 3 + u32::from(b)).collect(),
    };
    runs.iter().flat_map(of_run).collect()
}

/// Random words over a few letters; with equal scores, and with or without a space inside.
fn scored_vocabularies() -> impl Strategy<Value = Vocabulary> {
    let word = prop_oneof!["▁{0,2}[abé]{1,4}", "▁{1,4}", "[ab▁]{2,4}"];
    prop::collection::hash_map(word, -4i8..0, 1..40).prop_map(|words| {
        let mut words: Vec<(String, f32)> =
            words.into_iter().map(|(text, score)| (text, f32::from(score))).collect();
        // Without it a space would become bytes, which decode to the mark itself.
        if !words.iter().any(|(text, _)| text == "▁") {
            words.push(("▁".to_owned(), -5.0));
        }
        words.sort_by(|a, b| a.0.cmp(&b.0));
        let words: Vec<(&str, f32)> = words.iter().map(|(t, s)| (t.as_str(), *s)).collect();
        Vocabulary { add_space_prefix: Some(false), ..scored(&words) }
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000, failure_persistence: None, rng_seed: RngSeed::Fixed(11),
        ..Default::default()
    })]

    #[test]
    fn tables_and_file_give_the_same_tokens(text in "(\\PC|[ \\n\\t\\r'a-e0-9]|<think>){0,60}") {
        let tokens = FROM_FILE.encode(&text, false).unwrap();
        prop_assert_eq!(&FROM_TABLES.encode(&text, false).unwrap(), &tokens);
        prop_assert_eq!(
            FROM_TABLES.decode(&tokens, true).unwrap(),
            FROM_FILE.decode(&tokens, true).unwrap()
        );
    }

    #[test]
    fn merging_by_score_follows_the_rule(
        vocabulary in scored_vocabularies(), text in "[abé猫 ]{0,30}",
    ) {
        let tokenizer = build(&vocabulary);
        let tokens = tokenizer.encode(&text, false).unwrap();
        prop_assert_eq!(&tokens, &merged_naively(&vocabulary, &text));
        prop_assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text);
    }
}

/// `▁h` goes before `he`, so a word at the start of a line is cut in another way.
const HELLO: [(&str, f32); 11] = [
    ("▁", -9.0),
    ("h", -9.0),
    ("e", -9.0),
    ("l", -9.0),
    ("o", -9.0),
    ("▁h", -0.5),
    ("he", -1.0),
    ("ll", -2.0),
    ("hell", -3.0),
    ("hello", -4.0),
    ("lo", -2.0),
];

#[test]
fn the_highest_score_merges_first() {
    let plain = Vocabulary { add_space_prefix: Some(false), ..scored(&HELLO) };
    // h e l l o: `he`, then the left one of `ll` and `lo`, then `hell`, then `hello`.
    assert_eq!(spelled(&plain, "hello"), ["hello"]);
    // ▁ h e l l o: `▁h` takes the letter that `he` needs.
    assert_eq!(spelled(&plain, " hello"), ["▁h", "e", "ll", "o"]);
    assert_eq!(spelled(&plain, "lllo"), ["ll", "lo"]);
}

#[test]
fn a_space_is_put_before_a_text_unless_the_file_says_no() {
    let (with, without) =
        (scored(&HELLO), Vocabulary { add_space_prefix: Some(false), ..scored(&HELLO) });
    assert_eq!(spelled(&with, "hello"), ["▁h", "e", "ll", "o"]);
    assert_eq!(spelled(&with, ""), [""; 0]);
    // Each text after a special token gets one.
    assert_eq!(spelled(&with, "</s>hello"), ["</s>", "▁h", "e", "ll", "o"]);
    assert_eq!(spelled(&without, "</s>hello"), ["</s>", "hello"]);
    for (vocabulary, text) in [(&with, "hello"), (&with, " hello"), (&without, " hello")] {
        let tokenizer = build(vocabulary);
        let tokens = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text);
    }
}

#[test]
fn characters_without_a_token_become_bytes() {
    let vocabulary = Vocabulary { add_space_prefix: Some(false), ..scored(&HELLO) };
    assert_eq!(spelled(&vocabulary, "é\n"), ["<0xC3>", "<0xA9>", "<0x0A>"]);
    assert_eq!(build(&vocabulary).decode(&[3 + 0xc3, 3 + 0xa9, FIRST], false).unwrap(), "é ");
    let mut no_bytes = vocabulary;
    for (byte, kind) in (3..).zip(&mut no_bytes.kinds[3..FIRST as usize]) {
        (no_bytes.tokens[byte], *kind) = (format!("<unused{byte}>"), 5);
    }
    assert_eq!(spelled(&no_bytes, "héllo"), ["h", "<unk>", "ll", "o"]);
}

#[test]
fn control_and_user_defined_tokens_are_found_first() {
    let mut vocabulary = Vocabulary { add_space_prefix: Some(false), ..scored(&HELLO) };
    vocabulary.tokens.extend(["  ".to_owned(), "lo he".to_owned(), "<mask>".to_owned()]);
    vocabulary.kinds.extend([4, 4, 3]);
    vocabulary.scores.extend([0.0; 3]);
    let expected = ["he", "l", "lo he", "ll", "o", "  ", "h", "<mask>"];
    assert_eq!(spelled(&vocabulary, "hello hello  h<mask>"), expected);
    let tokenizer = build(&vocabulary);
    let tokens = tokenizer.encode("  h<mask>", false).unwrap();
    assert_eq!(tokenizer.decode(&tokens, true).unwrap(), "  h");
    assert_eq!(tokenizer.decode(&tokens, false).unwrap(), "  h<mask>");
}

const LINES: [&str; 11] = ["\n", "\n\n", "\n\n\n", "▁", "▁▁", "a", "b", "ab", "▁a", "▁ab", "b\n"];
const LINE_MERGES: [&str; 5] = ["a b", "▁ a", "▁a b", "▁ ab", "▁ ▁"];

#[test]
fn gemma_4_merges_across_words_and_keeps_lines_whole() {
    let vocabulary = spaced(&LINES, &LINE_MERGES);
    let cases: [(&str, &[&str]); 6] = [
        ("ab ab", &["ab", "▁ab"]),
        ("  a", &["▁", "▁a"]),
        ("   b", &["▁▁", "▁", "b"]),
        // No merge makes a line break longer; the run is looked up as it is.
        ("a\n\nb\n\n\n", &["a", "\n\n", "b", "\n\n\n"]),
        ("b\n\n\n\n", &["b", "\n", "\n", "\n", "\n"]),
        ("é<eos>a", &["<0xC3>", "<0xA9>", "<eos>", "a"]),
    ];
    let tokenizer = build(&vocabulary);
    for (text, expected) in cases {
        assert_eq!(spelled(&vocabulary, text), expected, "{text:?}");
        let tokens = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text);
    }
}

#[test]
fn bos_and_eos_are_added_as_the_file_says() {
    let ends = |vocabulary: &Vocabulary| build(vocabulary).encode("", true).unwrap();
    let llama = scored(&HELLO);
    assert_eq!(ends(&llama), [1]);
    let flags = |add_bos, add_eos, v: &Vocabulary| Vocabulary {
        add_bos: Some(add_bos),
        add_eos: Some(add_eos),
        bos: Some(1),
        eos: Some(2),
        ..v.clone()
    };
    assert_eq!(ends(&flags(true, true, &llama)), [1, 2]);
    assert_eq!(ends(&flags(false, true, &llama)), [2]);
    let bytes = |pre| of_tokenizer_json(TOKENIZER_JSON, pre);
    assert_eq!(ends(&bytes("qwen2")), [0; 0]);
    assert_eq!(ends(&flags(true, false, &bytes("qwen2"))), [1]);
    assert_eq!(ends(&Vocabulary { bos: Some(379), ..bytes("llama-bpe") }), [379]);
    assert_eq!(ends(&flags(false, false, &bytes("llama-bpe"))), [0; 0]);
    // Gemma 4 cannot do without, whatever its file says.
    let gemma = Vocabulary { add_bos: Some(false), ..spaced(&LINES, &LINE_MERGES) };
    assert_eq!(ends(&gemma), [2]);
}

#[test]
fn a_word_that_is_a_token_needs_no_merges_where_the_model_says_so() {
    let mut llama = Vocabulary { bos: Some(0), ..of_tokenizer_json(TOKENIZER_JSON, "llama-bpe") };
    llama.tokens.push("Ġxyz".to_owned());
    llama.kinds.push(1);
    assert_eq!(spelled(&llama, " xyz"), ["Ġxyz"]);
    let dbrx = Vocabulary { pre: Some("dbrx".to_owned()), ..llama };
    assert!(spelled(&dbrx, " xyz").len() > 1);
}

#[test]
fn text_is_composed_where_the_model_says_so() {
    let (composed, decomposed) = ("\u{e9}", "e\u{301}");
    for (pre, same) in [("qwen2", true), ("qwen35", true), ("olmo", true), ("smollm", false)] {
        let tokenizer = build(&of_tokenizer_json(TOKENIZER_JSON, pre));
        let tokens = |text| tokenizer.encode(text, false).unwrap();
        assert_eq!(tokens(composed) == tokens(decomposed), same, "{pre}");
    }
}

#[test]
fn long_texts_without_a_space_are_no_trouble() {
    const SIZE: usize = 1 << 18;
    let chinese: String = (0u32..(SIZE / 3) as u32)
        .filter_map(|n| char::from_u32(0x4e00 + n.wrapping_mul(2_654_435_761) % 20_000))
        .collect();
    let texts = ["a".repeat(SIZE), " ".repeat(SIZE), "7".repeat(SIZE), "\n".repeat(SIZE), chinese];
    let mut all = vec![scored(&[("a", -9.0), ("aa", -2.0), ("aaaa", -1.0), ("▁▁", -1.0)])];
    all[0].add_space_prefix = Some(false);
    all.push(spaced(&LINES, &LINE_MERGES));
    for pre in ["qwen2", "superbpe", "gpt-4o", "deepseek-llm", "bailingmoe"] {
        all.push(of_tokenizer_json(TOKENIZER_JSON, pre));
    }
    for vocabulary in &all {
        let tokenizer = build(vocabulary);
        for text in &texts {
            let tokens = tokenizer.encode(text, false).unwrap();
            assert!(tokenizer.decode(&tokens, false).unwrap() == *text, "{:?}", vocabulary.pre);
        }
    }
}

#[test]
fn the_bytes_of_its_tokens_spell_a_text() {
    let words = [("\u{2581}", -3.0), ("t", -4.0), ("h", -4.0), ("th", -1.0), ("\u{2581}th", -2.0)];
    let spm = Tokenizer::from_vocabulary(&vocabularies::scored(&words)).unwrap();
    let merges = ["\u{2581} t", "\u{2581}t h"];
    let gemma = vocabularies::spaced(&["\u{2581}", "t", "h", "\u{2581}t", "\u{2581}th"], &merges);
    let gemma = Tokenizer::from_vocabulary(&gemma).unwrap();
    for tokenizer in [spm, gemma] {
        for text in [" th th", " t\nthé 🦊", " \u{0}th"] {
            let tokens = tokenizer.encode(text, false).unwrap();
            let bytes: Vec<u8> =
                tokens.iter().flat_map(|&t| tokenizer.token_bytes(t).unwrap()).collect();
            // The first model puts a space before every text.
            let spelled = String::from_utf8(bytes).unwrap();
            assert!(spelled == text || spelled == format!(" {text}"), "{spelled:?} {text:?}");
        }
        assert_eq!(tokenizer.token_bytes(3 + 0x41), Some(vec![0x41]));
        assert_eq!(tokenizer.token_bytes(100_000), None);
    }
}
