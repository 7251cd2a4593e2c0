//! As much of URLs as the hub's protocol needs.

/// Scheme, host and port of a URL: what may see the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UrlOrigin(String);

impl UrlOrigin {
    /// `None` unless it is an absolute `http` or `https` URL with a host.
    pub(crate) fn of(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let usual = match scheme.as_str() {
            "http" => ":80",
            "https" => ":443",
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default().to_ascii_lowercase();
        // A user name could hide what the host is.
        if authority.is_empty() || authority.contains(['@', '\\']) {
            return None;
        }
        let authority = authority.strip_suffix(usual).unwrap_or(&authority);
        Some(Self(format!("{scheme}://{authority}")))
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.0.starts_with("https://")
    }
}

/// Where a redirect from `base` leads; `None` for what cannot be followed.
pub(crate) fn join(base: &str, location: &str) -> Option<String> {
    if location.contains("://") && !location.starts_with('/') {
        return UrlOrigin::of(location).map(|_| location.to_owned());
    }
    let (scheme, rest) = base.split_once("://")?;
    if let Some(other) = location.strip_prefix("//") {
        let url = format!("{scheme}://{other}");
        return UrlOrigin::of(&url).map(|_| url);
    }
    let host = rest.split('/').next()?;
    location.starts_with('/').then(|| format!("{scheme}://{host}{location}"))
}

/// Percent-encodes everything but the unreserved characters, `/` included.
pub(crate) fn segment(text: &str) -> String {
    encode(text, false)
}

/// The same with `/` as it is.
pub(crate) fn path(text: &str) -> String {
    encode(text, true)
}

fn encode(text: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for &byte in text.as_bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if plain || (keep_slash && byte == b'/') {
            out.push(char::from(byte));
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let same = |a, b| UrlOrigin::of(a).unwrap() == UrlOrigin::of(b).unwrap();
        assert!(same("https://Hub.co/a", "https://hub.co:443/b?c"));
        assert!(!same("https://hub.co/", "http://hub.co/"));
        assert!(!same("https://hub.co/", "https://hub.co:8443/"));
        assert!(!same("https://hub.co/", "https://hub.co.evil.net/"));
        for bad in ["hub.co/a", "ftp://hub.co", "https://", "https://hub.co@evil.net/"] {
            assert_eq!(UrlOrigin::of(bad), None, "{bad}");
        }
    }

    #[test]
    fn redirects_lead_where_they_say() {
        let from = |location| join("https://hub.co/a/b?c=d", location);
        assert_eq!(from("/x?y").unwrap(), "https://hub.co/x?y");
        assert_eq!(from("//cdn.co/x").unwrap(), "https://cdn.co/x");
        assert_eq!(from("http://cdn.co/x").unwrap(), "http://cdn.co/x");
        for bad in ["x", "ftp://a/b", "", "https://"] {
            assert_eq!(from(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_could_be_taken_for_syntax_is_encoded() {
        assert_eq!(segment("refs/pr/1"), "refs%2Fpr%2F1");
        assert_eq!(path("sub dir/a#b?.json"), "sub%20dir/a%23b%3F.json");
    }
}
