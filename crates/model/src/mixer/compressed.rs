//! Attention to the last keys and to compressed ones, with keys that are their own values.
//!
//! ```text
//! r = norm(q_a(x))       q = turn(rms(q_b(r)))       k = turn(norm(kv(x)))
//! entries: a sum of the keys of a few neighbouring rows, weighted by a softmax of gates, normed and turned
//! out = o_b(o_a(turned back(attention of q to the last k, to entries and to a sink)), in groups of heads)
//! ```
//!
//! Entries are seen all, or an index chooses: it makes small ones of its own, and holds queries made of `r` against
//! them.

use crate::forward::{Input, Output, Pass};
use crate::loader::Loader;
use crate::state::{StateDecl, StateKind};
use crate::{CompressSpec, CompressedSpec, KV_BLOCK, LayerState, Limits, ModelError};
use forerun_backend::op::{
    ChooseEntries, CompressedAttention, EntryLayout, GroupedLinear, HeadNorm, Linear, LinearPart,
    Linears, PoolEntries, RmsNorm, SeenEntries, TurnTails, Turned,
};
use forerun_backend::{View, WeightId};
use std::fmt;

/// Weights of one compressed attention.
#[derive(Clone, Debug)]
pub(crate) struct CompressedMixer {
    spec: CompressedSpec,
    q_a: WeightId,
    q_a_norm: WeightId,
    q_b: WeightId,
    /// Ones.
    q_norm: WeightId,
    kv: WeightId,
    kv_norm: WeightId,
    sinks: WeightId,
    o_a: WeightId,
    o_b: WeightId,
    entries: Option<Compressor>,
    index: Option<Index>,
}

/// What makes entries.
#[derive(Clone, Copy, Debug)]
struct Compressor {
    kv: WeightId,
    gate: WeightId,
    bias: WeightId,
    norm: WeightId,
}

/// What chooses among them.
#[derive(Clone, Copy, Debug)]
struct Index {
    entries: Compressor,
    q: WeightId,
    weights: WeightId,
}

/// Scratch, and which number of the declared each is.
struct Rows {
    latent: View,
    normed: View,
    q: View,
    kv: View,
    mixed: View,
    gathered: View,
    products: View,
    low: View,
    keys: View,
    gates: View,
    index: [View; 4],
}

impl CompressSpec {
    const fn series(&self) -> usize {
        if self.overlaps { 2 } else { 1 }
    }

    /// Keys and gates of rows, a log of them, and entries `dim` wide.
    fn state(&self, names: [&'static str; 3], dim: usize, limits: &Limits) -> [StateDecl; 3] {
        let width = 2 * self.series() * dim;
        let layout = self.layout(dim, limits);
        let [window, log, entries] = names;
        let decl = |name, kind, len| StateDecl { name, kind, len };
        [
            decl(window, StateKind::Slot, (self.series() * self.every - 1) * width),
            decl(log, StateKind::Log, limits.log_rows * width),
            decl(entries, StateKind::Entries(layout), layout.len()),
        ]
    }

    fn layout(&self, dim: usize, limits: &Limits) -> EntryLayout {
        EntryLayout { blocks: limits.blocks(), block: KV_BLOCK, every: self.every, dim }
    }
}

impl CompressedSpec {
    pub(super) const OPERATIONS: &'static [&'static str] =
        &["turn_tails", "pool_entries", "choose_entries", "compressed_attention", "grouped_linear"];

    pub(super) fn weights(&self, hidden: usize) -> usize {
        let Self { heads, head_dim, q_rank, groups, out_rank, .. } = *self;
        let (wide, low) = (heads * head_dim, groups * out_rank);
        let made = |compress: &CompressSpec| {
            let index = compress.index.map_or(0, |index| {
                let own = 2 * compress.series() * index.head_dim + index.heads;
                hidden * own + q_rank * index.heads * index.head_dim
            });
            2 * hidden * compress.series() * head_dim + index
        };
        let entries = self.compress.as_ref().map_or(0, made);
        hidden * (q_rank + head_dim + low) + wide * (q_rank + out_rank) + entries
    }

    /// The last keys; then rows that entries will be made of, and entries; then the same of the index.
    pub(super) fn state(&self, limits: &Limits) -> Vec<StateDecl> {
        let decl = |name, kind, len| StateDecl { name, kind, len };
        let dim = self.head_dim;
        let mut state = vec![
            decl("kv window", StateKind::Slot, (self.window - 1) * dim),
            decl("kv window log", StateKind::Log, limits.log_rows * dim),
        ];
        if let Some(compress) = &self.compress {
            let names = ["entry window", "entry window log", "entries"];
            state.extend(compress.state(names, dim, limits));
            if let Some(index) = compress.index {
                let names = ["index window", "index window log", "index"];
                state.extend(compress.state(names, index.head_dim, limits));
            }
        }
        state
    }

