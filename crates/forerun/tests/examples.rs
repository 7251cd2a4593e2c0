//! The examples run, and the one that the README shows is the one that runs.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What an example prints, run where the README says.
fn printed(example: &str) -> String {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(example);
    let output = Command::new(&program).current_dir(root()).output().unwrap_or_else(|why| {
        panic!("{}: {why}; `cargo test -p forerun` builds the examples", program.display())
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn hello_continues_its_prompt() {
    let story = printed("hello");
    assert!(story.starts_with("Once upon a time there was a little fox"), "{story}");
    assert!(story.split_whitespace().count() > 50, "{story}");
}

#[test]
fn pages_show_examples_as_they_are() {
    for (page, example) in [("README.md", "hello.rs"), ("docs/guides/embedding.md", "chat.rs")] {
        let file = root().join("crates/forerun/examples").join(example);
        let code = std::fs::read_to_string(file).unwrap();
        assert!(code.lines().count() <= 25, "{example}: {} lines", code.lines().count());
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let blocks = text.split("```rust\n").skip(1);
        let mut shown = blocks.filter_map(|block| block.split_once("```")).map(|(block, _)| block);
        assert!(shown.any(|block| block == code), "{page} does not show {example}");
    }
}

#[test]
fn chat_reads_only_what_is_new() {
    let chat = printed("chat");
    assert!(chat.ends_with("6 messages\n"), "{chat}");
    let reads: Vec<Vec<usize>> = chat
        .lines()
        .filter(|line| line.ends_with("prompt tokens were read"))
        .map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
        .collect();
    assert_eq!(reads.len(), 3, "{chat}");
    assert!(reads[1][0] < reads[1][1] && reads[2][0] < reads[2][1], "{chat}");
}

#[test]
fn batch_answers_every_request() {
    let stories = printed("batch");
    assert_eq!(stories.matches("drafts accepted").count(), 4, "{stories}");
}

#[test]
fn constrained_prints_what_its_schema_and_expression_allow() {
    let printed = printed("constrained");
    let (seats, city) = printed.lines().next().unwrap().split_once(" in ").unwrap();
    assert!((1..=12).contains(&seats.parse::<u8>().unwrap()), "{printed}");
    assert!(["Berkeley", "Oakland", "San Jose"].contains(&city.trim_matches('"')), "{printed}");
    let time = printed.lines().nth(1).unwrap();
    assert!(time.starts_with("at ") && (time.ends_with("am") || time.ends_with("pm")), "{printed}");
}

#[test]
fn score_finds_sense_likelier_than_nonsense() {
    let printed = printed("score");
    let first = |line: &str| line.split_whitespace().next().unwrap().parse::<f64>().unwrap();
    let perplexities: Vec<f64> = printed.lines().map(first).collect();
    assert_eq!(perplexities.len(), 3, "{printed}");
    assert!(perplexities[0] < perplexities[2], "{printed}");
}
