//! Metadata to the config that the published form of the model has.

use super::{Arch, GgufSource};
use crate::ModelError;
use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

impl GgufSource<'_> {
    /// The config of the published form.
    pub(super) fn config(&self) -> Result<Value, ModelError> {
        let layers = self.layers()?;
        let mut config = self.common(layers)?;
        match self.arch {
            Arch::Llama => {
                if self.maybe_count("expert_count").unwrap_or(0) > 0 {
                    return Err(self.bad("expert_count", "is not supported for this architecture"));
                }
                config.insert("model_type".into(), json!("llama"));
                config.insert("attention_bias".into(), json!(self.has("blk.0.attn_q.bias")));
            }
            Arch::Qwen3 => {
                config.insert("model_type".into(), json!("qwen3"));
                config.insert("attention_bias".into(), json!(self.has("blk.0.attn_q.bias")));
            }
            Arch::Qwen3Moe => {
                config.insert("model_type".into(), json!("qwen3_moe"));
                self.experts(&mut config)?;
                self.dense_layers(&mut config, layers);
            }
            Arch::Qwen3Next | Arch::Qwen35 | Arch::Qwen35Moe => {
                self.hybrid(&mut config, layers)?;
            }
            Arch::Gemma3 => self.gemma3(&mut config)?,
            Arch::Gemma3n => self.gemma3n(&mut config, layers)?,
            Arch::Gemma4 => self.gemma4(&mut config, layers)?,
            Arch::GraniteHybrid => self.granite(&mut config, layers)?,
            Arch::Lfm2 | Arch::Lfm2Moe => self.lfm2(&mut config, layers)?,
            Arch::NemotronH | Arch::NemotronHMoe => self.nemotron(&mut config, layers)?,
        }
        Ok(match self.arch {
            // Published with the text part nested, and other readers expect it so.
            Arch::Qwen35 | Arch::Qwen35Moe => {
                let family = if self.arch == Arch::Qwen35 { "qwen3_5" } else { "qwen3_5_moe" };
                let tied = config.get("tie_word_embeddings").cloned();
                json!({ "model_type": family, "tie_word_embeddings": tied, "text_config": config })
            }
            _ => Value::Object(config),
        })
    }

    /// What every architecture spells alike.
    fn common(&self, layers: usize) -> Result<Object, ModelError> {
        let hidden = self.count("embedding_length")?;
        let heads = self.per_layer("attention.head_count", layers)?[0].max(1);
        let head_dim = self.maybe_count("attention.key_length").unwrap_or(hidden / heads);
        if let Some(values) = self.maybe_count("attention.value_length")
            && values != head_dim
        {
            let problem = format!("is {values} where keys are {head_dim} wide");
            return Err(self.bad("attention.value_length", problem));
        }
        let turning = self.maybe_count("rope.dimension_count").unwrap_or(head_dim);
        let eps = self.number("attention.layer_norm_rms_epsilon");
        // Nemotron-H's norms go by this name, which elsewhere is that of another kind of norm.
        let other = || self.number("attention.layer_norm_epsilon");
        let eps = if self.arch.is_nemotron() { other().or(eps) } else { eps };
        let mut config = Object::new();
        for (key, value) in [
            ("vocab_size", json!(self.vocabulary()?)),
            ("hidden_size", json!(hidden)),
            ("num_hidden_layers", json!(layers)),
            ("num_attention_heads", json!(heads)),
            ("num_key_value_heads", json!(self.kv_heads(heads, layers)?[0])),
            ("head_dim", json!(head_dim)),
            ("intermediate_size", json!(self.widths(layers)?[0])),
            (
                "rms_norm_eps",
                json!(eps.ok_or_else(|| {
                    self.bad("attention.layer_norm_rms_epsilon", "is missing")
                })?),
            ),
            ("max_position_embeddings", json!(self.count("context_length")?)),
            ("rope_theta", json!(self.number("rope.freq_base").unwrap_or(1e4))),
            ("partial_rotary_factor", json!(turning as f64 / head_dim.max(1) as f64)),
            ("tie_word_embeddings", json!(!self.has("output.weight"))),
        ] {
            config.insert(key.into(), value);
        }
        if let Some(scaling) = self.rope_scaling()? {
            config.insert("rope_scaling".into(), scaling);
        }
        Ok(config)
    }

    /// Rows of the embedding; a file that holds an MTP head alone has only its word or its token list.
    fn vocabulary(&self) -> Result<u64, ModelError> {
        if self.has("token_embd.weight") {
            return Ok(self.shape("token_embd.weight")?[0] as u64);
        }
        let tokens = || self.metadata.texts("tokenizer.ggml.tokens").map(|list| list.len() as u64);
        let said = self.maybe_count("vocab_size").or_else(tokens);
        said.ok_or_else(|| {
            self.bad("vocab_size", "is missing, and so are the embedding and the tokens")
        })
    }

    fn kv_heads(&self, heads: u64, layers: usize) -> Result<Vec<u64>, ModelError> {
        let name = "attention.head_count_kv";
        if !self.metadata.keys().any(|key| key == self.key(name)) {
            return Ok(vec![heads; layers]);
        }
        // Layers without attention may say 0; another one of the list then speaks for all.
        let mut list = self.per_layer(name, layers)?;
        let some = list.iter().copied().find(|&n| n > 0).unwrap_or(0);
        list.iter_mut().filter(|n| **n == 0).for_each(|n| *n = some);
        Ok(list)
    }

    fn widths(&self, layers: usize) -> Result<Vec<u64>, ModelError> {
        match self.per_layer("feed_forward_length", layers) {
            Err(_) if self.maybe_count("expert_feed_forward_length").is_some() => {
                Ok(vec![self.count("expert_feed_forward_length")?; layers])
            }
            other => other,
        }
    }

    /// Stored factors, or a rule named in the metadata.
    fn rope_scaling(&self) -> Result<Option<Value>, ModelError> {
        if let Some(factors) = self.rope_factors()? {
            return Ok(Some(json!({ "rope_type": "factors", "factors": factors })));
        }
        let factor = self.number("rope.scaling.factor").or(self.number("rope.scale_linear"));
        let kind = self.metadata.text(&self.key("rope.scaling.type"));
        match (kind, factor) {
            (None | Some("none"), None) | (Some("none"), _) => Ok(None),
            (None | Some("linear"), Some(factor)) => {
                Ok(Some(json!({ "rope_type": "linear", "factor": factor })))
            }
            (Some("yarn"), Some(factor)) => {
                let mut rule = json!({ "rope_type": "yarn", "factor": factor });
                let context = self.maybe_count("rope.scaling.original_context_length");
                if let Some(context) = context {
                    rule["original_max_position_embeddings"] = json!(context);
                }
                for (ours, theirs) in
                    [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")]
                {
                    if let Some(x) = self.number(&format!("rope.scaling.{theirs}")) {
                        rule[ours] = json!(x);
                    }
                }
                if let Some(extra) = self.number("rope.scaling.attn_factor") {
                    rule["attention_factor"] = json!(extra * (0.1 * factor.max(1.0).ln() + 1.0));
                }
                Ok(Some(rule))
            }
            (Some(other), _) => {
                Err(self.bad("rope.scaling.type", format!("= `{other}` is not supported")))
            }
        }
    }

    /// The divisors of each pair's frequency, where the file stores them.
    fn rope_factors(&self) -> Result<Option<Vec<f32>>, ModelError> {
        let name = "rope_freqs.weight";
        if !self.has(name) {
            return Ok(None);
        }
        Ok(Some(self.checkpoint.values(name, &self.shape(name)?)?))
    }

    fn experts(&self, config: &mut Object) -> Result<(), ModelError> {
        config.insert("num_experts".into(), json!(self.count("expert_count")?));
        config.insert("num_experts_per_tok".into(), json!(self.count("expert_used_count")?));
        let ffn = self.count("expert_feed_forward_length")?;
        config.insert("moe_intermediate_size".into(), json!(ffn));
        config.insert("norm_topk_prob".into(), json!(true));
        config.insert("decoder_sparse_step".into(), json!(1));
        Ok(())
    }

    /// Layers that have no experts although others do.
    fn dense_layers(&self, config: &mut Object, layers: usize) {
        let dense = |i: &usize| !self.has(&format!("blk.{i}.ffn_gate_inp.weight"));
        let list: Vec<usize> = (0..layers).filter(dense).collect();
        config.insert("mlp_only_layers".into(), json!(list));
    }

    fn hybrid(&self, config: &mut Object, layers: usize) -> Result<(), ModelError> {
        let model_type = match self.arch {
            Arch::Qwen3Next => "qwen3_next",
            Arch::Qwen35 => "qwen3_5_text",
            _ => "qwen3_5_moe_text",
        };
        let attends = |i: usize| self.has(&format!("blk.{i}.attn_q.weight"));
        let kind = |i| if attends(i) { "full_attention" } else { "linear_attention" };
        let types: Vec<&str> = (0..layers).map(kind).collect();
        let value_heads = self.count("ssm.time_step_rank")?.max(1);
        let key_heads = self.count("ssm.group_count")?;
        // Orders of heads are laid out by these before anything else looks at them.
        if key_heads == 0 || !value_heads.is_multiple_of(key_heads) {
            let problem = format!("is {key_heads} where ssm.time_step_rank is {value_heads}");
            return Err(self.bad("ssm.group_count", problem));
        }
        let inner = self.count("ssm.inner_size")?;
        if inner == 0 || !inner.is_multiple_of(value_heads) {
            let problem = format!("is {inner} where ssm.time_step_rank is {value_heads}");
            return Err(self.bad("ssm.inner_size", problem));
        }
        for (key, value) in [
            ("model_type", json!(model_type)),
            ("layer_types", json!(types)),
            ("linear_num_key_heads", json!(key_heads)),
            ("linear_num_value_heads", json!(value_heads)),
            ("linear_key_head_dim", json!(self.count("ssm.state_size")?)),
            ("linear_value_head_dim", json!(inner / value_heads)),
            ("linear_conv_kernel_dim", json!(self.count("ssm.conv_kernel")?)),
        ] {
            config.insert(key.into(), value);
        }
        // A file that lost its head says nothing of it; the model it was made from had one.
        if self.extra_blocks() > 0 {
            config.insert("mtp_num_hidden_layers".into(), json!(self.extra_blocks()));
        }
        if self.arch == Arch::Qwen35 {
            return Ok(());
        }
        self.experts(config)?;
        self.dense_layers(config, layers);
        let shared = match self.maybe_count("expert_shared_feed_forward_length") {
            Some(width) => width,
            None => self.shape("blk.0.ffn_gate_shexp.weight")?[0] as u64,
        };
        config.insert("shared_expert_intermediate_size".into(), json!(shared));
        Ok(())
    }

    /// Which layers have a window: a flag per layer, every n-th without, or six by default.
    fn window_pattern(&self, layers: usize) -> Result<Vec<&'static str>, ModelError> {
        let name = "attention.sliding_window_pattern";
        let windowed: Vec<bool> = match self.metadata.flags(&self.key(name)) {
            Some(flags) if flags.len() >= layers => flags[..layers].to_vec(),
            Some(_) => return Err(self.bad(name, format!("is no list of {layers} flags"))),
            None => {
                let pattern = self.maybe_count(name).unwrap_or(6).max(1) as usize;
                (0..layers).map(|i| !(i + 1).is_multiple_of(pattern)).collect()
            }
        };
        let name = |&w: &bool| if w { "sliding_attention" } else { "full_attention" };
        Ok(windowed.iter().map(name).collect())
    }

    fn gemma3(&self, config: &mut Object) -> Result<(), ModelError> {
        let layers = self.layers()?;
        let number = |key: &str| config.get(key).and_then(Value::as_u64).unwrap_or(0);
        let (hidden, heads) = (number("hidden_size"), number("num_attention_heads").max(1));
        // The 27B model alone, known by its depth, scales by the width per head of the stream.
        let scalar = if layers == 62 { hidden / heads } else { number("head_dim") };
        let scaling = config.remove("rope_scaling");
        let theta = config.get("rope_theta").cloned();
        let mut whole = scaling.unwrap_or_else(|| json!({ "rope_type": "default" }));
        whole["rope_theta"] = json!(theta);
        let local = self.number("rope.freq_base_swa").unwrap_or(1e4);
        for (key, value) in [
            ("model_type", json!("gemma3_text")),
            ("query_pre_attn_scalar", json!(scalar)),
            ("layer_types", json!(self.window_pattern(layers)?)),
            ("sliding_window", json!(self.count("attention.sliding_window")?)),
            ("final_logit_softcapping", json!(self.number("final_logit_softcapping"))),
            (
                "rope_parameters",
                json!({
                    "full_attention": whole,
                    "sliding_attention": { "rope_type": "default", "rope_theta": local },
                }),
            ),
        ] {
            config.insert(key.into(), value);
        }
        Ok(())
    }

    fn lfm2(&self, config: &mut Object, layers: usize) -> Result<(), ModelError> {
        let convolves = |i: usize| self.has(&format!("blk.{i}.shortconv.conv.weight"));
        let kind = |i| if convolves(i) { "conv" } else { "full_attention" };
        let types: Vec<&str> = (0..layers).map(kind).collect();
        let bias = (0..layers).any(|i| self.has(&format!("blk.{i}.shortconv.conv.bias")));
        let eps = config.get("rms_norm_eps").cloned();
        for (key, value) in [
            ("model_type", json!(if self.arch == Arch::Lfm2 { "lfm2" } else { "lfm2_moe" })),
            ("layer_types", json!(types)),
            ("conv_L_cache", json!(self.count("shortconv.l_cache")?)),
            ("conv_bias", json!(bias)),
            ("norm_eps", json!(eps)),
            // The width in the file is the one that its tensors have.
            ("block_auto_adjust_ff_dim", json!(false)),
        ] {
            config.insert(key.into(), value);
        }
        if self.arch == Arch::Lfm2 {
            return Ok(());
        }
        self.experts(config)?;
        let biased = (0..layers).any(|i| self.has(&format!("blk.{i}.exp_probs_b.bias")));
        let dense = self.maybe_count("leading_dense_block_count").unwrap_or(0);
        let scale = self.number("expert_weights_scale").filter(|&scale| scale > 0.0);
        for (key, value) in [
            ("num_dense_layers", json!(dense)),
            ("use_expert_bias", json!(biased)),
            ("routed_scaling_factor", json!(scale.unwrap_or(1.0))),
        ] {
            config.insert(key.into(), value);
        }
        Ok(())
    }

    fn gemma3n(&self, config: &mut Object, layers: usize) -> Result<(), ModelError> {
        let count = |name: &str| self.count(name);
        let rows = |name: &str| self.shape(name).map(|shape| shape[0]);
        config.remove("rope_scaling");
        config.remove("partial_rotary_factor");
        let theta = self.number("rope.freq_base").unwrap_or(1e6);
        let local = self.number("rope.freq_base_swa").unwrap_or(1e4);
        let name = "activation_sparsity_scale";
        let scales = self.metadata.numbers(&self.key(name)).unwrap_or_default();
        if scales.len() < layers {
            return Err(self.bad(name, format!("is no list of {layers} numbers")));
        }
        // Minus infinity, which JSON does not have, lets all gates pass.
        let scales: Vec<Option<f64>> =
            scales[..layers].iter().map(|&scale| scale.is_finite().then_some(scale)).collect();
        for (key, value) in [
            ("model_type", json!("gemma3n_text")),
            ("layer_types", json!(self.window_pattern(layers)?)),
            ("intermediate_size", json!(self.widths(layers)?)),
            ("sliding_window", json!(count("attention.sliding_window")?)),
            ("num_kv_shared_layers", json!(count("attention.shared_kv_layers")?)),
            ("altup_num_inputs", json!(count("altup.num_inputs")?)),
            ("altup_active_idx", json!(count("altup.active_idx")?)),
            ("laurel_rank", json!(rows("blk.0.laurel_l.weight")?)),
            ("hidden_size_per_layer_input", json!(count("embedding_length_per_layer_input")?)),
            ("vocab_size_per_layer_input", json!(rows("per_layer_token_embd.weight")?)),
            ("activation_sparsity_scale", json!(scales)),
            (
                "final_logit_softcapping",
                json!(self.number("final_logit_softcapping").unwrap_or(30.0)),
            ),
            (
                "rope_parameters",
                json!({
                    "full_attention": { "rope_type": "default", "rope_theta": theta },
                    "sliding_attention": { "rope_type": "default", "rope_theta": local },
                }),
            ),
        ] {
            config.insert(key.into(), value);
        }
        Ok(())
    }

    fn gemma4(&self, config: &mut Object, layers: usize) -> Result<(), ModelError> {
        let types = self.window_pattern(layers)?;
        let whole = types.iter().position(|&t| t == "full_attention");
        let windowed = types.iter().position(|&t| t == "sliding_attention");
        let sharing = self.maybe_count("attention.shared_kv_layers").unwrap_or(0);
        let kv_heads = self.kv_heads(1, layers)?;
        let from_keys = whole.is_some_and(|i| !self.has(&format!("blk.{i}.attn_v.weight")));
        let wide = self.double_wide(layers, sharing as usize)?;
        let head_dim = self.count("attention.key_length")?;
        let swa_dim = self.maybe_count("attention.key_length_swa").unwrap_or(head_dim);
        let cap = self.number("final_logit_softcapping").unwrap_or(30.0);
        config.remove("rope_scaling");
        config.remove("partial_rotary_factor");
        let mut rope = match self.rope_factors()? {
            Some(factors) => json!({ "rope_type": "factors", "factors": factors }),
            None => json!({ "rope_type": "proportional", "partial_rotary_factor": 0.25 }),
        };
        rope["rope_theta"] = json!(self.number("rope.freq_base").unwrap_or(1e6));
        let local = self.number("rope.freq_base_swa").unwrap_or(1e4);
        let inputs = self.maybe_count("embedding_length_per_layer_input").unwrap_or(0);
        for (key, value) in [
            ("model_type", json!("gemma4_text")),
            ("layer_types", json!(types)),
            ("head_dim", json!(swa_dim)),
            ("global_head_dim", json!(head_dim)),
            ("num_key_value_heads", json!(kv_heads[windowed.or(whole).unwrap_or(0)])),
            ("num_global_key_value_heads", json!(kv_heads[whole.or(windowed).unwrap_or(0)])),
            ("attention_k_eq_v", json!(from_keys)),
            ("sliding_window", json!(self.count("attention.sliding_window")?)),
            ("num_kv_shared_layers", json!(sharing)),
            ("use_double_wide_mlp", json!(wide)),
            ("final_logit_softcapping", json!((cap > 0.0).then_some(cap))),
            ("hidden_size_per_layer_input", json!(inputs)),
            (
                "rope_parameters",
                json!({
                    "full_attention": rope,
                    "sliding_attention": { "rope_type": "default", "rope_theta": local },
                }),
            ),
        ] {
            config.insert(key.into(), value);
        }
        if inputs > 0 {
            let rows = self.shape("per_layer_token_embd.weight")?[0];
            config.insert("vocab_size_per_layer_input".into(), json!(rows));
        }
        if self.maybe_count("expert_count").unwrap_or(0) > 0 {
            self.experts(config)?;
            config.insert("enable_moe_block".into(), json!(true));
            config.insert("top_k_experts".into(), json!(self.count("expert_used_count")?));
        }
        Ok(())
    }

    /// Whether the trailing layers that share keys have an MLP twice as wide as the others.
    fn double_wide(&self, layers: usize, sharing: usize) -> Result<bool, ModelError> {
        let widths = self.widths(layers)?;
        let wide = widths.last() != widths.first();
        let own = layers.saturating_sub(sharing);
        let expected = |i: usize| widths[0] * if wide && i >= own { 2 } else { 1 };
        match (0..layers).find(|&i| widths[i] != expected(i)) {
            None => Ok(wide),
            Some(i) => {
                Err(self.bad("feed_forward_length", format!("is {} in layer {i}", widths[i])))
            }
        }
    }
}
