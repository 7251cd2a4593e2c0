//! One line per measurement, in one schema for all machines and versions.

use crate::report::{BenchReport, MeasurementRow};
use std::borrow::Cow;

const COLUMNS: [&str; 16] = [
    "version",
    "device",
    "model",
    "prompt",
    "prompt_tokens",
    "context",
    "batch",
    "arm",
    "rep",
    "decode_tok_s",
    "prompt_tok_s",
    "ttft_ms",
    "tokens_per_round",
    "accepted",
    "drafted",
    "acceptance",
];

pub(crate) fn text(summary: &BenchReport<'_>) -> String {
    let mut text = line(&COLUMNS.map(Cow::from));
    for measurement in &summary.measurements {
        text.push_str(&line(&fields(summary, measurement)));
    }
    text
}

fn fields<'a>(
    summary: &'a BenchReport<'_>,
    m: &'a MeasurementRow<'_>,
) -> [Cow<'a, str>; COLUMNS.len()] {
    let number = |value: f64| Cow::from(format!("{value:.3}"));
    [
        summary.version.into(),
        quoted(&summary.device),
        quoted(summary.model),
        quoted(m.prompt),
        m.prompt_tokens.to_string().into(),
        m.context.to_string().into(),
        m.batch.to_string().into(),
        m.arm.as_str().into(),
        m.rep.to_string().into(),
        m.decode_tokens_per_s.map(number).unwrap_or_default(),
        number(m.prompt_tokens_per_s),
        number(m.time_to_first_token_ms),
        number(m.tokens_per_round),
        m.accepted.to_string().into(),
        m.drafted.to_string().into(),
        summary.acceptance.into(),
    ]
}

pub(crate) fn line(fields: &[Cow<'_, str>]) -> String {
    fields.join(",") + "\n"
}

/// As RFC 4180 has it.
pub(crate) fn quoted(field: &str) -> Cow<'_, str> {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\"")).into()
    } else {
        field.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_would_break_a_line_is_quoted() {
        assert_eq!(quoted("a b"), "a b");
        assert_eq!(quoted("a, b"), "\"a, b\"");
        assert_eq!(quoted("\"a\""), "\"\"\"a\"\"\"");
    }
}
