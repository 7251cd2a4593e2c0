//! `forerun serve` as a supervisor sees it.

use crate::program::{command, forerun, repository};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server on a free port.
pub(crate) struct Serving {
    child: Child,
    pub(crate) address: String,
}

impl Serving {
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_with(options, "")
    }

    /// With a key in the environment, where it is not empty.
    fn start_with(options: &[&str], key: &str) -> Self {
        let mut child = command(&["serve", "--port", "0", "--ctx", "256", "--max-sequences", "1"])
            .args(options)
            .env_remove("FORERUN_API_KEY")
            .envs((!key.is_empty()).then_some(("FORERUN_API_KEY", key)))
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
        self.get_with(path, "")
    }

    /// A GET with more header lines, each with its end.
    pub(crate) fn get_with(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let host = if headers.contains("host:") { "" } else { "host: localhost\r\n" };
        write!(stream, "GET {path} HTTP/1.1\r\n{host}{headers}connection: close\r\n\r\n").unwrap();
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

/// Sends a body with more header lines; the status of the answer, or 0 if the connection was lost.
pub(crate) fn post(address: &str, path: &str, headers: &str, body: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n{headers}connection: close\r\n\r\n"
    );
    // A server may refuse before it has read all.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer.split(' ').nth(1).map_or(0, |status| status.parse().unwrap())
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
        (["--admin-key-file", empty], "holds no key"),
        (["--admin-key-file", "no-such-admins"], "no-such-admins"),
        (["--config", "no-such-file.toml"], "no-such-file.toml"),
        (["--api-key", ""], "empty"),
    ] {
        let output = forerun(&[&["serve"], &options[..]].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{options:?}: {told}");
        assert!(told.contains(named), "{options:?}: {told}");
    }
}

#[test]
fn options_about_who_may_ask_reach_the_server_from_the_command_line_and_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let [keys, admins] = ["keys", "admins"].map(|name| folder.path().join(name));
    std::fs::write(&keys, "first\nsecond\n").unwrap();
    std::fs::write(&admins, "root\n").unwrap();
    let [keys, admins] = [keys.to_str().unwrap(), admins.to_str().unwrap()];
    let file = folder.path().join("forerun.toml");
    let lines = format!(
        "api-key-file = {keys:?}\nadmin-key-file = {admins:?}\nshare-cache = true\nallow-host = [\"box\", \"crate\"]\n"
    );
    std::fs::write(&file, lines).unwrap();
    let typed = [
        "--api-key-file",
        keys,
        "--admin-key-file",
        admins,
        "--share-cache",
        "--allow-host",
        "box",
    ];
    for options in [&typed[..], &["--config", file.to_str().unwrap()]] {
        let server = Serving::start(options);
        for (headers, status) in [
            ("", 401),
            ("x-api-key: first\r\n", 200),
            ("x-api-key: root\r\nhost: box:80\r\n", 200),
            ("x-api-key: first\r\nhost: evil\r\n", 403),
        ] {
            for path in ["/debug/cache", "/v1/models"] {
                let answer = server.get_with(path, headers);
                let expected = format!("HTTP/1.1 {status}");
                assert!(answer.starts_with(&expected), "{options:?} {path} {headers:?}: {answer}");
            }
        }
        assert_eq!(server.terminate().0, Some(0));
    }
}

#[test]
fn documented_options_exist_and_documented_config_files_are_read() {
    let help = String::from_utf8(forerun(&["serve", "--help"]).stdout).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forerun.toml");
    let mut files = 0;
    for page in ["docs/server.md", "docs/deployment.md"] {
        let text = std::fs::read_to_string(repository(page)).unwrap();
        let is_part = |char: char| char.is_ascii_lowercase() || char == '-';
        if page == "docs/server.md" {
            for (at, _) in text.match_indices("--") {
                let option: String = text[at..].chars().take_while(|&char| is_part(char)).collect();
                let known = option.len() < 4 || help.contains(&format!("{option} "));
                assert!(
                    known
                        || help.contains(&format!("{option}\n"))
                        || help.contains(&format!("{option}[")),
                    "{option}"
                );
            }
        }
        for block in text.split("```toml\n").skip(1) {
            // Its model or its keys are not here, which is only seen once its options are read.
            std::fs::write(&file, block.split("```").next().unwrap()).unwrap();
            let output = forerun(&["serve", "--config", file.to_str().unwrap()]);
            let told = String::from_utf8(output.stderr).unwrap();
            assert!(told.contains("/etc/forerun/keys"), "{page}: {told}");
            files += 1;
        }
    }
    assert_eq!(files, 2);
}

