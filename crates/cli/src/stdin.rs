//! Text from stdin.

use anyhow::Context;
use std::io::Read;

/// All of stdin, without the newline that ends its last line.
pub(crate) fn read() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("stdin")?;
    Ok(without_newline(&text).to_owned())
}

fn without_newline(text: &str) -> &str {
    let Some(line) = text.strip_suffix('\n') else { return text };
    line.strip_suffix('\r').unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_newline_goes_and_nothing_else() {
        let cases =
            [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a\r", "a\r"), ("a \t", "a \t")];
        for (text, expected) in cases {
            assert_eq!(without_newline(text), expected, "{text:?}");
        }
    }
}
