//! Drafts that a verdict kept and confirmed rows lead to the same state.
//!
//! A span with drafts runs, then the next span of the slot folds the kept ones. The same rows are
//! run as confirmed rows on a second stage. State and outputs must have the same bits for every
//! number of accepted drafts.

use super::cases::{
    AttendKind, Batch, ConvKind, PoolKind, attend_op, conv_op, delta_op, inputs_op, kda_op,
    ngram_op, pool_op, scan_op,
};
use super::operands::spans;
use super::stage::{BufferContents, BufferOutcome};
use super::{ConformReport, ConformStage};
use crate::op::{DeltaShape, ScanShape, SpanEntry};
use crate::{Backend, BackendError, Op};

const DRAFTS: u32 = 4;
/// The next span: one confirmed row and two drafts.
const NEXT_ROWS: u32 = 3;

/// A recurrent operation of some size.
#[derive(Clone, Copy, Debug)]
enum RecurrentOp {
    Conv(ConvKind),
    /// With a convolution of so many taps.
    Inputs(DeltaShape, usize),
    Rule(DeltaShape),
    /// With a decay of each key channel.
    Kda(DeltaShape),
    Scan(ScanShape),
    /// Of so many tokens, by so many heads each.
    Ngram(usize, usize),
    Pool(PoolKind),
    Attend(AttendKind),
}

impl RecurrentOp {
    fn name(self) -> &'static str {
        match self {
            Self::Conv(_) => "short_conv",
            Self::Inputs(..) => "delta_inputs",
            Self::Rule(_) => "delta_rule",
            Self::Kda(_) => "kda_rule",
            Self::Scan(_) => "selective_scan",
            Self::Ngram(..) => "ngram_embed",
            Self::Pool(_) => "pool_entries",
            Self::Attend(_) => "compressed_attention",
        }
    }

    fn set(self, stage: &mut ConformStage<'_>, batch: &Batch) -> Result<Op, BackendError> {
        match self {
            Self::Conv(kind) => conv_op(stage, kind, batch),
            Self::Inputs(shape, taps) => inputs_op(stage, (shape, taps), batch),
            Self::Rule(shape) => delta_op(stage, shape, batch),
            Self::Kda(shape) => kda_op(stage, shape, batch),
            Self::Scan(shape) => scan_op(stage, shape, batch),
            Self::Ngram(order, heads) => ngram_op(stage, (order, heads), batch),
            Self::Pool(kind) => pool_op(stage, kind, batch),
            Self::Attend(kind) => attend_op(stage, kind, batch),
        }
    }
}

/// How the first span looks and how many of its drafts are kept.
#[derive(Clone, Copy, Debug)]
struct Story {
    confirmed: u32,
    pending: u32,
    start: u32,
    keep: u32,
}

impl Story {
    /// First and next span when the first one's last rows are drafts.
    fn drafted(self) -> [SpanEntry; 2] {
        let first = SpanEntry {
            first_row: 0,
            rows: self.confirmed + DRAFTS,
            confirmed: self.confirmed,
            pending: self.pending,
            slot: 2,
            start: self.start,
        };
        [first, self.next(self.keep)]
    }

    /// First and next span when the kept rows were confirmed from the start.
    fn confirmed(self) -> [SpanEntry; 2] {
        let rows = self.confirmed + self.keep;
        let [first, _] = self.drafted();
        [SpanEntry { rows, confirmed: rows, ..first }, self.next(0)]
    }

    fn next(self, pending: u32) -> SpanEntry {
        SpanEntry {
            first_row: self.confirmed + DRAFTS,
            rows: NEXT_ROWS,
            confirmed: 1,
            pending,
            slot: 2,
            start: self.start + self.confirmed + self.keep,
        }
    }
}

