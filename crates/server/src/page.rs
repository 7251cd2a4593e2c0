//! The web page at `/`: a few files inside the program, and a policy that lets a browser load nothing else.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::get;

/// Scripts, styles and pictures come from this server only, and only as files: what a model writes cannot
/// become code even if it were to become markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
struct PageFile {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! file {
    ($path:literal, $kind:literal, $name:literal) => {
        PageFile { path: $path, kind: $kind, text: include_str!(concat!("page/", $name)) }
    };
}

const FILES: &[PageFile] = &[
    file!("/", "text/html; charset=utf-8", "index.html"),
    file!("/page/style.css", "text/css; charset=utf-8", "style.css"),
    file!("/page/icon.svg", "image/svg+xml", "icon.svg"),
    file!("/page/app.js", "text/javascript; charset=utf-8", "app.js"),
    file!("/page/api.js", "text/javascript; charset=utf-8", "api.js"),
    file!("/page/attachments.js", "text/javascript; charset=utf-8", "attachments.js"),
    file!("/page/chat.js", "text/javascript; charset=utf-8", "chat.js"),
    file!("/page/chats.js", "text/javascript; charset=utf-8", "chats.js"),
    file!("/page/composer.js", "text/javascript; charset=utf-8", "composer.js"),
    file!("/page/highlight.js", "text/javascript; charset=utf-8", "highlight.js"),
    file!("/page/markdown.js", "text/javascript; charset=utf-8", "markdown.js"),
    file!("/page/math.js", "text/javascript; charset=utf-8", "math.js"),
    file!("/page/receipt.js", "text/javascript; charset=utf-8", "receipt.js"),
    file!("/page/render.js", "text/javascript; charset=utf-8", "render.js"),
    file!("/page/settings.js", "text/javascript; charset=utf-8", "settings.js"),
    file!("/page/settings_dialog.js", "text/javascript; charset=utf-8", "settings_dialog.js"),
    file!("/page/sidebar.js", "text/javascript; charset=utf-8", "sidebar.js"),
    file!("/page/talk.js", "text/javascript; charset=utf-8", "talk.js"),
    file!("/page/vendor/marked.js", "text/javascript; charset=utf-8", "vendor/marked.js"),
];

/// The page's routes. They need no key: the page asks for it.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, file| {
        let tag = tag(file.text);
        router.route(
            file.path,
            get(move |headers: HeaderMap| {
                let response = answer(file, &tag, &headers);
                async move { response }
            }),
        )
    })
}

/// The file, or only the word that the browser's copy is still good. Browsers ask each time: a new version
/// of the program must not meet half of an old page.
fn answer(file: &'static PageFile, tag: &HeaderValue, headers: &HeaderMap) -> Response {
    let fresh = headers.get_all(header::IF_NONE_MATCH).iter().any(|known| known == tag);
    let mut response = Response::new(if fresh { Body::empty() } else { Body::from(file.text) });
    *response.status_mut() = if fresh { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
    let said = response.headers_mut();
    said.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
    said.insert(header::ETAG, tag.clone());
    for (name, value) in [
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        said.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Names a version of a file by its content (FNV-1a): it tells versions apart, it does not protect them.
fn tag(text: &str) -> HeaderValue {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    HeaderValue::try_from(format!("\"{hash:016x}\""))
        .expect("hex digits in quotes are a header value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_the_page_names_is_served_and_nothing_else_is_named() {
        let served: Vec<&str> = FILES.iter().map(|file| file.path).collect();
        for file in FILES {
            for part in file.text.split(['"', '\'']) {
                let script = part.strip_prefix("./").filter(|_| file.kind.contains("javascript"));
                let named = script.map(|name| format!("/page/{name}"));
                let named = named.or_else(|| part.starts_with("page/").then(|| format!("/{part}")));
                if let Some(named) = named {
                    assert!(served.contains(&named.as_str()), "{} names {named}", file.path);
                }
            }
            // Scripts may speak of styles, and load none by that.
            let loads = if file.kind.contains("javascript") { 2 } else { 4 };
            for elsewhere in &["src=\"http", "href=\"http", "@import", "url("][..loads] {
                assert!(!file.text.contains(elsewhere), "{} has {elsewhere}", file.path);
            }
        }
    }

    #[test]
    fn no_file_makes_markup_of_text() {
        for file in FILES {
            for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!file.text.contains(way), "{} has {way}", file.path);
            }
        }
    }

    #[test]
    fn a_known_version_is_not_sent_again_and_every_answer_carries_the_policy() {
        for file in FILES {
            let tag = tag(file.text);
            let whole = answer(file, &tag, &HeaderMap::new());
            assert_eq!(whole.status(), StatusCode::OK);
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, whole.headers()[header::ETAG].clone());
            let again = answer(file, &tag, &headers);
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{}", file.path);
            for response in [whole, again] {
                assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
            }
        }
    }
}
