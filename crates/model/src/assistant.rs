//! A separate drafter that attends to the target's keys and values.
//!
//! ```text
//! x = pre([embed(t)·√Hb | s])        t the newest token, s the target's hidden state before it
//! x = blocks(x)                      queries only; keys and values are the target's
//! y = norm(x);  s' = post(y)         s' is the state of the next draft
//! logits = y · headᵀ                 or only the tokens of the best clusters
//! ```
//!
//! All drafts of a chain stand at one position, the newest token's, and see the keys before it. A batch's
//! rows carry the last position the target has seen, so queries are rotated one further.

use crate::draft::DraftPass;
use crate::forward::{LayerSizes, Pass, RopeWeight};
use crate::layer::Layer;
use crate::loader::Loader;
use crate::model::load_ropes;
use crate::{AssistantSpec, ClusterSpec, Head, HeadProduct, ModelError, ModelSpec};
use forerun_backend::op::{ClusterHead, GatherRows, JoinNorm, Linear};
use forerun_backend::{View, WeightId};

/// A drafter's weights on the device.
#[derive(Clone, Debug)]
pub(crate) struct Assistant {
    spec: AssistantSpec,
    /// Layer of the target that each block reads.
    reads: Vec<usize>,
    pre: WeightId,
    layers: Vec<Layer>,
    ropes: Vec<RopeWeight>,
    norm: WeightId,
    post: WeightId,
    head: WeightId,
    clusters: Option<Clusters>,
}

/// Centroids and the tokens around them.
#[derive(Clone, Copy, Debug)]
struct Clusters {
    spec: ClusterSpec,
    centroids: WeightId,
    members: WeightId,
}

impl Assistant {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        spec: &AssistantSpec,
        target: &ModelSpec,
    ) -> Result<Self, ModelError> {
        let (hidden, wide) = (spec.hidden, target.hidden);
        let mut layers = Vec::with_capacity(spec.layers.len());
        let mut reads = Vec::with_capacity(spec.layers.len());
        for (i, layer) in spec.layers.iter().enumerate() {
            reads.push(layer.mixer.shares().expect("a drafter's blocks have no keys of their own"));
            layers.push(Layer::load(loader, &format!("model.layers.{i}"), layer, hidden)?);
        }
        let clusters = match spec.clusters {
            Some(clusters) => Some(Clusters::load(loader, clusters, target.vocabulary, hidden)?),
            None => None,
        };
        Ok(Self {
            spec: spec.clone(),
            reads,
            pre: loader.matrix("pre_projection", [hidden, 2 * wide])?,
            layers,
            ropes: load_ropes(loader, &spec.ropes)?,
            norm: loader.norm("model.norm", hidden)?,
            post: loader.matrix("post_projection", [wide, hidden])?,
            head: loader.matrix("model.embed_tokens", [target.vocabulary, hidden])?,
            clusters,
        })
    }

    pub(crate) fn draft(&self, draft: DraftPass<'_, '_>) -> Head {
        let DraftPass { model, pass, hidden, states } = draft;
        let (space, wide) = (pass.space, pass.sizes.hidden);
        // A drafter reads placeholders as the tokens they are, unlike the model.
        let ids = pass.inputs.ids;
        model.embed(pass, ids, model.embedding, space.normed);
        let joined = pass.rows_of(space.joined, 2 * wide);
        pass.push(JoinNorm {
            a: pass.rows_of(space.normed, wide),
            b: hidden,
            norms: None,
            out: joined,
            dim: wide,
            eps: pass.sizes.eps,
        });
        let AssistantSpec { hidden, activation, eps, .. } = self.spec;
        let mut own = pass.with_sizes(LayerSizes { hidden, activation, eps, ropes: &self.ropes });
        own.turn_tables(1);
        let x = own.rows_of(space.x, hidden);
        own.push(Linear::set(joined, self.pre, x));
        for (layer, &read) in self.layers.iter().zip(&self.reads) {
            layer.forward(&mut own, &states.layers[read]);
        }
        own.norm(space.x, self.norm, space.final_hidden);
        self.head(&mut own, &model.spec)
    }

    /// The sampled rows of `final_hidden` before the head, and the states the next drafts start from.
    fn head(&self, pass: &mut Pass<'_>, target: &ModelSpec) -> Head {
        let (space, dim, rows) = (pass.space, pass.sizes.hidden, pass.inputs.sampled);
        let sampled = rows.len;
        let vocabulary = target.vocabulary;
        let logits = View::head(space.logits, sampled * vocabulary);
        if sampled == 0 {
            return Head::Logits(logits);
        }
        let x = pass.rows_of(space.final_hidden, dim);
        let y = View::head(space.drafted_hidden, sampled * dim);
        pass.push(GatherRows { x, rows, out: y, dim });
        let next = View::head(space.sampled_hidden, sampled * target.hidden);
        pass.push(Linear::set(y, self.post, next));
        let Some(Clusters { spec, centroids, members }) = self.clusters else {
            let (x, weight, cap, tokens) = (y, self.head, None, vocabulary);
            return Head::Hidden(HeadProduct { x, weight, logits, cap, vocabulary, tokens });
        };
        let scores = View::head(space.cluster_scores, sampled * spec.count);
        pass.push(Linear::set(y, centroids, scores));
        pass.push(ClusterHead {
            x: y,
            scores,
            members,
            head: self.head,
            clusters: spec.count,
            top_k: spec.best,
            out: logits,
        });
        Head::Logits(logits)
    }
}

impl Clusters {
    fn load(
        loader: &mut Loader<'_>,
        spec: ClusterSpec,
        vocabulary: usize,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let centroids = loader.matrix("masked_embedding.centroids", [spec.count, hidden])?;
        let order = loader.places("masked_embedding.token_ordering", vocabulary)?;
        let ids: Vec<f32> = order.iter().map(|&id| id as f32).collect();
        let members = loader.numbers("masked_embedding.token_ordering", spec.count, &ids)?;
        Ok(Self { spec, centroids, members })
    }
}
