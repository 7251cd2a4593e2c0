//! Attention to groups of positions that an index chooses: a few small queries are held against a small key for each
//! group, the mean of its positions' keys.

use super::attention::AttentionMixer;
use crate::forward::{Input, Output, Pass};
use crate::loader::Loader;
use crate::state::{StateDecl, StateKind};
use crate::{IndexedSpec, KV_BLOCK, LayerState, Limits, ModelError};
use forerun_backend::WeightId;
use forerun_backend::op::{
    AttentionInputs, ChooseEntries, EntryLayout, HeadNorm, LinearPart, Linears, PoolEntries,
    Queries, SparseAttention, Turned,
};
use std::fmt;

/// Weights of one indexed attention.
#[derive(Clone, Debug)]
pub(crate) struct IndexedMixer {
    spec: IndexedSpec,
    attention: AttentionMixer,
    q: WeightId,
    k: WeightId,
    q_norm: WeightId,
    k_norm: WeightId,
}

impl IndexedSpec {
    pub(super) const OPERATIONS: &'static [&'static str] =
        &["pool_entries", "choose_entries", "sparse_attention"];

    pub(super) fn weights(&self, hidden: usize) -> usize {
        self.attention.weights(hidden) + hidden * (self.heads + 1) * self.head_dim
    }

    fn layout(&self, limits: &Limits) -> EntryLayout {
        let (blocks, every, dim) = (limits.blocks(), self.every, self.head_dim);
        EntryLayout { blocks, block: KV_BLOCK, every, dim }
    }

    /// Keys and values, then the index: keys of the group that is not complete, and a key for each that is.
    pub(super) fn state(&self, limits: &Limits) -> Vec<StateDecl> {
        let decl = |name, kind, len| StateDecl { name, kind, len };
        let dim = self.head_dim;
        let mut state: Vec<StateDecl> = self.attention.state(limits).into();
        let layout = self.layout(limits);
        state.extend([
            decl("index window", StateKind::Slot, (self.every - 1) * dim),
            decl("index window log", StateKind::Log, limits.log_rows * dim),
            decl("index", StateKind::Entries(layout), layout.len()),
        ]);
        state
    }

    /// What attention needs, then queries and keys of the index.
    pub(super) fn scratch(&self) -> [usize; 7] {
        let [q, gate, mixed, k, v, _] = self.attention.scratch();
        [q, gate, mixed, k, v, self.heads * self.head_dim, self.head_dim]
    }
}

impl fmt::Display for IndexedSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attention, heads, head_dim, every, most } = self;
        write!(
            f,
            "indexed {attention}, up to {most} groups of {every} by {heads} heads of {head_dim}"
        )
    }
}

impl IndexedMixer {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: &IndexedSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let IndexedSpec { heads, head_dim, .. } = *spec;
        let at = |name: &str| format!("{path}.indexer.{name}");
        let attention = AttentionMixer::load(loader, path, &spec.attention, hidden)?;
        let both = (heads + 1) * head_dim;
        let projection = loader.checkpoint.parts(&at("index_qk_proj"), &[both, hidden])?;
        let mut rows = |name: &str, rows: std::ops::Range<usize>| {
            loader.rows(&at(name), &projection, std::slice::from_ref(&rows))
        };
        let queries = heads * head_dim;
        Ok(Self {
            q: rows("index_qk_proj (query)", 0..queries)?,
            k: rows("index_qk_proj (key)", queries..both)?,
            spec: spec.clone(),
            attention,
            q_norm: loader.norm(&at("q_layernorm"), head_dim)?,
            k_norm: loader.norm(&at("k_layernorm"), head_dim)?,
        })
    }

    /// `o(attention(input) to chosen groups)` to `out`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        input: Input,
        state: &LayerState,
        out: Output,
    ) {
        let IndexedSpec { heads, head_dim, every, most, .. } = self.spec;
        let whole = self.attention.begin(pass, input, state);
        let [.., q, k] = pass.scratch(self.spec.scratch());
        let [window, log, cache] = state.last_views();
        let part = |weight, out| Some(LinearPart { weight, bias: None, out });
        let parts = [part(self.q, q), part(self.k, k), None, None];
        pass.push(Linears { x: input.x, norm: input.norm, parts });
        let rope = self.attention.rope();
        let (table, rotary) = pass.rope_of(rope);
        let norm = |weight| HeadNorm { weight, eps: pass.sizes.eps };
        let (q_norm, k_norm) = (norm(self.q_norm), norm(self.k_norm));
        let queries = Some(Queries { q, heads, norm: Some(q_norm) });
        pass.push(AttentionInputs { table, rotary, head_dim, queries, keys: None });
        let (layout, frequencies) = (self.spec.layout(&pass.space.limits), pass.sizes.ropes[rope]);
        let (tables, table_width) = (whole.tables, whole.table_width);
        pass.push(PoolEntries {
            keys: k,
            gates: None,
            series: 1,
            norm: k_norm,
            inv_freq: frequencies.inv_freq,
            rope_scale: frequencies.scale,
            turned: Turned::FirstHalves,
            window,
            log,
            spans: pass.span_table(),
            tables,
            table_width,
            cache,
            layout,
        });
        let chosen = pass.chosen_entries(most);
        pass.push(ChooseEntries {
            q,
            weights: None,
            cache,
            layout,
            positions: whole.positions,
            span_of: whole.span_of,
            tables,
            table_width,
            heads,
            most,
            scale: 1.0 / (head_dim as f32).sqrt(),
            chosen,
        });
        pass.push(SparseAttention { whole, chosen, most, every });
        self.attention.finish(pass, out);
    }
}
