//! Attention over the key/value cache.

use super::CacheLayout;
use crate::{Access, OpDesc, View};

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

impl Attention {
    /// The first key that the row at `position` sees.
    pub fn first_key(window: Option<usize>, position: usize) -> usize {
        window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
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
        let pairs = self.visible_keys(desc);
        // Scores and sums take two flops a dimension each, the softmax about ten a pair.
        let pair_flops = (self.heads * (4 * layout.head_dim + 10)) as u64;
        desc.state_bytes(self.read_keys(desc) * key_bytes);
        desc.work(0, pairs.saturating_mul(pair_flops));
    }

    /// Keys that a row sees at most, whatever its position.
    fn most_keys(&self) -> usize {
        let context = self.table_width.saturating_mul(self.layout.block);
        self.window.map_or(context, |window| window.min(context))
    }

    /// Keys visible to each row, added up over the rows; an upper bound where positions are not at hand.
    fn visible_keys(&self, desc: &OpDesc<'_>) -> u64 {
        let Some(positions) = desc.words(self.positions) else {
            return self.positions.len.saturating_mul(self.most_keys()) as u64;
        };
        let window = self.window.unwrap_or(usize::MAX);
        positions.iter().map(|&position| window.min(position as usize + 1) as u64).sum()
    }

    /// Keys that any row sees, each once: rows of one sequence share theirs.
    fn read_keys(&self, desc: &OpDesc<'_>) -> u64 {
        let lines = (self.tables.len / self.table_width.max(1)).min(self.positions.len);
        let most = lines.saturating_mul(self.table_width * self.layout.block) as u64;
        let (positions, spans) = (desc.words(self.positions), desc.words(self.span_of));
        let Some((positions, spans)) = positions.zip(spans) else { return most };
        // Rows of a span stand together, in order of position.
        let (mut keys, mut last) = (0, None);
        for (&position, &span) in positions.iter().zip(spans) {
            let end = position as usize + 1;
            let first = Self::first_key(self.window, position as usize);
            let seen = last.filter(|&(other, _)| other == span).map_or(0, |(_, end)| end);
            keys += end.saturating_sub(first.max(seen)) as u64;
            last = Some((span, end.max(seen)));
        }
        keys
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
