//! From times and costs to rates and shares. Serialized, this is the JSON output.

use super::phase::StepPhase;
use crate::spread::Spread;
use forerun_backend::{Cost, TimedEntry};
use forerun_devices::Machine;
use serde::Serialize;
use std::cmp::Reverse;

/// What [`roofline`](crate::roofline) measured.
#[derive(Serialize)]
pub struct RooflineReport {
    pub(crate) version: &'static str,
    pub(crate) model: String,
    pub(crate) device: String,
    pub(crate) kv: String,
    pub(crate) machine: MachineReport,
    pub(crate) phases: Vec<PhaseReport>,
    pub(crate) widths: Vec<WidthReport>,
}

/// The roof.
#[derive(Serialize)]
pub(crate) struct MachineReport {
    pub(crate) threads: usize,
    pub(crate) read_gb_per_s: f64,
    pub(crate) peak_gflop_per_s: f64,
    /// A parallel job that does nothing.
    pub(crate) dispatch_us: f64,
    /// The largest cache; null where the system does not tell.
    pub(crate) cache_bytes: Option<usize>,
}

/// Steps of one kind. Bytes and flops are those of an average step.
#[derive(Serialize)]
pub(crate) struct PhaseReport {
    pub(crate) phase: &'static str,
    pub(crate) sequences: usize,
    /// Positions of each sequence before the first step.
    pub(crate) context: usize,
    /// Of all steps.
    pub(crate) rows: usize,
    pub(crate) steps: usize,
    pub(crate) ms_per_step: f64,
    pub(crate) rows_per_s: f64,
    pub(crate) bytes: u64,
    pub(crate) weight_bytes: u64,
    pub(crate) state_bytes: u64,
    pub(crate) flops: u64,
    pub(crate) gflop_per_s: f64,
    /// What would take longest on a perfect program: `memory` (weights and state once) or `arithmetic`.
    pub(crate) bound_by: &'static str,
    pub(crate) bound_rows_per_s: f64,
    pub(crate) share_of_bound: f64,
    /// Of operations alone, with the meter on.
    pub(crate) measured_s: f64,
    /// Longest first.
    pub(crate) operations: Vec<OperationRow>,
}

/// Calls of one operation; of products, in one format and width.
#[derive(Serialize)]
pub(crate) struct OperationRow {
    pub(crate) operation: &'static str,
    pub(crate) format: Option<String>,
    pub(crate) rows: Option<&'static str>,
    pub(crate) calls: u64,
    pub(crate) seconds: f64,
    /// Of the measured time.
    pub(crate) share: f64,
    pub(crate) bytes: u64,
    weight_bytes: u64,
    state_bytes: u64,
    pub(crate) flops: u64,
    pub(crate) gb_per_s: f64,
    pub(crate) share_of_read: f64,
    pub(crate) gflop_per_s: f64,
    pub(crate) share_of_peak: f64,
}

/// Steps of one width.
#[derive(Serialize)]
pub(crate) struct WidthReport {
    pub(crate) rows: usize,
    pub(crate) ms: Spread,
    /// Relative to one row in the same round.
    pub(crate) cost: Spread,
}

impl From<&Machine> for MachineReport {
    fn from(machine: &Machine) -> Self {
        Self {
            threads: machine.threads,
            read_gb_per_s: machine.read_bytes_per_s / 1e9,
            peak_gflop_per_s: machine.flops_per_s / 1e9,
            dispatch_us: machine.dispatch.as_secs_f64() * 1e6,
            cache_bytes: machine.cache_bytes,
        }
    }
}

impl PhaseReport {
    /// Rows of a step, where all have as many.
    pub(crate) fn rows_per_step(&self) -> usize {
        self.rows / self.steps.max(1)
    }

    /// Bytes of a step that outlive it: weights, keys, state.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.weight_bytes + self.state_bytes
    }

    pub(crate) fn new(phase: &StepPhase, machine: &Machine) -> Self {
        let Cost { bytes, weights, state, flops } = phase.cost();
        let (steps, wall) = (phase.steps.max(1) as u64, phase.wall.as_secs_f64());
        let moved = (weights + state) as f64 / machine.read_bytes_per_s;
        let computed = flops as f64 / machine.flops_per_s;
        let bound = moved.max(computed);
        let measured_s = phase.entries.iter().map(|e| e.time.as_secs_f64()).sum();
        let operation = |entry: &TimedEntry| OperationRow::new(entry, measured_s, machine);
        let mut operations: Vec<_> = phase.entries.iter().map(operation).collect();
        operations.sort_by_key(|operation| Reverse((operation.seconds * 1e9) as u64));
        Self {
            phase: phase.name,
            sequences: phase.sequences,
            context: phase.context,
            rows: phase.rows,
            steps: phase.steps,
            ms_per_step: 1e3 * wall / steps as f64,
            rows_per_s: ratio(phase.rows as f64, wall),
            bytes: bytes / steps,
            weight_bytes: weights / steps,
            state_bytes: state / steps,
            flops: flops / steps,
            gflop_per_s: ratio(flops as f64, wall) / 1e9,
            bound_by: if moved >= computed { "memory" } else { "arithmetic" },
            bound_rows_per_s: ratio(phase.rows as f64, bound),
            share_of_bound: ratio(bound, wall),
            measured_s,
            operations,
        }
    }
}

impl OperationRow {
    fn new(entry: &TimedEntry, measured_s: f64, machine: &Machine) -> Self {
        let (cost, seconds) = (entry.cost, entry.time.as_secs_f64());
        let (moved, computed) =
            (ratio(cost.bytes as f64, seconds), ratio(cost.flops as f64, seconds));
        Self {
            operation: entry.kind.op,
            format: entry.kind.product.map(|(format, _)| format.name()),
            rows: entry.kind.product.map(|(_, width)| width.name()),
            calls: entry.calls,
            seconds,
            share: ratio(seconds, measured_s),
            bytes: cost.bytes,
            weight_bytes: cost.weights,
            state_bytes: cost.state,
            flops: cost.flops,
            gb_per_s: moved / 1e9,
            share_of_read: ratio(moved, machine.read_bytes_per_s),
            gflop_per_s: computed / 1e9,
            share_of_peak: ratio(computed, machine.flops_per_s),
        }
    }
}

/// 0 where there is nothing to divide by.
fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
