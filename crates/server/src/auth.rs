//! Keys that open the server.

use crate::error::ServerError;
use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// Digests of the accepted keys. Comparing digests takes the same time whatever was sent, and its length
/// does not show.
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|key| Sha256::digest(key.as_bytes()).into()).collect())
    }

    /// Lets a request in, or says why not.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), ServerError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let bearer = headers.get(header::AUTHORIZATION).map(|value| {
            let value = value.as_bytes();
            let (scheme, key) = value.split_at(value.len().min(7));
            if scheme.eq_ignore_ascii_case(b"bearer ") { key } else { b"" }
        });
        let sent = bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()));
        let digest: [u8; 32] = Sha256::digest(sent.ok_or(ServerError::NoKey)?).into();
        let fits = self.0.iter().fold(Choice::from(0), |fits, key| fits | key.ct_eq(&digest));
        if bool::from(fits) { Ok(()) } else { Err(ServerError::WrongKey) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_opens_in_either_header_and_nothing_else_does() {
        let keys = Keys::new(&["first".to_owned(), "second".to_owned()]);
        for (name, value, opens) in [
            ("authorization", "Bearer second", true),
            ("authorization", "bearer first", true),
            ("x-api-key", "first", true),
            ("authorization", "Bearer firs", false),
            ("authorization", "Bearer ", false),
            ("authorization", "Basic first", false),
            ("authorization", "first", false),
            ("x-api-key", "", false),
            ("cookie", "first", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(keys.check(&headers).is_ok(), opens, "{name}: {value}");
        }
        assert!(matches!(keys.check(&HeaderMap::new()), Err(ServerError::NoKey)));
        assert!(Keys::new(&[]).check(&HeaderMap::new()).is_ok());
    }
}
