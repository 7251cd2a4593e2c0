//! Writing to people and pipes: answers to stdout, everything else to stderr.
//!
//! Plain `print!` panics when a reader goes away; these return the error or, for remarks on stderr
//! that nobody may be reading, drop it.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};

/// A remark on stderr.
pub(crate) fn note(line: &str) {
    // Nothing is left to tell it to when stderr is closed.
    let _ = writeln!(io::stderr(), "{line}");
}

/// A remark that steps back behind the answer where the terminal can show that.
pub(crate) fn aside(line: &str) {
    let styled = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    if styled { note(&format!("\x1b[2m{line}\x1b[0m")) } else { note(line) }
}

/// Text for stdout, shown at once.
pub(crate) fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Ends a line on stdout that `text` may have left open.
pub(crate) fn end_line(text: &str) -> io::Result<()> {
    if text.ends_with('\n') { Ok(()) } else { show("\n") }
}

/// One JSON object on one line of stdout.
pub(crate) fn show_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    Ok(show(&format!("{}\n", serde_json::to_string(value)?))?)
}

/// A progress bar on stderr; hidden where that is not a terminal.
pub(crate) fn bar(len: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(len).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
