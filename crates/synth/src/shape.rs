//! Published shapes, and what may be asked of them.

use std::fmt;
use std::str::FromStr;

/// Columns of a group of four-bit codes.
pub(crate) const GROUP: usize = 64;

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightForm {
    /// bfloat16.
    Bf16,
    /// FP8 e4m3 with a scale for each block of 128 by 128.
    Fp8,
    /// Four-bit codes in groups of 64 with scale and offset, as MLX stores them.
    FourBit,
}

impl FromStr for WeightForm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "bf16" => Ok(Self::Bf16),
            "fp8" => Ok(Self::Fp8),
            "4bit" => Ok(Self::FourBit),
            _ => Err("expected bf16, fp8 or 4bit".to_owned()),
        }
    }
}

impl fmt::Display for WeightForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::FourBit => "4bit",
        })
    }
}

/// Delta-net layers, three of every four.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaHeads {
    pub(crate) keys: usize,
    pub(crate) values: usize,
}

/// Width of a key or value head of the delta rule.
pub(crate) const DELTA_DIM: usize = 128;
/// Taps of the convolution before it.
pub(crate) const TAPS: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertShape {
    pub(crate) count: usize,
    pub(crate) top_k: usize,
    pub(crate) ffn: usize,
}

/// What a Gemma 4 model has besides: of six layers five have a window, and keys of the sixth are also its values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GemmaShape {
    pub(crate) global_head_dim: usize,
    pub(crate) global_kv_heads: usize,
    pub(crate) window: usize,
}

/// A published model's shape.
#[derive(Clone, Copy, Debug)]
pub struct PublishedShape {
    /// As it is asked for.
    pub name: &'static str,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    /// Width inside a dense MLP, or inside the shared expert.
    pub(crate) ffn: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) vocabulary: usize,
    pub(crate) positions: usize,
    pub(crate) delta: Option<DeltaHeads>,
    pub(crate) experts: Option<ExpertShape>,
    pub(crate) gemma: Option<GemmaShape>,
    /// Fields of its config that are not certain.
    pub assumed: &'static [&'static str],
}

/// Width of an attention head in all of them.
pub(crate) const HEAD_DIM: usize = 256;

const QWEN: PublishedShape = PublishedShape {
    name: "",
    hidden: 0,
    layers: 0,
    ffn: 0,
    heads: 0,
    kv_heads: 0,
    vocabulary: 248_320,
    positions: 262_144,
    delta: None,
    experts: None,
    gemma: None,
    assumed: &[],
};

const QWEN_EXPERTS: ExpertShape = ExpertShape { count: 256, top_k: 8, ffn: 0 };

const GEMMA: PublishedShape = PublishedShape { vocabulary: 262_144, ..QWEN };

const fn gemma(global_kv_heads: usize) -> Option<GemmaShape> {
    Some(GemmaShape { global_head_dim: 512, global_kv_heads, window: 1024 })
}

static SHAPES: [PublishedShape; 6] = [
    PublishedShape {
        name: "qwen3.5-9b",
        hidden: 4096,
        layers: 32,
        ffn: 12_288,
        heads: 16,
        kv_heads: 4,
        delta: Some(DeltaHeads { keys: 16, values: 32 }),
        ..QWEN
    },
    PublishedShape {
        name: "qwen3.6-27b",
        hidden: 5120,
        layers: 64,
        ffn: 17_408,
        heads: 24,
        kv_heads: 4,
        delta: Some(DeltaHeads { keys: 16, values: 48 }),
        ..QWEN
    },
    PublishedShape {
        name: "qwen3.6-35b-a3b",
        hidden: 2048,
        layers: 40,
        ffn: 512,
        heads: 16,
        kv_heads: 2,
        delta: Some(DeltaHeads { keys: 16, values: 32 }),
        experts: Some(ExpertShape { ffn: 512, ..QWEN_EXPERTS }),
        assumed: &["shared_expert_intermediate_size"],
        ..QWEN
    },
    PublishedShape {
        name: "qwen3.5-122b-a10b",
        hidden: 3072,
        layers: 48,
        ffn: 1024,
        heads: 32,
        kv_heads: 2,
        delta: Some(DeltaHeads { keys: 16, values: 64 }),
        experts: Some(ExpertShape { ffn: 1024, ..QWEN_EXPERTS }),
        assumed: &[
            "num_attention_heads",
            "linear_num_value_heads",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
        ],
        ..QWEN
    },
    PublishedShape {
        name: "gemma4-31b",
        hidden: 5376,
        layers: 60,
        ffn: 21_504,
        heads: 32,
        kv_heads: 16,
        gemma: gemma(4),
        assumed: &["hidden_size", "num_global_key_value_heads"],
        ..GEMMA
    },
    PublishedShape {
        name: "gemma4-26b-a4b",
        hidden: 2816,
        layers: 30,
        ffn: 2112,
        heads: 16,
        kv_heads: 8,
        gemma: gemma(2),
        experts: Some(ExpertShape { count: 128, top_k: 8, ffn: 704 }),
        assumed: &[
            "hidden_size",
            "num_hidden_layers",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "num_global_key_value_heads",
            "num_experts",
            "top_k_experts",
            "moe_intermediate_size",
        ],
        ..GEMMA
    },
];

