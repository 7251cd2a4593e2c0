//! Rotation of the last numbers of heads.

use crate::op::HeadNorm;
use crate::{Access, OpDesc, View};

/// Norms heads, where wanted, and rotates the last `rotary` numbers of each in place.
///
/// # Math
/// Of the last numbers each even one is rotated with the next: `y_0 = x_0 cos − x_1 sin`, `y_1 = x_1 cos + x_0 sin`;
/// backwards with `−sin`. The norm before it is `x / sqrt(mean(x²) + eps) · weight`.
#[derive(Clone, Copy, Debug)]
pub struct TurnTails {
    /// `[rows, rotary]` from [`RopeTable`](crate::op::RopeTable).
    pub table: View,
    /// Numbers that are rotated; even, at most `dim`.
    pub rotary: usize,
    /// Whether the rotation is taken back.
    pub backwards: bool,
    /// Norm before the rotation.
    pub norm: Option<HeadNorm>,
    /// Heads per row.
    pub heads: usize,
    /// Width of a head.
    pub dim: usize,
    /// `[rows, heads, dim]`.
    pub x: View,
}

impl TurnTails {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { rotary, heads, dim, .. } = *self;
        desc.require(heads > 0 && dim > 0, "no heads, or heads of no width");
        desc.require(
            rotary <= dim && rotary.is_multiple_of(2),
            "rotary width must be even and at most the head width",
        );
        let wide = heads.saturating_mul(dim).max(1);
        desc.require(self.x.len.is_multiple_of(wide), "x is not whole rows");
        let rows = self.x.len / wide;
        desc.f32("table", self.table, Access::Read, rows * rotary);
        if let Some(norm) = self.norm {
            desc.weight("norm", norm.weight, [1, dim]);
            desc.work(0, 4 * self.x.len as u64);
        }
        let rotated = rows * heads * rotary.min(dim);
        let touched = if self.norm.is_some() { self.x.len } else { rotated };
        desc.f32_part("x", self.x, Access::Update, self.x.len, touched);
        desc.work(0, 3 * rotated as u64);
    }
}
