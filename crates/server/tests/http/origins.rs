//! Pages of other origins: let in only where the operator said so.

use crate::client::{Connection, Response};
use crate::running::{Running, served, sizes};
use forerun_server::Settings;

const BODY: &[u8] = br#"{"prompt": "Once", "max_tokens": 1}"#;
const ALLOWED: &str = "access-control-allow-origin";

fn ask(server: &Running, method: &str, headers: &[&str], body: &[u8]) -> Response {
    let mut connection = Connection::open(server.address);
    let headers = [&["content-type: application/json"], headers].concat();
    connection.ask(method, "/v1/completions", &headers, body);
    connection.response().unwrap()
}

fn preflight(server: &Running, origin: &str) -> Response {
    let headers = [
        &format!("origin: {origin}"),
        "access-control-request-method: POST",
        "access-control-request-headers: authorization, content-type",
    ];
    ask(server, "OPTIONS", &headers, b"")
}

fn with(origins: &[&str]) -> Running {
    let origins = origins.iter().map(|&origin| origin.to_owned()).collect();
    let api_keys = vec!["sesame".to_owned()];
    Running::with(&sizes(), served(), Settings { origins, api_keys, ..Settings::default() })
}

#[test]
fn no_page_of_another_origin_is_let_in_unless_it_was_named() {
    let server = Running::start();
    assert_eq!(preflight(&server, "http://localhost:3000").status, 405);
    let answer = ask(&server, "POST", &["origin: http://localhost:3000"], BODY);
    assert_eq!((answer.status, answer.header(ALLOWED)), (200, None), "the browser hides it");
}

#[test]
fn a_named_origin_may_ask_and_read_and_another_may_not() {
    let server = with(&["http://localhost:3000"]);
    // A browser sends no key when it asks whether it may.
    let asked = preflight(&server, "http://localhost:3000");
    assert_eq!(asked.status, 204);
    assert_eq!(asked.header(ALLOWED), Some("http://localhost:3000"));
    assert_eq!(asked.header("access-control-allow-headers"), Some("authorization, content-type"));
    assert!(asked.header("access-control-allow-methods").unwrap().contains("POST"));
    assert_eq!(asked.header("vary"), Some("origin"));
    for other in ["http://localhost:3001", "https://localhost:3000", "null"] {
        let asked = preflight(&server, other);
        assert!(asked.status >= 400 && asked.header(ALLOWED).is_none(), "{other}: {asked:?}");
    }
    let origin = "origin: http://localhost:3000";
    let refused = ask(&server, "POST", &[origin], BODY);
    assert_eq!(refused.status, 401, "a key is still needed");
    assert_eq!(refused.header(ALLOWED), Some("http://localhost:3000"), "and the page may read why");
    let answer = ask(&server, "POST", &[origin, "authorization: Bearer sesame"], BODY);
    assert_eq!((answer.status, answer.header(ALLOWED)), (200, Some("http://localhost:3000")));
    assert!(answer.header("access-control-expose-headers").unwrap().contains("x-request-id"));
}

#[test]
fn a_star_names_every_origin_and_forged_hosts_stay_out() {
    let server = with(&["*"]);
    let asked = preflight(&server, "https://anything.example");
    assert_eq!((asked.status, asked.header(ALLOWED)), (204, Some("*")));
    let mut connection = Connection::open(server.address);
    let head = "OPTIONS /v1/completions HTTP/1.1\r\nhost: evil.example\r\norigin: http://evil.example\r\n\
                access-control-request-method: POST\r\n\r\n";
    connection.send(head.as_bytes()).unwrap();
    assert_eq!(connection.response().unwrap().status, 403);
}
