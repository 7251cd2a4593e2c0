//! Guesses that a verdict kept and certain rows lead to the same state.
//!
//! A span with guesses runs, then the next span of the slot folds the kept ones. The same rows are
//! run as certain rows on a second stage. State and outputs must have the same bits for every
//! number of kept guesses.

use super::cases::{Batch, delta_op, inputs_op};
use super::operands::spans;
use super::stage::{Numbers, Outcome};
use super::{Report, Stage};
use crate::op::{DeltaShape, SpanEntry};
use crate::{Backend, BackendError, Op};

const GUESSES: u32 = 4;
/// The next span: one certain row and two guesses.
const NEXT_ROWS: u32 = 3;

/// A recurrent operation of some size.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// With a convolution of so many taps.
    Inputs(DeltaShape, usize),
    Rule(DeltaShape),
}

impl Kind {
    fn set(self, stage: &mut Stage<'_>, batch: &Batch) -> Result<Op, BackendError> {
        match self {
            Self::Inputs(shape, taps) => inputs_op(stage, (shape, taps), batch),
            Self::Rule(shape) => delta_op(stage, shape, batch),
        }
    }
}

/// How the first span looks and how many of its guesses are kept.
#[derive(Clone, Copy, Debug)]
struct Story {
    certain: u32,
    pending: u32,
    start: u32,
    keep: u32,
}

impl Story {
    /// First and next span when the first one's last rows are guesses.
    fn guessed(self) -> [SpanEntry; 2] {
        let first = SpanEntry {
            first_row: 0,
            rows: self.certain + GUESSES,
            certain: self.certain,
            pending: self.pending,
            slot: 2,
            start: self.start,
        };
        [first, self.next(self.keep)]
    }

    /// First and next span when the kept rows were certain from the start.
    fn certain(self) -> [SpanEntry; 2] {
        let rows = self.certain + self.keep;
        let [first, _] = self.guessed();
        [SpanEntry { rows, certain: rows, ..first }, self.next(0)]
    }

    fn next(self, pending: u32) -> SpanEntry {
        SpanEntry {
            first_row: self.certain + GUESSES,
            rows: NEXT_ROWS,
            certain: 1,
            pending,
            slot: 2,
            start: self.start + self.certain + self.keep,
        }
    }
}

pub(super) fn check(candidate: &mut dyn Backend) -> Report {
    let mut report = Report::default();
    let shape = |key_heads, value_heads, dk, dv| DeltaShape { key_heads, value_heads, dk, dv };
    let kinds = [
        Kind::Inputs(shape(1, 2, 8, 9), 4),
        Kind::Inputs(shape(1, 1, 1, 3), 2),
        Kind::Rule(shape(1, 3, 5, 9)),
        Kind::Rule(shape(2, 4, 16, 16)),
        Kind::Rule(shape(2, 2, 64, 128)),
    ];
    for kind in kinds {
        for (certain, pending, start) in [(1, 0, 9), (3, 2, 9), (0, 1, 4), (2, 0, 0)] {
            for keep in 0..=GUESSES {
                let story = Story { certain, pending, start, keep };
                let name = format!("{kind:?}, {story:?}");
                report.note(&name, "commit", compare(kind, story, candidate));
            }
        }
    }
    report
}

fn compare(
    kind: Kind,
    story: Story,
    candidate: &mut dyn Backend,
) -> Result<Option<String>, BackendError> {
    let guessed = play(kind, story.guessed(), candidate)?;
    let certain = play(kind, story.certain(), candidate)?;
    let kept = (story.certain + story.keep) as usize;
    let next = (story.certain + GUESSES) as usize;
    let rows = next + NEXT_ROWS as usize;
    Ok(certain.iter().zip(&guessed).find_map(|(certain, guessed)| {
        let (Numbers::F32(a), Numbers::F32(b)) = (&certain.numbers, &guessed.numbers) else {
            return None;
        };
        let (a, b) = (&a[certain.view.clone()], &b[certain.view.clone()]);
        let row = a.len() / rows;
        let parts = match certain.label {
            // Only the rows that both ran.
            "out" | "qkv" | "decay" | "beta" => [0..kept * row, next * row..a.len()],
            // Rows past the last guess hold what was there before.
            "log" => [0..0, 0..0],
            _ => [0..a.len(), 0..0],
        };
        parts.into_iter().flatten().find(|&i| a[i].to_bits() != b[i].to_bits()).map(|i| {
            let label = certain.label;
            format!("`{label}` element {i}: {:?} when certain, {:?} when kept", a[i], b[i])
        })
    }))
}

fn play(
    kind: Kind,
    [first, next]: [SpanEntry; 2],
    candidate: &mut dyn Backend,
) -> Result<Vec<Outcome>, BackendError> {
    // One name for both stories: the same data.
    let mut stage = Stage::new(candidate, &format!("commit {kind:?}"));
    let rows = (next.first_row + next.rows) as usize;
    let op =
        kind.set(&mut stage, &Batch { rows, entries: vec![first], log_rows: GUESSES as usize })?;
    let mut then = op;
    if let Some(spans) = spans(&mut then) {
        spans.table = stage.span_table(&[next])?;
    }
    stage.play(&[op, then])
}
