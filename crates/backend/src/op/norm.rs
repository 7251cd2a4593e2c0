//! Norms over the last axis.

use crate::{Access, OpDesc, View, WeightId};

/// `out = x / sqrt(mean(x²) + eps) · weight`, per row of `dim`.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// `[rows, dim]`.
    pub x: View,
    /// `[1, dim]`; conventions that store `w − 1` were resolved at load.
    pub weight: WeightId,
    /// `[rows, dim]`.
    pub out: View,
    /// Width of a row.
    pub dim: usize,
    /// Added to the mean square.
    pub eps: f32,
}

impl RmsNorm {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        desc.require(self.dim > 0 && self.x.len.is_multiple_of(self.dim), "x is not whole rows");
        desc.f32("x", self.x, Access::Read, self.x.len);
        desc.weight("weight", self.weight, [1, self.dim]);
        desc.f32("out", self.out, Access::Write, self.x.len);
        desc.work(0, 4 * self.x.len as u64);
    }
}

/// `out ← (out + x / sqrt(mean(x²) + eps) · weight) · scale`, per row of `dim`.
#[derive(Clone, Copy, Debug)]
pub struct AddNorm {
    /// `[rows, dim]`.
    pub x: View,
    /// `[1, dim]`.
    pub weight: WeightId,
    /// `[rows, dim]`, added to.
    pub out: View,
    /// Width of a row.
    pub dim: usize,
    /// Added to the mean square.
    pub eps: f32,
    /// Factor on the sum.
    pub scale: f32,
}

impl AddNorm {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        desc.require(self.dim > 0 && self.x.len.is_multiple_of(self.dim), "x is not whole rows");
        desc.f32("x", self.x, Access::Read, self.x.len);
        desc.weight("weight", self.weight, [1, self.dim]);
        desc.f32("out", self.out, Access::Update, self.x.len);
        desc.work(0, 6 * self.x.len as u64);
    }
}

/// `out[r] = [rms(a[r])·norms[0] | rms(b[r])·norms[1]]`: two rows normed and laid side by side; without
/// norms, unchanged.
#[derive(Clone, Copy, Debug)]
pub struct JoinNorm {
    /// `[rows, dim]`.
    pub a: View,
    /// `[rows, dim]`.
    pub b: View,
    /// `[1, dim]` for `a` and for `b`.
    pub norms: Option<[WeightId; 2]>,
    /// `[rows, 2·dim]`.
    pub out: View,
    /// Width of a row.
    pub dim: usize,
    /// Added to the mean squares.
    pub eps: f32,
}

impl JoinNorm {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        desc.require(self.dim > 0 && self.a.len.is_multiple_of(self.dim), "a is not whole rows");
        desc.f32("a", self.a, Access::Read, self.a.len);
        desc.f32("b", self.b, Access::Read, self.a.len);
        if let Some([a, b]) = self.norms {
            desc.weight("norms[0]", a, [1, self.dim]);
            desc.weight("norms[1]", b, [1, self.dim]);
            desc.work(0, 8 * self.a.len as u64);
        }
        desc.f32("out", self.out, Access::Write, 2 * self.a.len);
    }
}

/// `x ← x / sqrt(mean(x²) + eps) · weight · silu(gate)`, per head of `dim`, in place.
#[derive(Clone, Copy, Debug)]
pub struct GatedNorm {
    /// `[rows, heads, dim]`, in place.
    pub x: View,
    /// Same shape as `x`.
    pub gate: View,
    /// `[1, dim]`.
    pub weight: WeightId,
    /// Width of a head.
    pub dim: usize,
    /// Added to the mean square.
    pub eps: f32,
}

impl GatedNorm {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        desc.require(self.dim > 0 && self.x.len.is_multiple_of(self.dim), "x is not whole heads");
        desc.f32("x", self.x, Access::Update, self.x.len);
        desc.f32("gate", self.gate, Access::Read, self.x.len);
        desc.weight("weight", self.weight, [1, self.dim]);
        desc.work(0, 12 * self.x.len as u64);
    }
}
