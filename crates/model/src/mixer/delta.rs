//! Gated DeltaNet: projections, short convolution, delta rule, gated norm.

use crate::forward::{Input, Output, Pass};
use crate::loader::Loader;
use crate::state::{StateDecl, StateKind};
use crate::{DeltaSpec, LayerState, Limits, ModelError};
use forerun_backend::WeightId;
use forerun_backend::op::{
    DeltaInputs, DeltaRule, DeltaShape, GatedNorm, Linear, LinearPart, Linears,
};
use forerun_base::MatrixParts;
use std::fmt;
use std::ops::Range;

/// What a translated GGUF calls `−exp(A_log)`, which it stores in place of `A_log`.
pub const DELTA_RATE: &str = "neg_exp_A_log";

/// Weights of one Gated DeltaNet mixer.
#[derive(Clone, Debug)]
pub(crate) struct Delta {
    spec: DeltaSpec,
    inputs: Inputs,
    conv: WeightId,
    /// `−exp(A_log)`.
    rate: WeightId,
    dt_bias: WeightId,
    norm: WeightId,
    out: WeightId,
}

/// The input projections.
#[derive(Clone, Copy, Debug)]
struct Inputs {
    qkv: WeightId,
    z: WeightId,
    a: WeightId,
    b: WeightId,
}

impl DeltaSpec {
    pub(super) fn weights(&self, hidden: usize) -> usize {
        hidden * (self.shape.channels() + 2 * self.shape.value_heads * self.shape.dv)
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

    /// `[q | k | v]` before and after the convolution, the gate z, what the rule gives, a, b, decay, beta.
    pub(super) fn scratch(&self) -> [usize; 8] {
        let (channels, heads) = (self.shape.channels(), self.shape.value_heads);
        let values = heads * self.shape.dv;
        [channels, channels, values, values, heads, heads, heads, heads]
    }
}

impl fmt::Display for DeltaSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeltaShape { key_heads, value_heads, dk, dv } = self.shape;
        let taps = self.taps;
        write!(
            f,
            "gated delta net, {key_heads} key heads of {dk}, {value_heads} value heads of {dv}, {taps} taps"
        )
    }
}

impl Delta {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: &DeltaSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let shape = spec.shape;
        let at = |name: &str| format!("{path}.{name}");
        let [norm, out] = output_names(loader, path);
        let inputs = if loader.checkpoint.has_matrix(&at("in_proj_qkvz")) {
            Inputs::load_grouped(loader, path, &shape, hidden)?
        } else if loader.checkpoint.has_matrix(&at("q_proj")) {
            Inputs::load_separate(loader, path, &shape, hidden)?
        } else {
            Inputs::load_split(loader, path, &shape, hidden)?
        };
        Ok(Self {
            spec: spec.clone(),
            inputs,
            conv: load_conv(loader, path, spec)?,
            rate: load_rate(loader, path, shape.value_heads)?,
            dt_bias: loader.vector(&at("dt_bias"), shape.value_heads, |b| b)?,
            norm: loader.plain_norm(&at(norm), shape.dv)?,
            out: loader.matrix(&at(out), [hidden, shape.value_heads * shape.dv])?,
        })
    }

    /// `out_proj(gated_norm(delta_rule(delta_inputs(projections(input)))))` to `out`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        Input { x, norm }: Input,
        layer: &LayerState,
        out: Output,
    ) {
        let shape = self.spec.shape;
        let [raw, qkv, z, mixed, a, b, decay, beta] = pass.scratch(self.spec.scratch());
        let [window, window_log, state, state_log] = layer.views();
        let spans = pass.span_table();
        let Inputs { qkv: w_qkv, z: w_z, a: w_a, b: w_b } = self.inputs;
        let parts = [(w_qkv, raw), (w_z, z), (w_a, a), (w_b, b)];
        let parts = parts.map(|(weight, out)| Some(LinearPart { weight, bias: None, out }));
        pass.push(Linears { x, norm, parts });
        let Self { conv: weight, rate, dt_bias, .. } = *self;
        pass.push(DeltaInputs {
            x: raw,
            a,
            b,
            weight,
            rate,
            dt_bias,
            beta_scale: self.spec.beta_scale,
            window,
            log: window_log,
            spans,
            shape,
            qkv,
            decay,
            beta,
        });
        let log = state_log;
        pass.push(DeltaRule { qkv, decay, beta, state, log, spans, shape, out: mixed });
        let eps = self.spec.norm_eps.unwrap_or(pass.sizes.eps);
        let (weight, dim) = (self.norm, shape.dv);
        pass.push(GatedNorm { x: mixed, gate: z, weight, dim, eps });
        let Output { view, store } = out;
        let (weight, bias) = (self.out, None);
        pass.push(Linear { x: mixed, weight, bias, channels: None, out: view, store });
    }
}

/// What the norm and the projection of the output are called: with projections that are separate, after attention's.
fn output_names(loader: &Loader<'_>, path: &str) -> [&'static str; 2] {
    let separate = loader.checkpoint.has_matrix(&format!("{path}.o_proj"));
    if separate { ["o_norm", "o_proj"] } else { ["norm", "out_proj"] }
}

