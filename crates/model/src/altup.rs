//! AltUp: a residual of several streams, of which a layer works on one, and a low-rank path beside attention (Laurel).
//!
//! ```text
//! s₀ = x₀, sᵢ = (x₀ · projectionᵢᵀ) as large as x₀                      before the first layer
//! s ← predict(s);  x = s_active                                         what a layer begins with
//! n = norm(x);  x ← (x + norm(attention(n)) + n + norm(n · leftᵀ · rightᵀ))·2^-½
//! x ← x + norm(mlp(norm(x)))
//! s ← correct(s, x)
//! sᵢ ← sᵢ + norm((gelu(s_active·scale · gateᵀ)·vector) · backᵀ)         for i > 0; the token's vector for the layer
//! x = mean(s₀, (sᵢ · unembedᵢᵀ) as large as s₀)                          after the last layer
//! ```

use crate::forward::{Output, Pass};
use crate::loader::Loader;
use crate::per_layer::PerLayerBlock;
use crate::{AltUpSpec, ModelError};
use forerun_backend::op::{
    AddNorm, CorrectStreams, Embed, Linear, LinearPart, Linears, MatchRms, PredictStreams, Store,
    Streams,
};
use forerun_backend::{View, WeightId};

/// Operations of it that a device may lack.
pub(crate) const OPERATIONS: &[&str] = &["predict_streams", "correct_streams", "match_rms"];

/// No mean square of a projected stream counts as less.
const FLOOR: f32 = 1e-5;

/// What makes streams of one and one of streams.
#[derive(Clone, Debug)]
pub(crate) struct AltUp {
    spec: AltUpSpec,
    /// For each stream but the first.
    projections: Vec<WeightId>,
    unembeddings: Vec<WeightId>,
}

/// One layer's part.
#[derive(Clone, Debug)]
pub(crate) struct AltUpBlock {
    spec: AltUpSpec,
    router_norm: WeightId,
    router: WeightId,
    predict: WeightId,
    correct: WeightId,
    scale: Option<WeightId>,
    laurel: Laurel,
}

/// A projection through few dims, and the norm of what comes back.
#[derive(Clone, Copy, Debug)]
struct Laurel {
    left: WeightId,
    right: WeightId,
    norm: WeightId,
}

impl AltUp {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        trunk: &str,
        spec: AltUpSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let others = spec.streams - 1;
        // A module for each, or all of them in one, as GGUF files have it.
        let mut each = |name: &str| -> Result<Vec<WeightId>, ModelError> {
            let whole = format!("{trunk}.{name}");
            let path = |i: usize| format!("{whole}.{i}");
            if !loader.checkpoint.has_matrix(&whole) {
                return (0..others).map(|i| loader.matrix(&path(i), [hidden; 2])).collect();
            }
            let all = loader.checkpoint.parts(&whole, &[others, hidden, hidden])?;
            let rows = |i: usize| i * hidden..(i + 1) * hidden;
            (0..others).map(|i| loader.rows(&path(i), &all, &[rows(i)])).collect()
        };
        let projections = each("altup_projections")?;
        Ok(Self { spec, projections, unembeddings: each("altup_unembed_projections")? })
    }

    /// All streams of the embeddings in `x`.
    pub(crate) fn spread(&self, pass: &mut Pass<'_>, embed: Embed) {
        let (space, dim) = (pass.space, pass.sizes.hidden);
        let x = pass.rows_of(space.x, dim);
        let streams = streams(pass, self.spec);
        let views = streams.views.into_iter().flatten();
        for (i, out) in views.enumerate() {
            if i == 0 {
                pass.push(Embed { out, ..embed });
                continue;
            }
            let projected = pass.rows_of(space.branch, dim);
            pass.push(Linear::set(x, self.projections[i - 1], projected));
            pass.push(matched(projected, x, out, dim));
        }
    }

    /// One stream in `x`: the mean of all of them.
    pub(crate) fn merge(&self, pass: &mut Pass<'_>) {
        let (space, dim) = (pass.space, pass.sizes.hidden);
        let out = pass.rows_of(space.x, dim);
        let projected = pass.rows_of(space.branch, dim);
        let streams = streams(pass, self.spec);
        let scale = 1.0 / self.spec.streams as f32;
        let mut first = None;
        for (i, stream) in streams.views.into_iter().flatten().enumerate() {
            let Some(like) = first else {
                first = Some(stream);
                let floor = f32::MIN_POSITIVE;
                pass.push(MatchRms { floor, scale, ..matched(stream, stream, out, dim) });
                continue;
            };
            pass.push(Linear::set(stream, self.unembeddings[i - 1], projected));
            let one = matched(projected, like, out, dim);
            pass.push(MatchRms { scale, store: Store::Add, ..one });
        }
    }
}

fn matched(x: View, like: View, out: View, dim: usize) -> MatchRms {
    MatchRms { x, like, out, dim, floor: FLOOR, scale: 1.0, store: Store::Set }
}

