//! The chat of `forerun run` at a terminal, which `script` plays.

use crate::program::{bundled, forerun};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the line editor sends when it begins to read.
const READING: &str = "\x1b[?2004h";

/// What a terminal of 60 columns shows of a program in which somebody types these lines, each once it reads one.
/// Its state folder is `state`.
pub(crate) fn talk(state: &Path, options: &str, lines: &[&str]) -> String {
    let words = format!("stty cols 60 rows 24; {} run {options}", env!("CARGO_BIN_EXE_forerun"));
    let mut child = Command::new("script")
        .args(["-qefc", &words, "/dev/null"])
        .env("XDG_STATE_HOME", state)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut shown, mut bytes, mut typed) = (String::new(), [0; 4096], 0);
    loop {
        let count = screen.read(&mut bytes).unwrap_or(0);
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
        if count == 0 {
            break;
        }
        if typed < lines.len() && shown.matches(READING).count() > typed {
            writeln!(keys, "{}", lines[typed]).unwrap();
            typed += 1;
        }
    }
    assert!(child.wait().unwrap().success(), "{shown}");
    assert_eq!(typed, lines.len(), "{shown}");
    shown
}

/// What a terminal shows of a command; the keys are typed once it shows `mark`.
pub(crate) fn at_terminal(words: &str, mark: &str, keys: &str) -> String {
    let words = format!("stty cols 60 rows 24; {} {words}", env!("CARGO_BIN_EXE_forerun"));
    let mut child = Command::new("script")
        .args(["-qfc", &words, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut shown, mut bytes, mut typed) = (String::new(), [0; 4096], keys.is_empty());
    loop {
        let count = screen.read(&mut bytes).unwrap_or(0);
        if count == 0 {
            break;
        }
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
        if !typed && shown.contains(mark) {
            input.write_all(keys.as_bytes()).unwrap();
            typed = true;
        }
    }
    child.wait().unwrap();
    shown
}

/// A chat without a history.
fn chat(options: &str, lines: &[&str]) -> String {
    talk(Path::new("/nonexistent"), &format!("--no-history {options}"), lines)
}

#[test]
fn a_chat_takes_paths_for_words_and_several_lines_for_one_message() {
    let lines = ["/etc/hosts has what?", "\"\"\"", "one", "two", "\"\"\"", "/regn", "/bye"];
    let said = chat("--max-tokens 3", &lines);
    assert_eq!(said.matches("first token").count(), 2, "two messages have answers: {said}");
    assert_eq!(said.matches("unknown command").count(), 1, "{said}");
    assert!(said.contains("unknown command `/regn`; did you mean `/regen`?"), "{said}");
}

#[test]
fn a_chat_sets_any_sampling_option_by_its_name() {
    let said = chat(
        "--temperature 1",
        &[
            "/set max-tokens 2",
            "/set temperature=0",
            "/set top_k warm",
            "/set tempreature 1",
            "/set top-p 0",
            "/set logit-bias 50=-3 51=2",
            "/set",
            "Hello",
            "/set temperature default",
            "/set",
            "/bye",
        ],
    );
    assert!(said.contains("answer 2 tok"), "{said}");
    assert!(said.contains("'warm'") && said.contains("did you mean `temperature`?"), "{said}");
    assert!(said.contains("top_p") && said.contains("logit-bias           50=-3 51=2"), "{said}");
    let temperatures: Vec<&str> =
        said.lines().filter_map(|line| line.strip_prefix("temperature ")).map(str::trim).collect();
    assert_eq!(temperatures, ["0", "1"], "{said}");
}

#[test]
fn a_conversation_is_saved_with_its_settings_and_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat.json").display().to_string();
    let [save, load] = ["save", "load"].map(|command| format!("/{command} {file}"));
    let options = "--seed 5 --max-tokens 12 --temperature 1.5";
    let first = chat(
        options,
        &["/system Be kind.", "/set top-k 20", "I want a table", "For two", &save, "/bye"],
    );
    assert!(first.contains("saved to"), "{first}");
    let saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let messages = saved["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 5);
    assert_eq!(messages[0]["content"], "Be kind.");
    assert_eq!((&saved["settings"]["seed"], &saved["settings"]["top-k"]), (&5.into(), &20.into()));
    // Loaded elsewhere, the last message has the same answer with the same seed, which `/regen` would leave.
    let again = chat(
        "--seed 9",
        &[&load, "/set seed 4", "/regen", &save, "/load /etc/hostname", "/load nowhere", "/bye"],
    );
    let regenerated: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(
        regenerated["messages"], saved["messages"],
        "seed 4, and the next one is 5: {again}"
    );
    assert!(again.contains("5 messages") && again.contains("is no saved conversation"), "{again}");
    assert!(again.contains("nowhere"), "{again}");
    let other = chat("--seed 9", &[&load, "/regen", &save, "/bye"]);
    let other_text: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(other_text["messages"].as_array().unwrap().len(), 5);
    assert_eq!(other_text["settings"]["seed"], 6, "{other}");
    assert_ne!(other_text["messages"][4], saved["messages"][4], "another seed, another text");
}

#[test]
fn history_is_kept_between_chats_for_nobody_else_unless_it_is_turned_off() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("forerun/history");
    talk(state.path(), "--no-history", &["/help", "/bye"]);
    assert!(!file.exists());
    talk(state.path(), "", &["/stats", "/bye"]);
    // An arrow up and Enter: the last line of the chat before, which leaves this one.
    let said = talk(state.path(), "", &["/help", "\x1b[A\x1b[A"]);
    assert!(said.contains("/bye"), "{said}");
    let kept = std::fs::read_to_string(&file).unwrap();
    assert_eq!(kept.lines().filter(|line| *line == "/bye").count(), 2, "{kept}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let folder = std::fs::metadata(file.parent().unwrap()).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
}

#[test]
fn answers_at_a_terminal_are_broken_between_words_and_nowhere_else() {
    let options = "--raw --temperature 0 --max-tokens 60 'Once upon a time there was'";
    let options = format!("{} {options}", bundled());
    let shown = talk(Path::new("/nonexistent"), &options, &[]);
    let (text, _) = shown.split_once("\x1b[2m").unwrap();
    let lines: Vec<&str> = text.lines().map(|line| line.trim_end_matches('\r')).collect();
    assert!(lines.len() > 3 && lines.iter().all(|line| line.chars().count() <= 60), "{lines:?}");
    let piped = forerun(&[
        "run",
        "--raw",
        "--temperature",
        "0",
        "--max-tokens",
        "60",
        "Once upon a time there was",
    ]);
    let piped = String::from_utf8(piped.stdout).unwrap();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&lines.join("\n")), words(&piped), "the same words, none of them cut");
}
