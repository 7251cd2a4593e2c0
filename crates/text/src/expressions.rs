//! The regular expressions of a `tokenizer.json`, checked before they are compiled.
//!
//! The regex library bounds one expression, in the size of its program and in the steps of a match. A file may have any
//! number of them though, and each look-around inside one is a program of its own, so the total per file is bounded
//! here.

use crate::error::TextError;
use serde::Deserialize;
use serde_json::Value;

/// Expressions in one file; published tokenizers have up to ten.
const MAX_EXPRESSIONS: usize = 64;
/// Bytes of all expressions of a file; the longest published expression has some hundreds.
const MAX_BYTES: usize = 32 << 10;
/// Sum of all repetition counts: `{1,3}` counts 3.
const MAX_REPETITIONS: u64 = 1_000;
/// Nesting of brackets, which compiling follows by recursion.
const MAX_DEPTH: usize = 100;

/// The sections of a file that hold expressions; the vocabulary is skipped.
#[derive(Deserialize)]
struct Sections {
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
}

/// Refuses a file whose expressions would take long to compile. A file of another form is left to the library to
/// refuse.
pub(crate) fn check(file: &[u8]) -> Result<(), TextError> {
    let Ok(sections) = serde_json::from_slice::<Sections>(file) else { return Ok(()) };
    let mut found = Vec::new();
    let mut open: Vec<Value> =
        [sections.normalizer, sections.pre_tokenizer, sections.post_processor, sections.decoder]
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
    let repeated = found.iter().map(|text| repetitions(text)).fold(0, u64::saturating_add);
    let depth = found.iter().map(|text| depth(text)).max().unwrap_or(0);
    for (what, size, most) in [
        ("regular expressions", found.len() as u64, MAX_EXPRESSIONS as u64),
        ("bytes of regular expressions", bytes as u64, MAX_BYTES as u64),
        ("counted repetitions in regular expressions", repeated, MAX_REPETITIONS),
        ("levels of brackets in a regular expression", depth as u64, MAX_DEPTH as u64),
    ] {
        if size > most {
            let why = format!("it has {size} {what}; at most {most} are compiled");
            return Err(TextError::Tokenizer(why));
        }
    }
    Ok(())
}

/// The sum of all repetition counts in braces: 3 for `a{1,3}`. Braces that belong to an escape (`\x{4E00}`, `\p{L}`) or
/// are escaped themselves count nothing.
fn repetitions(expression: &str) -> u64 {
    let mut sum = 0u64;
    let mut rest = expression;
    while let Some(at) = rest.find(['\\', '{']) {
        let found = &rest[at..];
        if let Some(inside) = found.strip_prefix('{') {
            let range = inside.split_once('}').map_or("", |(range, _)| range);
            let counts = range.split(',').map(str::trim).filter(|count| is_number(count));
            // Only a number too large for its type fails to parse.
            let counts = counts.map(|count| count.parse().unwrap_or(u64::MAX));
            sum = sum.saturating_add(counts.max().unwrap_or(0));
            rest = inside;
            continue;
        }
        // An escape is two characters, so in `\\x{5}` the backslash is escaped and `x` is repeated.
        let escaped = found.chars().nth(1);
        rest = &found[1 + escaped.map_or(0, char::len_utf8)..];
        if matches!(escaped, Some('x' | 'u' | 'p' | 'P')) {
            rest = rest.strip_prefix('{').unwrap_or(rest);
        }
    }
    sum
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
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
    fn files_with_expensive_expressions_are_refused_and_others_are_not() {
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
            (vec![r"\\x{600}\\p{600}".to_owned()], "1200 counted"),
            (vec!["(".repeat(300) + &")".repeat(300)], "300 levels"),
        ] {
            let error = check(&file(&expressions)).expect_err("refused").to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn only_braces_that_repeat_are_counted() {
        for (expression, count) in [
            (r"a{5}", 5),
            (r"\x{5}", 0),
            (r"\\x{5}", 5),
            (r"\\\x{5}", 0),
            (r"\\\\p{5}{3}", 8),
            (r"\{5}", 0),
            (r"\p{L}{2,7}é{3,}{", 10),
            ("\\", 0),
            (r"a{99999999999999999999}b{1}", u64::MAX),
        ] {
            assert_eq!(repetitions(expression), count, "{expression}");
        }
    }
}
