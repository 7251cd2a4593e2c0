//! Whatever arrives, the answer is a clear refusal and the server goes on.

use crate::client::{Connection, JSON, get, post, post_bytes};
use crate::running::{Running, served, sizes};
use forerun_server::Settings;
use serde_json::json;
use std::time::{Duration, Instant};

const PATHS: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"];

fn goes_on(server: &Running) {
    let body = json!({"prompt": "A", "max_tokens": 1});
    assert_eq!(post(server.address, "/v1/completions", &body).status, 200);
}

#[test]
fn bodies_that_are_no_request_are_refused() {
    let server = Running::start();
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    let deep_field = [&br#"{"messages":"#[..], &b"[".repeat(500), &b"]".repeat(500), b"}"].concat();
    for path in PATHS {
        for body in [
            &b""[..],
            b"{",
            b"null",
            b"[]",
            b"\"text\"",
            b"{\"prompt\": \"\xff\xfe\"}",
            b"{\"prompt\": \"\\ud800\"}",
            b"{\"prompt\": 1e999}",
            &deep,
            &deep_field,
        ] {
            let response = post_bytes(server.address, path, &[JSON], body);
            assert_eq!(response.status, 400, "{path}: {}", response.text());
            assert!(response.json()["error"]["message"].is_string());
        }
    }
    goes_on(&server);
}

#[test]
fn the_content_type_must_be_json() {
    let server = Running::start();
    let body = br#"{"prompt": "A", "max_tokens": 1}"#;
    for (headers, status) in [
        (&[][..], 415),
        (&["content-type: application/x-www-form-urlencoded"], 415),
        (&["content-type: text/plain"], 415),
        (&["content-type: application/json; charset=utf-8"], 200),
    ] {
        let response = post_bytes(server.address, "/v1/completions", headers, body);
        assert_eq!(response.status, status, "{headers:?}");
    }
}

#[test]
fn a_body_over_the_limit_is_refused_whether_announced_or_not() {
    let settings = Settings { body_bytes: 10_000, ..Settings::default() };
    let server = Running::with(&sizes(), served(), settings);
    let mut announced = Connection::open(server.address);
    let head = format!(
        "POST /tokenize HTTP/1.1\r\nhost: localhost\r\n{JSON}\r\ncontent-length: 99999999999\r\n\r\n"
    );
    announced.send(head.as_bytes()).unwrap();
    assert_eq!(announced.response().unwrap().status, 413);
    let mut chunked = Connection::open(server.address);
    let head = format!(
        "POST /tokenize HTTP/1.1\r\nhost: localhost\r\n{JSON}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    chunked.send(head.as_bytes()).unwrap();
    for _ in 0..20 {
        if chunked.send(&[b"400\r\n".as_slice(), &[b' '; 1024], b"\r\n"].concat()).is_err() {
            break;
        }
    }
    assert_eq!(chunked.response().unwrap().status, 413);
    goes_on(&server);
}

#[test]
fn who_is_slow_or_silent_is_hung_up_on() {
    let settings = Settings { patience: Duration::from_millis(300), ..Settings::default() };
    let server = Running::with(&sizes(), served(), settings);
    let hung_up = |mut connection: Connection| {
        let started = Instant::now();
        while connection.line().is_some() {}
        assert!(started.elapsed() < Duration::from_secs(30), "still open");
    };
    hung_up(Connection::open(server.address));
    let mut half_a_head = Connection::open(server.address);
    half_a_head.send(b"GET /version HTTP/1.1\r\nhost:").unwrap();
    hung_up(half_a_head);
    let mut idle = Connection::open(server.address);
    idle.ask("GET", "/version", &[], b"");
    assert_eq!(idle.response().unwrap().status, 200);
    hung_up(idle);
    let mut half_a_body = Connection::open(server.address);
    let head = format!(
        "POST /tokenize HTTP/1.1\r\nhost: localhost\r\n{JSON}\r\ncontent-length: 100\r\n\r\n{{"
    );
    half_a_body.send(head.as_bytes()).unwrap();
    assert_eq!(half_a_body.response().unwrap().status, 408);
    goes_on(&server);
}

/// A connection that has requested something and waits, in one of several ways, for the server to give up on it.
fn slow(server: &Running, way: usize) -> Connection {
    let mut connection = Connection::open(server.address);
    match way % 4 {
        0 => {}
        1 => connection.send(b"GET /version HTTP/1.1\r\nhost: loc").unwrap(),
        2 => {
            let head = format!(
                "POST /tokenize HTTP/1.1\r\nhost: localhost\r\n{JSON}\r\ncontent-length: 100\r\n\r\n{{"
            );
            connection.send(head.as_bytes()).unwrap();
        }
        _ => {
            connection.ask("GET", "/version", &[], b"");
            assert_eq!(connection.response().unwrap().status, 200);
        }
    }
    connection
}

#[test]
fn slow_and_silent_connections_give_way_and_health_is_answered_at_once() {
    let settings = Settings { connections: 64, ..Settings::default() };
    let server = Running::with(&sizes(), served(), settings);
    let idle: Vec<Connection> = (0..300).map(|way| slow(&server, way)).collect();
    for path in ["/health", "/health/live", "/health/ready", "/version", "/metrics"] {
        let started = Instant::now();
        assert_eq!(get(server.address, path).status, 200, "{path}");
        assert!(started.elapsed() < Duration::from_secs(10), "{path}: {:?}", started.elapsed());
    }
    goes_on(&server);
    // The ones that were silent for longest are gone, the latest are still there.
    let mut idle = idle.into_iter();
    assert!(idle.next().unwrap().line().is_none());
    let mut latest = idle.next_back().unwrap();
    latest.ask("GET", "/version", &[], b"");
    assert_eq!(latest.response().unwrap().status, 200);
}

#[test]
fn connections_beyond_those_that_wait_for_answers_are_for_health_alone() {
    let settings = Settings { connections: 2, ..Settings::default() };
    let server = Running::with(&sizes(), served(), settings);
    let body = json!({"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": true, "stream": true});
    let mut streams: Vec<Connection> = (0..2)
        .map(|_| {
            let mut stream = Connection::open(server.address);
            stream.ask("POST", "/v1/completions", &[JSON], body.to_string().as_bytes());
            assert_eq!(stream.head().unwrap().status, 200);
            stream
        })
        .collect();
    let refused = get(server.address, "/version");
    assert_eq!((refused.status, refused.header("connection")), (503, Some("close")));
    assert!(refused.header("retry-after").is_some());
    for _ in 0..40 {
        assert_eq!(get(server.address, "/health").status, 200);
    }
    // Nobody was cut off for it.
    assert!(streams.iter_mut().all(|stream| stream.line().is_some()));
    drop(streams.pop());
    let deadline = Instant::now() + Duration::from_secs(30);
    while get(server.address, "/version").status != 200 {
        assert!(Instant::now() < deadline, "no connection was given back");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_thousand_silent_connections_leave_the_server_usable() {
    let server = Running::start();
    let idle: Vec<Connection> = (0..900).map(|_| Connection::open(server.address)).collect();
    goes_on(&server);
    assert_eq!(get(server.address, "/health/ready").status, 200);
    drop(idle);
}

/// The same many parts in the form of each API.
#[test]
fn a_body_of_many_parts_is_refused_before_it_is_taken_apart() {
    let server = Running::start();
    let part = |kind: &str| format!("{{\"type\":\"{kind}\",\"text\":\"x\"}},").repeat(70_000);
    let parts = |kind: &str| format!("[{}{{\"type\":\"{kind}\",\"text\":\"x\"}}]", part(kind));
    let message = |kind: &str| format!("[{{\"role\":\"user\",\"content\":{}}}]", parts(kind));
    let chat = format!("{{\"messages\":{},\"max_tokens\":1}}", message("text"));
    let responses = format!("{{\"input\":{},\"max_output_tokens\":1}}", message("input_text"));
    let messages = format!(
        "{{\"messages\":[{}{{}}]}}",
        "{\"role\":\"user\",\"content\":\"\"},".repeat(70_000)
    );
    let numbers = format!("{{\"prompt\":[{}0]}}", "0,".repeat(2_000_000));
    for (path, body, named) in [
        ("/v1/chat/completions", &chat, "65536"),
        ("/v1/messages", &chat, "65536"),
        ("/v1/messages/count_tokens", &chat, "65536"),
        ("/v1/responses", &responses, "65536"),
        ("/tokenize", &chat, "65536"),
        ("/v1/chat/completions", &messages, "65536"),
        ("/v1/completions", &numbers, "134217728"),
        ("/detokenize", &numbers, "134217728"),
    ] {
        let response = post_bytes(server.address, path, &[JSON], body.as_bytes());
        assert_eq!(response.status, 413, "{path}: {}", response.text());
        assert!(response.text().contains(named), "{path}: {}", response.text());
    }
    goes_on(&server);
}

#[test]
fn a_coded_body_is_refused_by_the_name_of_its_coding() {
    let server = Running::start();
    let body = br#"{"prompt": "A", "max_tokens": 1}"#;
    for (coding, status) in
        [("gzip", 415), ("br", 415), ("identity, gzip", 415), ("identity", 200), ("Identity", 200)]
    {
        let header = format!("content-encoding: {coding}");
        let response = post_bytes(server.address, "/v1/completions", &[JSON, &header], body);
        assert_eq!(response.status, status, "{coding}");
        if status == 415 {
            assert!(response.text().contains(coding), "{}", response.text());
            assert_eq!(response.header("accept-encoding"), Some("identity"));
        }
    }
}
