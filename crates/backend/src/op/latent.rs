//! Latent attention: one key of all heads, whose values are a part of it, and each head's own matrix on both sides.

use super::{CacheLayout, HeadNorm};
use crate::{Access, OpDesc, View, WeightId};

/// A product of each head with a matrix of its own.
///
/// # Math
/// With `carry = c` and the head's rows `W_h` of the weight, `[N / heads, K]`:
/// `out[r][h] = [x[r][h][..c] | W_h x[r][h][c..]]`.
///
/// # Numerics
/// The order of a sum depends on `K` and the weight's format alone.
#[derive(Clone, Copy, Debug)]
pub struct HeadLinear {
    /// `[rows, heads, carry + K]`.
    pub x: View,
    /// `[N, K]`, the rows of head 0 first.
    pub weight: WeightId,
    /// Heads.
    pub heads: usize,
    /// Leading elements of a head that go before the product as they are.
    pub carry: usize,
    /// `[rows, heads, carry + N / heads]`.
    pub out: View,
}

impl HeadLinear {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { heads, carry, .. } = *self;
        let Some(weight) = desc.weight_info("weight", self.weight) else { return };
        let even = heads > 0 && weight.rows.is_multiple_of(heads.max(1));
        desc.require(even && weight.rows > 0, "heads do not share the weight's rows evenly");
        desc.require(weight.cols > 0, "a weight without columns");
        let wide = heads * (carry + weight.cols);
        let rows = self.x.len / wide.max(1);
        desc.f32("x", self.x, Access::Read, rows * wide);
        let out = rows * (heads * carry + weight.rows);
        desc.f32("out", self.out, Access::Write, out);
        desc.weight_bytes(weight.bytes as u64);
        desc.work(0, 2 * (rows * weight.rows * weight.cols) as u64);
    }
}

/// Rotates queries in place, and norms, rotates and stores the rows of a latent cache.
///
/// # Math
/// A row of the cache is `[rope key | latent]`. The latent is `x / sqrt(mean(x²) + eps) · weight`. The first `rotary`
/// elements of it and of each query are rotated in pairs `(i, i + rotary/2)`, as in
/// [`AttentionInputs`](crate::op::AttentionInputs).
#[derive(Clone, Copy, Debug)]
pub struct LatentInputs {
    /// `[rows, rotary]` from [`RopeTable`](crate::op::RopeTable).
    pub table: View,
    /// Elements that are rotated; even, at most those before the latent.
    pub rotary: usize,
    /// `[rows, heads, layout.head_dim]`, in place; empty where only keys are remembered.
    pub q: View,
    /// Heads of `q`.
    pub heads: usize,
    /// `[rows, layout.head_dim]`.
    pub kv: View,
    /// Of the latent; its width is the latent's.
    pub norm: HeadNorm,
    /// u32 `[rows]`: `block·layout.block + position in block`.
    pub places: View,
    /// All rows of the layer, where [`CacheLayout::value`] says.
    pub cache: View,
    /// Its shape, one head.
    pub layout: CacheLayout,
}

impl LatentInputs {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { rotary, heads, layout, .. } = *self;
        let Some(norm) = desc.weight_info("norm", self.norm.weight) else { return };
        layout.describe(desc);
        let (width, latent) = (layout.head_dim, norm.cols);
        desc.weight("norm", self.norm.weight, [1, latent]);
        desc.require(layout.kv_heads == 1, "a latent cache has one head");
        desc.require(latent > 0 && latent <= width, "a latent wider than a row of the cache");
        let lead = width.saturating_sub(latent);
        desc.require(
            rotary <= lead && rotary.is_multiple_of(2),
            "rotated elements must be even and before the latent",
        );
        let rows = self.places.len;
        desc.f32("table", self.table, Access::Read, rows * rotary);
        let queries = if self.q.len == 0 { 0 } else { rows * heads };
        desc.f32_part("q", self.q, Access::Update, queries * width, queries * rotary);
        desc.f32("kv", self.kv, Access::Read, rows * width);
        desc.u32("places", self.places, Access::Read, rows);
        desc.cache("cache", self.cache, Access::Scatter, &layout);
        let stored = desc.element_bytes(self.cache) * layout.stored() as u64;
        desc.state_bytes(rows as u64 * stored);
        desc.work(0, (rows * (5 * latent + 3 * rotary) + 3 * queries * rotary) as u64);
    }
}

/// Causal attention of each row over its sequence's latent cache, its own row included.
///
/// # Math
/// All heads read the same rows `k = [rope key | latent]`; the latent is also the value. The row at position `p` sees
/// keys `0..=p`: `out = softmax(scale·q·kᵀ) latent`.
///
/// # Numerics
/// f32. Keys are taken block by block at absolute positions, in ascending order, and merged by maximum and sum, so a
/// row's result does not depend on how the prompt was cut.
#[derive(Clone, Copy, Debug)]
pub struct LatentAttention {
    /// `[rows, heads, layout.head_dim]`.
    pub q: View,
    /// All rows of the layer, where [`CacheLayout::value`] says.
    pub cache: View,
    /// Its shape, one head.
    pub layout: CacheLayout,
    /// Width of the latent.
    pub latent: usize,
    /// u32 `[rows]`.
    pub positions: View,
    /// u32 `[rows]`: the row's line in `tables`.
    pub span_of: View,
    /// u32 `[spans, blocks per sequence]`: block ids in order of position.
    pub tables: View,
    /// Blocks per line of `tables`.
    pub table_width: usize,
    /// Query heads.
    pub heads: usize,
    /// Factor on scores.
    pub scale: f32,
    /// `[rows, heads, latent]`.
    pub out: View,
}

impl LatentAttention {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { layout, latent, heads, table_width, .. } = *self;
        layout.describe(desc);
        desc.require(layout.kv_heads == 1, "a latent cache has one head");
        desc.require(heads > 0, "no query heads");
        desc.require(
            latent > 0 && latent <= layout.head_dim,
            "a latent wider than a row of the cache",
        );
        desc.require(
            table_width > 0 && self.tables.len.is_multiple_of(table_width.max(1)),
            "block tables are not whole lines",
        );
        let rows = self.positions.len;
        desc.f32("q", self.q, Access::Read, rows * heads * layout.head_dim);
        desc.cache("cache", self.cache, Access::Gather, &layout);
        desc.u32("positions", self.positions, Access::Read, rows);
        desc.u32("span_of", self.span_of, Access::Read, rows);
        desc.u32("tables", self.tables, Access::Gather, self.tables.len);
        desc.f32("out", self.out, Access::Write, rows * heads * latent);
        let most = table_width.saturating_mul(layout.block);
        let (mut read, mut seen) = (0_u64, rows.saturating_mul(most) as u64);
        match desc.words(self.positions).zip(desc.words(self.span_of)) {
            None => read = (self.tables.len.min(rows * table_width) * layout.block) as u64,
            Some((positions, spans)) => {
                seen = positions.iter().map(|&at| u64::from(at) + 1).sum();
                // Rows of a span stand together, in order of position; the last of them sees every key.
                for (i, (&at, span)) in positions.iter().zip(spans).enumerate() {
                    if spans.get(i + 1) != Some(span) {
                        read += u64::from(at) + 1;
                    }
                }
            }
        }
        let row = desc.element_bytes(self.cache) * layout.stored() as u64;
        desc.state_bytes(read.saturating_mul(row));
        let pair = heads * (2 * layout.head_dim + 2 * latent + 10);
        desc.work(0, seen.saturating_mul(pair as u64));
    }
}
