//! Matrix products with weights.

use crate::op::{Activation, Glu, RmsNorm};
use crate::{Access, OpDesc, View, WeightId};

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

/// Some of a weight's channels, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// The first: a multiple of the device's [`CutSizes::channels`](crate::CutSizes).
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl Channels {
    /// The first `count` channels.
    pub const fn head(count: usize) -> Self {
        Self { first: 0, count }
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
    /// These channels take the place of all `N`.
    pub channels: Option<Channels>,
    /// `[rows, N]`. With `channels` it begins anywhere.
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

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Some(weight) = desc.weight_info("weight", self.weight) else { return };
        desc.require(weight.cols > 0, "a weight without columns");
        let Channels { first, count } = self.channels.unwrap_or(Channels::head(weight.rows));
        let inside = first.checked_add(count).is_some_and(|end| end <= weight.rows);
        desc.require(inside, "more channels than the weight has");
        let channels = count.min(weight.rows);
        let rows = self.x.len / weight.cols.max(1);
        desc.f32("x", self.x, Access::Read, rows * weight.cols);
        if let Some(bias) = self.bias {
            desc.weight("bias", bias, [1, weight.rows]);
        }
        let (access, len) = (self.store.access(), rows * channels);
        match self.channels {
            None => desc.f32("out", self.out, access, len),
            // A part of a row, which may begin anywhere.
            Some(_) => desc.f32_anywhere("out", self.out, access, len),
        }
        desc.weight_bytes(weight.bytes_of(channels));
        desc.work(0, 2 * (rows * channels * weight.cols) as u64);
    }
}

/// A norm that makes the rows of a product: `x / sqrt(mean(x²) + eps) · weight`, per row.
#[derive(Clone, Copy, Debug)]
pub struct InputNorm {
    /// `[1, K]`.
    pub weight: WeightId,
    /// Width of a row, `K`.
    pub dim: usize,
    /// Added to the mean square.
    pub eps: f32,
    /// `[rows, K]`, left unspecified; room for the unfused definition.
    pub room: View,
}

impl InputNorm {
    /// The operation that this is with `x`.
    const fn of(self, x: View) -> RmsNorm {
        let Self { weight, dim, eps, room } = self;
        RmsNorm { x, weight, out: room, dim, eps }
    }

    fn describe(&self, desc: &mut OpDesc<'_>, [rows, cols]: [usize; 2]) {
        desc.require(self.dim == cols, "a norm of another width");
        desc.weight("norm", self.weight, [1, cols]);
        desc.f32_part("room", self.room, Access::Write, rows * cols, 0);
        desc.work(0, 4 * (rows * cols) as u64);
    }
}

/// The norm of a fused product as an operation of its own, and the rows that the products read.
fn made(x: View, norm: Option<InputNorm>) -> (Option<RmsNorm>, View) {
    (norm.map(|norm| norm.of(x)), norm.map_or(x, |norm| norm.room))
}

/// The same rows with several weights: `out_i = x W_iᵀ (+ bias_i)`, which a device may compute side by side.
#[derive(Clone, Copy, Debug)]
pub struct Linears {
    /// `[rows, K]`.
    pub x: View,
    /// What makes the rows of `x` those that are multiplied.
    pub norm: Option<InputNorm>,
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
    pub fn parts(self) -> (Option<RmsNorm>, impl Iterator<Item = Linear>) {
        let (norm, x) = made(self.x, self.norm);
        let products = self.parts.into_iter().flatten();
        let products = products.map(move |LinearPart { weight, bias, out }| Linear {
            bias,
            ..Linear::set(x, weight, out)
        });
        (norm, products)
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Some(first) = self.parts.iter().flatten().next() else { return };
        let Some(first) = desc.weight_info("weight", first.weight) else { return };
        desc.require(first.cols > 0, "a weight without columns");
        let rows = self.x.len / first.cols.max(1);
        desc.f32("x", self.x, Access::Read, rows * first.cols);
        if let Some(norm) = self.norm {
            norm.describe(desc, [rows, first.cols]);
        }
        for part in self.parts.iter().flatten() {
            let Some(weight) = desc.weight_info("weight", part.weight) else { return };
            desc.weight("weight", part.weight, [weight.rows, first.cols]);
            if let Some(bias) = part.bias {
                desc.weight("bias", bias, [1, weight.rows]);
            }
            desc.f32("out", part.out, Access::Write, rows * weight.rows);
            desc.work(0, 2 * (rows * weight.rows * weight.cols) as u64);
        }
    }
}

