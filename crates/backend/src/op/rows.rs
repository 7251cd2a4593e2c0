//! Whole rows moved by index.

use crate::{Access, OpDesc, View, WeightId};

/// `out[i] = table[ids[i]] · scale`, decoded to f32 first.
#[derive(Clone, Copy, Debug)]
pub struct Embed {
    /// Token ids, u32 `[rows]`.
    pub ids: View,
    /// `[vocabulary, dim]`.
    pub table: WeightId,
    /// Factor on every element; 1 changes no bit.
    pub scale: f32,
    /// `[rows, dim]`.
    pub out: View,
}

impl Embed {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let rows = self.ids.len;
        let Some(table) = desc.weight_info("table", self.table) else { return };
        desc.require(table.cols > 0, "a table without columns");
        desc.u32("ids", self.ids, Access::Read, rows);
        desc.f32("out", self.out, Access::Write, rows * table.cols);
        let lines = desc.distinct(self.ids, rows.min(table.rows));
        let touched = lines * (table.bytes / table.rows.max(1));
        desc.weight_bytes(touched as u64);
        desc.work(0, (2 * rows * table.cols) as u64);
    }
}

/// `out[i] = x[rows[i]]`.
#[derive(Clone, Copy, Debug)]
pub struct GatherRows {
    /// `[any, dim]`.
    pub x: View,
    /// Row numbers, u32 `[count]`.
    pub rows: View,
    /// `[count, dim]`.
    pub out: View,
    /// Width of a row.
    pub dim: usize,
}

impl GatherRows {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        desc.require(self.dim > 0 && self.x.len.is_multiple_of(self.dim), "x is not whole rows");
        desc.f32("x", self.x, Access::Gather, self.x.len);
        desc.u32("rows", self.rows, Access::Read, self.rows.len);
        desc.f32("out", self.out, Access::Write, self.rows.len * self.dim);
        desc.work((4 * self.out.len) as u64, 0);
    }
}

/// `out[to[i]] = words[from[i]]`, or 0 where that word is not below `limit`; the other words of `out` stay. It lets a
/// sampled token feed the next pass without a read by the host. Behind a row that sampled none
/// ([`Sample::NO_TOKEN`](super::Sample::NO_TOKEN)) the next pass is about some token, and the host finds out when the
/// chain is done.
#[derive(Clone, Copy, Debug)]
pub struct ScatterWords {
    /// u32 `[any]`.
    pub words: View,
    /// Indices into `words`, u32 `[count]`.
    pub from: View,
    /// Indices into `out`, u32 `[count]`, each once.
    pub to: View,
    /// u32 `[any]`.
    pub out: View,
    /// One past the largest word that is handed on.
    pub limit: u32,
}

impl ScatterWords {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let count = self.from.len;
        desc.u32("words", self.words, Access::Gather, self.words.len);
        desc.u32("from", self.from, Access::Read, count);
        desc.u32("to", self.to, Access::Read, count);
        desc.u32("out", self.out, Access::Scatter, self.out.len);
        desc.work(8 * count as u64, 0);
    }
}

/// `out[rows[i]] = x[i]`; the other rows of `out` stay.
#[derive(Clone, Copy, Debug)]
pub struct ScatterRows {
    /// `[count, dim]`.
    pub x: View,
    /// Row numbers, u32 `[count]`, each once.
    pub rows: View,
    /// `[any, dim]`.
    pub out: View,
    /// Width of a row.
    pub dim: usize,
}

impl ScatterRows {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        desc.require(
            self.dim > 0 && self.out.len.is_multiple_of(self.dim),
            "out is not whole rows",
        );
        desc.f32("x", self.x, Access::Read, self.rows.len * self.dim);
        desc.u32("rows", self.rows, Access::Read, self.rows.len);
        desc.f32("out", self.out, Access::Scatter, self.out.len);
        desc.work((4 * self.x.len) as u64, 0);
    }
}
