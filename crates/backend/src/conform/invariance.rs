//! The same work cut differently gives the same bits.

use super::operands::spans;
use super::{ConformCase, ConformStage, compare};
use crate::op::{Attention, AttentionPart, CacheLayout, Channels, Linear, SpanEntry};
use crate::{Backend, BackendError, BufferRole, BufferSpec, Op, View};
use forerun_base::DType;

type FoundFault = Result<Option<String>, BackendError>;

/// Runs a case whole and `width` rows at a time.
pub(super) fn by_rows(case: &ConformCase, candidate: &mut dyn Backend, width: usize) -> FoundFault {
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
pub(super) fn by_spans(case: &ConformCase, candidate: &mut dyn Backend) -> FoundFault {
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

/// Runs an attention whole and one cut of keys at a time, where the device takes cuts.
pub(super) fn by_keys(case: &ConformCase, candidate: &mut dyn Backend) -> FoundFault {
    let mut stage = ConformStage::new(candidate, &case.name);
    let Op::Attention(whole) = case.set(&mut stage)? else { return Ok(None) };
    let cut = key_parts(whole, case.rows, &mut stage)?;
    if cut.is_empty() {
        return Ok(None);
    }
    let cut = stage.play(&cut)?;
    let whole = case.play(candidate)?;
    Ok(compare::same(&whole, &cut).map(|what| format!("cut by keys: {what}")))
}

/// An attention cut as finely as the device takes it; nothing where it takes no cuts.
pub(super) fn key_parts(
    whole: Attention,
    rows: usize,
    stage: &mut ConformStage<'_>,
) -> Result<Vec<Op>, BackendError> {
    let CacheLayout { block, head_dim, .. } = whole.layout;
    let keys = stage.backend.cut_sizes(block).keys;
    if keys == 0 || rows == 0 {
        return Ok(Vec::new());
    }
    let len = rows * whole.heads * AttentionPart::state_width(head_dim);
    let (label, dtype, role) = ("state", DType::F32, BufferRole::Scratch);
    let state = stage.backend.alloc(BufferSpec { label, dtype, len, role })?;
    let end = whole.table_width * block;
    let part = |first: usize| AttentionPart {
        whole,
        first,
        end: first + keys,
        begins: first == 0,
        ends: first + keys >= end,
        state: View::head(state, len),
    };
    Ok((0..end).step_by(keys).map(|first| part(first).into()).collect())
}

/// Runs a product of one row whole and some channels at a time, where the device takes cuts.
pub(super) fn by_channels(case: &ConformCase, candidate: &mut dyn Backend) -> FoundFault {
    let mut stage = ConformStage::new(candidate, &case.name);
    let Op::Linear(whole) = case.set(&mut stage)? else { return Ok(None) };
    let grain = stage.backend.cut_sizes(1).channels;
    if grain == 0 || case.rows != 1 || whole.out.len == 0 {
        return Ok(None);
    }
    let part = |first: usize| {
        let count = grain.min(whole.out.len - first);
        let channels = Some(Channels { first, count });
        Linear { channels, out: whole.out.part(first, count), ..whole }.into()
    };
    let cut: Vec<Op> = (0..whole.out.len).step_by(grain).map(part).collect();
    let cut = stage.play(&cut)?;
    let whole = case.play(candidate)?;
    Ok(compare::same(&whole, &cut).map(|what| format!("{grain} channels at a time: {what}")))
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
