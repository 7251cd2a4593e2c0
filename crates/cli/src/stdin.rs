//! Text from stdin.

use anyhow::Context;
use std::io::Read;

/// All of stdin, without the newline that ends its last line.
pub(crate) fn read() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("stdin")?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}
