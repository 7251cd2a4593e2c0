//! A client that does what it is told, also what no client library would.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The notes on what was ignored or not followed exactly.
    pub(crate) fn notes(&self) -> Option<&str> {
        self.header("x-forerun-notes")
    }

    /// The list of ignored fields, which is the first note.
    pub(crate) fn ignored(&self) -> Option<&str> {
        self.notes()?.split("; ").next()?.strip_prefix("ignored: ")
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The JSON of a stream's events; `[DONE]` is checked and left out.
    pub(crate) fn events(&self) -> Vec<Value> {
        let data: Vec<&str> =
            self.text().lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.last(), Some(&"[DONE]"), "{}", self.text());
        data[..data.len() - 1].iter().map(|text| serde_json::from_str(text).unwrap()).collect()
    }

    /// The JSON of a stream's events that are named by their type.
    pub(crate) fn typed(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        let mut name = None;
        let mut events = Vec::new();
        for line in self.text().lines() {
            if let Some(given) = line.strip_prefix("event: ") {
                name = Some(given.to_owned());
            } else if let Some(data) = line.strip_prefix("data: ") {
                let event: Value = serde_json::from_str(data).unwrap();
                assert_eq!(event["type"].as_str(), name.take().as_deref(), "{data}");
                events.push(event);
            }
        }
        events
    }
}

/// An open connection.
pub(crate) struct Connection(pub(crate) BufReader<TcpStream>);

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(BufReader::new(stream))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// Sends a request; `headers` are whole lines.
    pub(crate) fn ask(&mut self, method: &str, path: &str, headers: &[&str], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        for line in headers {
            head.push_str(line);
            head.push_str("\r\n");
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        // A server may refuse before it has read all.
        let _ = self.send(head.as_bytes());
        let _ = self.send(body);
    }

    /// Reads up to the body; `None` when the server hung up.
    pub(crate) fn head(&mut self) -> Option<Response> {
        let first = self.line()?;
        let status = first.split(' ').nth(1)?.parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Some(Response { status, headers, body: Vec::new() });
            }
            let (name, value) = line.split_once(':').unwrap();
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
    }

    /// One line without its end; `None` at the end of the connection.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line.trim_end_matches(['\r', '\n']).to_owned()),
        }
    }

    /// Reads a whole response.
    pub(crate) fn response(&mut self) -> Option<Response> {
        let mut response = self.head()?;
        if response.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(&self.line()?, 16).unwrap();
                let mut chunk = vec![0; size + 2];
                self.0.read_exact(&mut chunk).ok()?;
                if size == 0 {
                    return Some(response);
                }
                response.body.extend_from_slice(&chunk[..size]);
            }
        }
        let length = response.header("content-length").map_or(0, |text| text.parse().unwrap());
        response.body.resize(length, 0);
        self.0.read_exact(&mut response.body).ok()?;
        Some(response)
    }
}

pub(crate) const JSON: &str = "content-type: application/json";

pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    let mut connection = Connection::open(address);
    connection.ask("GET", path, &[], b"");
    connection.response().unwrap()
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    post_bytes(address, path, &[JSON], body.to_string().as_bytes())
}

pub(crate) fn post_bytes(
    address: SocketAddr,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> Response {
    let mut connection = Connection::open(address);
    connection.ask("POST", path, headers, body);
    connection.response().unwrap()
}