/// The batch's rows of every stream.
fn streams(pass: &Pass<'_>, spec: AltUpSpec) -> Streams {
    let dim = pass.sizes.hidden;
    let mut views = [None; Streams::MOST];
    for (view, &buffer) in views.iter_mut().zip(&pass.space.altup.all) {
        *view = Some(pass.rows_of(buffer, dim));
    }
    Streams { views, dim, active: spec.active }
}

impl AltUpBlock {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        block: &str,
        spec: AltUpSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let AltUpSpec { streams, laurel, scaled, .. } = spec;
        let at = |name: &str| format!("{block}.altup.{name}");
        // What the router reads is divided by its width; so is the weight of the norm that makes it.
        let name = format!("{}.weight", at("router_norm"));
        let router_norm = loader.vector(&name, hidden, |w| w / hidden as f32)?;
        let scale = at("correct_output_scale");
        let of_laurel = |name: &str| format!("{block}.laurel.{name}");
        Ok(Self {
            spec,
            router_norm,
            router: loader.matrix(&at("modality_router"), [streams, hidden])?,
            predict: loader.small_matrix(&at("prediction_coefs"), [streams * streams, streams])?,
            correct: loader.small_matrix(&at("correction_coefs"), [streams; 2])?,
            scale: scaled.then(|| loader.vector(&scale, hidden, |s| s)).transpose()?,
            laurel: Laurel {
                left: loader.matrix(&of_laurel("linear_left"), [laurel, hidden])?,
                right: loader.matrix(&of_laurel("linear_right"), [hidden, laurel])?,
                norm: loader.norm(&of_laurel("post_laurel_norm"), hidden)?,
            },
        })
    }

    /// What the router says of the rows in `x`.
    fn route(&self, pass: &mut Pass<'_>, x: View) -> View {
        let out = pass.rows_of(pass.space.altup.router, self.spec.streams);
        let norm = pass.norm_of(self.router_norm).norm;
        let part = LinearPart { weight: self.router, bias: None, out };
        pass.push(Linears { x, norm, parts: [Some(part), None, None, None] });
        out
    }

    /// The streams as they are expected to be after the layer; the active one to `x`.
    pub(crate) fn predict(&self, pass: &mut Pass<'_>) {
        let streams = streams(pass, self.spec);
        let out = pass.rows_of(pass.space.x, pass.sizes.hidden);
        let active = streams.views[self.spec.active].expect("the active stream is one of them");
        let router = self.route(pass, active);
        pass.push(PredictStreams { streams, router, weight: self.predict, out });
    }

    /// The low-rank path of the rows in `x`, as far as its few dims.
    pub(crate) fn narrow(&self, pass: &mut Pass<'_>, norm: WeightId) {
        let input = pass.norm_of(norm);
        let out = pass.rows_of(pass.space.altup.laurel, self.spec.laurel);
        let part = LinearPart { weight: self.laurel.left, bias: None, out };
        pass.push(Linears { x: input.x, norm: input.norm, parts: [Some(part), None, None, None] });
    }

    /// Adds what attention read, and the path back from those few dims, to `x`, which has what attention gave.
    pub(crate) fn widen(&self, pass: &mut Pass<'_>, norm: WeightId) {
        let (space, dim, eps) = (pass.space, pass.sizes.hidden, pass.sizes.eps);
        let [out, branch] = [space.x, space.branch].map(|buffer| pass.rows_of(buffer, dim));
        // The active stream still is what `x` was.
        let x = streams(pass, self.spec).views[self.spec.active];
        let x = x.expect("the active stream is one of them");
        pass.push(AddNorm { x, weight: norm, out, dim, eps, scale: 1.0 });
        let narrow = pass.rows_of(space.altup.laurel, self.spec.laurel);
        pass.push(Linear::set(narrow, self.laurel.right, branch));
        pass.add_norm(space.branch, self.laurel.norm, space.x, std::f32::consts::FRAC_1_SQRT_2);
    }

    /// The streams after the layer, which left its result in `x`, and what the token's own vector adds to all but the
    /// first of them.
    pub(crate) fn correct(&self, pass: &mut Pass<'_>, vectors: Option<&PerLayerBlock>) {
        let (space, dim) = (pass.space, pass.sizes.hidden);
        let x = pass.rows_of(space.x, dim);
        let router = self.route(pass, x);
        let (streams, out) = (streams(pass, self.spec), pass.rows_of(space.normed, dim));
        let (weight, scale) = (self.correct, self.scale);
        pass.push(CorrectStreams { streams, x, router, weight, scale, out });
        let Some(vectors) = vectors else { return };
        let branch = Output { view: pass.rows_of(space.branch, dim), store: Store::Set };
        let norm = vectors.bring(pass, out, branch);
        for &stream in &space.altup.all[1..] {
            pass.add_norm(space.branch, norm, stream, 1.0);
        }
    }
}
