//! Attention over the key/value cache.

use super::CacheLayout;
use crate::{Access, Catalog, OpDesc, View};
use std::ops::Range;

/// Causal attention of each row over its sequence's cache, its own key included.
///
/// # Math
/// Query head `h` reads key head `h / (heads / kv_heads)`; the row at position `p` sees keys `0..=p`,
/// with a window of `w` keys `max(0, p + 1 − w)..=p`: `out = softmax(scale·q·kᵀ) v`.
///
/// # Numerics
/// f32. Keys are taken in pieces that lie at absolute positions, in ascending order, and merged by maximum and
/// sum, so a row's result does not depend on how the prompt was cut.
///
/// # Window
/// Blocks that lie before the window are skipped: neither their entries in `tables` nor their contents are
/// read, so both may be stale. Keys before the window in its first block take no part either.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// `[rows, heads, head_dim]`.
    pub q: View,
    /// All keys of the layer.
    pub k_cache: View,
    /// All values of the layer.
    pub v_cache: View,
    /// Shape of both caches.
    pub layout: CacheLayout,
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
    /// Keys a row sees, its own included; `None` is all of them. At least 1.
    pub window: Option<usize>,
    /// `[rows, heads, head_dim]`.
    pub out: View,
}

/// [`Attention`] over the keys `first..end` alone, going on from what earlier calls made of the keys before: what an
/// attention is cut into that is too large for one submission.
///
/// # Numerics
/// The chunks of keys that [`Attention`] merges in ascending order are merged in the same order here, and `state`
/// carries the result from call to call. Together the calls give the bits of one call over all keys.
#[derive(Clone, Copy, Debug)]
pub struct AttentionPart {
    /// The whole operation. `out` is left unspecified by all calls but the last.
    pub whole: Attention,
    /// The first key: a multiple of the device's [`CutSizes::keys`](crate::CutSizes).
    pub first: usize,
    /// One past the last key, such a multiple as well, unless this is the last call.
    pub end: usize,
    /// Whether no keys come before: `state` is written without being read.
    pub begins: bool,
    /// Whether no row sees later keys: `out` is written.
    pub ends: bool,
    /// `[rows, heads, head_dim + 2]`: the weighted sum of values, the largest score, the sum of weights.
    pub state: View,
}

impl AttentionPart {
    /// Elements of `state` for each query head of a row.
    pub const fn state_width(head_dim: usize) -> usize {
        head_dim + 2
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { whole, first, end, begins, ends: _, state } = *self;
        desc.require(first < end, "a part without keys");
        whole.describe_keys(desc, first..end);
        let heads = whole.positions.len * whole.heads;
        let access = if begins { Access::Write } else { Access::Update };
        desc.f32("state", state, access, heads * Self::state_width(whole.layout.head_dim));
    }
}

impl Attention {
    /// Every key that a cache can hold.
    const ALL_KEYS: Range<usize> = 0..usize::MAX;

    /// The keys that some row sees, from the first to one past the last; what the table holds where positions are not
    /// at hand.
    pub fn keys_seen(&self, catalog: &dyn Catalog) -> Range<usize> {
        let Some(positions) = catalog.words(self.positions) else {
            return 0..self.table_width * self.layout.block;
        };
        let first = positions.iter().map(|&at| Self::first_key(self.window, at as usize)).min();
        let end = positions.iter().map(|&at| at as usize + 1).max();
        first.unwrap_or(0)..end.unwrap_or(0)
    }

    /// The first key that the row at `position` sees.
    pub fn first_key(window: Option<usize>, position: usize) -> usize {
        window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        self.describe_keys(desc, Self::ALL_KEYS);
    }

