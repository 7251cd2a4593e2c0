//! Attention to chosen entries.

use crate::op::spans::Moves;
use crate::op::{Attention, EntryLayout, Spans};
use crate::{Access, OpDesc, View, WeightId};

/// [`Attention`] to the keys of chosen groups of positions, and to those behind the last complete group.
///
/// # Math
/// Group `e` is the positions `e·every..(e + 1)·every`. The row at position `p` sees the groups in its row of `chosen`,
/// which are ascending, complete, and end with [`ChooseEntries::NONE`](super::ChooseEntries::NONE) or the row, and the
/// positions `(p + 1) / every · every..=p`.
///
/// # Numerics
/// f32; keys in ascending order.
#[derive(Clone, Copy, Debug)]
pub struct SparseAttention {
    /// The operation over all keys; without a window.
    pub whole: Attention,
    /// u32 `[rows, most]`.
    pub chosen: View,
    /// Groups a row sees at most.
    pub most: usize,
    /// Positions of a group.
    pub every: usize,
}

impl SparseAttention {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { whole, chosen, most, every } = *self;
        desc.require(most > 0 && every > 0, "groups of nothing, or none of them");
        desc.require(whole.window.is_none(), "a window on chosen keys");
        // Keys seen are those of a window as wide as the choice, wherever they lie.
        let window = most.saturating_mul(every).saturating_add(every);
        Attention { window: Some(window), ..whole }.describe(desc);
        desc.u32("chosen", chosen, Access::Read, whole.positions.len.saturating_mul(most));
    }
}

/// Attention to a row's last keys, to entries, and to a sink; keys are their own values.
///
/// # Math
/// The row at position `p` sees the keys of the positions `p − keys + 1..=p` that there are, and of the entries that
/// are complete those in its row of `chosen`, or all. With the scores `s = scale · q·k` of these in order, keys first,
/// `out = Σ softmax(s, sink)·k`, where the sink's score is a number of each head and its value zero.
///
/// # State
/// `window` holds the `keys − 1` keys before the committed position (oldest first), less pending log rows. Confirmed
/// rows move it on; drafts go to `log` and leave it alone.
#[derive(Clone, Copy, Debug)]
pub struct CompressedAttention {
    /// `[rows, heads, dim]`.
    pub q: View,
    /// `[rows, dim]`.
    pub kv: View,
    /// `[slots, keys − 1, dim]`.
    pub window: View,
    /// `[slots, log_rows, dim]`.
    pub log: View,
    /// Which rows belong together; a span's slot is its line in `tables`.
    pub spans: Spans,
    /// What else is seen.
    pub entries: Option<SeenEntries>,
    /// `[1, heads]`.
    pub sinks: WeightId,
    /// Query heads.
    pub heads: usize,
    /// Width of a head.
    pub dim: usize,
    /// Keys seen, the row's own included.
    pub keys: usize,
    /// Factor on scores.
    pub scale: f32,
    /// `[rows, heads, dim]`.
    pub out: View,
}

/// Entries that a row sees.
#[derive(Clone, Copy, Debug)]
pub struct SeenEntries {
    /// All entries.
    pub cache: View,
    /// Their shape.
    pub layout: EntryLayout,
    /// u32 `[slots, table_width]`.
    pub tables: View,
    /// Blocks per line of `tables`.
    pub table_width: usize,
    /// u32 `[rows, most]`, as [`ChooseEntries`](super::ChooseEntries) leaves it; all complete ones are seen without.
    pub chosen: Option<(View, usize)>,
}

impl CompressedAttention {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { heads, dim, keys, .. } = *self;
        desc.require(heads > 0 && dim > 0 && keys > 0, "no heads, no width or no keys");
        let wide = heads.saturating_mul(dim).max(1);
        desc.require(self.q.len.is_multiple_of(wide), "q is not whole rows");
        let rows = self.q.len / wide;
        desc.f32("q", self.q, Access::Read, rows * wide);
        desc.f32("kv", self.kv, Access::Read, rows * dim);
        let Spans { slots, log_rows, .. } = self.spans;
        let kept = keys.saturating_sub(1).saturating_mul(dim);
        desc.f32("window", self.window, Access::Scatter, slots.saturating_mul(kept));
        desc.f32("log", self.log, Access::Scatter, slots * log_rows * dim);
        self.spans.describe(desc);
        let mut seen = rows.saturating_mul(keys);
        if let Some(entries) = self.entries {
            let SeenEntries { cache, layout, tables, table_width, chosen } = entries;
            layout.describe(desc);
            desc.require(layout.dim == dim, "entries of another width");
            desc.f32("cache", cache, Access::Gather, layout.len());
            desc.require(table_width > 0, "block tables without blocks");
            desc.u32("tables", tables, Access::Gather, slots.saturating_mul(table_width));
            let most = table_width.saturating_mul(layout.block) / layout.every.max(1);
            let most = chosen.map_or(most, |(view, most)| {
                desc.require(most > 0, "nothing is chosen");
                desc.u32("chosen", view, Access::Read, rows.saturating_mul(most));
                most
            });
            seen = seen.saturating_add(rows.saturating_mul(most));
        }
        desc.weight("sinks", self.sinks, [1, heads]);
        desc.f32("out", self.out, Access::Write, rows * wide);
        let Moves { reads, writes, folded, logged } = self.spans.moves(desc);
        let moved = (reads + writes) * kept as u64 + (folded + logged) * dim as u64;
        desc.state_bytes(4 * (moved + (seen as u64).saturating_mul(dim as u64)));
        desc.work(0, (seen as u64).saturating_mul((heads * (4 * dim + 10)) as u64));
    }
}