/// `out = act(x Gᵀ) · (x Uᵀ)`: the first half of a gated MLP.
#[derive(Clone, Copy, Debug)]
pub struct GatedLinear {
    /// `[rows, K]`.
    pub x: View,
    /// What makes the rows of `x` those that are multiplied.
    pub norm: Option<InputNorm>,
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
    pub fn parts(self) -> (Option<RmsNorm>, [Linear; 2], Glu) {
        let (norm, x) = made(self.x, self.norm);
        let products = [(self.gate, self.out), (self.up, self.scratch)];
        let products = products.map(|(weight, out)| Linear::set(x, weight, out));
        (norm, products, Glu::same(self.out, self.scratch, self.activation))
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Some(gate) = desc.weight_info("gate", self.gate) else { return };
        desc.require(gate.cols > 0, "a weight without columns");
        let rows = self.x.len / gate.cols.max(1);
        desc.f32("x", self.x, Access::Read, rows * gate.cols);
        if let Some(norm) = self.norm {
            norm.describe(desc, [rows, gate.cols]);
        }
        desc.weight("gate", self.gate, [gate.rows, gate.cols]);
        // A weight that is both is read and multiplied once.
        let products = if self.gate == self.up { 1 } else { 2 };
        match products {
            1 => desc.shape("up", self.up, [gate.rows, gate.cols]),
            _ => desc.weight("up", self.up, [gate.rows, gate.cols]),
        }
        desc.f32_part("scratch", self.scratch, Access::Write, rows * gate.rows, 0);
        desc.f32("out", self.out, Access::Write, rows * gate.rows);
        desc.work(0, (rows * gate.rows * (2 * products * gate.cols + Glu::FLOPS)) as u64);
    }
}

/// `out[r][g] = x[r][g] · W_gᵀ`, with `W_g` the `g`-th run of rows of a weight: heads projected in groups.
#[derive(Clone, Copy, Debug)]
pub struct GroupedLinear {
    /// `[rows, groups, in]`.
    pub x: View,
    /// `[groups·out, in]`.
    pub weight: WeightId,
    /// How many groups there are.
    pub groups: usize,
    /// Scratch as large as `x`.
    pub gathered: View,
    /// Scratch as large as `out`.
    pub products: View,
    /// `[rows, groups, out]`.
    pub out: View,
}

impl GroupedLinear {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Some(weight) = desc.weight_info("weight", self.weight) else { return };
        let groups = self.groups;
        desc.require(
            groups > 0 && weight.cols > 0 && weight.rows.is_multiple_of(groups.max(1)),
            "the weight is not whole groups",
        );
        let wide = groups.saturating_mul(weight.cols).max(1);
        desc.require(self.x.len.is_multiple_of(wide), "x is not whole rows");
        let rows = self.x.len / wide;
        desc.f32("x", self.x, Access::Read, rows * wide);
        desc.weight("weight", self.weight, [weight.rows, weight.cols]);
        desc.f32_part("gathered", self.gathered, Access::Write, rows * wide, 0);
        desc.f32_part("products", self.products, Access::Write, rows * weight.rows, 0);
        desc.f32("out", self.out, Access::Write, rows * weight.rows);
        desc.work(0, (2 * rows * weight.rows * weight.cols) as u64);
    }
}
