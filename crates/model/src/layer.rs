//! One block: a mixer and an MLP, and how they meet the residual stream.

use crate::forward::{Output, Pass};
use crate::loader::Loader;
use crate::mixer::Mixer;
use crate::mlp::Mlp;
use crate::per_layer::PerLayerBlock;
use crate::{Frame, LayerSpec, LayerState, ModelError};
use forerun_backend::WeightId;
use forerun_backend::op::Store;

/// One block's weights.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    mixer_norm: WeightId,
    mixer: Mixer,
    mlp_norm: WeightId,
    mlp: Mlp,
    /// Norms of what mixer and MLP give, in a sandwich.
    after: Option<AfterNorms>,
    /// What the token's own vector for this layer adds.
    pub(crate) per_layer: Option<PerLayerBlock>,
    /// What the stream is multiplied by at the end.
    scale: f32,
}

#[derive(Clone, Copy, Debug)]
struct AfterNorms {
    mixer: WeightId,
    mlp: WeightId,
}

impl Layer {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        block: &str,
        spec: &LayerSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let names = loader.names;
        let norm =
            |loader: &mut Loader<'_>, name: &str| loader.norm(&format!("{block}.{name}"), hidden);
        let (mlp_norm, after, scale) = match spec.frame {
            Frame::Pre => (norm(loader, names.mlp_norm)?, None, 1.0),
            Frame::Sandwich { scaled } => {
                let after = AfterNorms {
                    mixer: norm(loader, "post_attention_layernorm")?,
                    mlp: norm(loader, "post_feedforward_layernorm")?,
                };
                let scale =
                    if scaled { loader.number(&format!("{block}.layer_scalar"))? } else { 1.0 };
                (norm(loader, "pre_feedforward_layernorm")?, Some(after), scale)
            }
            Frame::Streams(_) => unreachable!("a block on several streams is loaded as such"),
        };
        Ok(Self {
            mixer_norm: norm(loader, names.mixer_norm)?,
            mixer: Mixer::load(loader, block, &spec.mixer, hidden)?,
            mlp_norm,
            mlp: Mlp::load(loader, block, &spec.mlp, hidden)?,
            after,
            per_layer: None,
            scale,
        })
    }

    /// Keys and values of the rows in `x`, for rows of which nothing else is wanted.
    pub(crate) fn remember(&self, pass: &mut Pass<'_>, state: &LayerState) {
        self.mixer.remember(pass, pass.norm_of(self.mixer_norm), state)
    }

    /// One block over the residual stream in `x`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, state: &LayerState) {
        let space = pass.space;
        let out = match self.after {
            None => Output { view: pass.rows_of(space.x, pass.sizes.hidden), store: Store::Add },
            Some(_) => {
                Output { view: pass.rows_of(space.branch, pass.sizes.hidden), store: Store::Set }
            }
        };
        self.mixer.forward(pass, pass.norm_of(self.mixer_norm), state, out);
        if let Some(after) = self.after {
            pass.add_norm(space.branch, after.mixer, space.x, 1.0);
        }
        self.mlp.forward(pass, self.mlp_norm, out);
        let Some(after) = self.after else { return };
        match &self.per_layer {
            None => pass.add_norm(space.branch, after.mlp, space.x, self.scale),
            Some(block) => {
                pass.add_norm(space.branch, after.mlp, space.x, 1.0);
                block.forward(pass, self.scale)
            }
        }
    }
}
