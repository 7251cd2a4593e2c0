//! The short convolution over spans of every kind.

use super::ConformCase;
use super::delta::{BATCHES, Batch, SLOTS, Width, log_rows, rows_of, slots};
use crate::conform::ConformStage;
use crate::op::{ConvGates, ShortConv, Spans};
use crate::{BackendError, Op};
use forerun_base::{DType, Format};

/// What a convolution is made of.
#[derive(Clone, Copy, Debug)]
pub(in crate::conform) struct ConvKind {
    pub(in crate::conform) channels: usize,
    pub(in crate::conform) taps: usize,
    pub(in crate::conform) gated: bool,
    pub(in crate::conform) bias: bool,
    pub(in crate::conform) silu: bool,
}

pub(super) fn cases() -> Vec<ConformCase> {
    let kind = |channels, taps, gated, bias, silu| ConvKind { channels, taps, gated, bias, silu };
    let kinds = [
        kind(1, 2, false, false, false),
        kind(35, 3, true, false, false),
        kind(64, 4, false, false, true),
        kind(33, 5, true, true, true),
        kind(160, 3, true, true, false),
    ];
    let each = |(name, widths)| kinds.into_iter().map(move |kind| case(name, widths, kind));
    BATCHES.into_iter().flat_map(each).collect()
}

fn case(name: &str, widths: &'static [Width], kind: ConvKind) -> ConformCase {
    let log_rows = log_rows(widths);
    let sizes = format!("{name}, {kind:?}, log of {log_rows}");
    ConformCase::new("short_conv", sizes, rows_of(widths), move |stage| {
        conv_op(stage, kind, &Batch::new(widths, log_rows))
    })
}

/// The convolution over a batch.
pub(in crate::conform) fn conv_op(
    stage: &mut ConformStage<'_>,
    kind: ConvKind,
    batch: &Batch,
) -> Result<Op, BackendError> {
    let Batch { rows, entries, log_rows } = batch;
    let ConvKind { channels, taps, silu, .. } = kind;
    let x = stage.random("x", rows * channels)?;
    let gates = match kind.gated {
        true => Some(ConvGates {
            input: stage.random("gates.input", rows * channels)?,
            output: stage.random("gates.output", rows * channels)?,
        }),
        false => None,
    };
    let weight = stage.matrix([channels, taps], Format::Dense(DType::F32))?;
    let bias = if kind.bias { Some(stage.norm_weight(channels)?) } else { None };
    let window = slots(stage, entries, (taps - 1) * channels);
    let window = stage.moved("window", &window)?;
    let log = stage.rng.values(SLOTS * log_rows * channels);
    let log = stage.moved("log", &log)?;
    let spans = Spans { table: stage.span_table(entries)?, slots: SLOTS, log_rows: *log_rows };
    let out = stage.output("out", rows * channels)?;
    Ok(ShortConv { x, gates, weight, bias, silu, channels, window, log, spans, out }.into())
}
