//! Mamba-2: projections, short convolution, selective scan, gated norm over groups.

use super::projection::Projection;
use crate::forward::{Input, Output, Pass};
use crate::loader::Loader;
use crate::state::{StateDecl, StateKind};
use crate::{LayerState, Limits, ModelError, ScanSpec};
use forerun_backend::WeightId;
use forerun_backend::op::{
    GatedGroupNorm, Linear, LinearPart, Linears, ScanGates, ScanShape, SelectiveScan, ShortConv,
};
use std::fmt;
use std::ops::Range;

/// What a translated GGUF calls `−exp(A_log)`, which it stores in place of `A_log`.
pub const SCAN_RATE: &str = "neg_exp_A_log";

/// Weights of one Mamba-2 mixer.
#[derive(Clone, Debug)]
pub(crate) struct Mamba {
    spec: ScanSpec,
    /// The gate, `[x | B | C]`, and dt.
    inputs: [Projection; 3],
    conv: Projection,
    /// `−exp(A_log)`.
    rate: WeightId,
    dt_bias: WeightId,
    skip: WeightId,
    norm: WeightId,
    out: Projection,
}

impl ScanSpec {
    pub(super) fn weights(&self, hidden: usize) -> usize {
        let ScanShape { heads, .. } = self.shape;
        hidden * (self.shape.channels() + 2 * self.shape.inner() + heads)
    }

    pub(super) fn state(&self, limits: &Limits) -> [StateDecl; 4] {
        let Self { shape, taps, .. } = self;
        let (log, channels) = (limits.log_rows, shape.channels());
        let decl = |name, kind, len| StateDecl { name, kind, len };
        [
            decl("conv", StateKind::Slot, (taps - 1) * channels),
            decl("conv log", StateKind::Log, log * channels),
            decl("recurrent", StateKind::Slot, shape.state_len()),
            decl("recurrent log", StateKind::Log, log * shape.log_len()),
        ]
    }

    /// The gate, `[x | B | C]` before and after the convolution, what the scan gives, steps, decays.
    pub(super) fn scratch(&self) -> [usize; 6] {
        let ScanShape { heads, .. } = self.shape;
        let (inner, channels) = (self.shape.inner(), self.shape.channels());
        [inner, channels, channels, inner, heads, heads]
    }
}

impl fmt::Display for ScanSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScanShape { heads, groups, width, state } = self.shape;
        let taps = self.taps;
        write!(f, "mamba-2, {heads} heads of {width}, {groups} groups, state {state}, {taps} taps")
    }
}

impl Mamba {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: &ScanSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let ScanSpec { shape, taps, conv_bias, bias, .. } = *spec;
        let (inner, channels, heads) = (shape.inner(), shape.channels(), shape.heads);
        let at = |name: &str| format!("{path}.{name}");
        let inputs = load_inputs(loader, &at("in_proj"), spec, hidden)?;
        let kernel = loader.conv_kernel(&at("conv1d.weight"), [channels, taps])?;
        let mut vector = |name: &str, len: usize| loader.vector(&at(name), len, |b| b);
        let kernel_bias = conv_bias.then(|| vector("conv1d.bias", channels)).transpose()?;
        let (dt_bias, skip) = (vector("dt_bias", heads)?, vector("D", heads)?);
        let rate = match loader.checkpoint.contains(&at(SCAN_RATE)) {
            true => loader.vector(&at(SCAN_RATE), heads, |a| a)?,
            false => loader.vector(&at("A_log"), heads, |a| -a.exp())?,
        };
        Ok(Self {
            spec: spec.clone(),
            inputs,
            conv: Projection { weight: kernel, bias: kernel_bias },
            rate,
            dt_bias,
            skip,
            norm: loader.plain_norm(&at("norm"), inner)?,
            out: Projection::load(loader, &at("out_proj"), [hidden, inner], bias)?,
        })
    }

    /// `out_proj(group_norm(scan(conv(projections(input))) · silu(gate)))` to `out`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        Input { x, norm }: Input,
        layer: &LayerState,
        out: Output,
    ) {
        let ScanSpec { shape, limits: [least, most], norms, eps, .. } = self.spec;
        let [gate, raw, xbc, mixed, step, decay] = pass.scratch(self.spec.scratch());
        let [window, window_log, state, log] = layer.views();
        let spans = pass.span_table();
        let [w_gate, w_xbc, w_dt] = self.inputs;
        let parts = [(w_gate, gate), (w_xbc, raw), (w_dt, step)];
        let [a, b, c] =
            parts.map(|(Projection { weight, bias }, out)| Some(LinearPart { weight, bias, out }));
        pass.push(Linears { x, norm, parts: [a, b, c, None] });
        let Projection { weight, bias } = self.conv;
        pass.push(ShortConv {
            x: raw,
            gates: None,
            weight,
            bias,
            silu: true,
            channels: shape.channels(),
            window,
            log: window_log,
            spans,
            out: xbc,
        });
        let (rate, bias, heads) = (self.rate, self.dt_bias, shape.heads);
        pass.push(ScanGates { step, rate, bias, heads, least, most, decay });
        let skip = self.skip;
        pass.push(SelectiveScan { xbc, step, decay, skip, state, log, spans, shape, out: mixed });
        let (weight, dim) = (self.norm, shape.inner() / norms);
        pass.push(GatedGroupNorm { x: mixed, gate, weight, dim, eps });
        let (Projection { weight, bias }, Output { view, store }) = (self.out, out);
        pass.push(Linear { x: mixed, weight, bias, channels: None, out: view, store });
    }
}

/// The rows of the input projection: the gate, `[x | B | C]`, and dt.
fn load_inputs(
    loader: &mut Loader<'_>,
    path: &str,
    spec: &ScanSpec,
    hidden: usize,
) -> Result<[Projection; 3], ModelError> {
    let ScanShape { heads, .. } = spec.shape;
    let (inner, channels) = (spec.shape.inner(), spec.shape.channels());
    let rows = inner + channels + heads;
    let all = loader.checkpoint.parts(path, &[rows, hidden])?;
    let biases = match spec.bias {
        true => Some(loader.checkpoint.values(&format!("{path}.bias"), &[rows])?),
        false => None,
    };
    let mut part = |name: &str, rows: Range<usize>| -> Result<Projection, ModelError> {
        let label = format!("{path} ({name})");
        let bias = biases.as_ref().map(|all| loader.numbers(&label, 1, &all[rows.clone()]));
        let weight = loader.rows(&label, &all, std::slice::from_ref(&rows))?;
        Ok(Projection { weight, bias: bias.transpose()? })
    };
    Ok([
        part("gate", 0..inner)?,
        part("xBC", inner..inner + channels)?,
        part("dt", inner + channels..rows)?,
    ])
}
