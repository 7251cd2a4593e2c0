//! Gemma 3n: AltUp and Laurel around sandwich blocks, per-layer inputs, sparse MLPs, layers with and without a window,
//! keys and values shared by trailing layers.

use super::gemma3::ropes;
use super::gemma4::placeholders;
use super::{check_heads, only_gelu, tied, windowed_layers};
use crate::config::Config;
use crate::{
    AltUpSpec, AttentionSpec, Frame, LayerSpec, MixerSpec, MlpSpec, ModelError, ModelSpec,
    PerLayerSpec, Values,
};
use forerun_backend::op::{Activation, Streams};

/// Ropes in the order layers name them.
const WINDOWED: usize = 0;
const WHOLE: usize = 1;

pub(super) fn read(family: &str, root: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let nested = root.section("text_config");
    let text = Gemma3n { config: nested.as_ref().unwrap_or(root) };
    let config = text.config;
    only_gelu(config)?;
    config.only("attn_logit_softcapping", &[])?;
    config.only("use_bidirectional_attention", &[false.into()])?;
    let (hidden, vocabulary) =
        (text.count("hidden_size", 2048)?, text.count("vocab_size", 262_400)?);
    let head_dim = text.count("head_dim", 256)?;
    Ok(ModelSpec {
        family: family.to_owned(),
        vocabulary,
        hidden,
        eps: config.positive("rms_norm_eps", Some(1e-6))? as f32,
        max_positions: config.maybe_count("max_position_embeddings")?.unwrap_or(32_768).max(1),
        tied: tied(root, config, true)?,
        placeholders: placeholders(root, config, vocabulary)?,
        embed_scale: (hidden as f32).sqrt(),
        logit_cap: text.cap()?,
        logit_scale: 1.0,
        activation: Activation::GeluTanh,
        ropes: ropes(config, head_dim)?,
        layers: text.layers(head_dim)?,
        per_layer: Some(PerLayerSpec {
            width: text.count("hidden_size_per_layer_input", 256)?,
            vocabulary: text.count("vocab_size_per_layer_input", 262_144)?,
        }),
        drafter: None,
    })
}

struct Gemma3n<'a> {
    config: &'a Config<'a>,
}

