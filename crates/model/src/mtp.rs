//! The multi-token-prediction head: two norms, a joining projection, one attention block.
//!
//! Row `p` pairs the trunk's final hidden state of position `p` with the token at `p + 1` and predicts the
//! token at `p + 2`. The first draft after a verdict comes from the newest true hidden state; each
//! further one from the head's own output, at the next position. Rows made from true hidden states
//! stay in the head's cache, the others are overwritten when the truth is known.

use crate::loader::Loader;
use crate::model::Layer;
use crate::{Batch, LayerSpec, Model, ModelError, StateBuffers, Workspace};
use forerun_backend::op::{GatherRows, JoinNorm, Linear};
use forerun_backend::{Backend, BackendError, View, WeightId};

/// Where the hidden states of a draft pass come from; [`Batch::hidden_places`] names the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenSource {
    /// The trunk, through the window of hidden states.
    Trunk,
    /// The sampled rows of the last draft pass.
    LastPass,
}

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

impl Model {
    /// Queues one pass of the MTP head over a batch whose ids are the tokens *after* its positions; the
    /// sampled rows' draft logits are left in the view returned.
    ///
    /// # Panics
    /// When the model has no MTP head or its state was not made: callers ask first.
    pub fn draft(
        &self,
        backend: &mut dyn Backend,
        space: &Workspace,
        states: &StateBuffers,
        batch: &Batch,
        source: HiddenSource,
    ) -> Result<View, BackendError> {
        let (Some(mtp), Some(state)) = (&self.mtp, &states.mtp) else {
            panic!("a draft pass needs an MTP head and its state")
        };
        space.write(backend, batch)?;
        let mut pass = self.pass(backend, space, batch);
        let (dim, eps) = (pass.hidden, pass.eps);
        self.embed(&mut pass, space.normed)?;
        let hidden = pass.rows_of(space.final_hidden, dim);
        pass.backend.gather_rows(GatherRows {
            x: match source {
                HiddenSource::Trunk => state.hidden,
                HiddenSource::LastPass => {
                    View::head(space.sampled_hidden, space.limits.sampled * dim)
                }
            },
            rows: pass.index_of(space.index.hidden_places),
            out: hidden,
            dim,
        })?;
        let joined = pass.rows_of(space.joined, 2 * dim);
        pass.backend.join_norm(JoinNorm {
            a: pass.rows_of(space.normed, dim),
            b: hidden,
            norms: Some([mtp.embedding_norm, mtp.hidden_norm]),
            out: joined,
            dim,
            eps,
        })?;
        let x = pass.rows_of(space.x, dim);
        pass.backend.linear(Linear::set(joined, mtp.join, x))?;
        mtp.layer.forward(&mut pass, &state.cache)?;
        pass.norm(space.x, mtp.norm, space.final_hidden)?;
        self.head(&mut pass, batch.sampled.len())
    }
}
