//! Rotary position embedding ("half" pairing).

use crate::{Access, Sheet, View, WeightId};

/// `out[r] = [cos(p·inv_i)·scale …, sin(p·inv_i)·scale …]` for the row's position plus
/// `shift`, `p`.
///
/// One table serves every layer that shares the frequencies. Angles are f32.
#[derive(Clone, Copy, Debug)]
pub struct RopeTable {
    /// u32 `[rows]`.
    pub positions: View,
    /// Added to every position.
    pub shift: u32,
    /// `[1, pairs]`.
    pub inv_freq: WeightId,
    /// Factor on cosines and sines (1, or YaRN's attention factor).
    pub scale: f32,
    /// `[rows, 2·pairs]`.
    pub out: View,
}

impl RopeTable {
    pub(super) fn describe(&self, sheet: &mut Sheet<'_>) {
        let Some(freq) = sheet.weight_info("inv_freq", self.inv_freq) else { return };
        sheet.weight("inv_freq", self.inv_freq, [1, freq.cols]);
        sheet.u32("positions", self.positions, Access::Read, self.positions.len);
        sheet.f32("out", self.out, Access::Write, self.positions.len * 2 * freq.cols);
        sheet.work(0, 40 * self.out.len as u64);
    }
}

/// A norm of each head before it is turned.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm {
    /// `[1, head_dim]`.
    pub weight: WeightId,
    /// Added to the mean square.
    pub eps: f32,
}

/// Per head, in place: an optional norm, then the first `rotary` dims turned in pairs
/// `(i, i + rotary/2)`: `y_i = x_i cos − x_j sin`, `y_j = x_j cos + x_i sin`.
#[derive(Clone, Copy, Debug)]
pub struct Rope {
    /// `[rows, heads, head_dim]`, in place.
    pub x: View,
    /// `[rows, rotary]` from [`RopeTable`].
    pub table: View,
    /// Norm before the turn.
    pub norm: Option<HeadNorm>,
    /// Heads per row.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Dims that turn; even, at most `head_dim`.
    pub rotary: usize,
}

impl Rope {
    pub(super) fn describe(&self, sheet: &mut Sheet<'_>) {
        let width = self.heads * self.head_dim;
        sheet.require(width > 0 && self.x.len.is_multiple_of(width), "x is not whole rows");
        sheet.require(
            self.rotary <= self.head_dim && self.rotary.is_multiple_of(2),
            "rotary width must be even and at most the head width",
        );
        let rows = self.x.len / width.max(1);
        let turned = rows.saturating_mul(self.heads * self.rotary).min(self.x.len);
        let touched = if self.norm.is_some() { self.x.len } else { turned };
        sheet.f32_part("x", self.x, Access::Update, self.x.len, touched);
        sheet.f32("table", self.table, Access::Read, rows * self.rotary);
        if let Some(norm) = self.norm {
            sheet.weight("norm", norm.weight, [1, self.head_dim]);
        }
        let normed = if self.norm.is_some() { 4 * self.x.len } else { 0 };
        sheet.work(0, (normed + 3 * turned) as u64);
    }
}
