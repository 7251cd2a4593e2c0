//! Mixture of experts.

use crate::op::{Activation, Glu, Store};
use crate::{Access, OpDesc, View, WeightId};

/// How a router's logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// `exp(l) / Σ exp(l)` over all experts of the layer.
    Softmax,
    /// `1 / (1 + exp(−l))`.
    Sigmoid,
    /// `√ln(1 + exp(l))`.
    SqrtSoftplus,
}

/// Experts in groups of equal size, in order, of which only some may be chosen from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// How many groups there are.
    pub count: usize,
    /// How many of them are open, those with the largest sums.
    pub open: usize,
    /// How many of a group's best experts add up to what it is ranked by.
    pub ranked_by: usize,
}

/// The `top_k` best experts of each row, and what they weigh.
///
/// # Math
/// Experts are ranked by their scores, plus `bias` where there is one; with groups, only those of open groups take
/// part. Equal ranks fall to the lower index, of groups as well. A chosen expert weighs its score, without the bias;
/// these are divided by their sum plus a number where wanted, then multiplied by `scale`, and last by a number of each
/// expert's own if there is one.
///
/// # Numerics
/// f32. Without bias and groups the logits themselves are ranked, as which scores order.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    /// `[rows, experts]`.
    pub logits: View,
    /// Experts in the layer.
    pub experts: usize,
    /// Experts chosen per row.
    pub top_k: usize,
    /// What logits become.
    pub scores: Scores,
    /// `[1, experts]`: added to scores for the choice alone.
    pub bias: Option<WeightId>,
    /// Which experts may be chosen.
    pub groups: Option<ExpertGroups>,
    /// Added to the sum of the chosen weights, by which they are divided; absent where they are not.
    pub renormalise: Option<f32>,
    /// Factor on all weights.
    pub scale: f32,
    /// `[1, experts]`: factors on the weights, last of all.
    pub expert_scale: Option<WeightId>,
    /// u32 `[rows, top_k]`, best first.
    pub chosen: View,
    /// `[rows, top_k]`.
    pub weights: View,
}

impl Router {
    /// Whether scores are ranked, and not the logits.
    pub const fn ranks_scores(&self) -> bool {
        self.bias.is_some() || self.groups.is_some()
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        desc.require(
            self.top_k > 0 && self.top_k <= self.experts,
            "top_k must be between 1 and the number of experts",
        );
        if let Some(groups) = self.groups {
            groups.describe(desc, self.experts, self.top_k);
        }
        let rows = self.logits.len / self.experts.max(1);
        desc.f32("logits", self.logits, Access::Read, rows * self.experts);
        if let Some(bias) = self.bias {
            desc.weight("bias", bias, [1, self.experts]);
        }
        if let Some(scale) = self.expert_scale {
            desc.weight("expert_scale", scale, [1, self.experts]);
        }
        desc.u32("chosen", self.chosen, Access::Write, rows * self.top_k);
        desc.f32("weights", self.weights, Access::Write, rows * self.top_k);
        let ranked = self.groups.map_or(0, |groups| groups.open + groups.ranked_by);
        desc.work(0, (self.logits.len * (10 + ranked + self.top_k)) as u64);
    }
}

impl ExpertGroups {
    /// Experts of a group.
    pub const fn size(&self, experts: usize) -> usize {
        experts / self.count
    }

    fn describe(self, desc: &mut OpDesc<'_>, experts: usize, top_k: usize) {
        let Self { count, open, ranked_by } = self;
        let even = count > 0 && experts.is_multiple_of(count.max(1));
        desc.require(even, "experts do not make groups of equal size");
        desc.require(open > 0 && open <= count, "open groups must be between 1 and all groups");
        let size = experts / count.max(1);
        desc.require(
            ranked_by > 0 && ranked_by <= size,
            "a group must be ranked by 1 to all of its experts",
        );
        desc.require(top_k <= open * size, "open groups have fewer experts than are chosen");
    }
}

/// Where an expert's matrix lies in a tall stack: rows `first + e·stride ..` of `weight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertRows {
    /// The stack.
    pub weight: WeightId,
    /// First row of expert 0.
    pub first: usize,
    /// Rows from one expert to the next.
    pub stride: usize,
}

