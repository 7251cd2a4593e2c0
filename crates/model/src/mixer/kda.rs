//! Kimi Delta Attention: the delta rule with a decay of each key channel, after a convolution and before a gated norm.

use crate::forward::{Input, Output, Pass};
use crate::loader::Loader;
use crate::state::{StateDecl, StateKind};
use crate::{KdaSpec, LayerState, Limits, ModelError};
use forerun_backend::WeightId;
use forerun_backend::op::{
    DeltaShape, GateMul, KdaGates, KdaRule, Linear, LinearPart, Linears, RmsNorm, ShortConv,
    kda_log_len,
};
use forerun_base::MatrixParts;
use std::fmt;

/// Weights of one KDA mixer.
#[derive(Clone, Debug)]
pub(crate) struct Kda {
    spec: KdaSpec,
    qkv: WeightId,
    conv: WeightId,
    /// Two projections each, through a width of one head: of the decay and of the output's gate.
    decay: [WeightId; 2],
    gate: [WeightId; 2],
    beta: WeightId,
    /// `−exp(A_log)`.
    rate: WeightId,
    dt_bias: WeightId,
    norm: WeightId,
    out: WeightId,
}

impl KdaSpec {
    /// As many heads of keys as of values, all of one width.
    const fn shape(&self) -> DeltaShape {
        let Self { heads, dim, .. } = *self;
        DeltaShape { key_heads: heads, value_heads: heads, dk: dim, dv: dim }
    }

    pub(super) fn weights(&self, hidden: usize) -> usize {
        let Self { heads, dim, .. } = *self;
        4 * hidden * heads * dim + 2 * dim * (hidden + heads * dim) + hidden * heads
    }

    pub(super) fn state(&self, limits: &Limits) -> [StateDecl; 4] {
        let (log, shape) = (limits.log_rows, self.shape());
        let decl = |name, kind, len| StateDecl { name, kind, len };
        [
            decl("conv", StateKind::Slot, (self.taps - 1) * shape.channels()),
            decl("conv log", StateKind::Log, log * shape.channels()),
            decl("recurrent", StateKind::Slot, shape.state_len()),
            decl("recurrent log", StateKind::Log, log * kda_log_len(&shape)),
        ]
    }

    /// `[q | k | v]` before and after the convolution, the narrow and wide forms of what decay and gate are made of,
    /// decays, what beta is made of and it, what the rule gives and its norm.
    pub(super) fn scratch(&self) -> [usize; 11] {
        let Self { heads, dim, .. } = *self;
        let (channels, wide) = (self.shape().channels(), heads * dim);
        [channels, channels, dim, dim, wide, wide, wide, heads, heads, wide, wide]
    }
}

impl fmt::Display for KdaSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heads, dim, taps } = self;
        write!(f, "kimi delta attention, {heads} heads of {dim}, {taps} taps")
    }
}

impl Kda {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: &KdaSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let KdaSpec { heads, dim, taps } = *spec;
        let (at, wide) = (|name: &str| format!("{path}.{name}"), heads * dim);
        let part = |name: &str| loader.checkpoint.parts(&at(name), &[wide, hidden]);
        let parts = [part("q_proj")?, part("k_proj")?, part("v_proj")?];
        let qkv = MatrixParts::stack(&parts).ok_or_else(|| {
            ModelError::Layout(format!("{path}: q_proj, k_proj and v_proj differ in format"))
        })?;
        let qkv = loader.upload(&at("qkv_proj"), qkv)?;
        let mut taps_of = Vec::with_capacity(3 * wide * taps);
        for name in ["q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"] {
            taps_of.extend(loader.conv_values(&at(name), [wide, taps])?);
        }
        let conv = loader.numbers(&at("conv1d"), 3 * wide, &taps_of)?;
        let two = |loader: &mut Loader<'_>, down: &str, up: &str| {
            let down = loader.matrix(&at(down), [dim, hidden])?;
            Ok::<_, ModelError>([down, loader.matrix(&at(up), [wide, dim])?])
        };
        // Stored with axes of one around it.
        let rate = loader.flat(&at("A_log"), heads)?;
        let rate: Vec<f32> = rate.into_iter().map(|a| -a.exp()).collect();
        Ok(Self {
            spec: spec.clone(),
            qkv,
            conv,
            decay: two(loader, "f_a_proj", "f_b_proj")?,
            gate: two(loader, "g_a_proj", "g_b_proj")?,
            beta: loader.matrix(&at("b_proj"), [heads, hidden])?,
            rate: loader.numbers(&at("A_log"), 1, &rate)?,
            dt_bias: loader.vector(&at("dt_bias"), wide, |b| b)?,
            norm: loader.plain_norm(&at("o_norm"), dim)?,
            out: loader.matrix(&at("o_proj"), [hidden, wide])?,
        })
    }

    /// `o_proj(norm(kda_rule(kda_gates(short_conv(qkv)))) · σ(gate))` to `out`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        Input { x, norm }: Input,
        layer: &LayerState,
        out: Output,
    ) {
        let shape = self.spec.shape();
        let [raw, qkv, narrow_a, narrow_gate, a, gate, decay, b, beta, mixed, normed] =
            pass.scratch(self.spec.scratch());
        let [window, window_log, state, state_log] = layer.views();
        let spans = pass.span_table();
        let parts = [
            (self.qkv, raw),
            (self.decay[0], narrow_a),
            (self.gate[0], narrow_gate),
            (self.beta, b),
        ];
        let parts = parts.map(|(weight, out)| Some(LinearPart { weight, bias: None, out }));
        pass.push(Linears { x, norm, parts });
        pass.push(Linear::set(narrow_a, self.decay[1], a));
        pass.push(Linear::set(narrow_gate, self.gate[1], gate));
        pass.push(ShortConv {
            x: raw,
            gates: None,
            weight: self.conv,
            bias: None,
            silu: true,
            channels: shape.channels(),
            window,
            log: window_log,
            spans,
            out: qkv,
        });
        let Self { rate, dt_bias, .. } = *self;
        pass.push(KdaGates { qkv, a, b, rate, dt_bias, spans, shape, decay, beta });
        pass.push(KdaRule { qkv, decay, beta, state, log: state_log, spans, shape, out: mixed });
        let (dim, eps) = (shape.dv, pass.sizes.eps);
        pass.push(RmsNorm { x: mixed, weight: self.norm, out: normed, dim, eps });
        pass.push(GateMul { x: normed, gate });
        let Output { view, store } = out;
        let (weight, bias) = (self.out, None);
        pass.push(Linear { x: normed, weight, bias, channels: None, out: view, store });
    }
}
