//! JSON as Python writes it.

/// Replaces the words Python's JSON writer uses for non-finite numbers, outside strings, by `null`.
pub fn null_for_non_finite(text: &[u8]) -> Vec<u8> {
    replaced(text, |_| b"null".to_vec())
}

/// Puts these words into quotes, so that whoever reads one as a number can name it.
pub fn quoted_non_finite(text: &[u8]) -> Vec<u8> {
    replaced(text, |word| [b"\"", word, b"\""].concat())
}

fn replaced(text: &[u8], with: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    let mut in_string = false;
    while let Some(&byte) = text.get(at) {
        let rest = &text[at..];
        let word =
            [&b"-Infinity"[..], b"Infinity", b"NaN"].into_iter().find(|w| rest.starts_with(w));
        if let Some(word) = word.filter(|_| !in_string) {
            out.extend(with(word));
            at += word.len();
            continue;
        }
        let escaped = in_string && byte == b'\\';
        in_string ^= byte == b'"';
        let step = if escaped { rest.len().min(2) } else { 1 };
        out.extend_from_slice(&rest[..step]);
        at += step;
    }
    out
}
