//! `--mtp optimistic`, from the command line and over HTTP.

use crate::program::{bundled, json};
use crate::serving::Serving;
use forerun_testkit::{GOLDENS, Golden};
use serde_json::{Value, json as object};

const DEPTHS: [&str; 9] = ["1", "2", "3", "4", "5", "6", "7", "8", "auto"];

/// An answer of 24 tokens whose drafts are taken as they are.
fn optimistic(words: &[&str], depth: &str) -> Value {
    let options = ["--mtp", "optimistic", "--draft", depth, "--max-tokens", "24", "--ignore-eos"];
    json(&[&["run", "--temperature", "0", "--threads", "1"], words, &options[..]].concat())
}

fn check(name: &str, depth: &str, report: &Value) {
    let speculation = &report["speculation"];
    assert_eq!(report["completion_tokens"], 24, "{name}, depth {depth}: {report}");
    assert_eq!(speculation["drafted"], 0, "{name}, depth {depth}: nothing is checked");
    // The first token comes from the prompt; then each round takes its drafts and one token of the trunk, and the
    // last token is always the trunk's.
    let depth: u64 = depth.parse().unwrap_or(1);
    let (rounds, left) = (23 / (depth + 1), 23 % (depth + 1));
    let unchecked = rounds * depth + left.saturating_sub(1);
    let found = speculation["unchecked"].as_u64().unwrap();
    assert_eq!(found, unchecked, "{name}, depth {depth}: {speculation}");
    let memory = report["memory"]["items"].as_array().unwrap();
    assert!(memory.iter().all(|item| item["label"] != "draft log" || item["bytes"] == 0), "{name}");
}

#[test]
fn every_depth_takes_every_draft_of_the_bundled_model() {
    for depth in DEPTHS {
        check("bundled", depth, &optimistic(&["--raw", "Once upon a time"], depth));
    }
}

#[test]
fn every_hybrid_takes_every_draft_at_every_depth() {
    let mut tried = 0;
    for name in GOLDENS {
        let golden = Golden::open(name);
        let model = golden.checkpoint().display().to_string();
        let report = json(&["inspect", &model]);
        if report["mtp"]["present"] != true {
            continue;
        }
        tried += 1;
        // Every depth for the families as published, the ends for other formats of their weights.
        let published = ["qwen3_next", "qwen3_5", "qwen3_5_odd", "qwen3_5_moe"].contains(&name);
        let depths = if published { &DEPTHS[..] } else { &["8", "auto"] };
        for depth in depths {
            check(name, depth, &optimistic(&[&model, "--ids", "1,2,3,4"], depth));
        }
    }
    assert!(tried >= 8, "only {tried} goldens have an MTP head");
}

#[test]
fn chunks_shorter_than_a_round_lower_the_depth() {
    let report =
        optimistic(&["--raw", "Once upon a time", "--prefill-chunk", "3", "--kv", "f32"], "8");
    assert_eq!(report["completion_tokens"], 24, "{report}");
    assert_eq!(report["speculation"]["depth_histogram"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_server_takes_drafts_for_several_answers_at_a_time() {
    let server = Serving::start(&[&bundled(), "--mtp", "optimistic", "--draft", "3"]);
    let body = object!({"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0});
    let (status, answer) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    let alone = optimistic(&["--raw", "Once upon a time"], "3");
    assert_eq!(answer["choices"][0]["text"], alone["text"], "{answer}");
    // A request has the last word on its depth.
    let one = object!({"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "speculation": 1});
    let alone = optimistic(&["--raw", "Once upon a time"], "1");
    assert_eq!(server.post("/v1/completions", &one).1["choices"][0]["text"], alone["text"]);
    assert_eq!(server.terminate().0, Some(0));
}

/// Resident memory of a process in KiB.
#[cfg(target_os = "linux")]
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn memory_of_an_optimistic_server_is_flat_over_two_hundred_requests() {
    let model = Golden::open("qwen3_5").checkpoint().display().to_string();
    let server = Serving::start(&[
        &model,
        "--mtp",
        "optimistic",
        "--threads",
        "1",
        "--cache",
        "4",
        "--log-level",
        "error",
    ]);
    let ask = |i: u32| {
        let body = object!({"prompt": [1, 2 + i, 3], "max_tokens": 40, "ignore_eos": true});
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
    };
    (0..50).for_each(ask);
    let warm = resident(server.id());
    (50..250).for_each(ask);
    let grown = resident(server.id()).saturating_sub(warm);
    assert!(grown < 6 << 10, "{grown} KiB more than after 50 requests");
    assert_eq!(server.terminate().0, Some(0));
}
