//! The key/value cache and attention over it.

use crate::{Access, Sheet, View};

/// Shape of one layer's cache: keys are `[blocks, kv_heads, head_dim, block]`, values
/// `[blocks, kv_heads, block, head_dim]`.
///
/// In both, what lies side by side is what attention computes side by side: the scores of a block's keys, and
/// the elements of a mixed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// Blocks in the pool.
    pub blocks: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Positions in a block.
    pub block: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl CacheLayout {
    /// Elements of one cache buffer.
    pub const fn len(&self) -> usize {
        self.blocks * self.kv_heads * self.block * self.head_dim
    }

    /// First element of a head's part of block `id`, in either cache.
    pub const fn part(&self, id: usize, head: usize) -> usize {
        (id * self.kv_heads + head) * self.block * self.head_dim
    }

    /// Element `element` of the key at place `at` of block `id`.
    pub const fn key(&self, id: usize, head: usize, at: usize, element: usize) -> usize {
        self.part(id, head) + element * self.block + at
    }

    /// Element `element` of the value at place `at` of block `id`.
    pub const fn value(&self, id: usize, head: usize, at: usize, element: usize) -> usize {
        self.part(id, head) + at * self.head_dim + element
    }

    fn describe(&self, sheet: &mut Sheet<'_>) {
        let Self { kv_heads, block, head_dim, .. } = *self;
        sheet.require(
            kv_heads > 0 && block > 0 && head_dim > 0,
            "heads, block and head width must not be zero",
        );
    }

    /// Whether the pool holds nothing.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Writes each row's keys and values to its place in the cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheWrite {
    /// `[rows, kv_heads, head_dim]`.
    pub k: View,
    /// `[rows, kv_heads, head_dim]`.
    pub v: View,
    /// u32 `[rows]`: `block·layout.block + position in block`.
    pub places: View,
    /// All keys of the layer.
    pub k_cache: View,
    /// All values of the layer.
    pub v_cache: View,
    /// Shape of both caches.
    pub layout: CacheLayout,
}

impl CacheWrite {
    pub(super) fn describe(&self, sheet: &mut Sheet<'_>) {
        self.layout.describe(sheet);
        let wide = self.places.len * self.layout.kv_heads * self.layout.head_dim;
        sheet.f32("k", self.k, Access::Read, wide);
        sheet.f32("v", self.v, Access::Read, wide);
        sheet.u32("places", self.places, Access::Read, self.places.len);
        sheet.cache("k_cache", self.k_cache, Access::Scatter, self.layout.len());
        sheet.cache("v_cache", self.v_cache, Access::Scatter, self.layout.len());
        let element = sheet.element_bytes(self.k_cache) + sheet.element_bytes(self.v_cache);
        sheet.state_bytes(wide as u64 * element);
    }
}

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
    /// Keys visible to each row, added up over the rows, for the cost alone.
    pub visible_keys: usize,
    /// `[rows, heads, head_dim]`.
    pub out: View,
}

impl Attention {
    /// The first key that the row at `position` sees.
    pub fn first_key(window: Option<usize>, position: usize) -> usize {
        window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    pub(super) fn describe(&self, sheet: &mut Sheet<'_>) {
        let layout = self.layout;
        sheet.require(
            layout.kv_heads > 0 && self.heads.is_multiple_of(layout.kv_heads.max(1)),
            "query heads must be a multiple of key heads",
        );
        sheet.require(
            self.table_width > 0 && self.tables.len.is_multiple_of(self.table_width.max(1)),
            "block tables are not whole lines",
        );
        sheet.require(self.heads > 0, "no query heads");
        sheet.require(self.window != Some(0), "a window of no keys");
        layout.describe(sheet);
        let rows = self.positions.len;
        let wide = rows * self.heads * layout.head_dim;
        sheet.f32("q", self.q, Access::Read, wide);
        sheet.cache("k_cache", self.k_cache, Access::Gather, layout.len());
        sheet.cache("v_cache", self.v_cache, Access::Gather, layout.len());
        sheet.u32("positions", self.positions, Access::Read, rows);
        sheet.u32("span_of", self.span_of, Access::Read, rows);
        sheet.u32("tables", self.tables, Access::Read, self.tables.len);
        sheet.f32("out", self.out, Access::Write, wide);
        let element = sheet.element_bytes(self.k_cache) + sheet.element_bytes(self.v_cache);
        let key_bytes = element * (layout.kv_heads * layout.head_dim) as u64;
        let pairs = self.visible_keys as u64;
        // Scores and sums take two flops a dimension each, the softmax about ten a pair.
        let pair_flops = (self.heads * (4 * layout.head_dim + 10)) as u64;
        sheet.state_bytes(self.read_keys(sheet) * key_bytes);
        sheet.work(0, pairs.saturating_mul(pair_flops));
    }

    /// Keys that any row sees, each once: rows of one sequence share theirs.
    fn read_keys(&self, sheet: &Sheet<'_>) -> u64 {
        let held = self.tables.len.saturating_mul(self.layout.block);
        let most = self.visible_keys.min(held) as u64;
        let (positions, spans) = (sheet.words(self.positions), sheet.words(self.span_of));
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
    fn keys_and_values_fill_their_caches_each_in_its_own_order() {
        let layout = CacheLayout { blocks: 3, kv_heads: 2, block: 5, head_dim: 4 };
        let mut keys = Vec::new();
        let mut values = Vec::new();
        for id in 0..layout.blocks {
            for head in 0..layout.kv_heads {
                for at in 0..layout.block {
                    for element in 0..layout.head_dim {
                        keys.push(layout.key(id, head, at, element));
                        values.push(layout.value(id, head, at, element));
                    }
                }
            }
        }
        assert!(values.iter().copied().eq(0..layout.len()));
        assert_eq!(keys[..6], [0, 5, 10, 15, 1, 6]);
        keys.sort_unstable();
        assert_eq!(keys, values);
    }

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
