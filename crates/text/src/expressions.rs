//! The regular expressions of a `tokenizer.json`, looked at before they are compiled.
//!
//! One expression is bounded by the library, in the size of its program and in the steps of a match. A file may have any
//! number of them though, and inside one each look-around is a program of its own, so what a file asks for is bounded here.

use crate::error::TextError;
use serde::Deserialize;
use serde_json::Value;

/// Expressions of one file; those in use have up to ten.
const MOST: usize = 64;
/// Bytes of all of them together; the longest in use has some hundreds.
const MOST_BYTES: usize = 32 << 10;
/// All counts of repetitions together: `{1,3}` is 3.
const MOST_COUNTED: u64 = 1_000;
/// Brackets inside brackets, which compiling follows by recursion.
const MOST_DEPTH: usize = 100;

/// The parts of a file that hold expressions; the vocabulary is read over.
#[derive(Deserialize)]
struct Parts {
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
}

/// Refuses a file whose expressions would take long to compile. What is no such file is for the library to refuse.
pub(crate) fn check(file: &[u8]) -> Result<(), TextError> {
    let Ok(parts) = serde_json::from_slice::<Parts>(file) else { return Ok(()) };
    let mut found = Vec::new();
    let mut open: Vec<Value> =
        [parts.normalizer, parts.pre_tokenizer, parts.post_processor, parts.decoder]
            .into_iter()
            .flatten()
            .collect();
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => {
                for (key, value) in fields {
                    match value {
                        Value::String(text) if key == "Regex" => found.push(text),
                        value => open.push(value),
                    }
                }
            }
            _ => {}
        }
    }
    let bytes: usize = found.iter().map(String::len).sum();
    let counted: u64 = found.iter().map(|text| counted(text)).fold(0, u64::saturating_add);
    let depth = found.iter().map(|text| depth(text)).max().unwrap_or(0);
    for (what, size, most) in [
        ("regular expressions", found.len() as u64, MOST as u64),
        ("bytes of regular expressions", bytes as u64, MOST_BYTES as u64),
        ("counted repetitions in regular expressions", counted, MOST_COUNTED),
        ("levels of brackets in a regular expression", depth as u64, MOST_DEPTH as u64),
    ] {
        if size > most {
            let why = format!("it has {size} {what}; at most {most} are compiled");
            return Err(TextError::Tokenizer(why));
        }
    }
    Ok(())
}

/// The largest numbers of repetitions in braces, added up; `\x{4E00}` is a character.
fn counted(expression: &str) -> u64 {
    let parts: Vec<&str> = expression.split('{').collect();
    let is_escape = |before: &str| ["\\x", "\\u", "\\p", "\\P"].iter().any(|e| before.ends_with(e));
    let braces = parts.windows(2).filter(|pair| !is_escape(pair[0]));
    let inside = braces.filter_map(|pair| pair[1].split_once('}'));
    let numbers = inside.map(|(range, _)| {
        let ends = range.split(',').filter_map(|end| end.trim().parse::<u64>().ok());
        ends.max().unwrap_or(0)
    });
    numbers.fold(0, u64::saturating_add)
}

fn depth(expression: &str) -> usize {
    let (mut depth, mut deepest, mut escaped) = (0usize, 0, false);
    for c in expression.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn file(expressions: &[String]) -> Vec<u8> {
        let steps: Vec<Value> = expressions
            .iter()
            .map(|text| json!({"type": "Split", "pattern": {"Regex": text}}))
            .collect();
        json!({"model": {"vocab": {"Regex": 1}}, "pre_tokenizer": {"pretokenizers": steps}})
            .to_string()
            .into_bytes()
    }

    #[test]
    fn files_that_ask_for_much_are_refused_and_others_are_not() {
        let in_use =
            r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}]+[\r\n]*|\s+(?!\S)|\s+";
        check(&file(&vec![in_use.to_owned(); 8])).expect("as models have it");
        let characters = r"[\x{3400}-\x{9999}\u{20000}-\u{31350}]+\p{L}{1,3}";
        check(&file(&vec![characters.to_owned(); 8])).expect("characters by their number");
        check(b"{").expect("for the library to refuse");
        for (expressions, named) in [
            (vec!["a".to_owned(); 100], "100 regular expressions"),
            (vec!["(?=\\w)".repeat(8_000)], "48000 bytes"),
            (vec!["(?=\\w{100})".repeat(400)], "40000 counted"),
            (vec!["(((a{100}){100}){100000})".to_owned()], "counted"),
            (vec!["(".repeat(300) + &")".repeat(300)], "300 levels"),
        ] {
            let error = check(&file(&expressions)).expect_err("refused").to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
