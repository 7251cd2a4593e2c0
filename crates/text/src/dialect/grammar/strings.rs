//! Texts without quotes around them: what a schema says of a string, as conditions of a terminal.

use serde_json::{Map, Value};

/// Any text, also none.
const ANY: &str = r"(.|\n)*";
/// Lengths beyond this are not held to: counting costs a state for each character.
const MOST_CHARS: u64 = 4096;

/// What a schema asks of a string, as regular expressions that all have to match. None where it asks for nothing.
pub(super) fn conditions(schema: &Map<String, Value>) -> Vec<String> {
    let mut all = Vec::new();
    if let Some(Value::String(pattern)) = schema.get("pattern") {
        all.push(format!("/{}/", searched(pattern)));
    }
    let bound = |key: &str| schema.get(key).and_then(Value::as_u64).filter(|&n| n <= MOST_CHARS);
    match (bound("minLength").filter(|&least| least > 0), bound("maxLength")) {
        (None, None) => {}
        (least, most) => {
            let most = most.map(|most| most.to_string()).unwrap_or_default();
            all.push(format!(r"/(.|\n){{{},{most}}}/", least.unwrap_or(0)));
        }
    }
    all
}

/// The condition that a text does not contain another one.
pub(super) fn without(text: &str) -> String {
    let text: String = text.chars().map(escaped).collect();
    format!("~/{ANY}{text}{ANY}/")
}

/// A character as itself in an expression.
fn escaped(c: char) -> String {
    if c.is_alphanumeric() { c.to_string() } else { format!(r"\x{{{:x}}}", u32::from(c)) }
}

/// An expression for texts in which a pattern is found, which is what a schema means by one. Anchors at the ends of the
/// alternatives say where; others are for the compiler of the grammar to refuse.
fn searched(pattern: &str) -> String {
    let alternatives: Vec<String> = alternatives(pattern)
        .into_iter()
        .map(|part| {
            let (head, part) = match part.strip_prefix('^') {
                Some(rest) => ("", rest),
                None => (ANY, part),
            };
            let escapes = |text: &str| text.chars().rev().take_while(|&c| c == '\\').count();
            let open = part.strip_suffix('$').filter(|rest| escapes(rest) % 2 == 0);
            let (part, tail) = open.map_or((part, ANY), |rest| (rest, ""));
            format!("{head}({}){tail}", quoted(part))
        })
        .collect();
    alternatives.join("|")
}

/// The parts of an expression between the bars that stand in no bracket.
fn alternatives(pattern: &str) -> Vec<&str> {
    let (mut parts, mut from, mut groups, mut class, mut escape) = (Vec::new(), 0, 0, false, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escape => escape = false,
            '\\' => escape = true,
            '[' => class = true,
            ']' => class = false,
            '(' if !class => groups += 1,
            ')' if !class => groups -= 1,
            '|' if !class && groups == 0 => {
                parts.push(&pattern[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&pattern[from..]);
    parts
}

/// An expression as it can stand between slashes, on one line.
fn quoted(pattern: &str) -> String {
    let (mut out, mut escape) = (String::new(), false);
    for c in pattern.chars() {
        match c {
            '/' | '\n' | '\r' => {
                if escape {
                    out.pop();
                }
                out.push_str(&escaped(c));
            }
            c => out.push(c),
        }
        escape = c == '\\' && !escape;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_looked_for_and_anchors_say_where() {
        for (pattern, expected) in [
            ("ab", r"(.|\n)*(ab)(.|\n)*"),
            ("^ab$", "(ab)"),
            (r"^a\$", r"(a\$)(.|\n)*"),
            (r"^a|b$", r"(a)(.|\n)*|(.|\n)*(b)"),
            ("^(a|b)[|]$", "((a|b)[|])"),
            (r"^a/b\/c$", r"(a\x{2f}b\x{2f}c)"),
        ] {
            assert_eq!(searched(pattern), expected, "{pattern}");
        }
    }
}
