//! Matrix products with weights.

use crate::op::{Activation, Glu};
use crate::{Access, Sheet, View, WeightId};

/// What happens to the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// `out = …`
    Set,
    /// `out = out + …`, the residual stream.
    Add,
}

impl Store {
    /// What happens to the operand that is stored to.
    pub(super) const fn access(self) -> Access {
        match self {
            Self::Set => Access::Write,
            Self::Add => Access::Update,
        }
    }
}

/// `out[r][n] (+)= Σ_k x[r][k]·w[n][k] (+ bias[n])`.
///
/// # Numerics
/// The order of the sum depends on `K` and the weight's format, never on the number of rows.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// `[rows, K]`.
    pub x: View,
    /// `[N, K]`.
    pub weight: WeightId,
    /// `[1, N]`.
    pub bias: Option<WeightId>,
    /// The first so many channels take the place of all `N`.
    pub channels: Option<usize>,
    /// `[rows, N]`.
    pub out: View,
    /// Replace or add.
    pub store: Store,
}

impl Linear {
    /// A product without bias that replaces `out`.
    pub const fn set(x: View, weight: WeightId, out: View) -> Self {
        Self { x, weight, bias: None, channels: None, out, store: Store::Set }
    }

    /// A product without bias that is added to `out`.
    pub const fn add(x: View, weight: WeightId, out: View) -> Self {
        Self { x, weight, bias: None, channels: None, out, store: Store::Add }
    }

    pub(super) fn describe(&self, sheet: &mut Sheet<'_>) {
        let Some(weight) = sheet.weight_info("weight", self.weight) else { return };
        sheet.require(weight.cols > 0, "a weight without columns");
        let channels = self.channels.unwrap_or(weight.rows);
        sheet.require(channels <= weight.rows, "more channels than the weight has");
        let channels = channels.min(weight.rows);
        let rows = self.x.len / weight.cols.max(1);
        sheet.f32("x", self.x, Access::Read, rows * weight.cols);
        if let Some(bias) = self.bias {
            sheet.weight("bias", bias, [1, weight.rows]);
        }
        sheet.f32("out", self.out, self.store.access(), rows * channels);
        sheet.weight_bytes(weight.bytes_of(channels));
        sheet.work(0, 2 * (rows * channels * weight.cols) as u64);
    }
}

/// The same rows with several weights: `out_i = x W_iᵀ (+ bias_i)`, which a device may compute side by side.
#[derive(Clone, Copy, Debug)]
pub struct Linears {
    /// `[rows, K]`.
    pub x: View,
    /// The weights, in any of the places.
    pub parts: [Option<LinearPart>; Linears::MOST],
}

/// One weight of [`Linears`].
#[derive(Clone, Copy, Debug)]
pub struct LinearPart {
    /// `[N, K]`.
    pub weight: WeightId,
    /// `[1, N]`.
    pub bias: Option<WeightId>,
    /// `[rows, N]`.
    pub out: View,
}

impl Linears {
    /// Most weights of a call.
    pub const MOST: usize = 4;

    /// The operations this one is defined as.
    pub fn parts(self) -> impl Iterator<Item = Linear> {
        let Self { x, parts } = self;
        parts.into_iter().flatten().map(move |LinearPart { weight, bias, out }| Linear {
            bias,
            ..Linear::set(x, weight, out)
        })
    }

    pub(super) fn describe(&self, sheet: &mut Sheet<'_>) {
        let Some(first) = self.parts.iter().flatten().next() else { return };
        let Some(first) = sheet.weight_info("weight", first.weight) else { return };
        sheet.require(first.cols > 0, "a weight without columns");
        let rows = self.x.len / first.cols.max(1);
        sheet.f32("x", self.x, Access::Read, rows * first.cols);
        for part in self.parts.iter().flatten() {
            let Some(weight) = sheet.weight_info("weight", part.weight) else { return };
            sheet.weight("weight", part.weight, [weight.rows, first.cols]);
            if let Some(bias) = part.bias {
                sheet.weight("bias", bias, [1, weight.rows]);
            }
            sheet.f32("out", part.out, Access::Write, rows * weight.rows);
            sheet.work(0, 2 * (rows * weight.rows * weight.cols) as u64);
        }
    }
}

/// `out = act(x Gᵀ) · (x Uᵀ)`: the first half of a gated MLP.
#[derive(Clone, Copy, Debug)]
pub struct GatedLinear {
    /// `[rows, K]`.
    pub x: View,
    /// `[N, K]`.
    pub gate: WeightId,
    /// `[N, K]`.
    pub up: WeightId,
    /// `[rows, N]`, left unspecified; room for the unfused definition.
    pub scratch: View,
    /// `[rows, N]`.
    pub out: View,
    /// The function on the gate.
    pub activation: Activation,
}

impl GatedLinear {
    /// The operations this one is defined as.
    pub const fn parts(self) -> (Linear, Linear, Glu) {
        (
            Linear::set(self.x, self.gate, self.out),
            Linear::set(self.x, self.up, self.scratch),
            Glu::same(self.out, self.scratch, self.activation),
        )
    }

    pub(super) fn describe(&self, sheet: &mut Sheet<'_>) {
        let Some(gate) = sheet.weight_info("gate", self.gate) else { return };
        sheet.require(gate.cols > 0, "a weight without columns");
        let rows = self.x.len / gate.cols.max(1);
        sheet.f32("x", self.x, Access::Read, rows * gate.cols);
        sheet.weight("gate", self.gate, [gate.rows, gate.cols]);
        sheet.weight("up", self.up, [gate.rows, gate.cols]);
        sheet.f32_part("scratch", self.scratch, Access::Write, rows * gate.rows, 0);
        sheet.f32("out", self.out, Access::Write, rows * gate.rows);
        sheet.work(0, (rows * gate.rows * (4 * gate.cols + Glu::FLOPS)) as u64);
    }
}
