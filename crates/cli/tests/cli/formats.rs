//! GGUF files, drafters of their own and longer contexts from the command line.

use crate::program::{forerun, json, list, stderr, stdout};
use forerun_testkit::Golden;

fn golden(name: &str) -> String {
    Golden::open(name).checkpoint().display().to_string()
}

fn gguf(name: &str) -> String {
    format!("{}/model.gguf", golden(name))
}

#[test]
fn a_gguf_brings_its_own_tokenizer_and_end_tokens() {
    // The same tokens as the tokenizer.json that the file was made from, specials in the text included.
    let text = "naïve café — 你好 <|im_start|>user\nhi<|im_end|>\n";
    let published = json(&["tokenize", &golden("qwen3_5"), text]);
    let packed = json(&["tokenize", &gguf("gguf_qwen3_5_q8_0"), text]);
    assert_eq!(published["token_ids"], packed["token_ids"]);
    let ids: Vec<u32> = serde_json::from_value(packed["token_ids"].clone()).unwrap();
    let back = json(&["tokenize", &gguf("gguf_qwen3_5_q8_0"), "--decode", &list(&ids)]);
    assert_eq!(back["text"], text);
    let report = json(&["inspect", &gguf("gguf_qwen3_5_q8_0")]);
    assert_eq!(report["text"]["eos_token_ids"], serde_json::json!([381, 379]));
    assert_eq!(report["mtp"]["present"], true);
}

#[test]
fn a_gguf_says_whether_a_head_is_missing_or_never_was() {
    let mtp = |name: &str| json(&["inspect", &gguf(name)])["mtp"].clone();
    assert_eq!(mtp("gguf_llama_q8_0")["missing"], false, "models of this type have none");
    assert_eq!(mtp("gguf_qwen3_5_q8_0")["missing"], false, "it is there");
    let headless = mtp("gguf_qwen3_5_wide_q4_k");
    assert_eq!(headless["missing"], true, "{headless}");
    let page = stdout(&forerun(&["inspect", &gguf("gguf_qwen3_5_wide_q4_k")]));
    assert!(page.contains("--drafter ORIGINAL"), "{page}");
}

#[test]
fn a_folder_with_one_gguf_is_a_model() {
    let name = "gguf_llama_q8_0";
    let prompt = list(&Golden::open(name).tokens("input_ids"));
    let words = ["--ids", &prompt, "--temperature", "0", "--max-tokens", "32", "--ignore-eos"];
    let of = |model: &str| json(&[&["run", model][..], &words].concat())["token_ids"].clone();
    let expected = serde_json::json!(Golden::open(name).tokens("greedy.ids"));
    assert_eq!(of(&gguf(name)), expected);
    assert_eq!(of(&golden(name)), expected);
}

#[test]
fn a_drafter_of_its_own_drafts_and_changes_nothing() {
    let (model, drafter) = (golden("gemma4_dense"), golden("gemma4_assistant"));
    let prompt = list(&Golden::open("gemma4_dense").tokens("input_ids"));
    let answer = json(&[
        "run",
        &model,
        "--drafter",
        &drafter,
        "--ids",
        &prompt,
        "--temperature",
        "0",
        "--max-tokens",
        "32",
        "--ignore-eos",
        "--draft",
        "2",
        "--ngram",
        "off",
    ]);
    let expected = serde_json::json!(Golden::open("gemma4_dense").tokens("greedy.ids"));
    assert_eq!(answer["token_ids"], expected);
    assert!(answer["speculation"]["drafted"].as_u64().unwrap() > 0, "{answer}");
}

#[test]
fn wrong_drafters_are_refused_with_what_to_do() {
    let cases = [
        (golden("qwen3_5"), golden("gemma4_assistant"), "made for Gemma 4"),
        (golden("gemma4_dense"), golden("llama"), "neither a separate drafter nor an MTP head"),
        (golden("gemma4_dense"), "nowhere/at/all".to_owned(), "--drafter nowhere/at/all"),
    ];
    for (model, drafter, words) in cases {
        let output = forerun(&["inspect", &model, "--drafter", &drafter]);
        assert_eq!(output.status.code(), Some(1), "{drafter}");
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
    let alone = forerun(&["run", &golden("gemma4_assistant"), "--ids", "1"]);
    assert!(stderr(&alone).contains("--drafter"), "{}", stderr(&alone));
}

#[test]
fn a_stretched_rope_reaches_further_and_changes_far_text_only_by_request() {
    let model = golden("qwen3");
    let report = json(&["inspect", &model, "--rope-scale", "4"]);
    assert_eq!(report["architecture"]["max_positions"], 4 * 4096);
    let score = |more: &[&str]| {
        let words = [&["score", &model, "--ids", "5,6,7,8,9,10"][..], more].concat();
        json(&words)["logprobs"].clone()
    };
    assert_ne!(score(&[]), score(&["--rope-scale", "4"]));
    assert_ne!(
        score(&["--rope-scale", "4"]),
        score(&["--rope-scale", "4", "--rope-scaling", "linear"])
    );
    let alone = forerun(&["inspect", &model, "--rope-scaling", "linear"]);
    assert_eq!(alone.status.code(), Some(2), "{}", stderr(&alone));
}

#[test]
fn unreadable_ggufs_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(gguf("gguf_llama_q8_0")).unwrap();
    for (name, bytes, words) in [
        ("empty.gguf", &[][..], "empty.gguf"),
        ("short.gguf", &whole[..whole.len() / 2], "short.gguf"),
        ("text.gguf", b"this is not a model at all, just text", "GGUF"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let output = forerun(&["inspect", &path.display().to_string()]);
        assert_eq!(output.status.code(), Some(1), "{name}: {}", stdout(&output));
        assert!(stderr(&output).contains(words), "{name}: {}", stderr(&output));
    }
}