    /// See [`Rows`].
    pub(super) fn scratch(&self) -> [usize; 14] {
        let Self { heads, head_dim, q_rank, groups, out_rank, .. } = *self;
        let (wide, low) = (heads * head_dim, groups * out_rank);
        let compress = self.compress.as_ref();
        let keys = compress.map_or(0, |compress| compress.series() * head_dim);
        let index = compress.and_then(|compress| Some((compress, compress.index?)));
        let index = index.map_or([0; 4], |(compress, index)| {
            let keys = compress.series() * index.head_dim;
            [keys, keys, index.heads * index.head_dim, index.heads]
        });
        let [a, b, c, d] = index;
        [q_rank, q_rank, wide, head_dim, wide, wide, low, low, keys, keys, a, b, c, d]
    }

    /// Entries chosen for a row at most.
    pub(super) fn chosen(&self) -> usize {
        let index = self.compress.as_ref().and_then(|compress| compress.index);
        index.map_or(0, |index| index.most)
    }
}

impl fmt::Display for CompressedSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heads, head_dim, window, compress, .. } = self;
        write!(f, "attention, {heads} heads, shared keys of width {head_dim}, window {window}")?;
        let Some(CompressSpec { every, index, .. }) = compress else { return Ok(()) };
        write!(f, ", every {every} compressed")?;
        match index {
            None => Ok(()),
            Some(index) => {
                let (most, heads, dim) = (index.most, index.heads, index.head_dim);
                write!(f, ", up to {most} chosen by {heads} heads of {dim}")
            }
        }
    }
}

impl Compressor {
    fn load(
        loader: &mut Loader<'_>,
        path: &str,
        (compress, dim): (&CompressSpec, usize),
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let (at, wide) = (|name: &str| format!("{path}.{name}"), compress.series() * dim);
        let bias = loader.checkpoint.values(&at("position_bias"), &[compress.every, wide])?;
        Ok(Self {
            kv: loader.matrix(&at("kv_proj"), [wide, hidden])?,
            gate: loader.matrix(&at("gate_proj"), [wide, hidden])?,
            bias: loader.numbers(&at("position_bias"), compress.every, &bias)?,
            norm: loader.norm(&at("kv_norm"), dim)?,
        })
    }
}

