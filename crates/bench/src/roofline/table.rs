//! What was measured, for people.

use super::report::{MachineReport, OperationRow, PhaseReport, RooflineReport};
use forerun_report::bytes_text;

pub(crate) fn text(report: &RooflineReport) -> String {
    let RooflineReport { version, model, device, kv, machine, .. } = report;
    let mut text = format!("forerun {version} · {model} · {device} · kv {kv}\n");
    text.push_str(&machine_line(machine));
    for phase in &report.phases {
        text.push_str(&phase_text(phase, machine));
    }
    text.push_str("\nsteps of more rows, one confirmed and the rest drafts: median (min..max)\n");
    text.push_str(&format!("  {:>4}  {:<22}{}\n", "rows", "ms", "cost of one row"));
    for width in &report.widths {
        let ms = format!("{:.2}", width.ms);
        text.push_str(&format!("  {:>4}  {ms:<22}{:.2}\n", width.rows, width.cost));
    }
    text
}

/// The roof in one line.
pub(crate) fn machine_line(machine: &MachineReport) -> String {
    let MachineReport { threads, read_gb_per_s, peak_gflop_per_s, dispatch_us, cache_bytes } =
        machine;
    let cache = cache_bytes
        .map_or(String::new(), |bytes| format!(" · largest cache {}", bytes_text(bytes as u64)));
    format!(
        "at best, {threads} threads read {read_gb_per_s:.1} GB/s, compute {peak_gflop_per_s:.0} GFLOP/s in f32, \
         begin and end a job in {dispatch_us:.1} us{cache}\n"
    )
}

fn phase_text(phase: &PhaseReport, machine: &MachineReport) -> String {
    let PhaseReport { rows, sequences, context, rows_per_s, weight_bytes, state_bytes, .. } = phase;
    let what = match phase.phase {
        "prompt" => format!("prompt, {rows} tokens: {rows_per_s:.0} tok/s"),
        "decode" => format!("decode from position {context}: {rows_per_s:.1} tok/s"),
        "batch" => {
            format!("decode {sequences} sequences from position {context}: {rows_per_s:.1} tok/s")
        }
        _ => format!("verify {} rows from position {context}", phase.rows_per_step()),
    };
    let kept = phase.kept_bytes();
    let mut text = format!(
        "\n{what}, {:.2} ms a step\n  a step moves {} ({} weights, {} keys and state), {:.0} GFLOP/s\n  \
         bound by {} at {:.1} rows/s; achieved {:.0} %\n",
        phase.ms_per_step,
        bytes_text(kept),
        bytes_text(*weight_bytes),
        bytes_text(*state_bytes),
        phase.gflop_per_s,
        phase.bound_by,
        phase.bound_rows_per_s,
        100.0 * phase.share_of_bound,
    );
    let in_cache = machine.cache_bytes.is_some_and(|cache| kept < cache as u64);
    if in_cache && phase.bound_by == "memory" {
        text.push_str(
            "  all of that may stay in the largest cache, which can be faster than memory\n",
        );
    }
    text.push_str(&operations_text(phase));
    text
}

/// A line for each operation.
pub(crate) fn operations_text(phase: &PhaseReport) -> String {
    let mut text = format!(
        "  {:<26}{:>8}{:>8}{:>11}{:>9}{:>9}{:>10}{:>9}\n",
        "operation", "calls", "time", "us/call", "GB/s", "of read", "GFLOP/s", "of peak"
    );
    phase.operations.iter().for_each(|operation| text.push_str(&operation_line(operation)));
    text
}

fn operation_line(operation: &OperationRow) -> String {
    let name = match (&operation.format, operation.rows) {
        (Some(format), Some(rows)) => format!("{} {format} x{rows}", operation.operation),
        _ => operation.operation.to_owned(),
    };
    format!(
        "  {name:<26}{:>8}{:>6.1} %{:>11.1}{:>9.2}{:>7.0} %{:>10.1}{:>7.0} %\n",
        operation.calls,
        100.0 * operation.share,
        1e6 * operation.seconds / operation.calls.max(1) as f64,
        operation.gb_per_s,
        100.0 * operation.share_of_read,
        operation.gflop_per_s,
        100.0 * operation.share_of_peak,
    )
}
