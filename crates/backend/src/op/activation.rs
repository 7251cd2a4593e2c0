//! Elementwise functions and gates.

use crate::{Access, BackendError, OpDesc, View};

/// The function on the gate of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x · σ(x)`.
    Silu,
    /// `½x · (1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// [`Self::Silu`] of a gate that is no larger than a limit; what it is multiplied with lies between ± that.
    ClampedSilu {
        /// The limit, above 0.
        limit: f32,
    },
}

impl Activation {
    /// Refuses a function that a device has no code for.
    pub fn unclamped(self, op: &'static str) -> Result<Self, BackendError> {
        match self {
            Self::ClampedSilu { .. } => {
                Err(BackendError::Parameter { op, what: "the device has no clamped gates" })
            }
            _ => Ok(self),
        }
    }
}

/// `gate[r][i] ← act(gate[r][i]) · up[r][up_first + i]`.
#[derive(Clone, Copy, Debug)]
pub struct Glu {
    /// `[rows, dim]`: gate in, product out.
    pub gate: View,
    /// `[rows, up_width]`.
    pub up: View,
    /// Width of a row of `gate`.
    pub dim: usize,
    /// Width of a row of `up`.
    pub up_width: usize,
    /// First element of a row of `up` that takes part.
    pub up_first: usize,
    /// The function on the gate.
    pub activation: Activation,
}

impl Glu {
    /// Of one element.
    pub(super) const FLOPS: usize = 10;

    /// Two views of the same length, element by element.
    pub const fn same(gate: View, up: View, activation: Activation) -> Self {
        Self { gate, up, dim: gate.len, up_width: gate.len, up_first: 0, activation }
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let len = self.gate.len;
        let whole = if self.dim == 0 { len == 0 } else { len.is_multiple_of(self.dim) };
        desc.require(whole, "gate is not whole rows");
        let inside = self.up_first.checked_add(self.dim).is_some_and(|end| end <= self.up_width);
        desc.require(inside, "the part of a row of up ends outside it");
        let rows = len / self.dim.max(1);
        desc.f32("gate", self.gate, Access::Update, len);
        desc.f32_part("up", self.up, Access::Read, rows.saturating_mul(self.up_width), len);
        desc.work(0, (Self::FLOPS * len) as u64);
    }
}

/// `x ← cap · tanh(x / cap)`.
#[derive(Clone, Copy, Debug)]
pub struct Softcap {
    /// Any length, in place.
    pub x: View,
    /// No result is larger; positive and finite.
    pub cap: f32,
}

impl Softcap {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let sensible = self.cap > 0.0 && self.cap.is_finite();
        desc.require(sensible, "the cap must be positive and finite");
        desc.f32("x", self.x, Access::Update, self.x.len);
        desc.work(0, 20 * self.x.len as u64);
    }
}

/// `x ← x · σ(gate)`.
#[derive(Clone, Copy, Debug)]
pub struct GateMul {
    /// Scaled in place.
    pub x: View,
    /// Same length as `x`.
    pub gate: View,
}

impl GateMul {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        desc.f32("x", self.x, Access::Update, self.x.len);
        desc.f32("gate", self.gate, Access::Read, self.x.len);
        desc.work(0, 10 * self.x.len as u64);
    }
}

/// `out[r] += σ(gate[r]) · x[r]`, one gate per row.
#[derive(Clone, Copy, Debug)]
pub struct AddGated {
    /// `[rows, dim]`.
    pub x: View,
    /// `[rows]`.
    pub gate: View,
    /// `[rows, dim]`, added to.
    pub out: View,
}

impl AddGated {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let rows = self.gate.len;
        let whole = if rows == 0 { self.x.len == 0 } else { self.x.len.is_multiple_of(rows) };
        desc.require(whole, "x is not whole rows");
        desc.f32("x", self.x, Access::Read, self.x.len);
        desc.f32("gate", self.gate, Access::Read, rows);
        desc.f32("out", self.out, Access::Update, self.x.len);
        desc.work(0, 2 * self.x.len as u64);
    }
}
