//! One request and its redirects.
//!
//! Redirects are followed here and not by the HTTP crate, because two things hang on them: the
//! token must stay with the endpoint, and the hub describes a large file in the headers of the
//! redirect itself.

use crate::retry::{TryError, retry};
use crate::url::{self, UrlOrigin};
use crate::{AccessToken, DownloadWatch, HubError, HubSettings, Proxies};
use std::io::Read;
use std::path::Path;
use std::time::Duration;
use ureq::http::HeaderMap;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};
use ureq::{Agent, BodyReader, Proxy, ProxyProtocol};

const MAX_REDIRECTS: usize = 5;
const MAX_HEADER_BYTES: usize = 64 << 10;
/// The largest answer that is read into memory.
pub(crate) const MAX_TEXT_BYTES: u64 = 64 << 20;
/// The largest file of certificates.
const MAX_PEM_BYTES: u64 = 16 << 20;

pub(crate) struct HttpClient {
    agent: Agent,
    /// Without a slash at its end.
    pub(crate) endpoint: String,
    home: UrlOrigin,
    token: Option<AccessToken>,
    proxies: [Option<Proxy>; 2],
    pub(crate) patience: crate::Timeouts,
}

/// What is requested.
pub(crate) struct Query<'a> {
    pub(crate) url: &'a str,
    /// Headers alone; a redirect to another host is not followed for them.
    pub(crate) head: bool,
    /// First byte, and the last one if not to the end.
    pub(crate) range: Option<(u64, Option<u64>)>,
    /// For the answer as a whole; without it only pauses are limited.
    pub(crate) within: Option<Duration>,
}

/// What came, whatever its status.
pub(crate) struct HttpReply {
    pub(crate) status: u16,
    /// Of the last answer.
    pub(crate) headers: HeaderMap,
    /// Of the first answer: the hub's own.
    pub(crate) first: HeaderMap,
    pub(crate) body: BodyReader<'static>,
}

impl HttpClient {
    pub(crate) fn new(settings: &HubSettings) -> Result<Self, HubError> {
        let patience = settings.patience;
        let tls = TlsConfig::builder().root_certs(roots(settings.certificates.as_deref())?).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(MAX_HEADER_BYTES)
            .user_agent(concat!("forerun/", env!("CARGO_PKG_VERSION")))
            // Sizes and checksums are those of the file itself.
            .accept_encoding("identity")
            .timeout_resolve(Some(patience.connect))
            .timeout_connect(Some(patience.connect))
            .timeout_recv_response(Some(patience.answer))
            .timeout_per_read(Some(patience.read))
            .timeout_per_write(Some(patience.read))
            .build();
        let home = UrlOrigin::of(&settings.endpoint).ok_or_else(|| HubError::Setting {
            name: "HF_ENDPOINT".into(),
            why: format!("`{}` is no endpoint", settings.endpoint),
        })?;
        let Proxies { http, https, none_for } = &settings.proxies;
        let proxy = |name: &str, url: &Option<String>| {
            url.as_deref().map(|url| proxy(name, url, none_for.as_deref())).transpose()
        };
        let proxies = [proxy("HTTP_PROXY", http)?, proxy("HTTPS_PROXY", https)?];
        Ok(Self {
            agent: config.into(),
            endpoint: settings.endpoint.clone(),
            home,
            token: settings.token.clone(),
            proxies,
            patience,
        })
    }

    pub(crate) fn sends_token(&self) -> bool {
        self.token.is_some()
    }

    /// One try, redirects included.
    pub(crate) fn send(&self, query: &Query<'_>) -> Result<HttpReply, TryError> {
        let mut url = query.url.to_owned();
        let mut first: Option<HeaderMap> = None;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.once(query, &url).map_err(|error| fault(query.url, error))?;
            let (parts, body) = response.into_parts();
            let status = parts.status.as_u16();
            let first_headers = first.get_or_insert_with(|| parts.headers.clone());
            let location = text_of(&parts.headers, "location");
            let reply = |headers: HeaderMap, first: HeaderMap| {
                Ok(HttpReply { status, headers, first, body: body.into_reader() })
            };
            let Some(location) = location.filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308))
            else {
                return reply(parts.headers, first_headers.clone());
            };
            let refuse = |why: &str| TryError::from(HubError::answer(query.url, why));
            let next = url::join(&url, location)
                .ok_or_else(|| refuse("is redirected to what is no web address"))?;
            let origin = UrlOrigin::of(&next).ok_or_else(|| refuse("is redirected to no host"))?;
            if self.home.is_secure() && !origin.is_secure() {
                return Err(refuse("is redirected to an unencrypted address"));
            }
            if query.head && origin != self.home {
                return reply(parts.headers, first_headers.clone());
            }
            url = next;
        }
        let why = format!("is redirected more than {MAX_REDIRECTS} times");
        Err(HubError::answer(query.url, why).into())
    }

    fn once(
        &self,
        query: &Query<'_>,
        url: &str,
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let origin = UrlOrigin::of(url);
        let mut request = if query.head { self.agent.head(url) } else { self.agent.get(url) };
        if let Some((first, last)) = query.range {
            let last = last.map(|last| last.to_string()).unwrap_or_default();
            request = request.header("range", format!("bytes={first}-{last}"));
        }
        if let Some(token) = self.token.as_ref().filter(|_| origin.as_ref() == Some(&self.home)) {
            request = request.header("authorization", token.bearer());
        }
        let secure = origin.is_some_and(|origin| origin.is_secure());
        let proxy = self.proxies[usize::from(secure)].clone();
        request.config().proxy(proxy).timeout_recv_body(query.within).build().call()
    }

    /// The body of a small answer; `check` sees the status first.
    pub(crate) fn text(
        &self,
        url: &str,
        watch: &mut dyn DownloadWatch,
        check: &dyn Fn(&HttpReply) -> Result<(), TryError>,
    ) -> Result<Vec<u8>, HubError> {
        let within = Some(self.patience.answer);
        let query = Query { url, head: false, range: None, within };
        retry(url, self.patience, watch, || {
            let reply = self.send(&query)?;
            check(&reply)?;
            read_text(url, reply.body)
        })
    }
}

