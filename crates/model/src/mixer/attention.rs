//! Softmax attention with optional head norms, partial rope, window, output gate, biases, and keys and values
//! of its own or another layer's.

use super::projection::Projection;
use crate::forward::{Input, Output, Pass};
use crate::loader::Loader;
use crate::state::{StateDecl, StateKind};
use crate::{AttentionSpec, KV_BLOCK, LayerState, Limits, ModelError, Values};
use forerun_backend::op::{
    self, AttentionInputs, CacheLayout, CacheOrder, GateMul, HeadNorm, Linear, LinearPart, Linears,
    NewKeys, Queries, RmsNorm,
};
use forerun_backend::{View, WeightId};
use forerun_base::DType;
use std::fmt;
use std::ops::Range;

/// Weights of one attention mixer.
#[derive(Clone, Debug)]
pub(crate) struct AttentionMixer {
    spec: AttentionSpec,
    q: Projection,
    /// Output gate, one row per query row.
    gate: Option<Projection>,
    /// Absent where another layer's keys and values are read.
    own: Option<OwnKeys>,
    o: Projection,
    q_norm: Option<WeightId>,
}

/// What makes a layer's own keys and values.
#[derive(Clone, Debug)]
struct OwnKeys {
    k: Projection,
    k_norm: Option<WeightId>,
    /// Absent where values come from the key projection.
    v: Option<Projection>,
    /// Ones, where values are normed.
    v_norm: Option<WeightId>,
}

/// Keys and values of a layer, its own or another's.
#[derive(Clone, Copy, Debug)]
struct KvCache {
    k: View,
    v: View,
    /// The shape of both.
    layout: CacheLayout,
    /// Whether each slot has a ring of blocks of its own.
    ring: bool,
}

impl KvCache {
    fn of(state: &LayerState) -> Self {
        let [k, v] = state.views();
        let (layout, ring) = match state.buffers()[0].kind {
            StateKind::Paged(layout) => (layout, false),
            StateKind::Ring(layout) => (layout, true),
            _ => unreachable!("attention keeps keys and values in blocks"),
        };
        Self { k, v, layout, ring }
    }
}

impl AttentionSpec {
    pub(super) fn weights(&self, hidden: usize) -> usize {
        let queries = self.heads * (2 + usize::from(self.gated));
        hidden * self.head_dim * (queries + 2 * self.kv_heads)
    }

    pub(super) fn state(&self, limits: &Limits) -> [StateDecl; 2] {
        let ring = self.window.is_some();
        let layout = CacheLayout {
            blocks: if ring { limits.ring_blocks() } else { limits.blocks() },
            kv_heads: self.kv_heads,
            block: KV_BLOCK,
            head_dim: self.head_dim,
            coded: limits.kv == DType::I8,
            order: CacheOrder::default(),
        };
        let kind = if ring { StateKind::Ring(layout) } else { StateKind::Paged(layout) };
        ["k", "v"].map(|name| StateDecl { name, kind, len: layout.len() })
    }

    /// Queries, their gate, what attention gives, keys, values, keys before a norm of the whole.
    pub(super) fn scratch(&self) -> [usize; 6] {
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let if_any = |there: bool, width: usize| if there { width } else { 0 };
        let raw = if_any(self.norm_whole, keys);
        [queries, if_any(self.gated, queries), queries, keys, keys, raw]
    }

    /// Width of what the norm of queries or keys goes over, for so many heads.
    fn normed_width(&self, heads: usize) -> usize {
        if self.norm_whole { heads * self.head_dim } else { self.head_dim }
    }
}

impl fmt::Display for AttentionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heads, kv_heads, head_dim, .. } = self;
        let kind = if self.gated { "gated attention" } else { "attention" };
        write!(f, "{kind}, {heads} heads, {kv_heads} kv heads, width {head_dim}")?;
        if let Some(window) = self.window {
            write!(f, ", window {window}")?;
        }
        if self.shares.is_some() { f.write_str(", shared keys") } else { Ok(()) }
    }
}

