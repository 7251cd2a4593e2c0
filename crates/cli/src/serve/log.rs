//! The log of a server, on stderr.

use crate::args::{LogForm, LogLevel};
use std::io::{IsTerminal, stderr};
use tracing::level_filters::LevelFilter;

/// Starts logging.
pub(super) fn start(form: LogForm, level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let log = tracing_subscriber::fmt().with_writer(stderr).with_max_level(level);
    match form {
        LogForm::Text => log.with_target(false).with_ansi(stderr().is_terminal()).init(),
        LogForm::Json => log.json().flatten_event(true).init(),
    }
}
