//! Heads of requests: how large, and for whom.

use crate::client::{Connection, get};
use crate::running::{Running, served, sizes};
use forerun_server::Settings;

/// Sends bytes in pieces; the status, if it was not lost with the connection.
fn status(server: &Running, head: &[u8], piece: usize) -> Option<u16> {
    let mut connection = Connection::open(server.address);
    for piece in head.chunks(piece) {
        if connection.send(piece).is_err() {
            break;
        }
    }
    connection.response().map(|response| response.status)
}

fn ask(server: &Running, lines: &[&str]) -> Option<u16> {
    status(server, format!("{}\r\n\r\n", lines.join("\r\n")).as_bytes(), usize::MAX)
}

#[test]
fn a_head_may_have_64_kib_and_not_a_byte_more() {
    let server = Running::start();
    let of = |bytes: usize| {
        let [start, end] = ["GET /version HTTP/1.1\r\nhost: localhost\r\nx-long: ", "\r\n\r\n"];
        format!("{start}{}{end}", "a".repeat(bytes - start.len() - end.len()))
    };
    for (bytes, piece) in [(64 << 10, usize::MAX), (64 << 10, 1000), (60_000, 8192)] {
        assert_eq!(status(&server, of(bytes).as_bytes(), piece), Some(200), "{bytes}");
    }
    for bytes in [(64 << 10) + 1, 66_000, 80_000, 100_000, 120_000, 131_072, 200_000] {
        for piece in [usize::MAX, 60_000, 8192] {
            // A server that hangs up on abuse may do so before the refusal is read.
            let status = status(&server, of(bytes).as_bytes(), piece);
            assert!(matches!(status, None | Some(431)), "{bytes}: {status:?}");
        }
    }
    assert_eq!(get(server.address, "/version").status, 200);
}

#[test]
fn a_path_counts_and_so_does_every_header() {
    let server = Running::start();
    let many: Vec<String> = (0..129).map(|i| format!("x-{i}: 1")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let some = [&["GET /version HTTP/1.1", "host: localhost"], &many[..126]].concat();
    assert_eq!(ask(&server, &some), Some(200));
    let many = [&["GET /version HTTP/1.1", "host: localhost"], &many[..]].concat();
    assert!(matches!(ask(&server, &many), None | Some(431)));
    for length in [65_536, 100_000, 200_000] {
        let line = format!("GET /{} HTTP/1.1", "a".repeat(length));
        let status = ask(&server, &[&line, "host: localhost"]);
        assert!(matches!(status, None | Some(414 | 431)), "{length}: {status:?}");
    }
    for line in ["GET / HTTP/9.9", "\0\0\0\0", "GET", "PRI * HTTP/2.0"] {
        if let Some(status) = ask(&server, &[line]) {
            assert!((400..600).contains(&status), "{line:?}");
        }
    }
    assert_eq!(get(server.address, "/version").status, 200);
}

#[test]
fn a_request_is_for_this_machine_and_for_one_host() {
    let hosts = vec!["box.example".to_owned()];
    let server = Running::with(&sizes(), served(), Settings { hosts, ..Settings::default() });
    let port = server.address.port();
    for (lines, expected) in [
        (&["host: localhost"][..], 200),
        (&[&format!("host: localhost:{port}")], 200),
        (&[&format!("host: {}", server.address)], 200),
        (&["host: [::1]:8080"], 200),
        (&["host: Box.Example:443"], 200),
        (&["host: evil.example"], 403),
        (&[&format!("host: evil.example:{port}")], 403),
        (&["host: "], 403),
        (&["host: localhost", "host: localhost"], 400),
        (&["host: localhost", "Host: evil.example"], 400),
        (&[], 400),
    ] {
        for path in ["/version", "/health", "/", "/debug/cache", "/nothing"] {
            let line = format!("GET {path} HTTP/1.1");
            let lines = [&[line.as_str()], lines].concat();
            let expected = if path == "/nothing" && expected == 200 { 404 } else { expected };
            assert_eq!(ask(&server, &lines), Some(expected), "{lines:?}");
        }
    }
    assert_eq!(ask(&server, &["GET /version HTTP/1.0", "connection: close"]), Some(200));
    let absolute = ["GET http://evil.example/version HTTP/1.1", "host: localhost"];
    assert_eq!(ask(&server, &absolute), Some(403));
    let mut connection = Connection::open(server.address);
    connection.send(b"GET /version HTTP/1.1\r\nhost: evil.example\r\n\r\n").unwrap();
    let refused = connection.response().unwrap();
    assert_eq!(refused.json()["error"]["code"], "host_not_allowed");
    assert!(refused.text().contains("--allow-host"), "{}", refused.text());
}
