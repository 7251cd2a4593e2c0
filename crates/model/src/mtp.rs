//! The multi-token-prediction head: two norms, a joining projection, one attention block.
//!
//! DeepSeek's kind is stored as one more layer of the trunk, with copies of the embedding and the head, which are read
//! only where they differ. Of several modules the first drafts every token: drafts are verified whoever made them.
//!
//! Row `p` pairs the trunk's final hidden state of position `p` with the token at `p + 1` and predicts the
//! token at `p + 2`. The first draft after a verdict comes from the newest true hidden state; each
//! further one from the head's own output, at the next position. Rows made from true hidden states
//! stay in the head's cache, the others are overwritten when the truth is known.

use crate::draft::DraftPass;
use crate::layer::Layer;
use crate::loader::Loader;
use crate::{Head, LayerSpec, LayerState, ModelError, ModelSpec};
use forerun_backend::WeightId;
use forerun_backend::op::{JoinNorm, Linear};

/// The MTP head on the device.
#[derive(Clone, Debug)]
pub(crate) struct Mtp {
    /// Norms of the embedding half and of the hidden-state half.
    norms: [WeightId; 2],
    /// `[hidden, 2·hidden]`, embedding half first.
    join: WeightId,
    layer: Layer,
    /// Norm of the block's output.
    norm: WeightId,
    /// Where it has an embedding or a head of its own; the trunk's serve otherwise.
    embedding: Option<WeightId>,
    head: Option<WeightId>,
}

impl Mtp {
    /// `trunk` names the trunk's embedding and head, of which the head may hold copies.
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        block: &LayerSpec,
        model: &ModelSpec,
        trunk: [Option<&str>; 2],
    ) -> Result<Self, ModelError> {
        let (hidden, names) = (model.hidden, &loader.names.mtp);
        let at =
            |name: &str| if name.is_empty() { path.to_owned() } else { format!("{path}.{name}") };
        let own = |loader: &mut Loader<'_>, name: &str, trunk: Option<&str>| {
            let path = at(name);
            let stored = loader.checkpoint.has_matrix(&path);
            let copied = || trunk.is_some_and(|trunk| loader.is_copy(&path, trunk));
            if !stored || copied() {
                return Ok(None);
            }
            loader.matrix(&path, [model.vocabulary, hidden]).map(Some)
        };
        let [trunk_embedding, trunk_head] = trunk;
        Ok(Self {
            norms: [
                loader.norm(&at(names.embedding_norm), hidden)?,
                loader.norm(&at(names.hidden_norm), hidden)?,
            ],
            join: loader.matrix(&at(names.join), [hidden, 2 * hidden])?,
            layer: Layer::load(loader, &at(names.block), block, hidden)?,
            norm: loader.norm(&at(names.norm), hidden)?,
            embedding: own(loader, "embed_tokens", trunk_embedding)?,
            head: own(loader, names.head, trunk_head)?,
        })
    }

    pub(crate) fn draft(&self, draft: DraftPass<'_, '_>, cache: &LayerState) -> Head {
        let DraftPass { model, pass, .. } = draft;
        let (space, dim, eps) = (pass.space, pass.sizes.hidden, pass.sizes.eps);
        let ids = pass.inputs.ids;
        model.embed(pass, ids, self.embedding.unwrap_or(model.embedding), space.normed);
        pass.turn_tables(0);
        let joined = pass.rows_of(space.joined, 2 * dim);
        pass.push(JoinNorm {
            a: pass.rows_of(space.normed, dim),
            b: draft.hidden,
            norms: Some(self.norms),
            out: joined,
            dim,
            eps,
        });
        let x = pass.rows_of(space.x, dim);
        pass.push(Linear::set(joined, self.join, x));
        if pass.inputs.sampled.len == 0 {
            // Only the block's cache outlives a pass without drafts.
            self.layer.remember(pass, cache);
        } else {
            self.layer.forward(pass, cache);
            pass.norm(space.x, self.norm, space.final_hidden);
        }
        model.head(pass, self.head.unwrap_or(model.head))
    }
}