impl AttentionMixer {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: &AttentionSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let AttentionSpec { heads, head_dim, bias, .. } = *spec;
        let at = |name: &str| format!("{path}.{name}");
        let width = heads * head_dim;
        let (q, gate) = if spec.gated {
            let (q, gate) = load_gated_query(loader, &at("q_proj"), spec, hidden)?;
            (q, Some(gate))
        } else {
            (Projection::load(loader, &at("q_proj"), [width, hidden], bias)?, None)
        };
        let own = match spec.shares {
            None => Some(OwnKeys::load(loader, path, spec, hidden)?),
            Some(_) => None,
        };
        let names = loader.names;
        let normed = spec.normed_width(heads);
        let q_norm = spec.qk_norm.then(|| loader.norm(&at(names.q_norm), normed)).transpose()?;
        let out_bias = bias && !spec.bare_out;
        let o = Projection::load(loader, &at(names.o_proj), [hidden, width], out_bias)?;
        Ok(Self { spec: spec.clone(), q, gate, own, o, q_norm })
    }

    /// `o(attention(input))` to `out`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        input: Input,
        state: &LayerState,
        out: Output,
    ) {
        let whole = self.begin(pass, input, state);
        pass.push(whole);
        self.finish(pass, out);
    }

    /// Queries, keys and values of `input`; the attention that is to follow.
    pub(super) fn begin(
        &self,
        pass: &mut Pass<'_>,
        input: Input,
        state: &LayerState,
    ) -> op::Attention {
        let AttentionSpec { heads, scale, window, .. } = self.spec;
        let (space, cache) = (pass.space, KvCache::of(state));
        let [q, gate, mixed, ..] = pass.scratch(self.spec.scratch());
        let gated = self.gate.as_ref().map(|projection| projection.to(gate));
        // What attention gives is not there yet.
        let raw = if self.spec.norm_whole { mixed } else { q };
        self.project(pass, input, [Some(self.q.to(raw)), gated]);
        self.norm_whole(pass, self.q_norm, heads, [raw, q]);
        let norm = self.head_norm(pass, self.q_norm);
        self.rotate_and_store(pass, Some(Queries { q, heads, norm }), cache);
        op::Attention {
            q,
            k_cache: cache.k,
            v_cache: cache.v,
            layout: cache.layout,
            positions: pass.inputs.positions,
            span_of: pass.inputs.table_lines,
            tables: space.tables_of(cache.ring),
            table_width: space.limits.table_width(),
            heads,
            scale,
            window,
            out: mixed,
        }
    }

    /// What attention gave, perhaps gated, through the last projection.
    pub(super) fn finish(&self, pass: &mut Pass<'_>, out: Output) {
        let [_, gate, mixed, ..] = pass.scratch(self.spec.scratch());
        if self.gate.is_some() {
            pass.push(GateMul { x: mixed, gate });
        }
        let (Projection { weight, bias }, Output { view, store }) = (self.o, out);
        pass.push(Linear { x: mixed, weight, bias, channels: None, out: view, store });
    }

    /// Which of the model's ropes turns queries and keys.
    pub(super) fn rope(&self) -> usize {
        self.spec.rope
    }

    /// Keys and values of `input` to the cache.
    pub(crate) fn remember(&self, pass: &mut Pass<'_>, input: Input, state: &LayerState) {
        self.project(pass, input, [None; 2]);
        self.rotate_and_store(pass, None, KvCache::of(state))
    }

    /// What is made of `input`: these, and keys and values where the layer has its own.
    fn project(
        &self,
        pass: &mut Pass<'_>,
        Input { x, norm }: Input,
        [q, gate]: [Option<LinearPart>; 2],
    ) {
        let [k, v] = self.projected_kv(pass);
        let own = self.own.as_ref();
        let [.., raw] = pass.scratch(self.spec.scratch());
        let raw = if self.spec.norm_whole { raw } else { k };
        let keys = own.map(|own| own.k.to(raw));
        let values = own.and_then(|own| own.v.as_ref().map(|projection| projection.to(v)));
        pass.push(Linears { x, norm, parts: [q, gate, keys, values] });
        if let Some(own) = own {
            self.norm_whole(pass, own.k_norm, self.spec.kv_heads, [raw, k]);
        }
    }

    /// Norms so many heads as one row, where the layer does that.
    fn norm_whole(
        &self,
        pass: &mut Pass<'_>,
        weight: Option<WeightId>,
        heads: usize,
        [x, out]: [View; 2],
    ) {
        if let Some(weight) = weight.filter(|_| self.spec.norm_whole) {
            let (dim, eps) = (heads * self.spec.head_dim, pass.sizes.eps);
            pass.push(RmsNorm { x, weight, out, dim, eps });
        }
    }

    /// The norm of each head, where the layer does that.
    fn head_norm(&self, pass: &Pass<'_>, weight: Option<WeightId>) -> Option<HeadNorm> {
        let weight = weight.filter(|_| !self.spec.norm_whole);
        weight.map(|weight| HeadNorm { weight, eps: pass.sizes.eps })
    }

    /// Scratch for keys and values on their way to the cache.
    fn projected_kv(&self, pass: &Pass<'_>) -> [View; 2] {
        let [_, _, _, k, v, _] = pass.scratch(self.spec.scratch());
        [k, v]
    }

    /// Queries, where there are some, normed and rotated; keys and values, where the layer has its own, to the cache.
    fn rotate_and_store(&self, pass: &mut Pass<'_>, queries: Option<Queries>, cache: KvCache) {
        let (table, rotary) = pass.rope_of(self.spec.rope);
        let KvCache { k: k_cache, v: v_cache, layout, ring } = cache;
        let keys = self.own.as_ref().map(|own| {
            let [k, v] = self.projected_kv(pass);
            NewKeys {
                k,
                v: if own.v.is_some() { v } else { k },
                k_norm: self.head_norm(pass, own.k_norm),
                v_norm: own.v_norm.map(|weight| HeadNorm { weight, eps: pass.sizes.eps }),
                places: pass.inputs.places_of(ring),
                k_cache,
                v_cache,
                layout,
            }
        });
        if queries.is_none() && keys.is_none() {
            return;
        }
        let head_dim = self.spec.head_dim;
        pass.push(AttentionInputs { table, rotary, head_dim, queries, keys });
    }
}

