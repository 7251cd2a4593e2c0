//! What of a request was ignored or not followed exactly: one response header, and the log.
//!
//! The header's notes are separated by `; `. The first one lists the ignored fields, if there are any:
//! `ignored: metadata, tools[3].format; tools[14] ...`.

use axum::http::HeaderValue;
use axum::response::Response;
use std::cell::RefCell;

/// The header's name.
pub(crate) const HEADER: &str = "x-forerun-notes";
/// Longest header value, as clients bound the headers they read; the log has every note.
const MAX_HEADER: usize = 2000;

tokio::task_local! {
    /// Notes on the request that this task answers.
    static NOTES: RefCell<Vec<String>>;
}

/// Answers a request and puts the notes that were added meanwhile into the response's header.
pub(crate) async fn with_notes(answer: impl Future<Output = Response>) -> Response {
    NOTES
        .scope(RefCell::default(), async {
            let mut response = answer.await;
            if let Some(value) = NOTES.with(|notes| header(&notes.borrow())) {
                response.headers_mut().insert(HEADER, value);
            }
            response
        })
        .await
}

/// Adds notes to the request that is being answered.
pub(crate) fn add(request_id: &str, notes: Vec<String>) {
    for note in &notes {
        tracing::warn!(request_id, note, "request not followed exactly");
    }
    // Without a request (in tests) there is no header; the log has the notes.
    let _ = NOTES.try_with(|all| all.borrow_mut().extend(notes));
}

/// Adds the list of ignored fields, as the first note.
pub(crate) fn add_ignored(fields: &str) {
    let note = format!("ignored: {fields}");
    let _ = NOTES.try_with(|all| all.borrow_mut().insert(0, note));
}

/// Notes as the value of a header: visible ASCII, bounded.
fn header(notes: &[String]) -> Option<HeaderValue> {
    if notes.is_empty() {
        return None;
    }
    let visible = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    let text: String = notes.join("; ").chars().map(visible).take(MAX_HEADER).collect();
    HeaderValue::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::header;

    #[test]
    fn a_header_is_visible_ascii_and_bounded() {
        assert_eq!(header(&[]), None);
        let notes = ["a\nb".to_owned(), "größe".to_owned()];
        assert_eq!(header(&notes).expect("a value"), "a?b; gr??e");
        let long = ["x".repeat(10_000)];
        assert_eq!(header(&long).expect("a value").len(), super::MAX_HEADER);
    }
}
