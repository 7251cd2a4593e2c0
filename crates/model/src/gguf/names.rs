//! Where each tensor of a GGUF file belongs in the published form.

use super::heads::{grouped, half_of, halves};
use super::scan::NEMOTRON_OUTSIDE;
use super::{Arch, GgufSource, config_count};
use crate::ModelError;
use crate::mixer::DELTA_RATE;
use forerun_weights::Renamed;
use serde_json::Value;

/// Modules of a block that all architectures name alike.
const COMMON: [(&str, &str); 19] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.switch_mlp.gate_proj"),
    ("ffn_up_exps", "mlp.switch_mlp.up_proj"),
    ("ffn_down_exps", "mlp.switch_mlp.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_norm", "post_attention_layernorm"),
];

const HYBRID: [(&str, &str); 5] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

const GEMMA: [(&str, &str); 13] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    ("ffn_gate_inp", "router.proj"),
    ("ffn_gate_exps", "experts.switch_glu.gate_proj"),
    ("ffn_up_exps", "experts.switch_glu.up_proj"),
    ("ffn_down_exps", "experts.switch_glu.down_proj"),
];

const GEMMA3N: [(&str, &str); 7] = [
    ("altup_router", "altup.modality_router"),
    ("altup_router_norm", "altup.router_norm"),
    ("altup_predict_coef", "altup.prediction_coefs"),
    ("altup_correct_coef", "altup.correction_coefs"),
    ("laurel_l", "laurel.linear_left"),
    ("laurel_r", "laurel.linear_right"),
    ("laurel_post_norm", "laurel.post_laurel_norm"),
];

const LFM2: [(&str, &str); 15] = [
    ("attn_norm", "operator_norm"),
    ("attn_output", "self_attn.out_proj"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.out_proj", "conv.out_proj"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
    ("ffn_gate_inp", "feed_forward.gate"),
    ("ffn_gate_exps", "feed_forward.switch_mlp.gate_proj"),
    ("ffn_up_exps", "feed_forward.switch_mlp.up_proj"),
    ("ffn_down_exps", "feed_forward.switch_mlp.down_proj"),
];

const NEXTN: [(&str, &str); 6] = [
    ("nextn.eh_proj", "fc"),
    ("nextn.enorm", "pre_fc_norm_embedding"),
    ("nextn.hnorm", "pre_fc_norm_hidden"),
    ("nextn.shared_head_norm", "norm"),
    ("nextn.embed_tokens", "embed_tokens"),
    ("nextn.shared_head_head", "lm_head"),
];

const OUTSIDE: [(&str, &str); 6] = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
    ("per_layer_token_embd", "model.embed_tokens_per_layer"),
    ("per_layer_model_proj", "model.per_layer_model_projection"),
    ("per_layer_proj_norm", "model.per_layer_projection_norm"),
];

/// What makes streams and one of them, each in one tensor.
const GEMMA3N_OUTSIDE: [(&str, &str); 2] = [
    ("altup_proj", "model.altup_projections"),
    ("altup_unembd_proj", "model.altup_unembed_projections"),
];

/// The norm at the end, which LFM2 files keep under the name of another one.
const LFM2_OUTSIDE: [(&str, &str); 2] =
    [("token_embd_norm", "model.embedding_norm"), ("output_norm", "model.embedding_norm")];

/// What a delta layer's heads look like.
struct DeltaHeads {
    key_heads: usize,
    value_heads: usize,
    dk: usize,
    dv: usize,
    taps: usize,
}

