//! How the program ends: 0 done, 1 error, 2 usage (clap's own), 130 cancelled.

use crate::terminal;
use std::io::ErrorKind;
use std::process::ExitCode;

/// How a command ended when nothing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// By Ctrl-C, after showing what there was.
    Cancelled,
}

/// What a shell sees after Ctrl-C.
pub(crate) const CANCELLED: u8 = 130;

/// Says what went wrong, if anything did.
pub(crate) fn code(result: anyhow::Result<Outcome>) -> ExitCode {
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Cancelled) => ExitCode::from(CANCELLED),
        // A reader that has seen enough (`| head`) is no error.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::note(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == ErrorKind::BrokenPipe)
}
