//! Arguments of a call that did not come to its end, as an object.

use serde_json::{Map, Value};

/// The largest number an object can hold here.
const MOST: &str = "1.7976931348623157e308";

/// The arguments as an object: of a text that broke off, the members that are whole. A member that was cut is left out,
/// so that nobody takes half a text for all of it.
pub(super) fn object(text: &str) -> Value {
    let text = &in_range(text);
    let whole = text.trim_end().ends_with(['"', '}', ']']).then(|| format!("{text}}}"));
    let shorter = commas(text).into_iter().rev().take(2).map(|at| format!("{}}}", &text[..at]));
    let candidates = std::iter::once(text.clone()).chain(whole).chain(shorter);
    let objects = candidates.filter_map(|text| match serde_json::from_str(&text) {
        Ok(object @ Value::Object(_)) => Some(object),
        _ => None,
    });
    let mut objects = objects;
    objects.next().unwrap_or_else(|| Map::new().into())
}

/// The places of commas between members of the outermost object.
fn commas(text: &str) -> Vec<usize> {
    let (mut depth, mut found) = (0usize, Vec::new());
    outside_of_strings(text, |at, c| match c {
        b'{' | b'[' => depth += 1,
        b'}' | b']' => depth = depth.saturating_sub(1),
        b',' if depth == 1 => found.push(at),
        _ => {}
    });
    found
}

/// The text with numbers that are too large for any machine number replaced by the largest one.
fn in_range(text: &str) -> String {
    let (mut out, mut copied, mut number) = (String::new(), 0, None);
    let mut ended = |from: usize, to: usize| {
        let written = &text[from..to];
        if written.parse::<f64>().is_ok_and(f64::is_infinite) {
            out.push_str(&text[copied..from]);
            out.push_str(if written.starts_with('-') { "-" } else { "" });
            out.push_str(MOST);
            copied = to;
        }
    };
    outside_of_strings(text, |at, c| {
        let is_number = c.is_ascii_digit() || matches!(c, b'-' | b'+' | b'.' | b'e' | b'E');
        match (is_number, number) {
            (true, None) => number = Some(at),
            (false, Some(from)) => {
                ended(from, at);
                number = None;
            }
            _ => {}
        }
    });
    if let Some(from) = number {
        ended(from, text.len());
    }
    out + &text[copied..]
}

/// Calls for every byte that is not inside a string.
fn outside_of_strings(text: &str, mut see: impl FnMut(usize, u8)) {
    let (mut inside, mut escaped) = (false, false);
    for (at, c) in text.bytes().enumerate() {
        match c {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => {
                inside = !inside;
                see(at, c);
            }
            _ if !inside => see(at, c),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::object;
    use serde_json::{Value, json};

    #[test]
    fn members_that_are_whole_are_kept_and_others_are_not() {
        for (text, expected) in [
            ("", json!({})),
            ("{", json!({})),
            (r#"{"a": 1}"#, json!({"a": 1})),
            (r#"{"a": 1"#, json!({})),
            (r#"{"a": 12, "b": 34"#, json!({"a": 12})),
            (r#"{"a": "x, y", "b": "z"#, json!({"a": "x, y"})),
            (r#"{"a": "x", "b": "z""#, json!({"a": "x", "b": "z"})),
            (r#"{"a": [1, {"b": 2}], "c": [3, 4"#, json!({"a": [1, {"b": 2}]})),
            (r#"{"a": {"b": 1}"#, json!({"a": {"b": 1}})),
            (r#"{"a": true, "b"#, json!({"a": true})),
            (r#"{"a": "\"}, \\", "b": nul"#, json!({"a": "\"}, \\"})),
            ("[1, 2", json!({})),
            ("plain", json!({})),
        ] {
            assert_eq!(object(text), expected, "{text}");
        }
    }

    #[test]
    fn numbers_beyond_every_machine_number_stay_numbers() {
        let value = object(r#"{"a": 54e54822, "b": "1e999", "c": [-1e999, 2]}"#);
        assert_eq!(value["a"], json!(f64::MAX));
        assert_eq!(value["b"], Value::from("1e999"));
        assert_eq!(value["c"], json!([f64::MIN, 2]));
    }
}
