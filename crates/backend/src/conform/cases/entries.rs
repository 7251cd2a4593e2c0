//! Entries made of neighbouring keys, their choice, and attention to what was chosen.

use super::ConformCase;
use super::delta::{BATCHES, Batch, SLOTS, Width, log_rows, rows_of, slots};
use crate::conform::ConformStage;
use crate::op::{
    Attention, CacheLayout, ChooseEntries, CompressedAttention, EntryLayout, HeadNorm, PoolEntries,
    SeenEntries, Spans, SparseAttention, Turned,
};
use crate::{BackendError, Op, View};
use forerun_base::DType;

/// Blocks of a line: positions up to 95.
const WIDTH: usize = 6;
const BLOCK: usize = 16;

pub(super) fn cases() -> Vec<ConformCase> {
    let pool = |every, dim, series, gated| PoolKind { every, dim, series, gated };
    let pools = [pool(4, 16, 2, true), pool(3, 9, 1, false), pool(20, 8, 1, true)];
    let mut cases = Vec::new();
    for (name, widths) in BATCHES {
        let log_rows = log_rows(widths);
        for kind in pools {
            let sizes = format!("{name}, {kind:?}, log of {log_rows}");
            cases.push(ConformCase::new("pool_entries", sizes, rows_of(widths), move |stage| {
                pool_op(stage, kind, &Batch::new(widths, log_rows))
            }));
        }
        for (keys, entries) in [(5, Some(true)), (1, Some(false)), (16, None)] {
            let kind = AttendKind { heads: 3, dim: 24, keys, entries };
            cases.push(compressed(name, widths, kind));
        }
    }
    for rows in [3, 0, 1, 34] {
        for (heads, dim, most, every) in [(2, 16, 4, 4), (1, 9, 100, 3), (5, 33, 1, 7)] {
            for weighted in [true, false] {
                cases.push(choose(rows, [heads, dim, most, every], weighted));
            }
        }
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for (heads, kv_heads, dim, most, every) in
                [(4, 2, 16, 3, 4), (1, 1, 33, 2, 7), (6, 1, 64, 40, 1)]
            {
                cases.push(sparse(dtype, rows, [heads, kv_heads, dim], [most, every]));
            }
        }
    }
    cases
}

/// How entries are made.
#[derive(Clone, Copy, Debug)]
pub(in crate::conform) struct PoolKind {
    pub(in crate::conform) every: usize,
    pub(in crate::conform) dim: usize,
    pub(in crate::conform) series: usize,
    pub(in crate::conform) gated: bool,
}

/// Tables of all slots over a shuffled pool.
fn tables(stage: &mut ConformStage<'_>) -> Result<View, BackendError> {
    let mut free: Vec<u32> = (0..(SLOTS * WIDTH) as u32).collect();
    let mut next = || free.swap_remove(stage.rng.below(free.len()));
    let words: Vec<u32> = (0..SLOTS * WIDTH).map(|_| next()).collect();
    stage.indices("tables", &words)
}

fn layout(every: usize, dim: usize) -> EntryLayout {
    EntryLayout { blocks: SLOTS * WIDTH, block: BLOCK, every, dim }
}

/// Entries of a batch's keys.
pub(in crate::conform) fn pool_op(
    stage: &mut ConformStage<'_>,
    kind: PoolKind,
    batch: &Batch,
) -> Result<Op, BackendError> {
    let Batch { rows, entries, log_rows } = batch;
    let PoolKind { every, dim, series, gated } = kind;
    let each = series * dim;
    let keys = stage.random("keys", rows * each)?;
    let gates = match gated {
        true => {
            let gates = stage.random("gates", rows * each)?;
            let bias = stage.rng.values(every * each);
            Some((gates, stage.table([every, each], &bias)?))
        }
        false => None,
    };
    let norm = HeadNorm { weight: stage.norm_weight(dim)?, eps: 1e-6 };
    let inv_freq: Vec<f32> = (0..dim / 4).map(|i| 0.7_f32.powi(i as i32)).collect();
    let inv_freq = stage.vector(&inv_freq)?;
    let width = each * if gated { 2 } else { 1 };
    let window = slots(stage, entries, (series * every - 1) * width);
    let window = stage.moved("window", &window)?;
    let log = stage.rng.values(SLOTS * log_rows * width);
    let log = stage.moved("log", &log)?;
    let layout = layout(every, dim);
    let before = stage.rng.values(layout.len());
    let spans = Spans { table: stage.span_table(entries)?, slots: SLOTS, log_rows: *log_rows };
    Ok(PoolEntries {
        keys,
        gates,
        series,
        norm,
        inv_freq,
        rope_scale: 1.25,
        turned: if gated { Turned::LastPairs } else { Turned::FirstHalves },
        window,
        log,
        spans,
        tables: tables(stage)?,
        table_width: WIDTH,
        cache: stage.updated("cache", &before)?,
        layout,
    }
    .into())
}

fn choose(rows: usize, sizes: [usize; 4], weighted: bool) -> ConformCase {
    let name = format!("{rows} rows, heads, width, most, every {sizes:?}, weighted: {weighted}");
    ConformCase::new("choose_entries", name, rows, move |stage| {
        let [heads, dim, most, every] = sizes;
        let q = stage.random("q", rows * heads * dim)?;
        let weights = match weighted {
            true => Some(stage.random("weights", rows * heads)?),
            false => None,
        };
        let layout = layout(every, dim);
        let cache = stage.random("cache", layout.len())?;
        let [positions, span_of] = places(stage, rows)?;
        Ok(ChooseEntries {
            q,
            weights,
            cache,
            layout,
            positions,
            span_of,
            tables: tables(stage)?,
            table_width: WIDTH,
            heads,
            most,
            scale: 0.3,
            chosen: stage.chosen("chosen", rows * most)?,
        }
        .into())
    })
}

