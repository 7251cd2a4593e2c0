//! Queueing, cancelling, draining: a server from start to end.

use crate::client::{Connection, JSON, get, post};
use crate::running::{Running, served, sizes};
use forerun_engine::Settings as EngineSettings;
use forerun_server::Settings;
use serde_json::{Value, json};
use std::time::Duration;

/// A stream that will not end soon.
fn endless() -> Value {
    json!({
        "prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": true, "stream": true,
        "speculation": "off",
    })
}

fn open_stream(server: &Running, body: &Value) -> Connection {
    let mut connection = Connection::open(server.address);
    connection.ask("POST", "/v1/completions", &[JSON], body.to_string().as_bytes());
    connection
}

fn is_free(server: &Running) {
    server.wait_for("forerun:num_requests_running", 0.0);
    assert_eq!(server.metric("forerun:kv_blocks_used"), 0.0);
    assert_eq!(server.metric("forerun:slots_used"), 0.0);
}

#[test]
fn a_client_that_hangs_up_frees_everything() {
    let server = Running::start();
    for streamed in [true, false] {
        let mut body = endless();
        body["stream"] = streamed.into();
        let mut connection = open_stream(&server, &body);
        if streamed {
            assert_eq!(connection.head().unwrap().status, 200);
        }
        server.wait_for("forerun:num_requests_running", 1.0);
        assert!(server.metric("forerun:kv_blocks_used") > 0.0);
        drop(connection);
        is_free(&server);
    }
    assert!(server.metric("forerun:generation_tokens_total") < 1800.0, "nobody was cut short");
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let settings = Settings { queue: 1, ..Settings::default() };
    let engine = EngineSettings { sequences: 1, ..sizes() };
    let server = Running::with(&engine, served(), settings);
    let mut running = open_stream(&server, &endless());
    assert_eq!(running.head().unwrap().status, 200);
    let mut waiting = open_stream(&server, &endless());
    assert_eq!(waiting.head().unwrap().status, 200);
    server.wait_for("forerun:num_requests_waiting", 1.0);
    let body = json!({"prompt": "A", "max_tokens": 1});
    let refused = post(server.address, "/v1/completions", &body);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert_eq!(refused.json()["error"]["code"], "queue_full");
    let too_many = json!({"prompt": "A", "max_tokens": 1, "n": 3});
    assert_eq!(post(server.address, "/v1/completions", &too_many).status, 400);
    drop((running, waiting));
    is_free(&server);
    assert_eq!(post(server.address, "/v1/completions", &body).status, 200);
}

#[test]
fn a_stream_says_it_is_alive_while_it_waits() {
    let engine = EngineSettings { sequences: 1, ..sizes() };
    let settings = Settings { keep_alive: Duration::from_millis(20), ..Settings::default() };
    let server = Running::with(&engine, served(), settings);
    let _first = open_stream(&server, &endless());
    server.wait_for("forerun:num_requests_running", 1.0);
    let mut second = open_stream(&server, &endless());
    let comment = std::iter::from_fn(|| second.line()).find(|line| line.starts_with(':'));
    assert_eq!(comment.as_deref(), Some(": keep-alive"));
}

#[test]
fn a_shutdown_lets_answers_end_and_nobody_in() {
    let server = Running::start();
    let body = json!({"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": true, "stream": true});
    let mut stream = open_stream(&server, &body);
    assert_eq!(stream.head().unwrap().status, 200);
    // Connected before the shutdown, asked during it.
    let mut late = Connection::open(server.address);
    late.ask("GET", "/health/ready", &[], b"");
    assert_eq!(late.response().unwrap().status, 200);
    server.handle.stop();
    let body = json!({"prompt": "A", "max_tokens": 1}).to_string();
    let mut refusals = 0;
    loop {
        late.ask("POST", "/v1/completions", &[JSON], body.as_bytes());
        match late.response() {
            Some(response) if response.status == 503 => {
                assert_eq!(response.header("retry-after"), Some("5"));
                refusals += 1;
                break;
            }
            Some(response) => assert_eq!(response.status, 200),
            None => break,
        }
    }
    assert_eq!(refusals, 1);
    let lines: Vec<String> = std::iter::from_fn(|| stream.line()).collect();
    assert!(lines.iter().any(|line| line == "data: [DONE]"), "the answer was cut off");
    server.ended().unwrap();
}

#[test]
fn a_shutdown_does_not_wait_for_ever() {
    let settings = Settings { drain: Duration::from_millis(50), ..Settings::default() };
    let server = Running::with(&sizes(), served(), settings);
    let body = json!({"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": true, "n": 4, "stream": true});
    let mut stream = open_stream(&server, &body);
    assert_eq!(stream.head().unwrap().status, 200);
    server.handle.stop();
    server.ended().unwrap();
    let lines: Vec<String> = std::iter::from_fn(|| stream.line()).collect();
    assert!(lines.iter().any(|line| line.contains("\"error\"")), "{lines:?}");
    assert!(!lines.iter().any(|line| line == "data: [DONE]"));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let settings = Settings { address, ..Settings::default() };
    let engine = crate::running::engine(&sizes());
    let error = forerun_server::Server::bind(engine, served(), settings).err().unwrap().to_string();
    assert!(error.contains(&address.to_string()), "{error}");
}

#[test]
fn what_was_done_is_counted() {
    let server = Running::start();
    let body = json!({"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "ignore_eos": true});
    let answer = post(server.address, "/v1/completions", &body).json();
    assert_eq!(answer["usage"]["completion_tokens"], 20);
    is_free(&server);
    // One token each was generated and read when the server warmed up.
    let read = answer["usage"]["prompt_tokens"].as_f64().unwrap() + 1.0;
    assert_eq!(server.metric("forerun:generation_tokens_total"), 21.0);
    assert_eq!(server.metric("forerun:prompt_tokens_total"), read);
    assert_eq!(server.metric("forerun:time_to_first_token_seconds_count"), 1.0);
    assert_eq!(server.metric("forerun:inter_token_latency_seconds_count"), 19.0);
    assert_eq!(server.metric("forerun:e2e_request_latency_seconds_count"), 1.0);
    assert_eq!(server.metric("forerun:submissions_in_flight"), 0.0);
    let text = get(server.address, "/metrics").text().to_owned();
    for line in [
        "forerun:request_success_total{finished_reason=\"length\"} 1",
        "forerun:http_requests_total{method=\"POST\",path=\"/v1/completions\",status=\"200\"} 1",
        "forerun:num_requests_waiting 0.0",
        "# EOF",
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    }
    assert!(text.contains("forerun:memory_pool_bytes{pool=\"kv cache\"}"));
    let busy = ["0.5", "0.99", "1"].map(|quantile| {
        let start = format!("forerun:submission_busy_seconds{{quantile=\"{quantile}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&start));
        value.unwrap_or_else(|| panic!("no {start} in\n{text}")).parse::<f64>().unwrap()
    });
    assert!(busy[0] > 0.0 && busy[0] <= busy[1] && busy[1] <= busy[2], "{busy:?}");
}