    /// The description of a call that takes these keys alone.
    fn describe_keys(&self, desc: &mut OpDesc<'_>, keys: Range<usize>) {
        let layout = self.layout;
        desc.require(
            layout.kv_heads > 0 && self.heads.is_multiple_of(layout.kv_heads.max(1)),
            "query heads must be a multiple of key heads",
        );
        desc.require(
            self.table_width > 0 && self.tables.len.is_multiple_of(self.table_width.max(1)),
            "block tables are not whole lines",
        );
        desc.require(self.heads > 0, "no query heads");
        desc.require(self.window != Some(0), "a window of no keys");
        layout.describe(desc);
        let rows = self.positions.len;
        let wide = rows * self.heads * layout.head_dim;
        desc.f32("q", self.q, Access::Read, wide);
        desc.cache("k_cache", self.k_cache, Access::Gather, &layout);
        desc.cache("v_cache", self.v_cache, Access::Gather, &layout);
        desc.u32("positions", self.positions, Access::Read, rows);
        desc.u32("span_of", self.span_of, Access::Read, rows);
        desc.u32("tables", self.tables, Access::Gather, self.tables.len);
        desc.f32("out", self.out, Access::Write, wide);
        let element = desc.element_bytes(self.k_cache) + desc.element_bytes(self.v_cache);
        let key_bytes = element * (layout.kv_heads * layout.stored()) as u64;
        let pairs = self.visible_keys(desc, &keys);
        // Scores and sums take two flops a dimension each, the softmax about ten a pair.
        let pair_flops = (self.heads * (4 * layout.head_dim + 10)) as u64;
        desc.state_bytes(self.read_keys(desc, &keys) * key_bytes);
        desc.work(0, pairs.saturating_mul(pair_flops));
    }

    /// Keys of a range that a row sees at most, whatever its position.
    fn most_keys(&self, keys: &Range<usize>) -> usize {
        let context = self.table_width.saturating_mul(self.layout.block);
        self.window.map_or(context, |window| window.min(context)).min(keys.len())
    }

    /// What the row at `position` sees of a range of keys.
    fn sees(&self, position: usize, keys: &Range<usize>) -> Range<usize> {
        Self::first_key(self.window, position).max(keys.start)..(position + 1).min(keys.end)
    }

    /// Keys visible to each row, added up over the rows; an upper bound where positions are not at hand.
    fn visible_keys(&self, desc: &OpDesc<'_>, keys: &Range<usize>) -> u64 {
        let Some(positions) = desc.words(self.positions) else {
            return self.positions.len.saturating_mul(self.most_keys(keys)) as u64;
        };
        positions.iter().map(|&position| self.sees(position as usize, keys).len() as u64).sum()
    }

    /// Keys that any row sees, each once: rows of one sequence share theirs.
    fn read_keys(&self, desc: &OpDesc<'_>, keys: &Range<usize>) -> u64 {
        let lines = (self.tables.len / self.table_width.max(1)).min(self.positions.len);
        let context = (self.table_width * self.layout.block).min(keys.len());
        let most = lines.saturating_mul(context) as u64;
        let (positions, spans) = (desc.words(self.positions), desc.words(self.span_of));
        let Some((positions, spans)) = positions.zip(spans) else { return most };
        // Rows of a span stand together, in order of position.
        let (mut count, mut last) = (0, None);
        for (&position, &span) in positions.iter().zip(spans) {
            let Range { start, end } = self.sees(position as usize, keys);
            let seen = last.filter(|&(other, _)| other == span).map_or(0, |(_, end)| end);
            count += end.saturating_sub(start.max(seen)) as u64;
            last = Some((span, end.max(seen)));
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_at_the_rows_own_key_and_never_starts_before_the_first() {
        for (window, position, first) in [
            (None, 0, 0),
            (None, 900, 0),
            (Some(1), 0, 0),
            (Some(1), 5, 5),
            (Some(4), 2, 0),
            (Some(4), 3, 0),
            (Some(4), 4, 1),
            (Some(4), 9, 6),
            (Some(usize::MAX), 9, 0),
        ] {
            assert_eq!(Attention::first_key(window, position), first, "{window:?} {position}");
        }
    }
}
