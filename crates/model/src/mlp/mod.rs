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
    /// The MLP of a spec, where that has one.
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        block: &str,
        spec: &MlpSpec,
        hidden: usize,
    ) -> Result<Option<Self>, ModelError> {
        let names = loader.names;
        Ok(Some(match spec {
            MlpSpec::Dense(ffn) => {
                // MLX calls Granite's shared MLP by the common name where nothing stands beside it.
                let converted = format!("{block}.mlp");
                let published = format!("{block}.{}", names.mlp);
                let is_converted = loader.checkpoint.has_matrix(&format!("{converted}.gate_proj"));
                let path = if is_converted { converted } else { published };
                Self::Dense(Dense::load(loader, &path, *ffn, hidden)?)
            }
            MlpSpec::Sparse { ffn, deviations } => {
                let path = format!("{block}.{}", names.mlp);
                let mut mlp = Dense::load(loader, &path, *ffn, hidden)?;
                mlp.deviations = Some(*deviations);
                Self::Dense(mlp)
            }
            MlpSpec::Moe(spec) => {
                let path = format!("{block}.{}", names.moe);
                let shared = format!("{block}.{}", names.shared_expert);
                Self::Moe(Moe::load(loader, [&path, &shared], spec, hidden)?)
            }
            MlpSpec::Hashed(spec) => {
                let path = format!("{block}.{}", names.moe);
                let shared = format!("{block}.{}", names.shared_expert);
                Self::Moe(Moe::load_hashed(loader, [&path, &shared], spec, hidden)?)
            }
            MlpSpec::Beside { dense, moe } => {
                Self::Beside(Beside::load(loader, block, *dense, moe, hidden)?)
            }
            MlpSpec::None => return Ok(None),
        }))
    }

    /// `mlp(norm(x))` to `out`, with `x` the residual stream; experts need the norm.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, norm: Option<WeightId>, out: Output) {
        let Some(norm) = norm else {
            return match self {
                Self::Dense(mlp) => mlp.forward(pass, pass.input_of(None), out),
                _ => {
                    unreachable!("no family has experts in a block without norms before its parts")
                }
            };
        };
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
