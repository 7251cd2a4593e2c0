//! Tokenizer files made from the tables of GGUF files.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod vocabularies;

use forerun_text::{ChatTemplate, GenerationDefaults, SpecialTokens, Tokenizer, Vocabulary};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::Value;
use std::sync::LazyLock;
use vocabularies::{of_tokenizer_json, scored, spaced};

const TOKENIZER_JSON: &str = include_str!("data/tokenizer.json");

/// A tokenizer from tables and one from the file made of them.
struct Both {
    tables: Tokenizer,
    file: Tokenizer,
}

impl Both {
    fn new(vocabulary: &Vocabulary) -> Self {
        let files = vocabulary.to_files(None).unwrap();
        Self {
            tables: Tokenizer::from_vocabulary(vocabulary).unwrap(),
            file: Tokenizer::from_bytes(files.tokenizer.as_bytes()).unwrap(),
        }
    }

    /// Fails unless both agree on a text and on what its tokens decode to.
    fn check(&self, text: &str) {
        for special in [false, true] {
            let tokens = self.tables.encode(text, special).unwrap();
            assert_eq!(self.file.encode(text, special).unwrap(), tokens, "{text:?}");
            let decoded = self.tables.decode(&tokens, special).unwrap();
            assert_eq!(self.file.decode(&tokens, special).unwrap(), decoded, "{text:?}");
        }
    }
}

fn byte_level(pre: &str) -> Vocabulary {
    Vocabulary { bos: Some(379), eos: Some(381), ..of_tokenizer_json(TOKENIZER_JSON, pre) }
}

/// Merges as training leaves them: each makes a token of two earlier ones.
fn words() -> Vec<(&'static str, f32)> {
    let merged = [
        "he",
        "ll",
        "▁h",
        "hell",
        "hello",
        "▁▁",
        "▁he",
        "▁hello",
        "aa",
        "aaa",
        "aaaa",
        "ab",
        "aba",
        "ba",
        "abab",
        "ha",
        "haha",
        "▁▁▁▁",
    ];
    let letters = ["▁", "h", "e", "l", "o", "a", "b"];
    let scores = (1..).map(|rank: u8| -f32::from(rank));
    letters.map(|c| (c, -99.0)).into_iter().chain(merged.into_iter().zip(scores)).collect()
}

const LINES: [&str; 9] = ["\n", "\n\n", "\n\n\n", "▁", "▁▁", "a", "b", "ab", "▁ab"];
const LINE_MERGES: [&str; 3] = ["a b", "▁ ab", "▁ ▁"];

static QWEN: LazyLock<Both> = LazyLock::new(|| Both::new(&byte_level("qwen2")));
static SCORED: LazyLock<Both> = LazyLock::new(|| Both::new(&scored(&words())));
static SPACED: LazyLock<Both> = LazyLock::new(|| Both::new(&spaced(&LINES, &LINE_MERGES)));

