//! SwiGLU.

use crate::ModelError;
use crate::forward::Pass;
use crate::loader::Loader;
use forerun_backend::op::{Activation, GatedLinear};
use forerun_backend::{BackendError, View, WeightId};

/// Weights of one SwiGLU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    ffn: usize,
    gate: WeightId,
    up: WeightId,
    /// The projection back to the residual stream.
    pub(super) down: WeightId,
}

impl Dense {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        ffn: usize,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            ffn,
            gate: loader.matrix(&format!("{path}.gate_proj"), [ffn, hidden])?,
            up: loader.matrix(&format!("{path}.up_proj"), [ffn, hidden])?,
            down: loader.matrix(&format!("{path}.down_proj"), [hidden, ffn])?,
        })
    }

    /// `silu(gate normed) · (up normed)`.
    pub(super) fn activate(&self, pass: &mut Pass<'_>) -> Result<View, BackendError> {
        let x = pass.rows_of(pass.space.normed, pass.hidden);
        let out = pass.rows_of(pass.space.activated, self.ffn);
        let scratch = pass.rows_of(pass.space.up, self.ffn);
        let Self { gate, up, .. } = *self;
        pass.backend.gated_linear(GatedLinear {
            x,
            gate,
            up,
            scratch,
            out,
            activation: Activation::Silu,
        })?;
        Ok(out)
    }
}