/// `out[r] (+)= Σ_j weights[r][j] · down_e(act(gate_e x[r]) · (up_e x[r]))`, `e = chosen[r][j]`.
///
/// # Numerics
/// A row's experts are added in the order they were chosen, whatever other rows chose.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// `[rows, dim]`.
    pub x: View,
    /// u32 `[rows, top_k]`.
    pub chosen: View,
    /// `[rows, top_k]`.
    pub weights: View,
    /// `[ffn, dim]` each.
    pub gate: ExpertRows,
    /// `[ffn, dim]` each.
    pub up: ExpertRows,
    /// `[dim, ffn]` each.
    pub down: ExpertRows,
    /// Experts in the layer.
    pub experts: usize,
    /// Experts chosen per row.
    pub top_k: usize,
    /// Width inside an expert.
    pub ffn: usize,
    /// Width of a row.
    pub dim: usize,
    /// `[rows, top_k, ffn]`, left unspecified.
    pub hidden: View,
    /// `[rows, top_k, dim]`, left unspecified.
    pub partial: View,
    /// `[rows, dim]`.
    pub out: View,
    /// Replace or add.
    pub store: Store,
    /// The function on the gates.
    pub activation: Activation,
}

impl Experts {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        desc.require(
            self.dim > 0 && self.ffn > 0 && self.top_k > 0,
            "widths and experts per row must not be zero",
        );
        let rows = self.x.len / self.dim.max(1);
        let routed = rows * self.top_k;
        // Which experts several rows chose is known only where their numbers are.
        let touched = desc.distinct(self.chosen, routed.min(self.experts));
        desc.f32("x", self.x, Access::Read, rows * self.dim);
        desc.u32("chosen", self.chosen, Access::Read, routed);
        desc.f32("weights", self.weights, Access::Read, routed);
        for (name, at, [height, width]) in [
            ("gate", self.gate, [self.ffn, self.dim]),
            ("up", self.up, [self.ffn, self.dim]),
            ("down", self.down, [self.dim, self.ffn]),
        ] {
            let Some(info) = desc.weight_info(name, at.weight) else { return };
            let last = at.first + self.experts.saturating_sub(1) * at.stride + height;
            desc.require(
                info.cols == width && last <= info.rows && self.experts > 0,
                "an expert reaches outside its stack",
            );
            if name == "up" && self.up == self.gate {
                // Read and multiplied once.
                continue;
            }
            let bytes = touched * height * (info.bytes / info.rows.max(1));
            desc.weight_bytes(bytes as u64);
            desc.work(0, 2 * (routed * height * width) as u64);
        }
        desc.f32_part("hidden", self.hidden, Access::Write, routed * self.ffn, 0);
        desc.f32_part("partial", self.partial, Access::Write, routed * self.dim, 0);
        desc.f32("out", self.out, self.store.access(), rows * self.dim);
        desc.work(0, (routed * (Glu::FLOPS * self.ffn + 2 * self.dim)) as u64);
    }
}

/// The experts that a table names for each row's token, and what they weigh.
///
/// # Math
/// A chosen expert weighs its score; these are divided by their sum plus a number where wanted, then multiplied by
/// `scale`, as in [`Router`].
#[derive(Clone, Copy, Debug)]
pub struct HashRouter {
    /// Tokens, u32 `[rows]`.
    pub ids: View,
    /// `[vocabulary, top_k]`: integers below `experts`.
    pub table: WeightId,
    /// `[rows, experts]`.
    pub logits: View,
    /// Experts in the layer.
    pub experts: usize,
    /// Experts chosen per row.
    pub top_k: usize,
    /// What logits become.
    pub scores: Scores,
    /// Added to the sum of the weights, by which they are divided; absent where they are not.
    pub renormalise: Option<f32>,
    /// Factor on all weights.
    pub scale: f32,
    /// u32 `[rows, top_k]`, in the table's order.
    pub chosen: View,
    /// `[rows, top_k]`.
    pub weights: View,
}

impl HashRouter {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { experts, top_k, .. } = *self;
        desc.require(
            top_k > 0 && top_k <= experts,
            "top_k must be between 1 and the number of experts",
        );
        let rows = self.ids.len;
        desc.u32("ids", self.ids, Access::Read, rows);
        if let Some(table) = desc.weight_info("table", self.table) {
            desc.shape("table", self.table, [table.rows, top_k]);
        }
        desc.f32("logits", self.logits, Access::Read, rows.saturating_mul(experts));
        desc.u32("chosen", self.chosen, Access::Write, rows.saturating_mul(top_k));
        desc.f32("weights", self.weights, Access::Write, rows.saturating_mul(top_k));
        desc.work(0, (self.logits.len * 10) as u64);
    }
}
