//! How the program ends: 0 done, 1 error, 2 usage (clap's own, and [`usage`]), 130 cancelled.

use crate::terminal;
use std::fmt;
use std::io::ErrorKind;
use std::process::ExitCode;

/// How a command ended when nothing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// By Ctrl-C, after showing what there was.
    Cancelled,
}

/// What a shell sees after wrong usage.
const USAGE: u8 = 2;

/// What a shell sees after Ctrl-C.
pub(crate) const CANCELLED: u8 = 130;

/// An error of whoever typed the options, where it takes more than their form to see it.
#[derive(Debug)]
struct Usage(anyhow::Error);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&message(&self.0))
    }
}

impl std::error::Error for Usage {}

/// Marks an error as wrong usage.
pub(crate) fn usage(error: impl Into<anyhow::Error>) -> anyhow::Error {
    Usage(error.into()).into()
}

/// Says what went wrong, if anything did.
pub(crate) fn code(result: anyhow::Result<Outcome>) -> ExitCode {
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Cancelled) => ExitCode::from(CANCELLED),
        // A reader that has seen enough (`| head`) is no error.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::note(&format!("error: {}", message(&error)));
            let usage = error.chain().any(|cause| cause.is::<Usage>());
            if usage { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// The causes from the outermost to the innermost, each said once: many libraries have their cause in their own text
/// and name it as their source, too.
fn message(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if said.is_empty() {
            said = cause;
        } else if !said.contains(&format!(": {cause}")) {
            said = format!("{said}: {cause}");
        }
    }
    said
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_cause_that_its_error_quotes_is_said_once() {
        for (outer, inner, message_of_both) in [
            ("cannot listen: in use", "in use", "cannot listen: in use"),
            ("cannot read f: gone; fetch it", "gone", "cannot read f: gone; fetch it"),
            ("f.toml", "no such file", "f.toml: no such file"),
            ("in use", "use", "in use: use"),
        ] {
            let error = anyhow!(inner).context(outer);
            assert_eq!(message(&error), message_of_both);
            assert_eq!(
                message(&usage(error).context("with x")),
                format!("with x: {message_of_both}")
            );
        }
    }
}
