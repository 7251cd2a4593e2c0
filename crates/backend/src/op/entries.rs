//! Entries: what a few positions in a row are made into, kept in blocks as keys are, and which of them a row looks at.

use crate::op::spans::Moves;
use crate::op::{HeadNorm, Spans};
use crate::{Access, OpDesc, View, WeightId};
use std::ops::Range;

/// How entries lie in the pool's blocks: entry `e` stands for the positions `e·every..(e + 1)·every` and lies in the
/// block of the last of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryLayout {
    /// Blocks in the pool.
    pub blocks: usize,
    /// Positions in a block.
    pub block: usize,
    /// Positions of an entry.
    pub every: usize,
    /// Numbers of an entry.
    pub dim: usize,
}

impl EntryLayout {
    /// Entries a block has room for.
    pub const fn per_block(&self) -> usize {
        self.block.div_ceil(if self.every == 0 { 1 } else { self.every })
    }

    /// Elements of all blocks.
    pub const fn len(&self) -> usize {
        self.blocks * self.per_block() * self.dim
    }

    /// Whether there is room for nothing.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The block of a sequence that entry `e` lies in, and its place there.
    pub const fn place(&self, e: usize) -> (usize, usize) {
        let block = ((e + 1) * self.every - 1) / self.block;
        (block, e - block * self.block / self.every)
    }

    /// Entries that are complete for the row at `position`.
    pub const fn complete(&self, position: usize) -> usize {
        (position + 1) / self.every
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { block, every, dim, .. } = *self;
        desc.require(block > 0 && every > 0 && dim > 0, "entries of no positions or numbers");
    }
}

/// Which numbers of a key are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// The first ones, `i` with `i + rotary/2`.
    FirstHalves,
    /// The last ones, each even one with the next.
    LastPairs,
}

/// Makes entries of keys: a mean, or a sum weighted by gates, over the positions of each, normed and rotated.
///
/// # Math
/// Of `every` neighbouring rows `k`, per number: `e = (Σ k) / every`, or with gates
/// `e = Σ softmax(gate + bias)·k`, bias by place in the entry. With two series a row is `[a | b]`, and an entry takes
/// `b` of its own rows and, before them, `a` of the rows of the entry before, if there is one. Then
/// `e / sqrt(mean(e²) + eps) · weight`, rotated by the entry's first position.
///
/// # State
/// `window` holds the rows `[keys | gates]` of the `series·every − 1` positions before the committed one (oldest
/// first), less pending log rows. Confirmed rows move it on; drafts go to `log` and leave it alone. The entry that a
/// row completes goes to `cache`, whether the row is a draft or not: it lies behind the committed length until the row
/// is kept, and is written anew when its last position is.
#[derive(Clone, Copy, Debug)]
pub struct PoolEntries {
    /// `[rows, series, dim]`.
    pub keys: View,
    /// `[rows, series, dim]`, and `[every, series·dim]` that is added to them.
    pub gates: Option<(View, WeightId)>,
    /// Series: 1 or 2.
    pub series: usize,
    /// Norm of an entry.
    pub norm: HeadNorm,
    /// `[1, rotary / 2]`: radians per position.
    pub inv_freq: WeightId,
    /// Factor on cosines and sines.
    pub rope_scale: f32,
    /// What is rotated.
    pub turned: Turned,
    /// `[slots, series·every − 1, row]`.
    pub window: View,
    /// `[slots, log_rows, row]`.
    pub log: View,
    /// Which rows belong together; a span's slot is its line in `tables`.
    pub spans: Spans,
    /// u32 `[slots, table_width]`.
    pub tables: View,
    /// Blocks per line of `tables`.
    pub table_width: usize,
    /// All entries.
    pub cache: View,
    /// Their shape.
    pub layout: EntryLayout,
}

impl PoolEntries {
    /// Numbers of a row of the window.
    pub const fn width(&self) -> usize {
        let each = self.series * self.layout.dim;
        if self.gates.is_some() { 2 * each } else { each }
    }