fn read_text(url: &str, body: BodyReader<'static>) -> Result<Vec<u8>, TryError> {
    let mut bytes = Vec::new();
    body.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes).map_err(TryError::passing)?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        let why = format!("the answer has more than {MAX_TEXT_BYTES} bytes");
        return Err(HubError::answer(url, why).into());
    }
    Ok(bytes)
}

impl HttpReply {
    /// What a status outside the protocol means: busy servers pass, anything else does not.
    pub(crate) fn fault(&self, what: &str) -> TryError {
        let status = self.status;
        if matches!(status, 408 | 425 | 429 | 500..=599) {
            let wait = text_of(&self.headers, "retry-after");
            let wait = wait.and_then(|s| s.trim().parse().ok()).map(Duration::from_secs);
            return TryError::Passing { why: format!("the server answers {status}"), wait };
        }
        HubError::answer(what, format!("the server answers {status}")).into()
    }
}

/// A header that is text.
pub(crate) fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Which errors of the HTTP crate may pass.
fn fault(url: &str, error: ureq::Error) -> TryError {
    use std::io::ErrorKind::{InvalidData, InvalidInput};
    let last = |why: String| HubError::Network { what: url.to_owned(), why, tries: 1 }.into();
    match error {
        ureq::Error::HostNotFound => {
            last("the host is not found; --offline uses what the cache holds".into())
        }
        // Certificates that nobody vouches for come as invalid data.
        ureq::Error::Io(e) if matches!(e.kind(), InvalidData | InvalidInput) => {
            last(format!("{e}; SSL_CERT_FILE names other trusted certificates"))
        }
        ureq::Error::Io(_)
        | ureq::Error::Timeout(_)
        | ureq::Error::ConnectionFailed
        | ureq::Error::Protocol(_)
        | ureq::Error::BodyStalled => TryError::passing(error),
        other => last(other.to_string()),
    }
}

/// The built-in roots, or those of a PEM file.
fn roots(file: Option<&Path>) -> Result<RootCerts, HubError> {
    let Some(path) = file else { return Ok(RootCerts::WebPki) };
    let fault = |why: String| HubError::Setting { name: "SSL_CERT_FILE".into(), why };
    let mut pem = Vec::new();
    forerun_base::open_regular(path)
        .and_then(|file| file.take(MAX_PEM_BYTES).read_to_end(&mut pem))
        .map_err(|e| HubError::io(path, e))?;
    let mut found: Vec<Certificate<'static>> = Vec::new();
    for item in ureq::tls::parse_pem(&pem) {
        if let PemItem::Certificate(certificate) =
            item.map_err(|e| fault(format!("{}: {e}", path.display())))?
        {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        return Err(fault(format!("{} holds no certificate", path.display())));
    }
    Ok(RootCerts::new_with_certs(&found))
}

/// A proxy; a user name and password in its URL stay out of errors.
fn proxy(name: &str, url: &str, none_for: Option<&str>) -> Result<Proxy, HubError> {
    let fault =
        |_| HubError::Setting { name: name.into(), why: "is not the URL of a proxy".into() };
    let given = Proxy::new(url).map_err(fault)?;
    // Built without SOCKS; going around such a proxy in silence would be worse than not going.
    if !matches!(given.protocol(), ProxyProtocol::Http | ProxyProtocol::Https) {
        let why = "is not an HTTP proxy; no other kind is supported".into();
        return Err(HubError::Setting { name: name.into(), why });
    }
    let mut builder = Proxy::builder(given.protocol())
        .host(given.host())
        .port(given.port())
        .resolve_target(given.resolve_target());
    if let Some(user) = given.username() {
        builder = builder.username(user);
    }
    if let Some(password) = given.password() {
        builder = builder.password(password);
    }
    let hosts = none_for.unwrap_or_default().split(',').map(str::trim).filter(|h| !h.is_empty());
    hosts.fold(builder, |builder, host| builder.no_proxy(host)).build().map_err(fault)
}
