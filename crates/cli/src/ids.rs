//! Token ids as people and tools write them: `1,2,3`, `1 2 3`, `[1, 2, 3]`, or `@FILE` with any of
//! these inside.

use anyhow::{Context, bail};
use forerun_base::Token;

/// Reads the value of `--ids`.
pub(crate) fn read(given: &str) -> anyhow::Result<Vec<Token>> {
    match given.strip_prefix('@') {
        Some(path) => {
            let text =
                forerun_base::read_regular_text(path).with_context(|| format!("--ids @{path}"))?;
            parse(&text).with_context(|| format!("--ids @{path}"))
        }
        None => parse(given).context("--ids"),
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<Token>> {
    let text = text.trim();
    let inside = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if inside.trim().is_empty() {
        bail!("no token ids; expected numbers such as 1,2,3");
    }
    let mut ids = Vec::new();
    for part in inside.split(',') {
        if part.trim().is_empty() {
            bail!("nothing between two commas after item {}", ids.len());
        }
        for word in part.split_whitespace() {
            let Ok(id) = word.parse() else {
                bail!("item {} is `{}`, not a token id", ids.len() + 1, shortened(word));
            };
            ids.push(id);
        }
    }
    Ok(ids)
}

fn shortened(word: &str) -> String {
    word.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_writing_a_list_is_the_same_list() {
        for text in ["1,2,3", "1 2 3", "[1, 2, 3]", "1,\n2,\n3\n", "1\n2\t3", " [1,2 3] "] {
            assert_eq!(parse(text).unwrap(), [1, 2, 3], "{text:?}");
        }
    }

    #[test]
    fn the_bad_item_is_named() {
        let cases = [
            ("1,x,3", "item 2 is `x`"),
            ("1,-2", "item 2 is `-2`"),
            ("1,,2", "between two commas"),
            ("4294967296", "item 1 is `4294967296`"),
            ("1.5", "item 1 is `1.5`"),
            ("", "no token ids"),
            ("[]", "no token ids"),
        ];
        for (text, words) in cases {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