    /// Rows of the window.
    pub const fn kept(&self) -> usize {
        self.series * self.layout.every - 1
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { series, layout, table_width, .. } = *self;
        layout.describe(desc);
        desc.require(series == 1 || series == 2, "entries are made of one series or two");
        let sizes = series.saturating_mul(layout.every).saturating_mul(layout.dim);
        desc.require(sizes > 0 && sizes < 1 << 40, "entries are too large");
        if sizes == 0 || sizes >= 1 << 40 {
            return;
        }
        let each = series * layout.dim;
        desc.require(self.keys.len.is_multiple_of(each), "keys are not whole rows");
        let rows = self.keys.len / each;
        desc.f32("keys", self.keys, Access::Read, rows * each);
        if let Some((gates, bias)) = self.gates {
            desc.f32("gates", gates, Access::Read, rows * each);
            desc.weight("bias", bias, [layout.every, each]);
        }
        desc.weight("norm", self.norm.weight, [1, layout.dim]);
        if let Some(inv_freq) = desc.weight_info("inv_freq", self.inv_freq) {
            desc.require(2 * inv_freq.cols <= layout.dim, "more is rotated than there is");
            desc.shape("inv_freq", self.inv_freq, [1, inv_freq.cols]);
        }
        let Spans { slots, log_rows, .. } = self.spans;
        let (kept, width) = (self.kept(), self.width());
        desc.f32("window", self.window, Access::Scatter, slots * kept * width);
        desc.f32("log", self.log, Access::Scatter, slots * log_rows * width);
        self.spans.describe(desc);
        desc.require(table_width > 0, "block tables without blocks");
        desc.u32("tables", self.tables, Access::Gather, slots.saturating_mul(table_width));
        desc.f32("cache", self.cache, Access::Scatter, layout.len());
        let Moves { reads, writes, folded, logged } = self.spans.moves(desc);
        let made = (rows / layout.every + 1) * layout.dim;
        let rows_moved = (reads + writes) * kept as u64 + folded + logged;
        desc.state_bytes(4 * (rows_moved * width as u64 + made as u64));
        desc.work(0, (12 * rows * width) as u64);
    }
}

/// The complete entries with the best scores, in order of position; of equal ones those that
/// [`ChooseEntries::select`] leaves in front.
///
/// # Math
/// `score_e = scale · Σ_h weights_h · max(0, q_h · entry_e)`, with weights of 1 where there are none. What is left of a
/// row of `chosen` is [`ChooseEntries::NONE`].
#[derive(Clone, Copy, Debug)]
pub struct ChooseEntries {
    /// `[rows, heads, dim]`.
    pub q: View,
    /// `[rows, heads]`.
    pub weights: Option<View>,
    /// All entries.
    pub cache: View,
    /// Their shape.
    pub layout: EntryLayout,
    /// u32 `[rows]`.
    pub positions: View,
    /// u32 `[rows]`: the row's line in `tables`.
    pub span_of: View,
    /// u32 `[lines, table_width]`.
    pub tables: View,
    /// Blocks per line of `tables`.
    pub table_width: usize,
    /// Query heads.
    pub heads: usize,
    /// Entries chosen at most.
    pub most: usize,
    /// Factor on scores.
    pub scale: f32,
    /// u32 `[rows, most]`.
    pub chosen: View,
}

impl ChooseEntries {
    /// No entry.
    pub const NONE: u32 = u32::MAX;

    /// Brings the indices of the `most` best scores to the front of `order`, in no order; all other indices stand
    /// behind them.
    ///
    /// Scores of zero are common, since products below zero count as that, so which of equal scores are chosen shows in
    /// what a model says. The published models choose by a selection with the median of three as pivot, and this is
    /// that selection: indices in order, ranges of three or fewer sorted by insertion. It depends on the scores of one
    /// row alone. A range that does not shrink fast is sorted, the lower index first.
    pub fn select(scores: &[f32], most: usize, order: &mut [u32]) {
        order.iter_mut().zip(0..).for_each(|(to, index)| *to = index);
        // What is no number is better than all others.
        let rank = |index: u32| scores[index as usize];
        let better = |a: u32, b: u32| {
            let (a, b) = (rank(a), rank(b));
            a > b || (a.is_nan() && !b.is_nan())
        };
        let (mut first, mut last) = (0, order.len());
        let mut rounds = 2 * order.len().max(1).ilog2();
        while last - first > 3 {
            if rounds == 0 {
                let by_rank = |a: &u32, b: &u32| rank(*b).total_cmp(&rank(*a)).then(a.cmp(b));
                return order[first..last].sort_unstable_by(by_rank);
            }
            rounds -= 1;
            let cut = partition(order, first..last, better);
            *(if cut < most { &mut first } else { &mut last }) = cut;
        }
        for i in first + 1..last {
            let mut at = i;
            while at > first && better(order[at], order[at - 1]) {
                order.swap(at, at - 1);
                at -= 1;
            }
        }
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { layout, table_width, heads, most, .. } = *self;
        layout.describe(desc);
        desc.require(heads > 0 && most > 0, "no heads, or nothing to choose");
        let rows = self.positions.len;
        desc.f32("q", self.q, Access::Read, rows.saturating_mul(heads).saturating_mul(layout.dim));
        if let Some(weights) = self.weights {
            desc.f32("weights", weights, Access::Read, rows.saturating_mul(heads));
        }
        desc.f32("cache", self.cache, Access::Gather, layout.len());
        desc.u32("positions", self.positions, Access::Read, rows);
        desc.u32("span_of", self.span_of, Access::Read, rows);
        desc.require(
            table_width > 0 && self.tables.len.is_multiple_of(table_width.max(1)),
            "block tables are not whole lines",
        );
        desc.u32("tables", self.tables, Access::Gather, self.tables.len);
        desc.u32("chosen", self.chosen, Access::Write, rows.saturating_mul(most));
        let entries = seen_entries(desc, &layout, self.positions, table_width);
        desc.state_bytes(4 * entries * layout.dim as u64);
        desc.work(0, entries * (2 * heads * layout.dim) as u64);
    }
}