impl Gemma3n<'_> {
    /// Published configs leave out what equals the library's defaults.
    fn count(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        match self.config.get(key) {
            Some(_) => self.config.count(key),
            None => Ok(default),
        }
    }

    /// There is a cap unless the config says `null`.
    fn cap(&self) -> Result<Option<f32>, ModelError> {
        let key = "final_logit_softcapping";
        if self.config.is_null(key) {
            return Ok(None);
        }
        Ok(Some(self.config.positive(key, Some(30.0))? as f32))
    }

    fn layers(&self, head_dim: usize) -> Result<Vec<LayerSpec>, ModelError> {
        let config = self.config;
        let windowed = windowed_layers(config, 5, false)?;
        let owned = windowed.len() - self.sharing_layers(windowed.len())?;
        let (heads, kv_heads) =
            (self.count("num_attention_heads", 8)?, self.count("num_key_value_heads", 2)?);
        check_heads(config, heads, kv_heads)?;
        let frame = Frame::AltUp(self.altup()?);
        let bias = config.flag("attention_bias", false)?;
        let window = self.count("sliding_window", 512)?;
        let layer = |(i, mlp): (usize, MlpSpec)| -> Result<LayerSpec, ModelError> {
            let owner = windowed[..owned].iter().rposition(|&w| w == windowed[i]);
            let shares =
                if i < owned { None } else { Some(owner.ok_or_else(|| self.no_owner(i))?) };
            let mixer = MixerSpec::Attention(AttentionSpec {
                // Norms of queries and keys set the size of scores.
                scale: 1.0,
                qk_norm: true,
                bias,
                window: windowed[i].then_some(window),
                rope: if windowed[i] { WINDOWED } else { WHOLE },
                values: Values::Normed,
                shares,
                ..AttentionSpec::plain(heads, kv_heads, head_dim)
            });
            Ok(LayerSpec { mixer, mlp, frame })
        };
        self.mlps(windowed.len())?.into_iter().enumerate().map(layer).collect()
    }

    fn no_owner(&self, layer: usize) -> ModelError {
        let problem = format!("leaves layer {layer} without a layer of its kind to share");
        self.config.bad("num_kv_shared_layers", problem)
    }

    fn sharing_layers(&self, layers: usize) -> Result<usize, ModelError> {
        match self.config.maybe_count("num_kv_shared_layers")?.unwrap_or(15) {
            n if n < layers => Ok(n),
            n => {
                let problem = format!("is {n} of {layers} layers, so none has keys of its own");
                Err(self.config.bad("num_kv_shared_layers", problem))
            }
        }
    }

    fn altup(&self) -> Result<AltUpSpec, ModelError> {
        let config = self.config;
        let streams = self.count("altup_num_inputs", 4)?;
        if streams > Streams::MOST {
            return Err(config.unsupported("altup_num_inputs"));
        }
        let active = config.maybe_count("altup_active_idx")?.unwrap_or(0);
        if active >= streams {
            let problem = format!("is {active} of {streams} streams");
            return Err(config.bad("altup_active_idx", problem));
        }
        let scaled = config.flag("altup_correct_scale", true)?;
        Ok(AltUpSpec { streams, active, scaled, laurel: self.count("laurel_rank", 64)? })
    }

    /// One width for all layers or one for each, and how many of its gates a layer closes.
    fn mlps(&self, layers: usize) -> Result<Vec<MlpSpec>, ModelError> {
        let key = "intermediate_size";
        let widths = match self.config.get(key) {
            Some(value) if value.is_array() => self.each(key, layers, |value| {
                let width = value.as_u64().filter(|n| (1..=1 << 24).contains(n));
                width.map(|n| n as usize)
            })?,
            _ => vec![self.count(key, 16_384)?; layers],
        };
        // What GGUF files say in place of shares.
        let key = "activation_sparsity_scale";
        if self.config.get(key).is_some() {
            let scales = self.each(key, layers, |value| match value.as_f64() {
                None => value.is_null().then_some(None),
                Some(scale) => (scale.abs() < 1e3).then_some(Some(scale as f32)),
            })?;
            let mlp = |(ffn, scale): (usize, Option<f32>)| match scale {
                None => MlpSpec::Dense(ffn),
                Some(deviations) => MlpSpec::Sparse { ffn, deviations },
            };
            return Ok(widths.into_iter().zip(scales).map(mlp).collect());
        }
        let key = "activation_sparsity_pattern";
        let shares = match self.config.get(key) {
            Some(_) => self.each(key, layers, |value| {
                value.as_f64().filter(|share| (0.0..1.0).contains(share))
            })?,
            None => {
                let sparse = if layers > 10 { 10 } else { 0 };
                (0..layers).map(|i| if i < sparse { 0.95 } else { 0.0 }).collect()
            }
        };
        let mlp = |(ffn, share)| match share > 0.0 {
            false => MlpSpec::Dense(ffn),
            true => MlpSpec::Sparse { ffn, deviations: quantile(share) as f32 },
        };
        Ok(widths.into_iter().zip(shares).map(mlp).collect())
    }

    /// A list with an entry for each layer.
    fn each<T>(
        &self,
        key: &str,
        layers: usize,
        read: impl Fn(&serde_json::Value) -> Option<T>,
    ) -> Result<Vec<T>, ModelError> {
        let list = self.config.list(key)?.unwrap_or_default();
        if list.len() != layers {
            let problem = format!("has {} entries for {layers} layers", list.len());
            return Err(self.config.bad(key, problem));
        }
        let one = |value| {
            read(value).ok_or_else(|| self.config.bad(key, format!("holds {value}, out of range")))
        };
        list.iter().map(one).collect()
    }
}

/// The number that a share of normally distributed ones is below, for a share in `(0, 1)`.
fn quantile(share: f64) -> f64 {
    // The share below `z` is ½ + φ(z)·Σ z^(2k+1) / (1·3·5···(2k+1)), which converges for every `z`.
    let below = |z: f64| {
        let (mut term, mut sum) = (z, 0.0);
        for k in 1..400 {
            sum += term;
            term *= z * z / f64::from(2 * k + 1);
        }
        let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
        0.5 + density * sum
    };
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        *(if below(middle) < share { &mut low } else { &mut high }) = middle;
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn shares_become_standard_deviations() {
        // Of any table of the normal distribution.
        let table =
            [(0.5, 0.0), (0.9, 1.281_551_565_5), (0.95, 1.644_853_627), (0.1, -1.281_551_565_5)];
        for (share, deviations) in table {
            assert!((quantile(share) - deviations).abs() < 1e-8, "{share}");
        }
        assert!((quantile(0.999_999) - 4.753_424_309).abs() < 1e-6);
    }
}
