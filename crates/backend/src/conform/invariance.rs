//! The same work cut differently gives the same bits.

use super::operands::spans;
use super::{ConformCase, ConformStage, compare};
use crate::op::SpanEntry;
use crate::{Backend, BackendError, Op};

type Found = Result<Option<String>, BackendError>;

/// Runs a case whole and `width` rows at a time.
pub(super) fn by_rows(case: &ConformCase, candidate: &mut dyn Backend, width: usize) -> Found {
    let whole = case.play(candidate)?;
    let mut stage = ConformStage::new(candidate, &case.name);
    let mut op = case.set(&mut stage)?;
    if case.rows < 2 || spans(&mut op).is_some() {
        return Ok(None);
    }
    let pieces: Vec<Op> = (0..case.rows)
        .step_by(width)
        .map(|first| op.part(case.rows, first, width.min(case.rows - first)))
        .collect();
    let cut = stage.play(&pieces)?;
    Ok(compare::same(&whole, &cut).map(|what| format!("{width} rows at a time: {what}")))
}

/// Runs a recurrent case whole, and each span alone with its confirmed rows one after another.
pub(super) fn by_spans(case: &ConformCase, candidate: &mut dyn Backend) -> Found {
    let mut stage = ConformStage::new(candidate, &case.name);
    let mut op = case.set(&mut stage)?;
    let Some(table) = spans(&mut op).copied() else { return Ok(None) };
    let mut pieces = Vec::new();
    for entry in stage.entries(&table).into_iter().flat_map(one_by_one) {
        let mut piece = op;
        if let Some(spans) = spans(&mut piece) {
            spans.table = stage.span_table(&[entry])?;
        }
        pieces.push(piece);
    }
    let cut = stage.play(&pieces)?;
    let whole = case.play(candidate)?;
    Ok(compare::same(&whole, &cut).map(|what| format!("rows one after another: {what}")))
}

/// A span as spans of one confirmed row each, and one of its drafts.
fn one_by_one(span: SpanEntry) -> Vec<SpanEntry> {
    let mut pieces: Vec<SpanEntry> = (0..span.confirmed)
        .map(|i| SpanEntry {
            first_row: span.first_row + i,
            rows: 1,
            confirmed: 1,
            pending: 0,
            start: span.start + i,
            ..span
        })
        .collect();
    if span.rows > span.confirmed || pieces.is_empty() {
        pieces.push(SpanEntry {
            first_row: span.first_row + span.confirmed,
            rows: span.rows - span.confirmed,
            confirmed: 0,
            pending: 0,
            start: span.start + span.confirmed,
            ..span
        });
    }
    // Pending rows are folded once, before anything else.
    pieces[0].pending = span.pending;
    pieces
}
