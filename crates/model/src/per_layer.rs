//! Per-layer inputs: a second embedding that holds, for every token, one vector per layer.
//!
//! ```text
//! tok = table[id]·√q            ctx = norm((x₀ · projectionᵀ)·H^-½)
//! vectors = (ctx + tok)·2^-½                                  one of width q per layer
//! x ← (x + norm((gelu(x · gateᵀ)·vector) · backᵀ))·scale      at the end of each block
//! ```
//!
//! The factor H^-½ stands under a norm, where it only changes the weight of `eps`: `norm(c·s)` with `eps` is
//! `norm(c)` with `eps / s²`.

use crate::forward::{Output, Pass};
use crate::loader::Loader;
use crate::{ModelError, ModelSpec, PerLayerSpec};
use forerun_backend::op::{AddNorm, Embed, Glu, Linear, Store};
use forerun_backend::{View, WeightId};
use std::ops::Range;

/// What all layers share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerLayerInputs {
    spec: PerLayerSpec,
    layers: usize,
    table: WeightId,
    projection: WeightId,
    norm: WeightId,
}

/// One layer's part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerLayerBlock {
    width: usize,
    /// Width of a row of all layers' vectors, and where this layer's begins.
    all: usize,
    first: usize,
    gate: WeightId,
    back: WeightId,
    norm: WeightId,
}

impl PerLayerInputs {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        trunk: &str,
        model: &ModelSpec,
        spec: PerLayerSpec,
    ) -> Result<Self, ModelError> {
        let (layers, at) = (model.layers.len(), |name: &str| format!("{trunk}.{name}"));
        let all = layers * spec.width;
        Ok(Self {
            spec,
            layers,
            table: load_table(
                loader,
                &at("embed_tokens_per_layer"),
                model.vocabulary,
                [spec.vocabulary, all],
            )?,
            projection: loader.matrix(&at("per_layer_model_projection"), [all, model.hidden])?,
            norm: loader.norm(&at("per_layer_projection_norm"), spec.width)?,
        })
    }

    /// All layers' vectors of the batch's rows; `x` holds the scaled embeddings.
    pub(crate) fn prepare(&self, pass: &mut Pass<'_>) {
        let (space, hidden) = (pass.space, pass.sizes.hidden);
        let PerLayerSpec { width, .. } = self.spec;
        let out = pass.rows_of(space.per_layer.vectors, self.layers * width);
        let context = pass.rows_of(space.per_layer.context, self.layers * width);
        let ids = pass.inputs.embedded;
        let scale = (width as f32).sqrt();
        pass.push(Embed { ids, table: self.table, out, scale });
        let x = pass.rows_of(space.x, hidden);
        pass.push(Linear::set(x, self.projection, context));
        pass.push(AddNorm {
            x: context,
            weight: self.norm,
            out,
            dim: width,
            eps: pass.sizes.eps * hidden as f32,
            scale: std::f32::consts::FRAC_1_SQRT_2,
        });
    }
}

/// The table; tokens past its end have its first row.
fn load_table(
    loader: &mut Loader<'_>,
    path: &str,
    tokens: usize,
    [rows, width]: [usize; 2],
) -> Result<WeightId, ModelError> {
    let past = tokens.saturating_sub(rows);
    if past == 0 {
        return loader.matrix(path, [rows, width]);
    }
    let table = loader.checkpoint.parts(path, &[rows, width])?;
    let ranges: Vec<Range<usize>> =
        std::iter::once(0..rows).chain(std::iter::repeat_n(0..1, past)).collect();
    loader.rows(path, &table, &ranges)
}

impl PerLayerBlock {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        block: &str,
        model: &ModelSpec,
        spec: PerLayerSpec,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let (width, hidden) = (spec.width, model.hidden);
        let at = |name: &str| format!("{block}.{name}");
        Ok(Self {
            width,
            all: model.layers.len() * width,
            first: layer * width,
            gate: loader.matrix(&at("per_layer_input_gate"), [width, hidden])?,
            back: loader.matrix(&at("per_layer_projection"), [hidden, width])?,
            norm: loader.norm(&at("post_per_layer_input_norm"), hidden)?,
        })
    }

    /// What it adds to the residual stream in `x`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, scale: f32) {
        let (space, dim) = (pass.space, pass.sizes.hidden);
        let [x, view] = [space.x, space.branch].map(|buffer| pass.rows_of(buffer, dim));
        let norm = self.bring(pass, x, Output { view, store: Store::Set });
        pass.add_norm(space.branch, norm, space.x, scale)
    }

    /// What it makes of the rows in `x`, to `out`; the norm that is left to do.
    pub(crate) fn bring(&self, pass: &mut Pass<'_>, x: View, out: Output) -> WeightId {
        let (space, activation) = (pass.space, pass.sizes.activation);
        let gate = pass.rows_of(space.per_layer.gate, self.width);
        let up = pass.rows_of(space.per_layer.vectors, self.all);
        pass.push(Linear::set(x, self.gate, gate));
        let (dim, up_width, up_first) = (self.width, self.all, self.first);
        pass.push(Glu { gate, up, dim, up_width, up_first, activation });
        pass.push(Linear { store: out.store, ..Linear::set(gate, self.back, out.view) });
        self.norm
    }
}
