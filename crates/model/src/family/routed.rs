//! Mixtures as DeepSeek-V3 has them, which GLM and Kimi took over: sigmoid scores, a correction of the choice, limits
//! by group, shared experts, dense layers first.

use crate::config::Config;
use crate::{MlpSpec, ModelError, MoeSpec, RouterSpec, SharedExpertSpec};
use forerun_backend::op::{ExpertGroups, Scores};

/// What a family calls the parts of a mixture, and what holds where its config says nothing.
pub(super) struct RoutedKeys {
    pub(super) experts: &'static str,
    pub(super) top_k: &'static str,
    pub(super) shared: &'static str,
    pub(super) groups: &'static str,
    pub(super) renormalise: &'static str,
    /// Groups, and how many of them are open.
    pub(super) default_groups: [usize; 2],
    /// Factor on weights.
    pub(super) default_scale: f64,
}

/// Added to the sum of weights before they are divided by it.
const ABOVE_ZERO: f32 = 1e-20;
/// A group is ranked by the sum of this many of its best experts.
const RANKED_BY: usize = 2;

impl RoutedKeys {
    /// As DeepSeek and GLM spell them.
    pub(super) const fn deepseek(default_groups: [usize; 2], default_scale: f64) -> Self {
        Self {
            experts: "n_routed_experts",
            top_k: "num_experts_per_tok",
            shared: "n_shared_experts",
            groups: "n_group",
            renormalise: "norm_topk_prob",
            default_groups,
            default_scale,
        }
    }

    /// The mixture of every sparse layer.
    pub(super) fn read(&self, config: &Config<'_>) -> Result<MoeSpec, ModelError> {
        config.only("scoring_func", &["sigmoid".into()])?;
        config.only("topk_method", &["noaux_tc".into()])?;
        config.only("moe_layer_freq", &[1.into()])?;
        let (experts, top_k) = (config.count(self.experts)?, config.count(self.top_k)?);
        if top_k > experts {
            let problem = format!("is {top_k}, more than {} = {experts}", self.experts);
            return Err(config.bad(self.top_k, problem));
        }
        let ffn = config.count("moe_intermediate_size")?;
        let shared = config.maybe_count(self.shared)?.unwrap_or(1);
        let shared = (shared > 0).then_some(SharedExpertSpec { width: shared * ffn, gated: false });
        let divides = config.flag(self.renormalise, true)?;
        let router = RouterSpec {
            scores: Scores::Sigmoid,
            bias: true,
            groups: self.groups(config, [experts, top_k])?,
            renormalise: divides.then_some(ABOVE_ZERO),
            scale: config.positive("routed_scaling_factor", Some(self.default_scale))? as f32,
        };
        Ok(MoeSpec { experts, top_k, ffn, router, shared })
    }

    fn groups(
        &self,
        config: &Config<'_>,
        [experts, top_k]: [usize; 2],
    ) -> Result<Option<ExpertGroups>, ModelError> {
        let count = |key: &str, default: usize| match config.get(key) {
            None if config.is_null(key) => Ok(1),
            None => Ok(default),
            Some(_) => config.count(key),
        };
        let [default_count, default_open] = self.default_groups;
        let (count, open) =
            (count(self.groups, default_count)?, count("topk_group", default_open)?);
        if count == 1 && open == 1 {
            return Ok(None);
        }
        if open > count {
            let problem = format!("is {open}, more than {} = {count}", self.groups);
            return Err(config.bad("topk_group", problem));
        }
        let size = experts / count;
        if !experts.is_multiple_of(count) || size < RANKED_BY {
            let problem = format!("is {count}, which does not divide {experts} experts evenly");
            return Err(config.bad(self.groups, problem));
        }
        if top_k > open * size {
            let problem = format!("is {top_k}, more than the experts of {open} groups of {size}");
            return Err(config.bad(self.top_k, problem));
        }
        Ok(Some(ExpertGroups { count, open, ranked_by: RANKED_BY }))
    }
}

/// A layer's MLP: dense in the first layers, a mixture after them.
pub(super) fn mlp(
    config: &Config<'_>,
    layer: usize,
    dense_first: usize,
    moe: &MoeSpec,
) -> Result<MlpSpec, ModelError> {
    if layer < dense_first {
        return Ok(MlpSpec::Dense(config.count("intermediate_size")?));
    }
    Ok(MlpSpec::Moe(moe.clone()))
}
