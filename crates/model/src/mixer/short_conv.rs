//! A gated short convolution: `out(C · conv(B · x))` with B, C and x projected from the input.

use super::projection::Projection;
use crate::forward::{Input, Output, Pass};
use crate::loader::Loader;
use crate::state::{StateDecl, StateKind};
use crate::{LayerState, Limits, ModelError, ShortConvSpec};
use forerun_backend::op::{ConvGates, Linear, LinearPart, Linears, ShortConv};
use std::fmt;

/// Weights of one gated short convolution.
#[derive(Clone, Debug)]
pub(crate) struct GatedConv {
    spec: ShortConvSpec,
    /// B, C and x.
    inputs: [Projection; 3],
    kernel: Projection,
    out: Projection,
}

impl ShortConvSpec {
    pub(super) fn weights(&self, hidden: usize) -> usize {
        4 * hidden * self.channels
    }

    pub(super) fn state(&self, limits: &Limits) -> [StateDecl; 2] {
        let (window, log) = ((self.taps - 1) * self.channels, limits.log_rows * self.channels);
        [
            StateDecl { name: "conv", kind: StateKind::Slot, len: window },
            StateDecl { name: "conv log", kind: StateKind::Log, len: log },
        ]
    }

    /// B, C, x, and what the convolution gives.
    pub(super) fn scratch(&self) -> [usize; 4] {
        [self.channels; 4]
    }
}

impl fmt::Display for ShortConvSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gated short convolution, {} channels, {} taps", self.channels, self.taps)
    }
}

impl GatedConv {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: &ShortConvSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let ShortConvSpec { channels, taps, bias } = *spec;
        let at = |name: &str| format!("{path}.{name}");
        let both = loader.checkpoint.parts(&at("in_proj"), &[3 * channels, hidden])?;
        let biases = match bias {
            true => Some(loader.checkpoint.values(&at("in_proj.bias"), &[3 * channels])?),
            false => None,
        };
        let mut part = |name: &str, number: usize| -> Result<Projection, ModelError> {
            let (label, rows) = (at(name), number * channels..(number + 1) * channels);
            let bias = biases.as_ref().map(|all| loader.numbers(&label, 1, &all[rows.clone()]));
            let weight = loader.rows(&label, &both, std::slice::from_ref(&rows))?;
            Ok(Projection { weight, bias: bias.transpose()? })
        };
        let inputs = [part("in_proj (B)", 0)?, part("in_proj (C)", 1)?, part("in_proj (x)", 2)?];
        let mut vector =
            |name: &str, len: usize| bias.then(|| loader.vector(&at(name), len, |b| b)).transpose();
        let (kernel_bias, out_bias) =
            (vector("conv.bias", channels)?, vector("out_proj.bias", hidden)?);
        let kernel = loader.conv_kernel(&at("conv.weight"), [channels, taps])?;
        let out = loader.matrix(&at("out_proj"), [hidden, channels])?;
        Ok(Self {
            spec: spec.clone(),
            inputs,
            kernel: Projection { weight: kernel, bias: kernel_bias },
            out: Projection { weight: out, bias: out_bias },
        })
    }

    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        Input { x, norm }: Input,
        state: &LayerState,
        out: Output,
    ) {
        let [b, c, projected, mixed] = pass.scratch(self.spec.scratch());
        let [w_b, w_c, w_x] = self.inputs;
        let parts = [(w_b, b), (w_c, c), (w_x, projected)];
        let [b_part, c_part, x_part] =
            parts.map(|(Projection { weight, bias }, out)| Some(LinearPart { weight, bias, out }));
        pass.push(Linears { x, norm, parts: [b_part, c_part, x_part, None] });
        let [window, log] = state.views();
        pass.push(ShortConv {
            x: projected,
            gates: Some(ConvGates { input: b, output: c }),
            weight: self.kernel.weight,
            bias: self.kernel.bias,
            silu: false,
            channels: self.spec.channels,
            window,
            log,
            spans: pass.span_table(),
            out: mixed,
        });
        let (Projection { weight, bias }, Output { view, store }) = (self.out, out);
        pass.push(Linear { x: mixed, weight, bias, channels: None, out: view, store });
    }
}
