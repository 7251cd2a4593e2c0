//! What follows the mixer: SwiGLU, dense or as a mixture of experts.

mod dense;
mod moe;

pub(crate) use dense::Dense;
pub(crate) use moe::Moe;

use crate::forward::Pass;
use crate::loader::Loader;
use crate::{MlpSpec, ModelError};
use forerun_backend::BackendError;
use forerun_backend::op::Linear;

/// An MLP's weights on the device.
#[derive(Clone, Debug)]
pub(crate) enum Mlp {
    /// SwiGLU.
    Dense(Dense),
    /// Experts.
    Moe(Moe),
}

impl Mlp {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        block: &str,
        spec: &MlpSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let path = format!("{block}.mlp");
        Ok(match spec {
            MlpSpec::Dense(ffn) => Self::Dense(Dense::load(loader, &path, *ffn, hidden)?),
            MlpSpec::Moe(spec) => Self::Moe(Moe::load(loader, &path, spec, hidden)?),
        })
    }

    /// `x += mlp(normed)`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>) -> Result<(), BackendError> {
        match self {
            Self::Dense(mlp) => {
                let x = pass.rows_of(pass.space.x, pass.hidden);
                let activated = mlp.activate(pass)?;
                pass.backend.linear(Linear::add(activated, mlp.down, x))
            }
            Self::Moe(mlp) => mlp.forward(pass),
        }
    }
}
