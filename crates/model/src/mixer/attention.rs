//! Softmax attention with optional head norms, partial rope, output gate and biases.

use crate::forward::Pass;
use crate::loader::Loader;
use crate::{AttentionSpec, ModelError};
use forerun_backend::op::{self, CacheLayout, CacheWrite, GateMul, HeadNorm, Linear, Rope, Store};
use forerun_backend::{BackendError, View, WeightId};
use std::ops::Range;

/// Weights of one attention mixer.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    spec: AttentionSpec,
    q: Projection,
    /// Output gate, one row per query row.
    gate: Option<Projection>,
    k: Projection,
    v: Projection,
    o: Projection,
    q_norm: Option<WeightId>,
    k_norm: Option<WeightId>,
}

/// A weight and its bias.
#[derive(Clone, Copy, Debug)]
struct Projection {
    weight: WeightId,
    bias: Option<WeightId>,
}

impl Projection {
    fn load(
        loader: &mut Loader<'_>,
        path: &str,
        [rows, cols]: [usize; 2],
        bias: bool,
    ) -> Result<Self, ModelError> {
        let weight = loader.matrix(path, [rows, cols])?;
        let bias = bias.then(|| loader.vector(&format!("{path}.bias"), rows, |b| b)).transpose()?;
        Ok(Self { weight, bias })
    }

    fn apply(&self, pass: &mut Pass<'_>, x: View, out: View) -> Result<(), BackendError> {
        let Self { weight, bias } = *self;
        pass.backend.linear(Linear { x, weight, bias, out, store: Store::Set })
    }
}

impl Attention {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: &AttentionSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let AttentionSpec { heads, kv_heads, head_dim, bias, .. } = *spec;
        let (q_rows, kv_rows) = (heads * head_dim, kv_heads * head_dim);
        let (q, gate) = if spec.gated {
            let (q, gate) = load_gated_query(loader, &format!("{path}.q_proj"), spec, hidden)?;
            (q, Some(gate))
        } else {
            (Projection::load(loader, &format!("{path}.q_proj"), [q_rows, hidden], bias)?, None)
        };
        let mut head_norm = |name: &str| -> Result<Option<WeightId>, ModelError> {
            spec.qk_norm.then(|| loader.norm(&format!("{path}.{name}"), head_dim)).transpose()
        };
        let (q_norm, k_norm) = (head_norm("q_norm")?, head_norm("k_norm")?);
        let mut project = |name: &str, shape: [usize; 2]| {
            Projection::load(loader, &format!("{path}.{name}"), shape, bias)
        };
        Ok(Self {
            spec: spec.clone(),
            q,
            gate,
            k: project("k_proj", [kv_rows, hidden])?,
            v: project("v_proj", [kv_rows, hidden])?,
            o: project("o_proj", [hidden, q_rows])?,
            q_norm,
            k_norm,
        })
    }

    /// `x += o(attention(normed))`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        k_cache: View,
        v_cache: View,
        layout: CacheLayout,
    ) -> Result<(), BackendError> {
        let AttentionSpec { heads, kv_heads, head_dim, .. } = self.spec;
        let space = pass.space;
        let normed = pass.rows_of(space.normed, pass.hidden);
        let q = pass.rows_of(space.q, heads * head_dim);
        let k = pass.rows_of(space.k, kv_heads * head_dim);
        let v = pass.rows_of(space.v, kv_heads * head_dim);
        let out = pass.rows_of(space.mixed, heads * head_dim);
        self.q.apply(pass, normed, q)?;
        self.k.apply(pass, normed, k)?;
        self.v.apply(pass, normed, v)?;
        self.turn(pass, q, heads, self.q_norm)?;
        self.turn(pass, k, kv_heads, self.k_norm)?;
        let places = pass.index_of(space.index.places);
        pass.backend.cache_write(CacheWrite { k, v, places, k_cache, v_cache, layout })?;
        pass.backend.attention(op::Attention {
            q,
            k_cache,
            v_cache,
            layout,
            positions: pass.index_of(space.index.positions),
            span_of: pass.index_of(space.index.span_of),
            tables: View::head(space.index.tables, pass.spans * space.limits.table_width()),
            table_width: space.limits.table_width(),
            heads,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: None,
            visible_keys: pass.visible_keys,
            out,
        })?;
        if let Some(projection) = &self.gate {
            let gate = pass.rows_of(space.gate, heads * head_dim);
            projection.apply(pass, normed, gate)?;
            pass.backend.gate_mul(GateMul { x: out, gate })?;
        }
        let x = pass.rows_of(space.x, pass.hidden);
        let Projection { weight, bias } = self.o;
        pass.backend.linear(Linear { x: out, weight, bias, out: x, store: Store::Add })
    }

    fn turn(
        &self,
        pass: &mut Pass<'_>,
        x: View,
        heads: usize,
        norm: Option<WeightId>,
    ) -> Result<(), BackendError> {
        let rotary = pass.rotary;
        pass.backend.rope(Rope {
            x,
            table: pass.rows_of(pass.space.rope, rotary),
            norm: norm.map(|weight| HeadNorm { weight, eps: pass.eps }),
            heads,
            head_dim: self.spec.head_dim,
            rotary,
        })
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
    let both = loader.checkpoint.matrix(path, [2 * heads * head_dim, hidden])?;
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