/// All shapes.
pub fn shapes() -> &'static [PublishedShape] {
    &SHAPES
}

/// The shape of this name.
///
/// # Errors
/// When there is none; the error names those there are.
pub fn published(name: &str) -> Result<&'static PublishedShape, SynthError> {
    let found = SHAPES.iter().find(|shape| shape.name == name);
    found.ok_or_else(|| SynthError::Unknown {
        name: name.to_owned(),
        known: SHAPES.map(|shape| shape.name).join(", "),
    })
}

/// Why a model cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "fields are named in the messages")]
pub enum SynthError {
    /// No such shape.
    #[error("no published shape is called `{name}`; there are {known}")]
    Unknown { name: String, known: String },
    /// More layers than the model has, or none.
    #[error("--layers {layers}: {name} has {most} layers; give a number from 1 to {most}")]
    Layers { layers: usize, name: &'static str, most: usize },
    /// Widths that are not made of whole groups.
    #[error("--narrow {narrow}: widths of {name} divided by {narrow} are no multiples of 64")]
    Narrow { narrow: usize, name: &'static str },
    /// A vocabulary that cannot be.
    #[error("--vocabulary {vocabulary}: {name} has {most} tokens; give a number from 64 to {most}")]
    Vocabulary { vocabulary: usize, name: &'static str, most: usize },
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] forerun_weights::safetensors::WriteError),
}

/// What is drawn.
#[derive(Clone, Copy, Debug)]
pub struct SynthOptions {
    /// The shape.
    pub like: &'static PublishedShape,
    /// How weights are stored.
    pub form: WeightForm,
    /// Fewer layers than published.
    pub layers: Option<usize>,
    /// What widths and counts of heads are divided by.
    pub narrow: usize,
    /// Fewer tokens than published.
    pub vocabulary: Option<usize>,
    /// Keys all numbers.
    pub seed: u64,
}

impl SynthOptions {
    /// The model as it will be.
    pub(crate) fn shape(&self) -> Result<PublishedShape, SynthError> {
        let (name, narrow) = (self.like.name, self.narrow);
        let mut shape = *self.like;
        if let Some(layers) = self.layers {
            let most = shape.layers;
            if layers == 0 || layers > most {
                return Err(SynthError::Layers { layers, name, most });
            }
            shape.layers = layers;
        }
        if let Some(vocabulary) = self.vocabulary {
            let most = shape.vocabulary;
            if !(64..=most).contains(&vocabulary) {
                return Err(SynthError::Vocabulary { vocabulary, name, most });
            }
            shape.vocabulary = vocabulary;
        }
        if narrow == 1 {
            return Ok(shape);
        }
        let expert = shape.experts.map_or(shape.ffn, |experts| experts.ffn);
        let whole = |width: usize| {
            width
                .checked_div(narrow)
                .is_some_and(|n| n * narrow == width && n > 0 && n.is_multiple_of(GROUP))
        };
        if ![shape.hidden, shape.ffn, expert].into_iter().all(whole) {
            return Err(SynthError::Narrow { narrow, name });
        }
        let fewer = |heads: usize| (heads / narrow).max(1);
        let ratio = shape.heads / shape.kv_heads;
        (shape.hidden, shape.ffn) = (shape.hidden / narrow, shape.ffn / narrow);
        shape.kv_heads = fewer(shape.kv_heads);
        shape.heads = fewer(shape.heads).max(ratio.min(2)).next_multiple_of(shape.kv_heads);
        if let Some(delta) = &mut shape.delta {
            let ratio = delta.values / delta.keys;
            delta.keys = fewer(delta.keys);
            delta.values = ratio * delta.keys;
        }
        if let Some(experts) = &mut shape.experts {
            experts.ffn /= narrow;
        }
        if let Some(gemma) = &mut shape.gemma {
            gemma.global_kv_heads = fewer(gemma.global_kv_heads);
        }
        Ok(shape)
    }

    /// What was asked for, in words that say the weights are random.
    pub fn title(&self) -> String {
        let mut title = format!("synth:{}, random {} weights", self.like.name, self.form);
        let extras = [
            self.layers.map(|n| format!("{n} layers")),
            (self.narrow > 1).then(|| format!("1/{} as wide", self.narrow)),
            self.vocabulary.map(|n| format!("{n} tokens")),
        ];
        extras.into_iter().flatten().for_each(|extra| title.push_str(&format!(", {extra}")));
        title
    }
}