/// Moves what is better than the median of three of a range before what is not; where the second part begins.
fn partition(order: &mut [u32], range: Range<usize>, better: impl Fn(u32, u32) -> bool) -> usize {
    let Range { start, end } = range;
    let [a, b, c] = [start + 1, start + (end - start) / 2, end - 1];
    let before = |x: usize, y: usize| better(order[x], order[y]);
    let median = match (before(a, b), before(b, c), before(a, c)) {
        (true, true, _) => b,
        (true, false, true) => c,
        (true, false, false) => a,
        (false, _, true) => a,
        (false, true, false) => c,
        (false, false, false) => b,
    };
    order.swap(start, median);
    let pivot = order[start];
    let (mut low, mut high) = (start + 1, end);
    loop {
        // Neither runs out of the range: the median of three is between two others.
        while better(order[low], pivot) {
            low += 1;
        }
        high -= 1;
        while better(pivot, order[high]) {
            high -= 1;
        }
        if low >= high {
            return low;
        }
        order.swap(low, high);
        low += 1;
    }
}

/// Entries that rows can see, added up over the rows; an upper bound where positions are not at hand.
fn seen_entries(
    desc: &OpDesc<'_>,
    layout: &EntryLayout,
    positions: View,
    table_width: usize,
) -> u64 {
    let every = layout.every.max(1);
    let most = table_width.saturating_mul(layout.block) / every;
    let Some(words) = desc.words(positions) else {
        return positions.len.saturating_mul(most) as u64;
    };
    words.iter().map(|&at| ((at as usize + 1) / every).min(most) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_are_chosen_and_equal_ones_as_the_published_models_do() {
        let mut state = 1_u32;
        for len in 1..60 {
            for most in 1..=len {
                let mut next = || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 28) as f32
                };
                let scores: Vec<f32> = (0..len).map(|_| next()).collect();
                let mut order = vec![0; len];
                ChooseEntries::select(&scores, most, &mut order);
                let of = |order: &[u32]| order.iter().map(|&i| scores[i as usize]).collect();
                let (chosen, left): (Vec<f32>, Vec<f32>) = (of(&order[..most]), of(&order[most..]));
                let least = chosen.iter().copied().fold(f32::INFINITY, f32::min);
                assert!(left.iter().all(|&score| score <= least), "{scores:?}, {most}");
                order.sort_unstable();
                assert!(order.iter().copied().eq(0..len as u32), "{scores:?}, {most}");
            }
        }
        // Two of five equal ones, as the nth_element of the C++ library leaves them.
        let mut order = [0; 9];
        let scores = [0.0, 3.0, 0.0, 0.0, 2.0, 0.0, 4.0, 0.0, 1.0];
        ChooseEntries::select(&scores, 6, &mut order);
        let mut chosen = order[..6].to_vec();
        chosen.sort_unstable();
        assert_eq!(chosen, [1, 2, 4, 6, 7, 8]);
    }

    #[test]
    fn numbers_that_are_none_end_the_selection_all_the_same() {
        let scores: Vec<f32> =
            (0..40).map(|i| if i % 3 == 0 { f32::NAN } else { i as f32 }).collect();
        let mut order = [0; 40];
        ChooseEntries::select(&scores, 20, &mut order);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..40));
    }

    #[test]
    fn every_entry_has_a_place_of_its_own_in_the_block_of_its_last_position() {
        for every in [1, 3, 4, 16, 48, 64, 100, 128] {
            let layout = EntryLayout { blocks: 9, block: 64, every, dim: 1 };
            let mut taken = vec![0; layout.len()];
            for e in 0..layout.complete(9 * 64 - 1) {
                let (block, place) = layout.place(e);
                assert_eq!(block, (e * every + every - 1) / 64, "every {every}, entry {e}");
                assert!(place < layout.per_block(), "every {every}, entry {e}");
                taken[block * layout.per_block() + place] += 1;
            }
            assert!(taken.iter().all(|&count| count <= 1), "every {every}");
        }
    }
}