impl OwnKeys {
    fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: &AttentionSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let AttentionSpec { kv_heads, head_dim, bias, values, .. } = *spec;
        let at = |name: &str| format!("{path}.{name}");
        let shape = [kv_heads * head_dim, hidden];
        let k = Projection::load(loader, &at("k_proj"), shape, bias)?;
        let names = loader.names;
        let normed = spec.normed_width(kv_heads);
        let k_norm = spec.qk_norm.then(|| loader.norm(&at(names.k_norm), normed)).transpose()?;
        let v = match values {
            Values::FromKeys => None,
            _ => Some(Projection::load(loader, &at("v_proj"), shape, bias)?),
        };
        let v_norm = match values {
            Values::Projected => None,
            _ => Some(loader.numbers(&at("v_norm (ones)"), 1, &vec![1.0; head_dim])?),
        };
        Ok(Self { k, k_norm, v, v_norm })
    }
}

/// Splits a projection whose rows are `[query | gate]` head by head.
fn load_gated_query(
    loader: &mut Loader<'_>,
    path: &str,
    spec: &AttentionSpec,
    hidden: usize,
) -> Result<(Projection, Projection), ModelError> {
    let AttentionSpec { heads, head_dim, bias, .. } = *spec;
    let part = |half: usize| -> Vec<Range<usize>> {
        (0..heads).map(|h| (2 * h + half) * head_dim..(2 * h + half + 1) * head_dim).collect()
    };
    let both = loader.checkpoint.parts(path, &[2 * heads * head_dim, hidden])?;
    let biases = if bias {
        Some(loader.checkpoint.values(&format!("{path}.bias"), &[2 * heads * head_dim])?)
    } else {
        None
    };
    let half = |loader: &mut Loader<'_>, name: &str, which: usize| {
        let weight = loader.rows(&format!("{path} ({name})"), &both, &part(which))?;
        let bias = match &biases {
            Some(values) => {
                let own: Vec<f32> =
                    part(which).into_iter().flat_map(|r| &values[r]).copied().collect();
                Some(loader.numbers(&format!("{path} ({name} bias)"), 1, &own)?)
            }
            None => None,
        };
        Ok::<_, ModelError>(Projection { weight, bias })
    };
    Ok((half(loader, "query", 0)?, half(loader, "gate", 1)?))
}