#[test]
fn documented_options_of_the_server_do_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let typed =
        ["--cache", "32", "--cache-disk", "64", "--max-body", "1", "--queue", "0", "--kv", "i8"];
    let more = ["--alias", "fox", "--host", "127.0.0.2", "--drain", "1", "--log-level", "debug"];
    let limits = ["--max-connections", "8", "--cache-dir", cache.to_str().unwrap()];
    let server = Serving::start_with(&[&typed[..], &more, &limits].concat(), "sesame");
    assert!(server.address.starts_with("127.0.0.2:"), "{}", server.address);
    let key = "authorization: Bearer sesame\r\n";
    assert!(server.get("/metrics").starts_with("HTTP/1.1 401"));
    assert!(server.get_with("/v1/models/fox", key).starts_with("HTTP/1.1 200"));
    let metrics = server.get_with("/metrics", key);
    for line in [
        "forerun:prefix_cache_limit_bytes{tier=\"memory\"} 33554432",
        "forerun:prefix_cache_limit_bytes{tier=\"disk\"} 67108864",
        "forerun:slots 1",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
    assert_eq!(post(&server.address, "/v1/completions", key, &vec![b' '; (1 << 20) + 1]), 413);
    // Room for one answer and no queue: two at a time are one too many, whatever asks for them.
    let two = br#"{"prompt": "A", "n": 2, "max_tokens": 1}"#;
    assert_eq!(post(&server.address, "/v1/completions", key, two), 400);
    let one = br#"{"prompt": "A", "max_tokens": 1}"#;
    assert_eq!(post(&server.address, "/v1/completions", key, one), 200);
    let silent: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    assert!(server.get("/health").starts_with("HTTP/1.1 200"));
    drop(silent);
    assert!(cache.join("lock").exists());
    let (status, log) = server.terminate();
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("disk cache"), "{log}");
}

#[test]
fn several_models_are_served_from_a_file_and_one_makes_room_for_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let bundled = repository("models/tales-28m");
    let file = folder.path().join("models.toml");
    let text = format!(
        "first = {bundled:?}\n[second]\npath = {bundled:?}\naliases = [\"gpt-*\"]\nctx = 128\n\
         [broken]\npath = \"nowhere\"\n"
    );
    std::fs::write(&file, text).unwrap();
    // One fits and two do not.
    let file = file.to_str().unwrap();
    let sizes = ["--memory", "520MiB", "--cache", "0", "--unload-after", "3"];
    let kept = ["--store-responses", "1"];
    let server = Serving::start(&[&["--models", file], &sizes[..], &kept].concat());
    let ask = |model: &str| {
        let body = serde_json::json!({"model": model, "prompt": "Once", "max_tokens": 2});
        server.post("/v1/completions", &body)
    };
    let state = |model: &str| {
        let card = server.get(&format!("/v1/models/{model}"));
        let (_, card) = card.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<Value>(card).unwrap()
    };
    let (status, body) = ask("broken");
    let message = body["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(status == 500 && message.contains("nowhere"), "{status}: {body}");
    assert_eq!(ask("first").0, 200);
    assert_eq!(state("first")["max_model_len"], 256);
    let (status, body) = ask("gpt-4o");
    assert_eq!((status, &body["model"]), (200, &Value::from("second")), "{body}");
    assert_eq!(state("second")["max_model_len"], 128);
    assert_eq!(
        (&state("first")["state"], &state("broken")["state"]),
        (&"unloaded".into(), &"failed".into())
    );
    let first = serde_json::json!({"model": "second", "input": "Hi", "max_output_tokens": 2});
    let (_, first) = server.post("/v1/responses", &first);
    let next = serde_json::json!({"model": "second", "input": "And?", "max_output_tokens": 2,
                                  "previous_response_id": first["id"]});
    assert_eq!(server.post("/v1/responses", &next).0, 200);
    let deadline = Instant::now() + Duration::from_secs(60);
    while state("second")["state"] != "unloaded" {
        assert!(Instant::now() < deadline, "{}", state("second"));
        std::thread::sleep(Duration::from_millis(100));
    }
    let (status, log) = server.terminate();
    assert_eq!(status, Some(0), "{log}");
    assert!(
        log.contains("first, second, broken") || log.contains("broken, first, second"),
        "{log}"
    );
}
