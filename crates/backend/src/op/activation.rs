//! Elementwise gates.

use crate::{Access, Sheet, View};

/// `gate ← silu(gate) · up`.
#[derive(Clone, Copy, Debug)]
pub struct SwiGlu {
    /// Gate in, product out.
    pub gate: View,
    /// Same length as `gate`.
    pub up: View,
}

impl SwiGlu {
    pub(super) fn describe(&self, sheet: &mut Sheet<'_>) {
        sheet.f32("gate", self.gate, Access::Update, self.gate.len);
        sheet.f32("up", self.up, Access::Read, self.gate.len);
        sheet.work(0, 10 * self.gate.len as u64);
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
    pub(super) fn describe(&self, sheet: &mut Sheet<'_>) {
        sheet.f32("x", self.x, Access::Update, self.x.len);
        sheet.f32("gate", self.gate, Access::Read, self.x.len);
        sheet.work(0, 10 * self.x.len as u64);
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
    pub(super) fn describe(&self, sheet: &mut Sheet<'_>) {
        let rows = self.gate.len;
        let whole = if rows == 0 { self.x.len == 0 } else { self.x.len.is_multiple_of(rows) };
        sheet.require(whole, "x is not whole rows");
        sheet.f32("x", self.x, Access::Read, self.x.len);
        sheet.f32("gate", self.gate, Access::Read, rows);
        sheet.f32("out", self.out, Access::Update, self.x.len);
        sheet.work(0, 2 * self.x.len as u64);
    }
}
