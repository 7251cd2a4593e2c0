//! What llguidance says of a grammar, on one line: what is wrong and where.

use serde_json::Value;
use std::fmt::Display;

/// Characters that are told.
const LONGEST: usize = 400;

/// What llguidance says, without what it says about itself and without the lines it quotes.
pub(crate) fn reason(why: &dyn Display) -> String {
    let why = why.to_string();
    let mut said: Vec<&str> = Vec::new();
    for line in why.lines().take_while(|line| !line.trim_start().starts_with('<')) {
        let line = line.trim();
        if !line.is_empty() && !is_quotation(line) {
            said.push(line);
        }
    }
    let said = shortened(said.join(" "));
    if said == "NoExtensionBias" { "no token can follow".to_owned() } else { said }
}

/// A line of the grammar with its number, or marks under one.
fn is_quotation(line: &str) -> bool {
    let numbered = line.split_once(" |").is_some_and(|(n, _)| n.parse::<usize>().is_ok());
    numbered || line.chars().all(|c| c == '^')
}

fn shortened(mut said: String) -> String {
    if let Some((at, _)) = said.char_indices().nth(LONGEST) {
        said.truncate(at);
        said.push('…');
    }
    said
}

/// What is wrong with a regular expression: the parser quotes it and marks the place under it.
pub(crate) fn reason_of_regex(why: &dyn Display) -> String {
    let text = why.to_string();
    let mut lines = text.lines().skip_while(|line| !line.ends_with("regex parse error:")).skip(1);
    let quoted = lines.next().unwrap_or_default();
    let indent = quoted.len() - quoted.trim_start().len();
    let marks = lines.next().filter(|line| !line.is_empty() && is_quotation(line.trim()));
    let place = marks.and_then(|marks| marks.find('^')?.checked_sub(indent));
    let what = lines.next().and_then(|line| line.trim().strip_prefix("error: "));
    match (what, place) {
        (Some(what), Some(place)) => shortened(format!("{what}, at character {}", place + 1)),
        _ => reason(why),
    }
}

/// What is wrong with a schema, and where what is named stands in it.
pub(crate) fn reason_of_schema(schema: &Value, why: &dyn Display) -> String {
    let said = reason(why);
    let found = named(&said).find_map(|name| place(schema, name));
    match found {
        Some(place) => format!("{said}, at {place}"),
        None => said,
    }
}

/// What a message has in quotes, or else after its last colon.
fn named(said: &str) -> impl Iterator<Item = &str> {
    let quoted = said.split(['"', '\'']).skip(1).step_by(2);
    let last = said.rsplit_once(": ").map(|(_, last)| last);
    quoted.chain(last.filter(|_| !said.contains(['"', '\''])))
}

/// The first place of a key or a text, as a JSON pointer; found without recursion.
fn place(schema: &Value, name: &str) -> Option<String> {
    let mut open = std::collections::VecDeque::from([(schema, "#".to_owned())]);
    while let Some((value, path)) = open.pop_front() {
        match value {
            Value::String(text) if text == name => return Some(path),
            Value::Array(items) => {
                let items = items.iter().enumerate();
                open.extend(items.map(|(at, item)| (item, format!("{path}/{at}"))));
            }
            Value::Object(fields) => {
                for (key, field) in fields {
                    let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
                    if key == name {
                        return Some(path);
                    }
                    open.push_back((field, path));
                }
            }
            _ => {}
        }
    }
    None
}