/// One convolution over `[q | k | v]`, or one for each of the three.
fn load_conv(
    loader: &mut Loader<'_>,
    path: &str,
    spec: &DeltaSpec,
) -> Result<WeightId, ModelError> {
    let DeltaShape { key_heads, value_heads, dk, dv } = spec.shape;
    let whole = format!("{path}.conv1d.weight");
    let separate = ["q", "k", "v"].map(|name| format!("{path}.{name}_conv1d.weight"));
    if loader.checkpoint.contains(&whole) || !loader.checkpoint.contains(&separate[0]) {
        return loader.conv_kernel(&whole, [spec.shape.channels(), spec.taps]);
    }
    let (keys, values) = (key_heads * dk, value_heads * dv);
    let mut kernel = Vec::with_capacity(spec.shape.channels() * spec.taps);
    for (name, channels) in separate.iter().zip([keys, keys, values]) {
        kernel.extend(loader.conv_values(name, [channels, spec.taps])?);
    }
    loader.numbers(&whole, spec.shape.channels(), &kernel)
}

/// The decay's rate `−exp(A_log)`, or stored as it is.
fn load_rate(loader: &mut Loader<'_>, path: &str, heads: usize) -> Result<WeightId, ModelError> {
    let rate = format!("{path}.{DELTA_RATE}");
    if loader.checkpoint.contains(&rate) {
        return loader.vector(&rate, heads, |a| a);
    }
    loader.vector(&format!("{path}.A_log"), heads, |a| -a.exp())
}

impl Inputs {
    fn load_split(
        loader: &mut Loader<'_>,
        path: &str,
        shape: &DeltaShape,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let mut project = |name: &str, rows: usize| {
            loader.matrix(&format!("{path}.in_proj_{name}"), [rows, hidden])
        };
        Ok(Self {
            qkv: project("qkv", shape.channels())?,
            z: project("z", shape.value_heads * shape.dv)?,
            a: project("a", shape.value_heads)?,
            b: project("b", shape.value_heads)?,
        })
    }

    /// Queries, keys and values projected separately, the gate and the two numbers of a head as well. The first three
    /// become one matrix, so they have to be of one format.
    fn load_separate(
        loader: &mut Loader<'_>,
        path: &str,
        shape: &DeltaShape,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let DeltaShape { key_heads, value_heads, dk, dv } = *shape;
        let (keys, values) = (key_heads * dk, value_heads * dv);
        let at = |name: &str| format!("{path}.{name}_proj");
        let part = |name: &str, rows: usize| loader.checkpoint.parts(&at(name), &[rows, hidden]);
        let parts = [part("q", keys)?, part("k", keys)?, part("v", values)?];
        let qkv = MatrixParts::stack(&parts).ok_or_else(|| {
            let what = "q_proj, k_proj and v_proj are not of one format";
            ModelError::Layout(format!("{path}: {what}"))
        })?;
        Ok(Self {
            qkv: loader.upload(&at("qkv"), qkv)?,
            z: loader.matrix(&at("g"), [values, hidden])?,
            a: loader.matrix(&at("a"), [value_heads, hidden])?,
            b: loader.matrix(&at("b"), [value_heads, hidden])?,
        })
    }

    /// Qwen3-Next: rows are grouped by key head, `[q | k | v | z]` and `[b | a]`.
    fn load_grouped(
        loader: &mut Loader<'_>,
        path: &str,
        shape: &DeltaShape,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let DeltaShape { key_heads, value_heads, dk, dv } = *shape;
        let ratio = value_heads / key_heads;
        let (wide, narrow) = (2 * dk + 2 * ratio * dv, 2 * ratio);
        let part = |stride: usize, from: usize, len: usize| -> Vec<Range<usize>> {
            (0..key_heads).map(|h| h * stride + from..h * stride + from + len).collect()
        };
        let all = loader
            .checkpoint
            .parts(&format!("{path}.in_proj_qkvz"), &[key_heads * wide, hidden])?;
        let gates = loader
            .checkpoint
            .parts(&format!("{path}.in_proj_ba"), &[key_heads * narrow, hidden])?;
        let (v_at, z_at) = (2 * dk, 2 * dk + ratio * dv);
        let mut qkv = part(wide, 0, dk);
        qkv.extend(part(wide, dk, dk));
        qkv.extend(part(wide, v_at, ratio * dv));
        let mut rows = |name: &str, matrix, ranges: &[Range<usize>]| {
            loader.rows(&format!("{path}.{name}"), matrix, ranges)
        };
        Ok(Self {
            qkv: rows("in_proj_qkv", &all, &qkv)?,
            z: rows("in_proj_z", &all, &part(wide, z_at, ratio * dv))?,
            b: rows("in_proj_b", &gates, &part(narrow, 0, ratio))?,
            a: rows("in_proj_a", &gates, &part(narrow, ratio, ratio))?,
        })
    }
}
