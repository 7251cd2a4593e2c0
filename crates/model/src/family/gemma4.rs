//! Gemma 4: layers with and without a window, sandwich norms, normed values, keys and values shared by trailing layers;
//! per-layer inputs (E) or experts beside the MLP (MoE).

use super::llama::experts;
use super::{check_heads, only_gelu, tied};
use crate::config::Config;
use crate::rope::{RopeDefaults, RopeSource};
use crate::{
    AttentionSpec, Frame, LayerSpec, MixerSpec, MlpSpec, ModelError, ModelSpec, PerLayerSpec,
    Placeholders, RopeSpec, Values,
};
use forerun_backend::op::Activation;

/// Ropes in the order layers name them.
const WINDOWED: usize = 0;
const WHOLE: usize = 1;

pub(super) fn read(family: &str, root: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let nested = root.section("text_config");
    let config = nested.as_ref().unwrap_or(root);
    let text = Gemma4 { config };
    text.check_features()?;
    let hidden = config.count("hidden_size")?;
    let vocabulary = config.count("vocab_size")?;
    let windowed = text.windowed_layers()?;
    let owned = windowed.len() - text.sharing_layers(windowed.len())?;
    let layer = |i: usize| -> Result<LayerSpec, ModelError> {
        let mut attention = text.attention(windowed[i])?;
        if i >= owned {
            let owner = windowed[..owned].iter().rposition(|&w| w == windowed[i]);
            attention.shares = Some(owner.ok_or_else(|| {
                let problem = format!("leaves layer {i} without a layer of its kind to share");
                config.bad("num_kv_shared_layers", problem)
            })?);
        }
        text.layer(attention, i >= owned)
    };
    Ok(ModelSpec {
        family: family.to_owned(),
        vocabulary,
        hidden,
        eps: text.eps()?,
        max_positions: config.maybe_count("max_position_embeddings")?.unwrap_or(131_072).max(1),
        tied: tied(root, config, true)?,
        placeholders: placeholders(root, config, vocabulary)?,
        embed_scale: (hidden as f32).sqrt(),
        logit_scale: 1.0,
        logit_cap: config.cap("final_logit_softcapping")?,
        activation: Activation::GeluTanh,
        ropes: text.ropes()?,
        layers: (0..windowed.len()).map(layer).collect::<Result<_, _>>()?,
        per_layer: text.per_layer(vocabulary)?,
        drafter: None,
    })
}

/// Images, sound and video where the outer config names their tokens.
pub(super) fn placeholders(
    root: &Config<'_>,
    config: &Config<'_>,
    vocabulary: usize,
) -> Result<Placeholders, ModelError> {
    let mut tokens = Vec::new();
    for key in ["image_token_id", "audio_token_id", "video_token_id"] {
        tokens.extend(root.maybe_count(key)?.map(|token| token as u32));
    }
    let padding = config.maybe_count("pad_token_id")?.unwrap_or(0);
    if padding >= vocabulary {
        return Err(config.bad("pad_token_id", format!("is {padding} of {vocabulary} tokens")));
    }
    Ok(Placeholders { tokens, padding: padding as u32 })
}

/// A Gemma 4 text config, the target's or its drafter's.
pub(super) struct Gemma4<'a> {
    pub(super) config: &'a Config<'a>,
}

