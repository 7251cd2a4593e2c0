//! `forerun score`.

use crate::program::{bundled, forerun, forerun_with_stdin, json, stdout};

const TEXT: &str = "The cat sat on the mat.";

#[test]
fn a_text_scores_the_same_wherever_it_comes_from() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    std::fs::write(&file, TEXT).unwrap();
    let (model, file) = (bundled(), file.display().to_string());
    let expected = json(&["score", &model, TEXT]);
    let ids = expected["token_ids"].to_string();
    for words in [&["--text", TEXT][..], &["--file", &file], &["--ids", &ids]] {
        let found = json(&[&["score", &model], words].concat());
        assert_eq!(found["logprobs"], expected["logprobs"], "{words:?}");
    }
    let piped = forerun_with_stdin(&["score", &model, "--json"], &format!("{TEXT}\n"));
    let piped: serde_json::Value = serde_json::from_slice(&piped.stdout).unwrap();
    assert_eq!(piped["logprobs"], expected["logprobs"]);
}

#[test]
fn people_get_a_summary_and_a_listing_if_they_ask() {
    let model = bundled();
    let summary = stdout(&forerun(&["score", &model, TEXT]));
    assert_eq!(summary.lines().count(), 1);
    assert!(summary.contains("7 tokens") && summary.contains("perplexity"), "{summary}");
    let listing = stdout(&forerun(&["score", &model, TEXT, "--tokens"]));
    assert_eq!(listing.lines().count(), 8);
    assert!(listing.contains("\" cat\""), "{listing}");
}

#[test]
fn a_single_token_has_no_perplexity() {
    let report = json(&["score", &bundled(), "--ids", "5"]);
    assert_eq!(report["logprobs"], serde_json::json!([null]));
    assert!(report["perplexity"].is_null());
}

#[test]
fn the_bundled_model_scores_tokenizes_and_is_inspected_where_none_is_named() {
    let model = bundled();
    let same = |short: &[&str], long: &[&str], key: &str| {
        let (short, long) = (json(short), json(long));
        assert!(!short[key].is_null() && short[key] == long[key], "{key}: {short} {long}");
    };
    let text = "Once upon a time";
    same(&["score", text], &["score", &model, text], "logprobs");
    same(&["score", "--text", text], &["score", &model, "--text", text], "logprobs");
    same(&["tokenize", text], &["tokenize", &model, text], "token_ids");
    same(&["tokenize", "--decode", "5,6"], &["tokenize", &model, "--decode", "5,6"], "text");
    same(&["inspect"], &["inspect", &model], "parameters");
}
