//! Architectures with Mamba-2 layers: Granite 4 and Nemotron-H.

use super::names::{find, plain};
use super::{GgufSource, config_count};
use crate::ModelError;
use crate::mixer::SCAN_RATE;
use forerun_weights::Renamed;
use serde_json::{Map, Value, json};

/// Modules of a block of Granite 4. A shared MLP alone has the common names.
pub(super) const GRANITE: [(&str, &str); 10] = [
    ("ssm_in", "mamba.in_proj"),
    ("ssm_out", "mamba.out_proj"),
    ("ffn_gate_inp", "block_sparse_moe.router.layer"),
    ("ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj"),
    ("ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj"),
    ("ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj"),
    ("ffn_gate_shexp", "shared_mlp.gate_proj"),
    ("ffn_up_shexp", "shared_mlp.up_proj"),
    ("ffn_down_shexp", "shared_mlp.down_proj"),
    ("ffn_norm", "post_attention_layernorm"),
];

/// Modules of a block of Nemotron-H.
pub(super) const NEMOTRON: [(&str, &str); 14] = [
    ("attn_norm", "norm"),
    ("attn_q", "mixer.q_proj"),
    ("attn_k", "mixer.k_proj"),
    ("attn_v", "mixer.v_proj"),
    ("attn_output", "mixer.o_proj"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_out", "mixer.out_proj"),
    ("ffn_up", "mixer.up_proj"),
    ("ffn_down", "mixer.down_proj"),
    ("ffn_gate_inp", "mixer.gate"),
    ("ffn_up_exps", "mixer.switch_mlp.fc1"),
    ("ffn_down_exps", "mixer.switch_mlp.fc2"),
    ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
    ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
];

/// What Nemotron-H calls the embedding and the norm at the end.
pub(super) const NEMOTRON_OUTSIDE: [(&str, &str); 2] =
    [("token_embd", "model.embeddings"), ("output_norm", "model.norm_f")];

/// Sizes of Mamba-2 layers as files say them.
struct ScanSizes {
    heads: u64,
    groups: u64,
    width: u64,
    state: u64,
    taps: u64,
}

impl GgufSource<'_> {
    fn scan_sizes(&self) -> Result<ScanSizes, ModelError> {
        let heads = self.count("ssm.time_step_rank")?.max(1);
        let inner = self.count("ssm.inner_size")?;
        if inner == 0 || !inner.is_multiple_of(heads) {
            let problem = format!("is {inner} where ssm.time_step_rank is {heads}");
            return Err(self.bad("ssm.inner_size", problem));
        }
        Ok(ScanSizes {
            heads,
            groups: self.count("ssm.group_count")?,
            width: inner / heads,
            state: self.count("ssm.state_size")?,
            taps: self.count("ssm.conv_kernel")?,
        })
    }

    /// Whether some block holds a tensor.
    fn any_block(&self, layers: usize, name: &str) -> bool {
        (0..layers).any(|i| self.has(&format!("blk.{i}.{name}")))
    }

    pub(super) fn granite(
        &self,
        config: &mut Map<String, Value>,
        layers: usize,
    ) -> Result<(), ModelError> {
        let ScanSizes { heads, groups, width, state, taps } = self.scan_sizes()?;
        let (inner, hidden) = (heads * width, self.count("embedding_length")?.max(1));
        if !inner.is_multiple_of(hidden) {
            let problem = format!("is {inner} where embedding_length is {hidden}");
            return Err(self.bad("ssm.inner_size", problem));
        }
        let scans = |i: usize| self.has(&format!("blk.{i}.ssm_in.weight"));
        let kind = |i| if scans(i) { "linear_attention" } else { "full_attention" };
        let types: Vec<&str> = (0..layers).map(kind).collect();
        let head_dim = config.get("head_dim").and_then(Value::as_u64).unwrap_or(1).max(1);
        let turns = self.metadata.flag(&self.key("rope.scaling.finetuned")).unwrap_or(true);
        let experts = self.maybe_count("expert_count").unwrap_or(0);
        // Files without a number mean a factor of one, and scores scaled as usual.
        let factor = |name: &str| self.number(name).filter(|&x| x > 0.0).unwrap_or(1.0);
        let scores = self.number("attention.scale").filter(|&x| x > 0.0);
        let said = self.maybe_count("expert_shared_feed_forward_length").filter(|_| experts > 0);
        let shared = match said {
            Some(width) => width,
            None => self.shape("blk.0.ffn_gate.weight")?[0] as u64,
        };
        for (key, value) in [
            ("model_type", json!("granitemoehybrid")),
            ("layer_types", json!(types)),
            ("mamba_n_heads", json!(heads)),
            ("mamba_n_groups", json!(groups)),
            ("mamba_d_head", json!(width)),
            ("mamba_d_state", json!(state)),
            ("mamba_d_conv", json!(taps)),
            ("mamba_expand", json!(inner / hidden)),
            ("mamba_conv_bias", json!(self.any_block(layers, "ssm_conv1d.bias"))),
            ("attention_bias", json!(self.any_block(layers, "attn_q.bias"))),
            ("position_embedding_type", json!(if turns { "rope" } else { "nope" })),
            ("embedding_multiplier", json!(factor("embedding_scale"))),
            ("residual_multiplier", json!(factor("residual_scale"))),
            ("logits_scaling", json!(factor("logit_scale"))),
            ("attention_multiplier", json!(scores.unwrap_or(1.0 / (head_dim as f64).sqrt()))),
            ("num_local_experts", json!(experts)),
            ("shared_intermediate_size", json!(shared)),
        ] {
            config.insert(key.into(), value);
        }
        if experts > 0 {
            let top_k = self.count("expert_used_count")?;
            config.insert("num_experts_per_tok".into(), json!(top_k));
        }
        Ok(())
    }

    pub(super) fn nemotron(
        &self,
        config: &mut Map<String, Value>,
        layers: usize,
    ) -> Result<(), ModelError> {
        if self.extra_blocks() > 0 {
            return Err(self.bad("nextn_predict_layers", "is not supported for this architecture"));
        }
        let ScanSizes { heads, groups, width, state, taps } = self.scan_sizes()?;
        let holds = |i: usize, name: &str| self.has(&format!("blk.{i}.{name}.weight"));
        let kind = |i: usize| match () {
            () if holds(i, "ssm_in") => "linear_attention",
            () if holds(i, "attn_q") => "full_attention",
            () if holds(i, "ffn_gate_inp") => "moe",
            () => "mlp",
        };
        let kinds: Vec<&str> = (0..layers).map(kind).collect();
        // Blocks of another kind say 0.
        let widths = self.per_layer("feed_forward_length", layers)?;
        let dense = kinds.iter().zip(&widths).find(|(kind, _)| **kind == "mlp");
        let eps = config.get("rms_norm_eps").cloned();
        for (key, value) in [
            ("model_type", json!("nemotron_h")),
            ("layers_block_type", json!(kinds)),
            ("layer_norm_epsilon", json!(eps)),
            ("mamba_num_heads", json!(heads)),
            ("mamba_head_dim", json!(width)),
            ("n_groups", json!(groups)),
            ("ssm_state_size", json!(state)),
            ("conv_kernel", json!(taps)),
            ("use_conv_bias", json!(self.any_block(layers, "ssm_conv1d.bias"))),
            ("intermediate_size", json!(dense.map_or(1, |(_, width)| *width))),
        ] {
            config.insert(key.into(), value);
        }
        if !kinds.contains(&"moe") {
            return Ok(());
        }
        let norms = self.metadata.flag(&self.key("expert_weights_norm")).unwrap_or(false);
        let (groups, open) = (self.maybe_count("expert_group_count").unwrap_or(1).max(1), 1);
        let open = self.maybe_count("expert_group_used_count").unwrap_or(open).max(1);
        for (key, value) in [
            ("n_routed_experts", json!(self.count("expert_count")?)),
            ("num_experts_per_tok", json!(self.count("expert_used_count")?)),
            ("moe_intermediate_size", json!(self.count("expert_feed_forward_length")?)),
            (
                "moe_shared_expert_intermediate_size",
                json!(self.count("expert_shared_feed_forward_length")?),
            ),
            ("moe_latent_size", json!(self.maybe_count("moe_latent_size").filter(|&n| n > 0))),
            ("norm_topk_prob", json!(norms)),
            ("routed_scaling_factor", json!(self.number("expert_weights_scale").unwrap_or(1.0))),
            ("n_group", json!(groups)),
            ("topk_group", json!(open)),
        ] {
            config.insert(key.into(), value);
        }
        Ok(())
    }

    /// Tensors of a block that are not simply modules; false where this is none of them.
    pub(super) fn place_scan(
        &self,
        stored: &str,
        rest: &str,
        path: &str,
        config: &Value,
        tensors: &mut Vec<Renamed>,
    ) -> bool {
        let nemotron = self.arch.is_nemotron();
        let count =
            |ours: &str, theirs: &str| config_count(config, if nemotron { theirs } else { ours });
        let heads = count("mamba_n_heads", "mamba_num_heads");
        let width = count("mamba_d_head", "mamba_head_dim");
        let kept = count("mamba_n_groups", "n_groups")
            .checked_mul(count("mamba_d_state", "ssm_state_size"))
            .and_then(|kept| kept.checked_mul(2));
        let inner = heads.checked_mul(width);
        let channels = inner.zip(kept).and_then(|(inner, kept)| inner.checked_add(kept));
        let taps = count("mamba_d_conv", "conv_kernel");
        let (name, shape) = match rest {
            "ssm_conv1d.weight" => ("conv1d.weight", channels.map(|n| vec![n, taps, 1])),
            "ssm_conv1d.bias" => ("conv1d.bias", None),
            "ssm_dt.bias" => ("dt_bias", None),
            "ssm_a" => (SCAN_RATE, Some(vec![heads])),
            "ssm_d" => ("D", Some(vec![heads])),
            "ssm_norm.weight" => ("norm.weight", inner.map(|n| vec![n])),
            "exp_probs_b.bias" if nemotron => ("gate.e_score_correction_bias", None),
            _ => return false,
        };
        let block = if nemotron { "mixer" } else { "mamba" };
        tensors.push(Renamed { shape, ..plain(&format!("{path}.{block}.{name}"), stored) });
        true
    }

    /// What a block's module is called where it is not what most architectures say.
    pub(super) fn scan_module(&self, module: &str) -> Option<&'static str> {
        find(if self.arch.is_nemotron() { &NEMOTRON } else { &GRANITE }, module)
    }
}