impl CompressedMixer {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: &CompressedSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let CompressedSpec { heads, head_dim, q_rank, groups, out_rank, .. } = *spec;
        let at = |name: &str| format!("{path}.{name}");
        let (wide, low) = (heads * head_dim, groups * out_rank);
        let (mut entries, mut index) = (None, None);
        if let Some(compress) = &spec.compress {
            let (path, sizes) = (at("compressor"), (compress, head_dim));
            entries = Some(Compressor::load(loader, &path, sizes, hidden)?);
            if let Some(own) = compress.index {
                let path = at("compressor.indexer");
                let queries = [own.heads * own.head_dim, q_rank];
                let weights = format!("{path}.scorer.weights_proj");
                index = Some(Index {
                    entries: Compressor::load(loader, &path, (compress, own.head_dim), hidden)?,
                    q: loader.matrix(&format!("{path}.q_b_proj"), queries)?,
                    weights: loader.matrix(&weights, [own.heads, hidden])?,
                });
            }
        }
        Ok(Self {
            spec: spec.clone(),
            q_a: loader.matrix(&at("q_a_proj"), [q_rank, hidden])?,
            q_a_norm: loader.norm(&at("q_a_norm"), q_rank)?,
            q_b: loader.matrix(&at("q_b_proj"), [wide, q_rank])?,
            q_norm: loader.numbers(&at("q_b_norm (ones)"), 1, &vec![1.0; head_dim])?,
            kv: loader.matrix(&at("kv_proj"), [head_dim, hidden])?,
            kv_norm: loader.norm(&at("kv_norm"), head_dim)?,
            sinks: loader.vector(&at("sinks"), heads, |sink| sink)?,
            o_a: loader.matrix(&at("o_a_proj"), [low, wide / groups])?,
            o_b: loader.matrix(&at("o_b_proj"), [hidden, low])?,
            entries,
            index,
        })
    }

    fn rows(&self, pass: &Pass<'_>) -> Rows {
        let [latent, normed, q, kv, mixed, gathered, products, low, keys, gates, a, b, c, d] =
            pass.scratch(self.spec.scratch());
        let index = [a, b, c, d];
        Rows { latent, normed, q, kv, mixed, gathered, products, low, keys, gates, index }
    }

    /// The mixer of `input` to `out`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        input: Input,
        state: &LayerState,
        out: Output,
    ) {
        let CompressedSpec { heads, head_dim: dim, window: keys, q_rank, .. } = self.spec;
        let rows = self.rows(pass);
        self.project(pass, input, &rows);
        let (weight, eps) = (self.q_a_norm, pass.sizes.eps);
        pass.push(RmsNorm { x: rows.latent, weight, out: rows.normed, dim: q_rank, eps });
        let index_q = self.index.map(|index| part(index.q, rows.index[2]));
        let parts = [Some(part(self.q_b, rows.q)), index_q, None, None];
        pass.push(Linears { x: rows.normed, norm: None, parts });
        let norm = |weight| Some(HeadNorm { weight, eps });
        self.turn(pass, (rows.q, heads, dim), norm(self.q_norm), false);
        self.turn(pass, (rows.kv, 1, dim), norm(self.kv_norm), false);
        let entries = self.entries(pass, &rows, state);
        let [window, log] = state.views();
        pass.push(CompressedAttention {
            q: rows.q,
            kv: rows.kv,
            window,
            log,
            spans: pass.span_table(),
            entries,
            sinks: self.sinks,
            heads,
            dim,
            keys,
            scale: 1.0 / (dim as f32).sqrt(),
            out: rows.mixed,
        });
        self.turn(pass, (rows.mixed, heads, dim), None, true);
        pass.push(GroupedLinear {
            x: rows.mixed,
            weight: self.o_a,
            groups: self.spec.groups,
            gathered: rows.gathered,
            products: rows.products,
            out: rows.low,
        });
        let (weight, Output { view, store }) = (self.o_b, out);
        pass.push(Linear { x: rows.low, weight, bias: None, channels: None, out: view, store });
    }

    /// Everything that is made of the mixer's input.
    fn project(&self, pass: &mut Pass<'_>, Input { x, norm }: Input, rows: &Rows) {
        let entries = |entries: Compressor, [keys, gates]: [View; 2]| {
            [Some(part(entries.kv, keys)), Some(part(entries.gate, gates))]
        };
        let own = self.entries.map_or([None; 2], |own| entries(own, [rows.keys, rows.gates]));
        let [keys, gates] = own;
        let parts = [Some(part(self.q_a, rows.latent)), Some(part(self.kv, rows.kv)), keys, gates];
        pass.push(Linears { x, norm, parts });
        let Some(index) = self.index else { return };
        let [keys, gates, _, weights] = rows.index;
        let [keys, gates] = entries(index.entries, [keys, gates]);
        let parts = [keys, gates, Some(part(index.weights, weights)), None];
        pass.push(Linears { x, norm, parts });
    }

    fn turn(
        &self,
        pass: &mut Pass<'_>,
        (x, heads, dim): (View, usize, usize),
        norm: Option<HeadNorm>,
        backwards: bool,
    ) {
        let (table, rotary) = pass.rope_of(self.spec.rope);
        pass.push(TurnTails { table, rotary, backwards, norm, heads, dim, x });
    }

    /// Makes entries of the rows, and says which are seen.
    fn entries(&self, pass: &mut Pass<'_>, rows: &Rows, state: &LayerState) -> Option<SeenEntries> {
        let (own, compress) = (self.entries?, self.spec.compress.as_ref()?);
        let limits = pass.space.limits;
        let buffers = state.buffers();
        let views = |first: usize| [0, 1, 2].map(|i| buffers[first + i].view);
        let layout = compress.layout(self.spec.head_dim, &limits);
        let cache = self.pool(pass, own, [rows.keys, rows.gates], (views(2), layout));
        let (tables, table_width) = (pass.space.tables_of(false), limits.table_width());
        let seen = SeenEntries { cache, layout, tables, table_width, chosen: None };
        let (Some(index), Some(sizes)) = (self.index, compress.index) else { return Some(seen) };
        let [keys, gates, q, weights] = rows.index;
        let layout = compress.layout(sizes.head_dim, &limits);
        let cache = self.pool(pass, index.entries, [keys, gates], (views(5), layout));
        self.turn(pass, (q, sizes.heads, sizes.head_dim), None, false);
        let chosen = pass.chosen_entries(sizes.most);
        pass.push(ChooseEntries {
            q,
            weights: Some(weights),
            cache,
            layout,
            positions: pass.inputs.positions,
            span_of: pass.inputs.table_lines,
            tables,
            table_width,
            heads: sizes.heads,
            most: sizes.most,
            scale: 1.0 / ((sizes.head_dim * sizes.heads) as f32).sqrt(),
            chosen,
        });
        Some(SeenEntries { chosen: Some((chosen, sizes.most)), ..seen })
    }

    /// Entries of `[keys, gates]` to their cache.
    fn pool(
        &self,
        pass: &mut Pass<'_>,
        weights: Compressor,
        [keys, gates]: [View; 2],
        ([window, log, cache], layout): ([View; 3], EntryLayout),
    ) -> View {
        let series = self.spec.compress.as_ref().map_or(1, CompressSpec::series);
        let rope = pass.sizes.ropes[self.spec.rope];
        pass.push(PoolEntries {
            keys,
            gates: Some((gates, weights.bias)),
            series,
            norm: HeadNorm { weight: weights.norm, eps: pass.sizes.eps },
            inv_freq: rope.inv_freq,
            rope_scale: rope.scale,
            turned: Turned::LastPairs,
            window,
            log,
            spans: pass.span_table(),
            tables: pass.space.tables_of(false),
            table_width: pass.space.limits.table_width(),
            cache,
            layout,
        });
        cache
    }
}

fn part(weight: WeightId, out: View) -> LinearPart {
    LinearPart { weight, bias: None, out }
}
