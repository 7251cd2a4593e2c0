//! Latent attention: the cache holds a latent and one rope key of all heads; keys and values of a head are products of
//! the latent with matrices of its own, which are multiplied into queries and outputs instead.
//!
//! ```text
//! [rope key | latent] = kv_a x, the latent normed, the rope key rotated        what the cache holds
//! q = q_b(norm(q_a x)), or q_proj x;  q_h = [rope | nope] rotated
//! q'_h = [rope_h | W_UK,hᵀ nope_h]                                             as wide as a row of the cache
//! o_h = W_UV,h (softmax(scale · q'_h · rowᵀ) latent)
//! ```
//!
//! Prefill takes the same products as decoding, so that a position has the same bits however it was read.

use super::projection::Projection;
use crate::forward::{Input, Output, Pass};
use crate::loader::Loader;
use crate::state::{StateDecl, StateKind};
use crate::{KV_BLOCK, LatentSpec, LayerState, Limits, ModelError};
use forerun_backend::WeightId;
use forerun_backend::op::{
    CacheLayout, CacheOrder, HeadLinear, HeadNorm, InputNorm, LatentAttention, LatentInputs,
    Linear, Linears,
};
use forerun_base::{DType, Matrix};
use std::fmt;
use std::iter::once;
use std::ops::Range;

/// Added to mean squares in the norms of the latent and of the query's, whatever the config says of other norms.
const EPS: f32 = 1e-6;

/// Weights of one latent mixer.
#[derive(Clone, Debug)]
pub(crate) struct Latent {
    spec: LatentSpec,
    /// To the query's own latent, and its norm.
    q_down: Option<(Projection, WeightId)>,
    q: Projection,
    kv: Projection,
    kv_norm: WeightId,
    /// Transposed key matrices, `[heads · latent, nope]`.
    absorb: WeightId,
    /// Value matrices, `[heads · value, latent]`.
    expand: WeightId,
    o: Projection,
}

impl LatentSpec {
    /// Width of a row of the cache.
    const fn width(&self) -> usize {
        self.rope_dim + self.latent
    }

    pub(super) fn weights(&self, hidden: usize) -> usize {
        let Self { heads, latent, nope, value, .. } = *self;
        let q = heads * (self.rope_dim + nope);
        let queries = self.q_latent.map_or(hidden * q, |width| width * (hidden + q));
        let heads = heads * (latent * (nope + value) + value * hidden);
        queries + hidden * self.width() + heads
    }

    pub(super) fn state(&self, limits: &Limits) -> [StateDecl; 1] {
        let layout = CacheLayout {
            blocks: limits.blocks(),
            kv_heads: 1,
            block: KV_BLOCK,
            head_dim: self.width(),
            coded: limits.kv == DType::I8,
            order: CacheOrder::default(),
        };
        [StateDecl { name: "latent", kind: StateKind::Paged(layout), len: layout.len() }]
    }

    /// The query's latent and its normed form, queries, these as wide as the cache, new rows of it, mixed latents,
    /// values.
    pub(super) fn scratch(&self) -> [usize; 7] {
        let Self { heads, rope_dim, nope, latent, value, .. } = *self;
        let down = self.q_latent.unwrap_or(0);
        let (q, wide) = (heads * (rope_dim + nope), heads * self.width());
        [down, down, q, wide, self.width(), heads * latent, heads * value]
    }
}

impl fmt::Display for LatentSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heads, latent, rope_dim, .. } = self;
        write!(f, "latent attention, {heads} heads, latent {latent}, rope key {rope_dim}")
    }
}

