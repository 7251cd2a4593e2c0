//! Where the hub is, who asks, and where models are kept: the hub's own environment variables.

use crate::HubError;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ENDPOINT: &str = "https://huggingface.co";
/// More than any token has.
const MAX_TOKEN_BYTES: u64 = 16 << 10;

/// A secret that does not print itself.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken(String);

impl AccessToken {
    /// The value of an `authorization` header.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// How long to wait and how often to try.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a connection.
    pub connect: Duration,
    /// For the next bytes of an answer.
    pub read: Duration,
    /// For a whole answer of the API.
    pub answer: Duration,
    /// Tries in a row without progress.
    pub tries: u32,
    /// Before the second try; doubled before each one after it.
    pub first_wait: Duration,
    /// The longest a server may ask to wait.
    pub longest_wait: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            read: Duration::from_secs(30),
            answer: Duration::from_secs(120),
            tries: 5,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(120),
        }
    }
}

/// Proxies by the scheme of what is requested.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// For `http://`.
    pub http: Option<String>,
    /// For `https://`.
    pub https: Option<String>,
    /// Hosts reached without a proxy, separated by commas.
    pub none_for: Option<String>,
}

/// Everything that is not part of a request.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// `scheme://host[:port]`, without a slash at its end.
    pub endpoint: String,
    /// Sent to the endpoint only.
    pub token: Option<AccessToken>,
    /// The folder of `models--OWNER--NAME` folders.
    pub cache: PathBuf,
    /// Whether the network is left alone.
    pub offline: bool,
    /// Proxies.
    pub proxies: Proxies,
    /// PEM file of trusted certificates instead of the built-in ones.
    pub certificates: Option<PathBuf>,
    /// Timeouts and retries.
    pub patience: Timeouts,
}

impl HubSettings {
    /// Reads the hub's variables through `get`: `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`,
    /// `HF_HUB_CACHE`, `HF_HUB_OFFLINE`, and the usual `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`,
    /// `NO_PROXY`, `SSL_CERT_FILE`. An empty variable counts as none.
    pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let either = |name: &str| get(name).or_else(|| get(&name.to_lowercase()));
        let home = get("HF_HOME").map(PathBuf::from).or_else(|| {
            let user = || get("HOME").or_else(|| get("USERPROFILE")).map(PathBuf::from);
            let caches = get("XDG_CACHE_HOME").map(PathBuf::from);
            Some(caches.or_else(|| Some(user()?.join(".cache")))?.join("huggingface"))
        });
        let cache = get("HF_HUB_CACHE").map(PathBuf::from);
        let Some(cache) = cache.or_else(|| Some(home.as_ref()?.join("hub"))) else {
            return Err(HubError::Setting {
                name: "HF_HUB_CACHE".into(),
                why: "no folder for models is known; set it, or HF_HOME, or HOME".into(),
            });
        };
        let token = match get("HF_TOKEN") {
            Some(text) => token("HF_TOKEN", &text)?,
            None => home.map_or(Ok(None), |home| token_file(&home.join("token")))?,
        };
        let offline = get("HF_HUB_OFFLINE")
            .is_some_and(|v| ["1", "ON", "YES", "TRUE"].contains(&v.to_uppercase().as_str()));
        let all = either("ALL_PROXY");
        Ok(Self {
            endpoint: endpoint(get("HF_ENDPOINT").as_deref().unwrap_or(ENDPOINT))?,
            token,
            cache,
            offline,
            proxies: Proxies {
                http: either("HTTP_PROXY").or_else(|| all.clone()),
                https: either("HTTPS_PROXY").or(all),
                none_for: either("NO_PROXY"),
            },
            certificates: get("SSL_CERT_FILE").map(PathBuf::from),
            patience: Timeouts::default(),
        })
    }
}

fn endpoint(text: &str) -> Result<String, HubError> {
    let trimmed = text.trim_end_matches('/');
    let host = trimmed.strip_prefix("https://").or_else(|| trimmed.strip_prefix("http://"));
    let plain = |host: &&str| !host.is_empty() && !host.contains(['@', '?', '#', ' ']);
    if host.filter(plain).is_none() {
        return Err(HubError::Setting {
            name: "HF_ENDPOINT".into(),
            why: format!("`{text}` is no endpoint; expected https://HOST"),
        });
    }
    Ok(trimmed.into())
}

