//! Angles of the rotary position embedding ("half" pairing).

use crate::{Access, OpDesc, View, WeightId};

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
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Some(freq) = desc.weight_info("inv_freq", self.inv_freq) else { return };
        desc.weight("inv_freq", self.inv_freq, [1, freq.cols]);
        desc.u32("positions", self.positions, Access::Read, self.positions.len);
        desc.f32("out", self.out, Access::Write, self.positions.len * 2 * freq.cols);
        desc.work(0, 40 * self.out.len as u64);
    }
}