impl GgufSource<'_> {
    /// Every tensor under its published name.
    pub(super) fn renamed(&self, config: &Value) -> Result<Vec<Renamed>, ModelError> {
        let layers = self.layers()?;
        let mut tensors = Vec::new();
        for stored in self.checkpoint.names() {
            // Read into the config.
            if stored == "rope_freqs.weight" {
                continue;
            }
            if !self.place(stored, config, layers, &mut tensors) {
                return Err(ModelError::Gguf(format!(
                    "tensor `{stored}` is not known for architecture `{}`; running without it could be wrong",
                    self.prefix
                )));
            }
        }
        let holds = |name: &str| tensors.iter().any(|t| t.name == name);
        if tensors.iter().any(|t| t.name.starts_with("mtp.")) {
            // The loader knows a head by this one and would leave the rest of it aside.
            if !holds("mtp.fc.weight") {
                return Err(ModelError::Gguf(format!(
                    "block {layers} is an MTP head without `blk.{layers}.nextn.eh_proj.weight`"
                )));
            }
            // A head without a norm of its own uses the trunk's.
            if !holds("mtp.norm.weight") {
                tensors.push(plain("mtp.norm.weight", "output_norm.weight"));
            }
        }
        Ok(tensors)
    }

    /// Adds what `stored` becomes; false when it is unknown.
    fn place(
        &self,
        stored: &str,
        config: &Value,
        layers: usize,
        tensors: &mut Vec<Renamed>,
    ) -> bool {
        let Some((block, rest)) = block_of(stored) else {
            let Some((module, kind)) = stored.rsplit_once('.') else { return false };
            let own: &[(&str, &str)] = match self.arch {
                Arch::Gemma3n => &GEMMA3N_OUTSIDE,
                arch if arch.is_lfm2() => &LFM2_OUTSIDE,
                arch if arch.is_nemotron() => &NEMOTRON_OUTSIDE,
                _ => &[],
            };
            let found = find(own, module).or_else(|| find(&OUTSIDE, module));
            let Some(name) = found else { return false };
            tensors.push(plain(&format!("{name}.{kind}"), stored));
            return true;
        };
        let path = if block < layers {
            format!("model.layers.{block}")
        } else if self.arch.is_hybrid() && block == layers {
            "mtp.layers.0".to_owned()
        } else {
            return false;
        };
        if self.arch.is_hybrid() && self.place_delta(stored, rest, &path, config, tensors) {
            return true;
        }
        if self.arch.has_scans() && self.place_scan(stored, rest, &path, config, tensors) {
            return true;
        }
        let Some((module, kind)) = rest.rsplit_once('.') else { return false };
        if self.arch == Arch::Lfm2Moe && rest == "exp_probs_b.bias" {
            tensors.push(plain(&format!("{path}.feed_forward.expert_bias"), stored));
            return true;
        }
        if self.arch == Arch::Gemma4
            && let Some(name) = gemma4_number(rest)
        {
            tensors.push(plain(&format!("{path}.{name}"), stored));
            return true;
        }
        if self.arch == Arch::Gemma3n && rest == "altup_correct_scale.weight" {
            tensors.push(plain(&format!("{path}.altup.correct_output_scale"), stored));
            return true;
        }
        if let Some(name) = find(&NEXTN, module).filter(|_| path.starts_with("mtp.")) {
            tensors.push(plain(&format!("mtp.{name}.{kind}"), stored));
            return true;
        }
        let full = if let Some(name) = self.fused(block, module) {
            format!("{path}.{name}")
        } else if let Some(name) = self.module(module) {
            format!("{path}.{name}.{kind}")
        } else {
            return false;
        };
        let mut tensor = plain(&full, stored);
        self.reorder(module, config, &mut tensor);
        tensors.push(tensor);
        true
    }

    /// Whether a tensor has as many rows (or, counted from the end, other entries) as an order of heads covers.
    /// Where it has not, it keeps its order and the loader complains about its shape.
    fn fits(&self, stored: &str, axis_from_end: usize, expected: Option<usize>) -> bool {
        let Ok(shape) = self.shape(stored) else { return false };
        let axis = shape.len().checked_sub(axis_from_end).or(shape.len().checked_sub(1));
        expected.is_some_and(|n| n > 0)
            && axis.and_then(|axis| shape.get(axis).copied()) == expected
    }

    /// The published name of stacked experts whose gate and up are one tensor: these have no suffix.
    fn fused(&self, block: usize, module: &str) -> Option<&'static str> {
        if !self.has(&format!("blk.{block}.ffn_gate_up_exps.weight")) {
            return None;
        }
        match (self.arch, module) {
            (Arch::Gemma4, "ffn_gate_up_exps") => Some("experts.gate_up_proj"),
            (Arch::Gemma4, "ffn_down_exps") => Some("experts.down_proj"),
            (_, "ffn_gate_up_exps") => Some("mlp.experts.gate_up_proj"),
            (_, "ffn_down_exps") => Some("mlp.experts.down_proj"),
            _ => None,
        }
    }

    /// The published name of a block's module.
    fn module(&self, module: &str) -> Option<&'static str> {
        let own: &[(&str, &str)] = match self.arch {
            Arch::Gemma3n => match find(&GEMMA3N, module) {
                Some(name) => return Some(name),
                None => &GEMMA,
            },
            Arch::Gemma3 | Arch::Gemma4 => &GEMMA,
            Arch::Lfm2 | Arch::Lfm2Moe => &LFM2,
            _ if self.arch.has_scans() => {
                return self.scan_module(module).or_else(|| find(&COMMON, module));
            }
            _ if self.arch.is_hybrid() => &HYBRID,
            _ => &[],
        };
        find(own, module).or_else(|| find(&COMMON, module))
    }

    /// Orders and shapes that differ although the name is a plain one.
    fn reorder(&self, module: &str, config: &Value, tensor: &mut Renamed) {
        let count = |key: &str| config_count(config, key);
        let heads = match (self.arch, module) {
            (arch, "attn_q") if arch == Arch::Llama || arch.has_scans() => {
                count("num_attention_heads")
            }
            (arch, "attn_k") if arch == Arch::Llama || arch.has_scans() => {
                count("num_key_value_heads")
            }
            (Arch::Lfm2 | Arch::Lfm2Moe, "shortconv.conv")
                if tensor.stored.ends_with(".weight") =>
            {
                tensor.shape = Some(vec![count("hidden_size"), 1, count("conv_L_cache")]);
                return;
            }
            (_, "ffn_gate_inp_shexp") => {
                tensor.shape = Some(vec![1, count("hidden_size")]);
                return;
            }
            _ => return self.regroup(module, config, tensor),
        };
        let head_dim = count("head_dim");
        if self.fits(&tensor.stored, 2, heads.checked_mul(head_dim)) {
            tensor.rows = halves(heads, head_dim);
        }
    }

    /// Value heads back to the order of their key heads.
    fn regroup(&self, module: &str, config: &Value, tensor: &mut Renamed) {
        let heads = DeltaHeads::of(config);
        if !self.arch.spreads_value_heads() || heads.key_heads == heads.value_heads {
            return;
        }
        let before = if module == "attn_qkv" { heads.keys() } else { Some(0) };
        let order = |axis: usize| {
            let expected = before.zip(heads.values()).and_then(|(b, v)| b.checked_add(v));
            let fits = self.fits(&tensor.stored, axis, expected);
            let order =
                || grouped(before.unwrap_or(0), heads.key_heads, heads.value_heads, heads.dv);
            if fits { order() } else { Vec::new() }
        };
        match module {
            "attn_qkv" | "attn_gate" => tensor.rows = order(2),
            "ssm_out" => tensor.columns = order(1),
            _ => {}
        }
    }

    /// Tensors of a delta layer that are not simply modules.
    fn place_delta(
        &self,
        stored: &str,
        rest: &str,
        path: &str,
        config: &Value,
        tensors: &mut Vec<Renamed>,
    ) -> bool {
        let heads = DeltaHeads::of(config);
        let DeltaHeads { key_heads, value_heads, dv, taps, .. } = heads;
        let at = |name: &str| format!("{path}.linear_attn.{name}");
        let spread = self.arch.spreads_value_heads() && key_heads != value_heads;
        let one_each = || {
            let fits = spread && self.fits(stored, 2, Some(value_heads));
            if fits { grouped(0, key_heads, value_heads, 1) } else { Vec::new() }
        };
        let mut add = |name: &str, rows| tensors.push(Renamed { rows, ..plain(&at(name), stored) });
        match rest {
            "ssm_conv1d.weight" => {
                let keys = heads.keys().unwrap_or(0);
                let channels = heads.values().and_then(|v| v.checked_add(keys));
                let fits = spread && self.fits(stored, 2, channels);
                let order = || grouped(keys, key_heads, value_heads, dv);
                tensors.push(Renamed {
                    rows: if fits { order() } else { Vec::new() },
                    shape: channels.map(|channels| vec![channels, taps, 1]),
                    ..plain(&at("conv1d.weight"), stored)
                });
            }
            "ssm_a" => add(DELTA_RATE, one_each()),
            "ssm_dt.bias" => add("dt_bias", one_each()),
            "ssm_alpha.weight" => add("in_proj_a.weight", one_each()),
            "ssm_beta.weight" => add("in_proj_b.weight", one_each()),
            "ssm_ba.weight" => {
                if !self.fits(stored, 2, value_heads.checked_mul(2)) {
                    return false;
                }
                let copies = value_heads / key_heads.max(1);
                add("in_proj_b.weight", half_of(key_heads, copies, false));
                add("in_proj_a.weight", half_of(key_heads, copies, true));
            }
            _ => return false,
        }
        true
    }
}