fn token_file(path: &Path) -> Result<Option<AccessToken>, HubError> {
    let mut text = String::new();
    match forerun_base::open_regular(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened
            .and_then(|file| file.take(MAX_TOKEN_BYTES).read_to_string(&mut text))
            .map_err(|e| HubError::io(path, e))?,
    };
    token(&path.display().to_string(), &text)
}

/// `None` for nothing but blanks. The text itself must not appear in the error.
fn token(name: &str, text: &str) -> Result<Option<AccessToken>, HubError> {
    let text = text.trim();
    if !text.chars().all(|c| c.is_ascii_graphic()) {
        let why = "is not a token: it holds blanks or other than ASCII characters".into();
        return Err(HubError::Setting { name: name.into(), why });
    }
    Ok((!text.is_empty()).then(|| AccessToken(text.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn read(pairs: &[(&str, &str)]) -> Result<HubSettings, HubError> {
        let vars: HashMap<&str, &str> = pairs.iter().copied().collect();
        HubSettings::read(&|name| vars.get(name).map(|v| (*v).to_owned()))
    }

    #[test]
    fn the_cache_follows_the_order_of_the_hubs_variables() {
        let cases: [(&[(&str, &str)], &str); 5] = [
            (&[("HOME", "/u")], "/u/.cache/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/h")], "/h/hub"),
            (&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/c")], "/c"),
            (&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "")], "/h/hub"),
        ];
        for (pairs, expected) in cases {
            assert_eq!(read(pairs).unwrap().cache, Path::new(expected), "{pairs:?}");
        }
        assert!(read(&[]).unwrap_err().to_string().contains("HF_HUB_CACHE"));
    }

    #[test]
    fn a_token_comes_from_the_variable_or_else_from_the_file_and_is_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        assert_eq!(read(&[("HF_HOME", home)]).unwrap().token, None);
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let settings = read(&[("HF_HOME", home)]).unwrap();
        assert_eq!(settings.token.as_ref().unwrap().bearer(), "Bearer hf_file");
        assert!(!format!("{settings:?}").contains("hf_file"));
        let settings = read(&[("HF_HOME", home), ("HF_TOKEN", "hf_var")]).unwrap();
        assert_eq!(settings.token.unwrap().bearer(), "Bearer hf_var");
        let error = read(&[("HF_HOME", home), ("HF_TOKEN", "two\nlines")]).unwrap_err();
        assert!(!error.to_string().contains("lines\""), "{error}");
        assert!(!format!("{error:?}").contains("two"), "{error:?}");
    }

    #[test]
    fn endpoints_and_switches_are_read_as_the_hub_reads_them() {
        let with = |pair| read(&[("HOME", "/u"), pair]);
        assert_eq!(with(("X", "")).unwrap().endpoint, "https://huggingface.co");
        let settings = with(("HF_ENDPOINT", "http://127.0.0.1:80/")).unwrap();
        assert_eq!(settings.endpoint, "http://127.0.0.1:80");
        for bad in ["huggingface.co", "ftp://x", "https://", "https://a:b@c"] {
            assert!(with(("HF_ENDPOINT", bad)).is_err(), "{bad}");
        }
        for (value, offline) in [("1", true), ("true", true), ("yes", true), ("0", false)] {
            assert_eq!(with(("HF_HUB_OFFLINE", value)).unwrap().offline, offline, "{value}");
        }
        let proxied = with(("https_proxy", "http://p:1")).unwrap().proxies;
        assert_eq!((proxied.https.as_deref(), proxied.http), (Some("http://p:1"), None));
        let proxied = with(("ALL_PROXY", "http://p:1")).unwrap().proxies;
        assert_eq!(
            (proxied.https.as_deref(), proxied.http.as_deref()),
            (Some("http://p:1"), Some("http://p:1"))
        );
    }
}
