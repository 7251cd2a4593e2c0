//! The multi-token-prediction head's weights: two norms, a joining projection, one attention block.

use crate::loader::Loader;
use crate::model::Layer;
use crate::{LayerSpec, ModelError};
use forerun_backend::WeightId;

/// The MTP head on the device.
#[derive(Clone, Debug)]
pub struct Mtp {
    /// Norm of the embedding half.
    pub embedding_norm: WeightId,
    /// Norm of the hidden-state half.
    pub hidden_norm: WeightId,
    /// `[hidden, 2·hidden]`, embedding half first.
    pub join: WeightId,
    /// The block.
    pub layer: Layer,
    /// Norm of the block's output.
    pub norm: WeightId,
}

impl Mtp {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        spec: &LayerSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            embedding_norm: loader.norm(&format!("{path}.pre_fc_norm_embedding"), hidden)?,
            hidden_norm: loader.norm(&format!("{path}.pre_fc_norm_hidden"), hidden)?,
            join: loader.matrix(&format!("{path}.fc"), [hidden, 2 * hidden])?,
            layer: Layer::load(loader, &format!("{path}.layers.0"), spec, hidden)?,
            norm: loader.norm(&format!("{path}.norm"), hidden)?,
        })
    }
}