#[test]
fn the_file_of_the_golden_tokenizer_gives_the_reference_answers() {
    let golden: Value = serde_json::from_str(include_str!("data/cases.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        let text = case["text"].as_str().unwrap();
        assert_eq!(QWEN.file.encode(text, false).unwrap(), ids, "{case}");
        assert_eq!(QWEN.file.decode(&ids, false).unwrap(), case["decoded"], "{case}");
        let skipped = QWEN.file.decode(&ids, true).unwrap();
        assert_eq!(skipped, case["decoded_skip_special"], "{case}");
        SCORED.check(text);
        SPACED.check(text);
    }
}

#[test]
fn every_kind_of_pre_tokenizer_is_written() {
    let text = "I'LL pay $12345.67 (now)\r\n\n  \t你好カタ한국어 Äpfel_\u{e01}\u{e34}²٣٤٥ e\u{301} 1234567  ";
    let names = [
        "default",
        "gpt-2",
        "olmo",
        "smollm",
        "command-r",
        "llama-bpe",
        "dbrx",
        "minicpm5",
        "qwen2",
        "grok-2",
        "qwen35",
        "gpt-4o",
        "tekken",
        "kimi-k2",
        "deepseek-llm",
        "deepseek-coder",
        "deepseek-v3",
        "falcon",
        "bloom",
        "viking",
        "superbpe",
        "bailingmoe",
        "seed-coder",
    ];
    for pre in names {
        let both = Both::new(&byte_level(pre));
        both.check(text);
        for digits in 1..12 {
            both.check(&format!("a{}", &"123456789012"[..digits]));
        }
    }
}

#[test]
fn special_tokens_are_put_around_a_text_as_before() {
    let wants = |add_bos, add_eos| Vocabulary {
        add_bos: Some(add_bos),
        add_eos: Some(add_eos),
        ..byte_level("qwen2")
    };
    for (bos, eos) in [(false, false), (true, false), (false, true), (true, true)] {
        let both = Both::new(&wants(bos, eos));
        both.check("");
        both.check("a<think>b");
        let expected: Vec<u32> =
            [(bos, 379), (eos, 381)].iter().filter(|w| w.0).map(|w| w.1).collect();
        assert_eq!(both.file.encode("", true).unwrap(), expected);
    }
}

#[test]
fn runs_of_line_breaks_stay_whole_or_single() {
    let runs = |length: usize| SPACED.file.encode(&"\n".repeat(length), false).unwrap().len();
    assert_eq!([1, 2, 3, 4, 5, 9].map(runs), [1, 1, 1, 4, 5, 9]);
    for length in 0..12 {
        SPACED.check(&format!("ab{}b", "\n".repeat(length)));
    }
}

#[test]
fn what_a_file_cannot_say_is_refused() {
    let refused = |vocabulary: &Vocabulary, words: &str| {
        Tokenizer::from_vocabulary(vocabulary).unwrap();
        let error = vocabulary.to_files(None).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let equal = [("a", -9.0), ("b", -9.0), ("ab", -1.0), ("ba", -1.0)];
    refused(&scored(&equal), "`ab` and `ba` have the same score");
    refused(&scored(&[("a", -9.0), ("ab", -1.0)]), "`ab` has a character that is no token");
    let stand_in = [("a", -9.0), ("<unk>a", -1.0)];
    refused(&scored(&stand_in), "`<unk>a` is made of a token that stands for another");
    let mut few = scored(&equal[..3]);
    few.tokens[100] = "<none>".to_owned();
    refused(&few, "255 of the 256 byte tokens");
    let gap = ["\n", "\n\n\n", "a", "b", "ab"];
    refused(&spaced(&gap, &["a b"]), "2 tokens, up to 3 long");
    let unmade = ["\n", "\n\n", "\n\n\n"];
    refused(&spaced(&unmade, &["\n \n"]), "token of 3 lines");
}

#[test]
fn long_tokens_are_refused_in_time() {
    let long: Vec<String> = (0..80).map(|n| format!("{n}{}", "a".repeat(60_000))).collect();
    let words: Vec<(&str, f32)> = long.iter().map(|text| (text.as_str(), -1.0)).collect();
    let error = scored(&words).to_files(None).unwrap_err().to_string();
    assert!(error.contains("too long"), "{error}");
}

#[test]
fn template_special_tokens_and_ends_are_found_again() {
    let vocabulary = Vocabulary { add_bos: Some(true), padding: Some(0), ..byte_level("qwen2") };
    let folder = tempfile::tempdir().unwrap();
    let template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}";
    let files = vocabulary.to_files(Some(template)).unwrap();
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    put("tokenizer_config.json", &files.tokenizer_config);
    put("generation_config.json", &vocabulary.generation_config().unwrap());
    let special = SpecialTokens::load(folder.path()).unwrap();
    for name in ["bos_token", "eos_token", "pad_token", "unk_token"] {
        assert_eq!(special.get(name), vocabulary.special_tokens().unwrap().get(name), "{name}");
    }
    assert!(ChatTemplate::load(folder.path()).unwrap().is_some());
    let config: Value = serde_json::from_str(&files.tokenizer_config).unwrap();
    assert_eq!(
        (&config["add_bos_token"], &config["chat_template"]),
        (&true.into(), &template.into())
    );
    let defaults = GenerationDefaults::load(folder.path()).unwrap();
    assert_eq!(defaults, vocabulary.generation_defaults().unwrap());
    assert!(defaults.eos_token_ids.contains(&381));
}

/// Words over few letters, each made of two others, with scores of their own.
fn trained() -> impl Strategy<Value = Vocabulary> {
    prop::collection::vec((0usize..64, 0usize..64), 1..30).prop_map(|pairs| {
        let mut words: Vec<String> = ["▁", "a", "b", "é"].map(str::to_owned).into();
        for (left, right) in pairs {
            let word = [&words[left % words.len()], &words[right % words.len()]];
            let word = word.map(String::as_str).concat();
            if word.len() < 24 && !words.contains(&word) {
                words.push(word);
            }
        }
        let words: Vec<(&str, f32)> =
            (0u8..).zip(&words).map(|(rank, text)| (text.as_str(), -f32::from(rank))).collect();
        scored(&words)
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000, failure_persistence: None, rng_seed: RngSeed::Fixed(12),
        ..Default::default()
    })]

    #[test]
    fn files_and_tables_agree_on_random_text(
        any in "(\\PC|[ \\n\\t\\r'a-e0-9]|<think>|</s>){0,60}", few in "[ahelob \\n]{0,60}",
    ) {
        for both in [&*QWEN, &*SCORED, &*SPACED] {
            both.check(&any);
            both.check(&few);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100, failure_persistence: None, rng_seed: RngSeed::Fixed(13),
        ..Default::default()
    })]

    #[test]
    fn ranks_do_what_scores_do(
        vocabulary in trained(), texts in prop::collection::vec("[abé ]{0,40}", 40),
    ) {
        let both = Both::new(&vocabulary);
        texts.iter().for_each(|text| both.check(text));
    }
}