impl DeltaHeads {
    /// Rows of queries and keys together.
    fn keys(&self) -> Option<usize> {
        self.key_heads.checked_mul(self.dk)?.checked_mul(2)
    }

    /// Rows of values.
    fn values(&self) -> Option<usize> {
        self.value_heads.checked_mul(self.dv)
    }

    fn of(config: &Value) -> Self {
        let count = |key: &str| config_count(config, key);
        Self {
            key_heads: count("linear_num_key_heads"),
            value_heads: count("linear_num_value_heads"),
            dk: count("linear_key_head_dim"),
            dv: count("linear_value_head_dim"),
            taps: count("linear_conv_kernel_dim"),
        }
    }
}

/// Numbers and vectors of a Gemma 4 block that are no modules.
fn gemma4_number(rest: &str) -> Option<&'static str> {
    match rest {
        "layer_output_scale.weight" => Some("layer_scalar"),
        "ffn_gate_inp.scale" => Some("router.scale"),
        "ffn_down_exps.scale" => Some("router.per_expert_scale"),
        _ => None,
    }
}

pub(super) fn plain(name: &str, stored: &str) -> Renamed {
    let (name, stored) = (name.to_owned(), stored.to_owned());
    Renamed { name, stored, shape: None, rows: Vec::new(), columns: Vec::new() }
}

pub(super) fn find<'a>(table: &[(&str, &'a str)], module: &str) -> Option<&'a str> {
    table.iter().find(|(ours, _)| *ours == module).map(|(_, published)| *published)
}

/// `blk.7.attn_q.weight` as 7 and `attn_q.weight`.
fn block_of(stored: &str) -> Option<(usize, &str)> {
    let (number, rest) = stored.strip_prefix("blk.")?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}
