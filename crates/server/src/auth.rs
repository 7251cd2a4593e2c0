//! Keys that open the server, and who asks with them.

use crate::error::ServerError;
use axum::http::{HeaderMap, header};
use forerun_engine::CacheSalt;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

/// Whose a request is. Derived from the API key by a keyed hash: the same after a restart, and the key does not
/// follow from it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner([u8; 32]);

/// Never printed: salts follow from it.
impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner(..)")
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Caller {
    /// None where no key is needed and none was sent that is known.
    pub(crate) owner: Option<Owner>,
    /// Whether it may see what belongs to others.
    pub(crate) admin: bool,
}

/// Digests of the accepted keys. Comparing digests takes the same time whatever was sent, and its length
/// does not show.
pub(crate) struct Keys {
    known: Vec<AcceptedKeys>,
    /// Whether a key is needed at all.
    closed: bool,
    /// Whether there are admin keys.
    admins: bool,
}

struct AcceptedKeys {
    digest: [u8; 32],
    owner: Owner,
    admin: bool,
}

impl Keys {
    /// API keys close the server to those without one; an admin key opens what they open, and more.
    pub(crate) fn new(api: &[String], admin: &[String]) -> Self {
        let known = |key: &String, admin| AcceptedKeys {
            digest: Sha256::digest(key.as_bytes()).into(),
            owner: Owner(keyed_hash(key.as_bytes(), b"forerun: owner of prefix cache entries")),
            admin,
        };
        let admins = admin.iter().map(|key| known(key, true));
        Self {
            known: api.iter().map(|key| known(key, false)).chain(admins).collect(),
            closed: !api.is_empty(),
            admins: !admin.is_empty(),
        }
    }

    /// Whether a key is needed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether anybody can be an admin.
    pub(crate) fn has_admins(&self) -> bool {
        self.admins
    }

    /// Lets a request in, or says why not.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<Caller, ServerError> {
        let bearer = headers.get(header::AUTHORIZATION).map(|value| {
            let value = value.as_bytes();
            let (scheme, key) = value.split_at(value.len().min(7));
            if scheme.eq_ignore_ascii_case(b"bearer ") { key } else { b"" }
        });
        let sent = bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()));
        let caller = sent.and_then(|sent| {
            let digest: [u8; 32] = Sha256::digest(sent).into();
            // All are compared: what matches first does not show either.
            let fits: Vec<&AcceptedKeys> =
                self.known.iter().filter(|key| key.digest.ct_eq(&digest).into()).collect();
            let admin = fits.iter().any(|key| key.admin);
            fits.first().map(|key| Caller { owner: Some(key.owner), admin })
        });
        match (caller, sent) {
            (Some(caller), _) => Ok(caller),
            (None, _) if !self.closed => Ok(Caller::default()),
            (None, Some(_)) => Err(ServerError::WrongKey),
            (None, None) => Err(ServerError::NoKey),
        }
    }
}

/// With whom a request shares the prefix cache: those of the same owner who give the same `cache_salt`.
pub(crate) fn cache_salt(owner: Option<Owner>, narrowed: Option<&str>) -> Option<CacheSalt> {
    if owner.is_none() && narrowed.is_none() {
        return None;
    }
    let key = owner.as_ref().map_or(&[][..], |owner| &owner.0);
    let message = [&[u8::from(narrowed.is_some())], narrowed.unwrap_or_default().as_bytes()];
    Some(CacheSalt(keyed_hash(key, &message.concat())))
}

fn keyed_hash(key: &[u8], message: &[u8]) -> [u8; 32] {
    let hash = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    hash.chain_update(message).finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(api: &[&str], admin: &[&str]) -> Keys {
        let owned = |keys: &[&str]| keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>();
        Keys::new(&owned(api), &owned(admin))
    }

    fn check(keys: &Keys, name: &'static str, value: &str) -> Result<Caller, ServerError> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        keys.check(&headers)
    }

    #[test]
    fn a_key_opens_in_either_header_and_nothing_else_does() {
        let keys = keys(&["first", "second"], &["root"]);
        for (name, value, opens) in [
            ("authorization", "Bearer second", true),
            ("authorization", "bearer first", true),
            ("x-api-key", "first", true),
            ("x-api-key", "root", true),
            ("authorization", "Bearer firs", false),
            ("authorization", "Bearer ", false),
            ("authorization", "Basic first", false),
            ("authorization", "first", false),
            ("x-api-key", "", false),
            ("cookie", "first", false),
        ] {
            assert_eq!(check(&keys, name, value).is_ok(), opens, "{name}: {value}");
        }
        assert!(matches!(keys.check(&HeaderMap::new()), Err(ServerError::NoKey)));
        assert!(self::keys(&[], &[]).check(&HeaderMap::new()).is_ok());
    }

    #[test]
    fn an_admin_key_alone_closes_nothing_and_is_still_known() {
        let keys = keys(&[], &["root"]);
        assert!(!keys.check(&HeaderMap::new()).unwrap().admin);
        assert!(!check(&keys, "x-api-key", "anything").unwrap().admin);
        assert!(check(&keys, "x-api-key", "root").unwrap().admin);
        let both = self::keys(&["same"], &["same"]);
        assert!(check(&both, "x-api-key", "same").unwrap().admin);
    }

    #[test]
    fn salts_differ_by_owner_and_by_what_narrows_them_and_stay_the_same() {
        let keys = keys(&["first", "second"], &[]);
        let owner = |key| check(&keys, "x-api-key", key).unwrap().owner;
        let mut salts = Vec::new();
        for owner in [None, owner("first"), owner("second")] {
            for narrowed in [None, Some(""), Some("a"), Some("b")] {
                let salt = cache_salt(owner, narrowed);
                assert_eq!(salt, cache_salt(owner, narrowed));
                assert!(!salts.contains(&salt), "{narrowed:?}");
                salts.push(salt);
            }
        }
        // What a folder on disk was written with must be found by the next version.
        let first = cache_salt(owner("first"), None).unwrap().0;
        assert_eq!(first[..4], [68, 174, 137, 117], "{first:?}");
    }
}
