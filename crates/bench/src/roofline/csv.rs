//! One line per phase and operation, and one per width of a step, in one schema for all machines and versions.

use super::report::{OperationRow, PhaseReport, RooflineReport, WidthReport};
use crate::csv::{line, quoted};
use std::borrow::Cow;

const COLUMNS: [&str; 18] = [
    "version",
    "device",
    "model",
    "phase",
    "context",
    "step_rows",
    "operation",
    "format",
    "rows",
    "calls",
    "seconds",
    "share",
    "bytes",
    "flops",
    "gb_s",
    "gflop_s",
    "share_of_read",
    "share_of_peak",
];

pub(crate) fn text(report: &RooflineReport) -> String {
    let mut text = line(&COLUMNS.map(Cow::from));
    for phase in &report.phases {
        for operation in &phase.operations {
            text.push_str(&line(&fields(report, phase, operation)));
        }
    }
    for width in &report.widths {
        text.push_str(&line(&step_fields(report, width)));
    }
    text
}

/// A whole step, of which only the median time is known.
fn step_fields<'a>(
    report: &'a RooflineReport,
    width: &WidthReport,
) -> [Cow<'a, str>; COLUMNS.len()] {
    let mut fields = [const { Cow::Borrowed("") }; COLUMNS.len()];
    fields[..3].clone_from_slice(&whose(report));
    fields[3] = "step".into();
    fields[5] = width.rows.to_string().into();
    fields[6] = "all".into();
    fields[9] = "1".into();
    fields[10] = format!("{:.9}", width.ms.median / 1e3).into();
    fields
}

fn whose<'a>(report: &'a RooflineReport) -> [Cow<'a, str>; 3] {
    [report.version.into(), quoted(&report.device), quoted(&report.model)]
}

fn fields<'a>(
    report: &'a RooflineReport,
    phase: &'a PhaseReport,
    operation: &'a OperationRow,
) -> [Cow<'a, str>; COLUMNS.len()] {
    let number = |value: f64| Cow::from(format!("{value:.4}"));
    let [version, device, model] = whose(report);
    [
        version,
        device,
        model,
        phase.phase.into(),
        phase.context.to_string().into(),
        phase.rows_per_step().to_string().into(),
        operation.operation.into(),
        operation.format.as_deref().unwrap_or_default().into(),
        operation.rows.unwrap_or_default().into(),
        operation.calls.to_string().into(),
        format!("{:.9}", operation.seconds).into(),
        number(operation.share),
        operation.bytes.to_string().into(),
        operation.flops.to_string().into(),
        number(operation.gb_per_s),
        number(operation.gflop_per_s),
        number(operation.share_of_read),
        number(operation.share_of_peak),
    ]
}
