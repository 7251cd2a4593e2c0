//! Where results go: a table or JSON to stdout, CSV to a file or in their place.

use crate::args::BenchArgs;
use crate::terminal;
use anyhow::Context;
use serde::Serialize;

pub(super) fn show(
    args: &BenchArgs,
    report: &impl Serialize,
    table: impl FnOnce() -> String,
    csv: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    match args.csv.as_deref() {
        Some("-") => return Ok(terminal::show(&csv())?),
        Some(path) => std::fs::write(path, csv()).with_context(|| path.to_owned())?,
        None => {}
    }
    if args.json { terminal::show_json(report) } else { Ok(terminal::show(&table())?) }
}