/// Positions of rows of some sequences, and the lines of those.
fn places(stage: &mut ConformStage<'_>, rows: usize) -> Result<[View; 2], BackendError> {
    let positions: Vec<u32> = (0..rows).map(|row| position(row) as u32).collect();
    let span_of: Vec<u32> = (0..rows).map(|row| (row % SLOTS) as u32).collect();
    Ok([stage.indices("positions", &positions)?, stage.indices("span_of", &span_of)?])
}

/// Where a row stands: at the end, at the beginning, and in between.
fn position(row: usize) -> usize {
    [WIDTH * BLOCK - 1, 0, 40][row % 3] + row / 3 % 7 * usize::from(!row.is_multiple_of(3))
}

fn sparse(
    dtype: DType,
    rows: usize,
    [heads, kv_heads, head_dim]: [usize; 3],
    [most, every]: [usize; 2],
) -> ConformCase {
    let name = format!(
        "{dtype}, {rows} rows, {heads} heads of {kv_heads} of {head_dim}, {most} of {every}"
    );
    ConformCase::new("sparse_attention", name, rows, move |stage| {
        let layout = CacheLayout {
            blocks: SLOTS * WIDTH,
            kv_heads,
            block: BLOCK,
            head_dim,
            ..CacheLayout::NONE
        };
        let numbers = [(); 2].map(|()| stage.rng.values(layout.len()));
        let [k_cache, v_cache] = stage.caches(dtype, layout, numbers.each_ref().map(|n| &n[..]))?;
        let [positions, span_of] = places(stage, rows)?;
        let mut words = Vec::new();
        for row in 0..rows {
            // Every other complete group, as many as may be.
            let complete = (position(row) + 1) / every;
            let groups =
                (0..complete as u32).filter(|group| (group + row as u32).is_multiple_of(2));
            let mut groups: Vec<u32> = groups.take(most).collect();
            groups.resize(most, ChooseEntries::NONE);
            words.extend(groups);
        }
        let chosen = stage.indices("chosen", &words)?;
        let whole = Attention {
            q: stage.random("q", rows * heads * head_dim)?,
            k_cache,
            v_cache,
            layout: stage.layout(layout),
            positions,
            span_of,
            tables: tables(stage)?,
            table_width: WIDTH,
            heads,
            scale: 0.4,
            window: None,
            out: stage.output("out", rows * heads * head_dim)?,
        };
        Ok(SparseAttention { whole, chosen, most, every }.into())
    })
}

/// What attention to keys and entries sees.
#[derive(Clone, Copy, Debug)]
pub(in crate::conform) struct AttendKind {
    pub(in crate::conform) heads: usize,
    pub(in crate::conform) dim: usize,
    pub(in crate::conform) keys: usize,
    /// Whether entries are chosen, where there are any.
    pub(in crate::conform) entries: Option<bool>,
}

fn compressed(name: &str, widths: &'static [Width], kind: AttendKind) -> ConformCase {
    let log_rows = log_rows(widths);
    let sizes = format!("{name}, {kind:?}, log of {log_rows}");
    ConformCase::new("compressed_attention", sizes, rows_of(widths), move |stage| {
        attend_op(stage, kind, &Batch::new(widths, log_rows))
    })
}

/// Attention of a batch's rows.
pub(in crate::conform) fn attend_op(
    stage: &mut ConformStage<'_>,
    kind: AttendKind,
    batch: &Batch,
) -> Result<Op, BackendError> {
    let Batch { rows, entries, log_rows } = batch;
    let AttendKind { heads, dim, keys, entries: seen } = kind;
    let (every, most) = (4, 2);
    let q = stage.random("q", rows * heads * dim)?;
    let kv = stage.random("kv", rows * dim)?;
    let window = slots(stage, entries, (keys - 1) * dim);
    let window = stage.moved("window", &window)?;
    let log = stage.rng.values(SLOTS * log_rows * dim);
    let log = stage.moved("log", &log)?;
    let entry_layout = layout(every, dim);
    let seen = match seen {
        None => None,
        Some(chosen) => {
            let cache = stage.random("cache", entry_layout.len())?;
            let tables = tables(stage)?;
            // Of each row none, the first complete entry where there is one, or that and the last.
            let mut words = vec![ChooseEntries::NONE; rows * most];
            for span in entries {
                for i in 0..span.rows {
                    let row = (span.first_row + i) as usize;
                    let complete = entry_layout.complete((span.start + i) as usize);
                    let last = (complete > 1).then(|| complete as u32 - 1);
                    let first = (complete > 0 && !row.is_multiple_of(3)).then_some(0);
                    let chosen = first.into_iter().chain(last.filter(|_| row % 3 > 1));
                    words[row * most..].iter_mut().zip(chosen).for_each(|(to, e)| *to = e);
                }
            }
            let words = stage.indices("chosen", &words)?;
            let (table_width, layout) = (WIDTH, entry_layout);
            let chosen = chosen.then_some((words, most));
            Some(SeenEntries { cache, layout, tables, table_width, chosen })
        }
    };
    let sinks = stage.rng.values(heads);
    let sinks = stage.vector(&sinks)?;
    let spans = Spans { table: stage.span_table(entries)?, slots: SLOTS, log_rows: *log_rows };
    let out = stage.output("out", rows * heads * dim)?;
    let (entries, scale) = (seen, 0.2);
    Ok(CompressedAttention {
        q,
        kv,
        window,
        log,
        spans,
        entries,
        sinks,
        heads,
        dim,
        keys,
        scale,
        out,
    }
    .into())
}