impl Latent {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: &LatentSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let LatentSpec { heads, rope_dim, latent, nope, value, bias, .. } = *spec;
        let at = |name: &str| format!("{path}.{name}");
        let queries: Vec<Range<usize>> = (0..heads)
            .flat_map(|head| {
                let first = head * (nope + rope_dim);
                spec.rope_rows(first + nope).chain(once(first..first + nope))
            })
            .collect();
        let wide = heads * (nope + rope_dim);
        let (q_down, q) = match spec.q_latent {
            Some(width) => {
                let down = Projection::load(loader, &at("q_a_proj"), [width, hidden], bias)?;
                let norm = loader.norm(&at("q_a_layernorm"), width)?;
                let up = loader.checkpoint.parts(&at("q_b_proj"), &[wide, width])?;
                (Some((down, norm)), loader.rows(&at("q_b_proj"), &up, &queries)?)
            }
            None => {
                let up = loader.checkpoint.parts(&at("q_proj"), &[wide, hidden])?;
                (None, loader.rows(&at("q_proj"), &up, &queries)?)
            }
        };
        let rows: Vec<_> = spec.rope_rows(latent).chain(once(0..latent)).collect();
        let kv = at("kv_a_proj_with_mqa");
        let down = loader.checkpoint.parts(&kv, &[latent + rope_dim, hidden])?;
        let kv_bias = match bias {
            false => None,
            true => {
                let stored =
                    loader.checkpoint.values(&format!("{kv}.bias"), &[latent + rope_dim])?;
                let own: Vec<f32> =
                    rows.iter().flat_map(|rows| &stored[rows.clone()]).copied().collect();
                Some(loader.numbers(&format!("{kv}.bias"), 1, &own)?)
            }
        };
        let kv = Projection { weight: loader.rows(&kv, &down, &rows)?, bias: kv_bias };
        let (absorb, expand) = load_heads(loader, &at("kv_b_proj"), spec)?;
        Ok(Self {
            spec: spec.clone(),
            q_down,
            q: Projection { weight: q, bias: None },
            kv,
            kv_norm: loader.norm(&at("kv_a_layernorm"), latent)?,
            absorb,
            expand,
            o: Projection::load(loader, &at("o_proj"), [hidden, heads * value], bias)?,
        })
    }

    /// `o(attention(input))` to `out`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        input: Input,
        state: &LayerState,
        out: Output,
    ) {
        let LatentSpec { heads, latent, rope_dim, scale, .. } = self.spec;
        let [down, room, q, wide, kv, mixed, values] = pass.scratch(self.spec.scratch());
        let Input { x, norm } = input;
        let kv_part = Some(self.kv.to(kv));
        match &self.q_down {
            None => {
                pass.push(Linears { x, norm, parts: [Some(self.q.to(q)), kv_part, None, None] })
            }
            Some((projection, weight)) => {
                pass.push(Linears {
                    x,
                    norm,
                    parts: [Some(projection.to(down)), kv_part, None, None],
                });
                let dim = self.spec.q_latent.unwrap_or(0);
                let norm = Some(InputNorm { weight: *weight, dim, eps: EPS, room });
                pass.push(Linears { x: down, norm, parts: [Some(self.q.to(q)), None, None, None] });
            }
        }
        pass.push(HeadLinear { x: q, weight: self.absorb, heads, carry: rope_dim, out: wide });
        let inputs = self.inputs(pass, state, true);
        pass.push(inputs);
        pass.push(LatentAttention {
            q: wide,
            cache: inputs.cache,
            layout: inputs.layout,
            latent,
            positions: pass.inputs.positions,
            span_of: pass.inputs.table_lines,
            tables: pass.space.tables_of(false),
            table_width: pass.space.limits.table_width(),
            heads,
            scale,
            out: mixed,
        });
        pass.push(HeadLinear { x: mixed, weight: self.expand, heads, carry: 0, out: values });
        let (Projection { weight, bias }, Output { view, store }) = (self.o, out);
        pass.push(Linear { x: values, weight, bias, channels: None, out: view, store });
    }

    /// The rows of `input` to the cache.
    pub(crate) fn remember(
        &self,
        pass: &mut Pass<'_>,
        Input { x, norm }: Input,
        state: &LayerState,
    ) {
        let [_, _, _, _, kv, ..] = pass.scratch(self.spec.scratch());
        pass.push(Linears { x, norm, parts: [Some(self.kv.to(kv)), None, None, None] });
        let inputs = self.inputs(pass, state, false);
        pass.push(inputs);
    }

    /// Queries, where there are some, rotated, and new rows of the cache stored.
    fn inputs(&self, pass: &Pass<'_>, state: &LayerState, queries: bool) -> LatentInputs {
        let [_, _, _, wide, kv, ..] = pass.scratch(self.spec.scratch());
        let [cache] = state.views();
        let StateKind::Paged(layout) = state.buffers()[0].kind else {
            unreachable!("latents are kept in blocks")
        };
        let (table, rotary) = match self.spec.rope {
            Some(rope) => pass.rope_of(rope),
            None => (kv.part(0, 0), 0),
        };
        LatentInputs {
            table,
            rotary,
            q: if queries { wide } else { wide.part(0, 0) },
            heads: self.spec.heads,
            kv,
            norm: HeadNorm { weight: self.kv_norm, eps: EPS },
            places: pass.inputs.places_of(false),
            cache,
            layout,
        }
    }
}

impl LatentSpec {
    /// The rows of a rope part that begins at `first`, so that pair `i` is `(i, i + rope_dim/2)`.
    fn rope_rows(&self, first: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (len, paired) = (self.rope_dim, self.interleaved && self.rope.is_some());
        let order = (0..len).map(move |i| match paired {
            true if i < len / 2 => 2 * i,
            true => 2 * (i - len / 2) + 1,
            false => i,
        });
        order.map(move |i| first + i..first + i + 1)
    }
}

/// Key matrices of the heads, transposed, and value matrices as they are stored.
fn load_heads(
    loader: &mut Loader<'_>,
    path: &str,
    spec: &LatentSpec,
) -> Result<(WeightId, WeightId), ModelError> {
    let LatentSpec { heads, latent, nope, value, .. } = *spec;
    let both = loader.checkpoint.parts(path, &[heads * (nope + value), latent])?;
    let values: Vec<_> =
        (0..heads).map(|h| h * (nope + value) + nope..(h + 1) * (nope + value)).collect();
    let mut keys = vec![0.0_f32; heads * latent * nope];
    let mut line = vec![0.0; latent];
    for (head, to) in keys.chunks_exact_mut(latent * nope).enumerate() {
        let first = head * (nope + value);
        let block = both.block(first..first + nope);
        for i in 0..nope {
            block.decode_row(i, &mut line);
            line.iter().enumerate().for_each(|(j, &x)| to[j * nope + i] = x);
        }
    }
    // Turned rows are no rows of a format with scales; half the bytes are enough where no digit is lost.
    let label = format!("{path} (keys, transposed)");
    let absorb = match keys.iter().all(|x| x.to_bits() & 0xffff == 0) {
        false => loader.numbers(&label, heads * latent, &keys)?,
        true => {
            let half = |x: &f32| ((x.to_bits() >> 16) as u16).to_le_bytes();
            let bytes: Vec<u8> = keys.iter().flat_map(half).collect();
            let matrix = Matrix::dense(heads * latent, nope, DType::BF16, bytes.into());
            let matrix = matrix.map_err(|e| ModelError::Layout(format!("{label}: {e}")))?;
            loader.upload(&label, matrix)?
        }
    };
    Ok((absorb, loader.rows(&format!("{path} (values)"), &both, &values)?))
}