impl Gemma4<'_> {
    pub(super) fn check_features(&self) -> Result<(), ModelError> {
        only_gelu(self.config)?;
        self.config.only("attention_bias", &[false.into()])?;
        self.config.only("attn_logit_softcapping", &[])?;
        self.config.only("use_bidirectional_attention", &[false.into(), "vision".into()])
    }

    pub(super) fn eps(&self) -> Result<f32, ModelError> {
        Ok(self.config.positive("rms_norm_eps", Some(1e-6))? as f32)
    }

    /// Which layers have a window: `layer_types`, or five of six. The last one sees everything even where `layer_types`
    /// gives it a window, as in the published implementation.
    pub(super) fn windowed_layers(&self) -> Result<Vec<bool>, ModelError> {
        super::windowed_layers(self.config, 6, true)
    }

    fn sharing_layers(&self, layers: usize) -> Result<usize, ModelError> {
        match self.config.maybe_count("num_kv_shared_layers")?.unwrap_or(0) {
            n if n < layers => Ok(n),
            n => {
                let problem = format!("is {n} of {layers} layers, so none has keys of its own");
                Err(self.config.bad("num_kv_shared_layers", problem))
            }
        }
    }

    pub(super) fn window(&self) -> Result<usize, ModelError> {
        match self.config.get("sliding_window") {
            Some(_) => self.config.count("sliding_window"),
            None => Ok(512),
        }
    }

    /// One kind of attention; `shares` is the caller's business.
    pub(super) fn attention(&self, windowed: bool) -> Result<AttentionSpec, ModelError> {
        let config = self.config;
        let from_keys = !windowed && config.flag("attention_k_eq_v", false)?;
        let heads = config.count("num_attention_heads")?;
        let kv_heads = match config.maybe_count("num_global_key_value_heads")? {
            Some(kv_heads) if from_keys => kv_heads,
            _ => config.count("num_key_value_heads")?,
        };
        check_heads(config, heads, kv_heads)?;
        Ok(AttentionSpec {
            // Norms of queries and keys set the size of scores.
            scale: 1.0,
            qk_norm: true,
            window: if windowed { Some(self.window()?) } else { None },
            rope: if windowed { WINDOWED } else { WHOLE },
            values: if from_keys { Values::FromKeys } else { Values::Normed },
            ..AttentionSpec::plain(heads, kv_heads, self.head_dim(windowed)?)
        })
    }

    fn head_dim(&self, windowed: bool) -> Result<usize, ModelError> {
        let (key, default) = if windowed { ("head_dim", 256) } else { ("global_head_dim", 512) };
        match self.config.get(key) {
            Some(_) => self.config.count(key),
            None => Ok(default),
        }
    }

    pub(super) fn ropes(&self) -> Result<Vec<RopeSpec>, ModelError> {
        let parameters = self.config.section("rope_parameters");
        let rope = |kind: &str, windowed: bool, defaults: RopeDefaults| {
            let section = parameters.as_ref().and_then(|p| p.section(kind));
            RopeSource::section(self.config, section).read(self.head_dim(windowed)?, defaults)
        };
        Ok(vec![
            rope("sliding_attention", true, RopeDefaults { theta: 1e4, fraction: 1.0 })?,
            rope("full_attention", false, RopeDefaults { theta: 1e6, fraction: 1.0 })?,
        ])
    }

    /// A block around an attention mixer; `wide` where layers that share keys have a wider MLP.
    pub(super) fn layer(
        &self,
        attention: AttentionSpec,
        sharing: bool,
    ) -> Result<LayerSpec, ModelError> {
        let config = self.config;
        let wide = sharing && config.flag("use_double_wide_mlp", false)?;
        let dense = config.count("intermediate_size")? * if wide { 2 } else { 1 };
        let mlp = if config.flag("enable_moe_block", false)? {
            MlpSpec::Beside { dense, moe: experts(config, "top_k_experts")? }
        } else {
            MlpSpec::Dense(dense)
        };
        let mixer = MixerSpec::Attention(attention);
        Ok(LayerSpec { mixer, mlp, frame: Frame::Sandwich { scaled: true } })
    }

    fn per_layer(&self, vocabulary: usize) -> Result<Option<PerLayerSpec>, ModelError> {
        let width = self.config.maybe_count("hidden_size_per_layer_input")?.unwrap_or(0);
        let rows = self.config.maybe_count("vocab_size_per_layer_input")?;
        let vocabulary = rows.filter(|&n| n > 0).unwrap_or(vocabulary);
        Ok((width > 0).then_some(PerLayerSpec { width, vocabulary }))
    }
}
