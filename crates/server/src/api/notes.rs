//! What of a request is not done to the letter, told in a header and in the log.

use axum::http::HeaderValue;
use axum::response::Response;
use std::cell::RefCell;

/// The header that tells it.
const HEADER: &str = "x-forerun-notes";
/// Longest header; the log has all.
const LONGEST: usize = 2000;

tokio::task_local! {
    /// Notes on the request that this task answers.
    static NOTES: RefCell<Vec<String>>;
}

/// Answers a request and puts what was noted meanwhile into the response's header.
pub(crate) async fn noting(answer: impl Future<Output = Response>) -> Response {
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

/// Notes something on the request that is being answered.
pub(crate) fn tell(request_id: &str, notes: Vec<String>) {
    for note in &notes {
        tracing::warn!(request_id, note, "not to the letter");
    }
    // Outside a request the log has it.
    let _ = NOTES.try_with(|told| told.borrow_mut().extend(notes));
}

/// Notes as the value of a header: visible ASCII, bounded.
fn header(notes: &[String]) -> Option<HeaderValue> {
    if notes.is_empty() {
        return None;
    }
    let visible = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    let text: String = notes.join("; ").chars().map(visible).take(LONGEST).collect();
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
        assert_eq!(header(&long).expect("a value").len(), super::LONGEST);
    }
}
