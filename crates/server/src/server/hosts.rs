//! Under which names a server answers.
//!
//! A page on the web can have its own name resolved to 127.0.0.1 and then read what a server there says (DNS
//! rebinding); the browser still sends the page's name as `Host`. So on loopback only the names of this machine and
//! those the operator gave are answered. Beyond loopback the names are not known: all are answered unless some were
//! given. A literal address cannot be resolved to another one.

use crate::error::ServerError;
use axum::http::request::Parts;
use axum::http::{Version, header};
use std::net::IpAddr;

/// The names.
#[derive(Debug)]
pub(crate) struct Hosts {
    address: IpAddr,
    allowed: Vec<String>,
}

impl Hosts {
    pub(crate) fn new(address: IpAddr, allowed: &[String]) -> Self {
        let allowed = allowed.iter().map(|name| plain(name)).collect();
        Self { address: address.to_canonical(), allowed }
    }

    /// Whether the server can be reached from this machine only.
    pub(crate) fn is_local(&self) -> bool {
        self.address.is_loopback()
    }

    /// Refuses a request for somebody else, or for two.
    pub(crate) fn check(&self, parts: &Parts) -> Result<(), ServerError> {
        let bad = |message: &str| ServerError::Invalid { param: None, message: message.to_owned() };
        let mut given = parts.headers.get_all(header::HOST).iter();
        let host = match (given.next(), given.next()) {
            (Some(_), Some(_)) => return Err(bad("the request has two `Host` headers; send one")),
            (Some(host), None) => host.to_str().map_err(|_| bad("`Host` is no host name"))?,
            (None, _) if parts.version == Version::HTTP_10 => return Ok(()),
            (None, _) => return Err(bad("the request has no `Host` header")),
        };
        // In its absolute form a request names its host in the first line, too.
        for host in [Some(host), parts.uri.host()].into_iter().flatten() {
            if !self.answers_to(host) {
                return Err(ServerError::Host(crate::app::shortened(host)));
            }
        }
        Ok(())
    }

    fn answers_to(&self, host: &str) -> bool {
        let name = plain(host);
        let literal = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if name == "localhost" || self.allowed.contains(&name) {
            return true;
        }
        match literal.map(|address| address.to_canonical()) {
            Ok(address) => !self.is_local() || address.is_loopback(),
            Err(_) => !self.is_local() && self.allowed.is_empty(),
        }
    }
}

/// A host in lower case, without its port and without the dot that may end it.
fn plain(host: &str) -> String {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            // The last colon of a bare IPv6 address is not a port's.
            if name.contains(':') && !name.ends_with(']') { host } else { name }
        }
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn answer(hosts: &Hosts, uri: &str, headers: &[&str]) -> u16 {
        let mut request = Request::builder().uri(uri);
        for &host in headers {
            request = request.header("host", host);
        }
        let parts = request.body(()).unwrap().into_parts().0;
        hosts.check(&parts).map_or_else(|error| error.status().as_u16(), |()| 200)
    }

    #[test]
    fn on_loopback_only_this_machine_and_the_given_names_are_answered() {
        let local = Hosts::new([127, 0, 0, 1].into(), &["Box.example".to_owned()]);
        for (host, status) in [
            ("localhost", 200),
            ("localhost:8080", 200),
            ("LOCALHOST.:1", 200),
            ("127.0.0.1:8080", 200),
            ("127.1.2.3", 200),
            ("[::1]:8080", 200),
            ("[::1]", 200),
            ("::1", 200),
            ("[::ffff:127.0.0.1]", 200),
            ("box.example:80", 200),
            ("evil.example", 403),
            ("localhost.evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("evil.example:127.0.0.1", 403),
            ("0.0.0.0:8080", 403),
            ("192.168.1.2", 403),
            ("", 403),
            (":8080", 403),
        ] {
            assert_eq!(answer(&local, "/", &[host]), status, "{host}");
        }
        assert_eq!(answer(&local, "http://evil.example/", &["localhost"]), 403);
        assert_eq!(answer(&local, "http://localhost:8080/", &["localhost"]), 200);
        assert_eq!(answer(&local, "/", &[]), 400);
        assert_eq!(answer(&local, "/", &["localhost", "localhost"]), 400);
    }

    #[test]
    fn beyond_loopback_any_name_is_answered_until_some_are_given() {
        let any = Hosts::new([0, 0, 0, 0].into(), &[]);
        let named = Hosts::new([0, 0, 0, 0].into(), &["box.example".to_owned()]);
        for (host, [any_status, named_status]) in [
            ("box.example", [200, 200]),
            ("localhost", [200, 200]),
            ("10.0.0.7:8080", [200, 200]),
            ("[fd00::7]", [200, 200]),
            ("evil.example", [200, 403]),
        ] {
            assert_eq!(answer(&any, "/", &[host]), any_status, "{host}");
            assert_eq!(answer(&named, "/", &[host]), named_status, "{host}");
        }
        assert_eq!(answer(&any, "/", &["a", "b"]), 400);
    }
}
