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
        "POST /tokenize HTTP/1.1\r\nhost: t\r\n{JSON}\r\ncontent-length: 99999999999\r\n\r\n"
    );
    announced.send(head.as_bytes()).unwrap();
    assert_eq!(announced.response().unwrap().status, 413);
    let mut chunked = Connection::open(server.address);
    let head = format!(
        "POST /tokenize HTTP/1.1\r\nhost: t\r\n{JSON}\r\ntransfer-encoding: chunked\r\n\r\n"
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
fn heads_that_are_too_much_are_refused() {
    let server = Running::start();
    let long = format!("x-long: {}", "a".repeat(200_000));
    let many: Vec<String> = (0..1000).map(|i| format!("x-{i}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let path = format!("/{}", "a".repeat(200_000));
    for (path, headers) in [("/version", &[long.as_str()][..]), ("/version", &many), (&path, &[])] {
        let mut connection = Connection::open(server.address);
        connection.ask("GET", path, headers, b"");
        // A server that hangs up on abuse may do so before the refusal is read.
        if let Some(response) = connection.response() {
            assert!(matches!(response.status, 400 | 414 | 431), "{}", response.status);
        }
    }
    for line in
        ["GET / HTTP/9.9\r\n\r\n", "\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "PRI * HTTP/2.0\r\n\r\n"]
    {
        let mut connection = Connection::open(server.address);
        connection.send(line.as_bytes()).unwrap();
        if let Some(response) = connection.response() {
            assert!((400..600).contains(&response.status), "{line:?}");
        }
    }
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
    let head =
        format!("POST /tokenize HTTP/1.1\r\nhost: t\r\n{JSON}\r\ncontent-length: 100\r\n\r\n{{");
    half_a_body.send(head.as_bytes()).unwrap();
    assert_eq!(half_a_body.response().unwrap().status, 408);
    goes_on(&server);
}

#[test]
fn connections_beyond_the_limit_are_told_so_and_the_rest_live() {
    let settings =
        Settings { connections: 4, patience: Duration::from_millis(500), ..Settings::default() };
    let server = Running::with(&sizes(), served(), settings);
    let idle: Vec<Connection> = (0..4).map(|_| Connection::open(server.address)).collect();
    // The last of them may not have been accepted yet.
    let refused = (0..100).any(|_| {
        let mut connection = Connection::open(server.address);
        std::thread::sleep(Duration::from_millis(2));
        matches!(connection.response(), Some(response) if response.status == 503)
    });
    assert!(refused);
    drop(idle);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let mut connection = Connection::open(server.address);
        connection.ask("GET", "/version", &[], b"");
        if connection.response().is_some_and(|response| response.status == 200) {
            break;
        }
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
