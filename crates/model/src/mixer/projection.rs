//! A projection of a mixer.

use crate::ModelError;
use crate::loader::Loader;
use forerun_backend::op::LinearPart;
use forerun_backend::{View, WeightId};

/// A weight and its bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Projection {
    pub(super) weight: WeightId,
    pub(super) bias: Option<WeightId>,
}

impl Projection {
    /// From the modules `path` and, where there is a bias, `path.bias`.
    pub(super) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        [rows, cols]: [usize; 2],
        bias: bool,
    ) -> Result<Self, ModelError> {
        let weight = loader.matrix(path, [rows, cols])?;
        let bias = bias.then(|| loader.vector(&format!("{path}.bias"), rows, |b| b)).transpose()?;
        Ok(Self { weight, bias })
    }

    /// Its part of a product, which goes to `out`.
    pub(super) fn to(&self, out: View) -> LinearPart {
        LinearPart { weight: self.weight, bias: self.bias, out }
    }
}