pub(super) fn check(candidate: &mut dyn Backend) -> ConformReport {
    let mut report = ConformReport::default();
    let shape = |key_heads, value_heads, dk, dv| DeltaShape { key_heads, value_heads, dk, dv };
    let conv = ConvKind { channels: 19, taps: 3, gated: true, bias: true, silu: false };
    let kinds = [
        RecurrentOp::Conv(conv),
        RecurrentOp::Conv(ConvKind { channels: 40, taps: 4, gated: false, silu: true, ..conv }),
        RecurrentOp::Inputs(shape(1, 2, 8, 9), 4),
        RecurrentOp::Inputs(shape(1, 1, 1, 3), 2),
        RecurrentOp::Rule(shape(1, 3, 5, 9)),
        RecurrentOp::Rule(shape(2, 4, 16, 16)),
        RecurrentOp::Rule(shape(2, 2, 64, 128)),
        RecurrentOp::Kda(shape(1, 3, 5, 9)),
        RecurrentOp::Kda(shape(2, 2, 64, 128)),
        RecurrentOp::Scan(ScanShape { heads: 3, groups: 1, width: 5, state: 9 }),
        RecurrentOp::Scan(ScanShape { heads: 4, groups: 2, width: 16, state: 32 }),
        RecurrentOp::Ngram(3, 2),
        RecurrentOp::Pool(PoolKind { every: 3, dim: 8, series: 2, gated: true }),
        RecurrentOp::Pool(PoolKind { every: 4, dim: 5, series: 1, gated: false }),
        RecurrentOp::Attend(AttendKind { heads: 2, dim: 8, keys: 4, entries: Some(false) }),
    ];
    let missing = candidate.missing();
    let there = |kind: &RecurrentOp| !missing.contains(&kind.name());
    for kind in kinds.into_iter().filter(there) {
        for (confirmed, pending, start) in [(1, 0, 9), (3, 2, 9), (0, 1, 4), (2, 0, 0)] {
            for keep in 0..=DRAFTS {
                let story = Story { confirmed, pending, start, keep };
                let name = format!("{kind:?}, {story:?}");
                report.note(&name, "commit", compare(kind, story, candidate));
            }
        }
    }
    report
}

fn compare(
    kind: RecurrentOp,
    story: Story,
    candidate: &mut dyn Backend,
) -> Result<Option<String>, BackendError> {
    let drafted = play(kind, story.drafted(), candidate)?;
    let confirmed = play(kind, story.confirmed(), candidate)?;
    let kept = (story.confirmed + story.keep) as usize;
    let next = (story.confirmed + DRAFTS) as usize;
    let rows = next + NEXT_ROWS as usize;
    Ok(confirmed.iter().zip(&drafted).find_map(|(confirmed, drafted)| {
        let (BufferContents::F32(a), BufferContents::F32(b)) =
            (&confirmed.numbers, &drafted.numbers)
        else {
            return None;
        };
        let (a, b) = (&a[confirmed.view.clone()], &b[confirmed.view.clone()]);
        let row = a.len() / rows;
        let parts = match confirmed.label {
            // Only the rows that both ran.
            "out" | "qkv" | "decay" | "beta" => [0..kept * row, next * row..a.len()],
            // Rows past the last draft hold what was there before, and entries behind what was kept are anybody's.
            "log" | "cache" => [0..0, 0..0],
            _ => [0..a.len(), 0..0],
        };
        parts.into_iter().flatten().find(|&i| a[i].to_bits() != b[i].to_bits()).map(|i| {
            let label = confirmed.label;
            format!("`{label}` element {i}: {:?} when confirmed, {:?} when kept", a[i], b[i])
        })
    }))
}

fn play(
    kind: RecurrentOp,
    [first, next]: [SpanEntry; 2],
    candidate: &mut dyn Backend,
) -> Result<Vec<BufferOutcome>, BackendError> {
    // One name for both stories: the same data.
    let mut stage = ConformStage::new(candidate, &format!("commit {kind:?}"));
    let rows = (next.first_row + next.rows) as usize;
    let op =
        kind.set(&mut stage, &Batch { rows, entries: vec![first], log_rows: DRAFTS as usize })?;
    let mut then = op;
    if let Some(spans) = spans(&mut then) {
        spans.table = stage.span_table(&[next])?;
    }
    stage.play(&[op, then])
}
