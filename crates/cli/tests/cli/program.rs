//! Running the binary and reading what it says.

use forerun_testkit::Golden;
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The bundled model.
pub(crate) fn bundled() -> String {
    repository("models/tales-28m")
}

/// A golden checkpoint.
pub(crate) fn golden(name: &str) -> String {
    Golden::open(name).checkpoint().display().to_string()
}

pub(crate) fn repository(path: &str) -> String {
    let root: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", ".."].iter().collect();
    root.canonicalize().unwrap().join(path).display().to_string()
}

/// Runs `forerun` with these words and nothing on stdin.
pub(crate) fn forerun(words: &[&str]) -> Output {
    forerun_with_stdin(words, "")
}

pub(crate) fn forerun_with_stdin(words: &[&str], stdin: &str) -> Output {
    run(command(words), stdin)
}

/// The program with these words, to be given variables.
pub(crate) fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
    command.args(words);
    command
}

pub(crate) fn run(mut command: Command, stdin: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that complains about its options may be gone before it reads.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

/// Runs with `--json`; fails the test unless stdout is one JSON object and the exit is clean.
pub(crate) fn json(words: &[&str]) -> Value {
    let output = forerun(&[words, &["--json"]].concat());
    assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{words:?}: {e}"))
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Token ids in the form of `--ids`.
pub(crate) fn list(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}

pub(crate) fn token_ids(report: &Value) -> Vec<u32> {
    report["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A copy of a golden's checkpoint, to be spoiled.
pub(crate) fn copy_of(golden: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(Golden::open(golden).checkpoint()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

/// A copy of a model that keeps its chat template in `tokenizer_config.json`, without that.
pub(crate) fn without_template() -> tempfile::TempDir {
    let folder = copy_of("llama");
    std::fs::remove_file(folder.path().join("tokenizer_config.json")).unwrap();
    folder
}
