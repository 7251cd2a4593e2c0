//! `forerun serve` as a supervisor sees it.

use crate::program::{command, forerun};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A server on a free port.
pub(crate) struct Serving {
    child: Child,
    pub(crate) address: String,
}

impl Serving {
    pub(crate) fn start(options: &[&str]) -> Self {
        let mut child = command(&["serve", "--port", "0", "--ctx", "256", "--max-sequences", "1"])
            .args(options)
            .env_remove("FORERUN_API_KEY")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap_or_default().to_owned();
        Self { child, address }
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Sends JSON to a path; status and body of the answer.
    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_else(|e| panic!("{text}: {e}")))
    }

    /// Number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, as a supervisor does; its exit status and what it wrote to stderr.
    pub(crate) fn terminate(mut self) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // A test that failed leaves no server behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_tells_what_it_serves_and_ends_when_it_is_told_to() {
    let server = Serving::start(&["--name", "fox", "--log", "json"]);
    assert!(server.address.starts_with("127.0.0.1:"), "{}", server.address);
    assert!(server.get("/health/ready").starts_with("HTTP/1.1 200"));
    assert!(server.get("/v1/models").contains("\"fox\""));
    let (status, log) = server.terminate();
    assert_eq!(status, Some(0), "{log}");
    for told in ["fox", "256 tokens", "kv cache", "speculation"] {
        assert!(log.contains(told), "no {told} in\n{log}");
    }
    let lines = log.lines().filter(|line| line.starts_with('{'));
    let requests = lines
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|line| line["message"] == "request")
        .count();
    assert_eq!(requests, 2, "{log}");
}

#[test]
fn a_config_file_is_read_and_typed_options_win() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forerun.toml");
    std::fs::write(&file, "name = \"from-file\"\nalias = [\"other\"]\napi-key = \"sesame\"\n")
        .unwrap();
    let server = Serving::start(&["--config", file.to_str().unwrap(), "--name", "typed"]);
    assert!(server.get("/v1/models").starts_with("HTTP/1.1 401"));
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn what_cannot_be_served_is_an_error_before_weights_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("keys");
    std::fs::write(&empty, "\n\n").unwrap();
    let empty = empty.to_str().unwrap();
    for (options, named) in [
        (["--api-key-file", empty], "holds no key"),
        (["--api-key-file", "no-such-file"], "no-such-file"),
        (["--config", "no-such-file.toml"], "no-such-file.toml"),
        (["--api-key", ""], "empty"),
    ] {
        let output = forerun(&[&["serve"], &options[..]].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{options:?}: {told}");
        assert!(told.contains(named), "{options:?}: {told}");
    }
}
