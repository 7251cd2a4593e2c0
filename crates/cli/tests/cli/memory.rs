//! What hostile bodies cost a real server in memory.
#![cfg(target_os = "linux")]

use crate::serving::{Serving, post};
use std::time::{Duration, Instant};

/// MiB of memory that a process has, or had at most.
fn mebibytes(id: u32, what: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).expect(what);
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

/// A conversation of one message with so many parts of content.
fn parts(count: usize) -> Vec<u8> {
    let part = r#"{"type":"text","text":"x"}"#;
    let parts = vec![part; count].join(",");
    format!(r#"{{"max_tokens":1,"messages":[{{"role":"user","content":[{parts}]}}]}}"#).into_bytes()
}

/// 24 at a time of each kind: what is refused costs its bytes, what is taken apart costs what is documented.
#[test]
fn bodies_at_once_cost_a_bounded_amount_of_memory() {
    let server = Serving::start(&["--max-sequences", "8"]);
    let before = mebibytes(server.id(), "VmRSS");
    let most_lists = format!(r#"{{"prompt":[{}[]]}}"#, "[],".repeat(65_000)).into_bytes();
    let numbers = format!(r#"{{"prompt":[{}0]}}"#, "0,".repeat(800_000)).into_bytes();
    let text = format!(r#"{{"prompt":"{}"}}"#, "a ".repeat(5 << 20)).into_bytes();
    let small = parts(2_000);
    let (mut after, mut most) = (before, before);
    for (what, path, body, status) in [
        ("parts over the limit", "/v1/chat/completions", &parts(350_000), 413),
        ("parts below the limit", "/v1/chat/completions", &parts(65_000), 400),
        ("parts for another API", "/v1/messages", &parts(65_000), 400),
        ("small bodies", "/tokenize", &small, 400),
        ("lists", "/v1/completions", &most_lists, 400),
        ("numbers", "/v1/completions", &numbers, 400),
        ("text", "/v1/completions", &text, 400),
    ] {
        let answers: Vec<u16> = std::thread::scope(|scope| {
            let senders: Vec<_> =
                (0..24).map(|_| scope.spawn(|| post(&server.address, path, "", body))).collect();
            senders.into_iter().map(|sender| sender.join().unwrap()).collect()
        });
        most = mebibytes(server.id(), "VmHWM");
        // Freed memory goes back to the system a moment later.
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            after = mebibytes(server.id(), "VmRSS");
            if after < before + 96 || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("{what}: {before} MiB before, {after} after, {most} at most; {answers:?}");
        assert!(answers.contains(&status), "{what}: {answers:?}");
    }
    // 128 MiB of parsed bodies, twice for what templates copy, 64 MiB of bytes on their way, and some room.
    assert!(most < before + 448, "{before} MiB before, {most} at most");
    assert!(after < before + 96, "{before} MiB before, {after} after");
    assert!(server.get("/health/ready").starts_with("HTTP/1.1 200"));
    assert_eq!(server.terminate().0, Some(0));
}
