//! What follows the mixer: a gated MLP, a mixture of experts, or both side by side.

mod beside;
mod dense;
mod moe;

pub(crate) use beside::Beside;
pub(crate) use dense::Dense;
pub(crate) use moe::Moe;

use crate::forward::{Output, Pass};
use crate::loader::Loader;
use crate::{MlpSpec, ModelError};
use forerun_backend::WeightId;

/// An MLP's weights on the device.
#[derive(Clone, Debug)]
pub(crate) enum Mlp {
    /// A gated MLP.
    Dense(Dense),
    /// Experts.
    Moe(Moe),
    /// Both.
    Beside(Beside),
}

impl Mlp {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        block: &str,
        spec: &MlpSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let names = loader.names;
        Ok(match spec {
            MlpSpec::Dense(ffn) => {
                let path = format!("{block}.{}", names.mlp);
                Self::Dense(Dense::load(loader, &path, *ffn, hidden)?)
            }
            MlpSpec::Moe(spec) => {
                let path = format!("{block}.{}", names.moe);
                Self::Moe(Moe::load(loader, &path, spec, hidden)?)
            }
            MlpSpec::Hashed(spec) => {
                let path = format!("{block}.{}", names.moe);
                Self::Moe(Moe::load_hashed(loader, &path, spec, hidden)?)
            }
            MlpSpec::Beside { dense, moe } => {
                Self::Beside(Beside::load(loader, block, *dense, moe, hidden)?)
            }
        })
    }

    /// `mlp(norm(x))` to `out`, with `x` the residual stream.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, norm: WeightId, out: Output) {
        match self {
            Self::Dense(mlp) => mlp.forward(pass, pass.norm_of(norm), out),
            Self::Moe(mlp) => {
                pass.norm(pass.space.x, norm, pass.space.normed);
                mlp.forward(pass, out)
            }
            Self::Beside(mlp) => mlp.forward(pass, pass.norm_of(norm), out),
        }
    }

    /// `mlp(normed)` to `out`, where that is not the residual stream.
    pub(crate) fn forward_normed(&self, pass: &mut Pass<'_>, out: Output) {
        match self {
            Self::Dense(mlp) => mlp.forward(pass, pass.normed(), out),
            Self::Moe(mlp) => mlp.forward(pass, out),
            Self::Beside(_) => unreachable!("two parts side by side read the residual stream"),
        }
    }
}
