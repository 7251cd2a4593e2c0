//! A gated MLP and a mixture of experts side by side, each with norms of its own.
//!
//! ```text
//! out = norm₁(mlp(input)) + norm₂(experts(norm(x)))      experts chosen by rms(x)·scale
//! ```

use super::{Dense, Moe};
use crate::forward::{Input, Output, Pass};
use crate::loader::Loader;
use crate::{ModelError, MoeSpec};
use forerun_backend::WeightId;
use forerun_backend::op::{AddNorm, RmsNorm, Store};

/// Weights of both.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    dense: Dense,
    dense_norm: WeightId,
    moe: Moe,
    /// Norm of the residual stream before the router.
    router_norm: WeightId,
    experts_norm: WeightId,
    mixed_norm: WeightId,
}

impl Beside {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        block: &str,
        ffn: usize,
        moe: &MoeSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let at = |name: &str| format!("{block}.{name}");
        let root = (hidden as f32).sqrt();
        Ok(Self {
            dense: Dense::load(loader, &at("mlp"), ffn, hidden)?,
            dense_norm: loader.norm(&at("post_feedforward_layernorm_1"), hidden)?,
            moe: Moe::load_beside(loader, block, moe, hidden)?,
            router_norm: loader.vector(&at("router.scale"), hidden, |s| s / root)?,
            experts_norm: loader.norm(&at("pre_feedforward_layernorm_2"), hidden)?,
            mixed_norm: loader.norm(&at("post_feedforward_layernorm_2"), hidden)?,
        })
    }

    /// Both over the rows; `out` is set.
    pub(super) fn forward(&self, pass: &mut Pass<'_>, input: Input, out: Output) {
        let (space, dim, eps) = (pass.space, pass.sizes.hidden, pass.sizes.eps);
        let raw = pass.rows_of(space.raw, dim);
        let set = Output { view: raw, store: Store::Set };
        self.dense.forward(pass, input, set);
        let (weight, result) = (self.dense_norm, out.view);
        pass.push(RmsNorm { x: raw, weight, out: result, dim, eps });
        pass.norm(space.x, self.router_norm, space.normed);
        self.moe.route(pass);
        pass.norm(space.x, self.experts_norm, space.normed);
        self.moe.mix(pass, set);
        let weight = self.mixed_norm;
        pass.push(AddNorm { x: raw, weight, out: result, dim, eps, scale: 1.0 });
    }
}
