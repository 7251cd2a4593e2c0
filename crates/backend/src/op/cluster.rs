//! Logits of a part of the vocabulary.

use crate::{Access, OpDesc, View, WeightId};

/// From here on not every token id is an f32.
const MOST_TOKENS: usize = 1 << 24;

/// The logits of the tokens in the `top_k` clusters of largest score, and a floor below them for all others.
///
/// # Math
/// `out[r][t] = Σ_k x[r][k]·head[t][k]` for every token `t` of a chosen cluster, `m − 1` for the rest, where `m`
/// is the smallest of the row's computed logits. Of equal scores the lower cluster is chosen first.
///
/// # Numerics
/// A computed logit has the bits that [`crate::op::Linear`] gives it.
#[derive(Clone, Copy, Debug)]
pub struct ClusterHead {
    /// `[rows, K]`.
    pub x: View,
    /// `[rows, clusters]`.
    pub scores: View,
    /// `[clusters, V / clusters]`: token ids as numbers, each below `V`.
    pub members: WeightId,
    /// `[V, K]`.
    pub head: WeightId,
    /// Clusters of the vocabulary.
    pub clusters: usize,
    /// Clusters chosen per row.
    pub top_k: usize,
    /// `[rows, V]`.
    pub out: View,
}

impl ClusterHead {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Some(head) = desc.weight_info("head", self.head) else { return };
        let Some(members) = desc.weight_info("members", self.members) else { return };
        desc.require(head.cols > 0, "a weight without columns");
        desc.require(head.rows <= MOST_TOKENS, "token ids that are not exact as numbers");
        desc.require(
            self.top_k > 0 && self.top_k <= self.clusters,
            "top_k must be between 1 and the number of clusters",
        );
        let each = head.rows / self.clusters.max(1);
        desc.require(each > 0 && each * self.clusters == head.rows, "clusters of unequal size");
        desc.shape("members", self.members, [self.clusters, each]);
        let rows = self.x.len / head.cols.max(1);
        desc.f32("x", self.x, Access::Read, rows * head.cols);
        desc.f32("scores", self.scores, Access::Read, rows.saturating_mul(self.clusters));
        desc.f32("out", self.out, Access::Write, rows * head.rows);
        let chosen = rows.saturating_mul(self.top_k);
        let tokens = chosen.saturating_mul(each);
        desc.weight_bytes(members.bytes_of(chosen) + head.bytes_of(tokens));
        desc.work(0, 2 * tokens.saturating_mul(head.cols) as u64);
    }
}
