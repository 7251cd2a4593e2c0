//! Embeddings of the last few tokens together.

use crate::op::Spans;
use crate::op::spans::Moves;
use crate::{Access, OpDesc, View, WeightId};

/// How the last tokens become rows of a table.
///
/// # Math
/// With `t_k` the token `k` places back, or `boundary` where that or a token between is `boundary` or lies before
/// position 0, head `h` of order `n = 2 + h / heads` reads row
///
/// ```text
/// offset_h + (t_0·m_0 ⊕ t_1·m_1 ⊕ … ⊕ t_{n−1}·m_{n−1}) mod sizes_h      offset_h = Σ_{i<h} sizes_i
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramHash {
    /// Tokens of the largest order, at least 2.
    pub order: usize,
    /// Heads of each order from 2 on.
    pub heads: usize,
    /// Factors on tokens, by distance.
    pub multipliers: [u64; Self::MOST_TOKENS],
    /// Rows of each head.
    pub sizes: [u32; Self::MOST_HEADS],
    /// The token behind which nothing is seen.
    pub boundary: u32,
}

impl NgramHash {
    /// The largest order.
    pub const MOST_TOKENS: usize = 8;
    /// The most heads of all orders together.
    pub const MOST_HEADS: usize = 32;

    /// Heads of all orders.
    pub const fn all_heads(&self) -> usize {
        self.order.saturating_sub(1).saturating_mul(self.heads)
    }

    /// Rows of all heads.
    pub fn rows(&self) -> usize {
        self.sizes.iter().take(self.all_heads()).map(|&size| size as usize).sum()
    }

    /// The rows of the table that the newest of `tokens` reads, which ends with it and holds `order` of them.
    pub fn places(&self, tokens: &[u32], out: &mut [u32]) {
        let mut seen = [self.boundary; Self::MOST_TOKENS];
        for (to, &token) in seen.iter_mut().zip(tokens.iter().rev()).take(self.order) {
            *to = token;
        }
        // What stands behind a boundary is not seen; the newest token may be one.
        let hidden = seen[1..].iter().position(|&token| token == self.boundary);
        if let Some(first) = hidden {
            seen[1 + first..].fill(self.boundary);
        }
        let mut offset = 0;
        for (h, out) in out.iter_mut().enumerate() {
            let taken = 2 + h / self.heads;
            let product = |k: usize| u64::from(seen[k]).wrapping_mul(self.multipliers[k]);
            let mixed = (0..taken).fold(0, |mixed, k| mixed ^ product(k));
            *out = offset + (mixed % u64::from(self.sizes[h])) as u32;
            offset += self.sizes[h];
        }
    }
}

/// The table's rows for each row's token and those before it, one behind the other.
///
/// # State
/// `window` holds the `order − 1` tokens before the committed position (oldest first), less pending log rows, as
/// numbers. Confirmed rows move it on; drafts go to `log` and leave it alone.
#[derive(Clone, Copy, Debug)]
pub struct NgramEmbed {
    /// Tokens, u32 `[rows]`.
    pub ids: View,
    /// `[rows of all heads or more, width]`.
    pub table: WeightId,
    /// Which rows are read.
    pub hash: NgramHash,
    /// Width of a row of the table.
    pub width: usize,
    /// `[slots, order − 1]`.
    pub window: View,
    /// `[slots, log_rows]`.
    pub log: View,
    /// Which rows belong together.
    pub spans: Spans,
    /// `[rows, heads, width]`.
    pub out: View,
}

impl NgramEmbed {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let (hash, rows) = (&self.hash, self.ids.len);
        let heads = hash.all_heads();
        desc.require(
            (2..=NgramHash::MOST_TOKENS).contains(&hash.order),
            "the order must be 2 to 8",
        );
        desc.require((1..=NgramHash::MOST_HEADS).contains(&heads), "heads must be 1 to 32");
        let sizes = hash.sizes.iter().take(heads);
        desc.require(sizes.clone().all(|&size| size > 0), "a head without rows");
        let Some(table) = desc.weight_info("table", self.table) else { return };
        desc.shape("table", self.table, [table.rows, self.width]);
        desc.require(self.width > 0 && hash.rows() <= table.rows, "the table lacks rows");
        let Spans { slots, log_rows, .. } = self.spans;
        let kept = hash.order.saturating_sub(1);
        desc.u32("ids", self.ids, Access::Read, rows);
        desc.f32("window", self.window, Access::Scatter, slots.saturating_mul(kept));
        desc.f32("log", self.log, Access::Scatter, slots * log_rows);
        self.spans.describe(desc);
        let heads = heads.min(NgramHash::MOST_HEADS);
        desc.f32("out", self.out, Access::Write, rows * heads * self.width);
        let Moves { reads, writes, folded, logged } = self.spans.moves(desc);
        desc.state_bytes(4 * ((reads + writes) * kept as u64 + folded + logged));
        desc.weight_bytes((rows * heads * (table.bytes / table.rows.max(1))) as u64);
        desc.work(0, (2 * rows * heads * self.width) as u64);
    }
}

/// `out[r][s] = σ(f(keys[r][s] · queries[r][s] / √dim)) · values[r]` with `f(x) = sign(x)·√max(|x|, 1e-6)`.
#[derive(Clone, Copy, Debug)]
pub struct NgramGate {
    /// `[rows, streams, dim]`.
    pub keys: View,
    /// `[rows, streams, dim]`.
    pub queries: View,
    /// `[rows, dim]`.
    pub values: View,
    /// Streams.
    pub streams: usize,
    /// Width of a stream.
    pub dim: usize,
    /// `[rows, streams, dim]`.
    pub out: View,
}

impl NgramGate {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { streams, dim, .. } = *self;
        desc.require(streams > 0 && dim > 0, "streams of no width");
        let wide = streams.saturating_mul(dim).max(1);
        desc.require(self.keys.len.is_multiple_of(wide), "keys are not whole rows");
        desc.f32("keys", self.keys, Access::Read, self.keys.len);
        desc.f32("queries", self.queries, Access::Read, self.keys.len);
        desc.f32("values", self.values, Access::Read, self.keys.len / wide * dim);
        desc.f32("out", self.out, Access::Write, self.keys.len);
        desc.work(0, 4 * self.keys.len as u64);
    }
}
