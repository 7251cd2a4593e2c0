//! Which tensors a model stores, under which names, and what their numbers are like.
//!
//! Norms are one and matrices keep the size of what they multiply, so activations stay of order one through any
//! number of layers.

use crate::draw::key;
use crate::shape::{
    DELTA_DIM, DeltaHeads, ExpertShape, GROUP, GemmaShape, HEAD_DIM, PublishedShape, SynthOptions,
    TAPS, WeightForm,
};
use crate::tensor::{E4M3_DEVIATION, Fill, SynthTensor};
use forerun_base::DType;
use std::collections::BTreeMap;

/// Rows and columns of a block of FP8 codes.
const BLOCK: usize = 128;
/// Variance of four random bits.
const CODE_VARIANCE: f32 = 255.0 / 12.0;

/// All tensors by name.
pub(crate) struct TensorList {
    pub(crate) tensors: BTreeMap<String, SynthTensor>,
    /// Numbers that they stand for.
    pub(crate) parameters: u64,
    form: WeightForm,
    seed: u64,
}

pub(crate) fn list(shape: &PublishedShape, options: &SynthOptions) -> TensorList {
    let mut list = TensorList {
        tensors: BTreeMap::new(),
        parameters: 0,
        form: options.form,
        seed: options.seed,
    };
    match (shape.delta, shape.gemma) {
        (Some(delta), _) => Qwen { shape, delta }.fill(&mut list),
        (None, Some(gemma)) => GemmaTensors { shape, gemma }.fill(&mut list),
        (None, None) => unreachable!("every shape is one of these"),
    }
    list
}

impl TensorList {
    fn put(&mut self, name: String, dtype: DType, shape: &[usize], fill: Fill) {
        self.put_keyed(name.clone(), &name, (dtype, shape, fill));
    }

    /// A tensor whose numbers are keyed by the name of another.
    fn put_keyed(&mut self, name: String, by: &str, what: (DType, &[usize], Fill)) {
        let (dtype, shape, fill) = what;
        let key = key(self.seed, by);
        self.tensors.insert(name, SynthTensor { dtype, shape: shape.to_vec(), key, fill });
    }

    /// A vector of one number.
    fn constant(&mut self, name: String, len: usize, value: f32) {
        self.parameters += len as u64;
        self.put(name, DType::BF16, &[len], Fill::Constant(value));
    }

    fn uniform(
        &mut self,
        name: String,
        dtype: DType,
        len: usize,
        range: ([f32; 2], fn(f32) -> f32),
    ) {
        self.parameters += len as u64;
        self.put(name, dtype, &[len], Fill::Uniform(range.0, range.1));
    }

    /// A matrix that is never packed.
    fn dense(&mut self, name: String, shape: &[usize], deviation: f32) {
        self.parameters += shape.iter().product::<usize>() as u64;
        self.put(name, DType::BF16, shape, Fill::Normal(deviation));
    }

    /// A projection or a stack of them, which keeps the size of its input times `gain`; a stack may be bare.
    fn projection(&mut self, path: String, shape: &[usize], gain: f32) {
        let cols = shape[shape.len() - 1];
        self.packed(path, shape, gain / (cols as f32).sqrt(), self.form);
    }

    fn packed(&mut self, path: String, shape: &[usize], deviation: f32, form: WeightForm) {
        let bare = shape.len() == 3 && form != WeightForm::FourBit;
        let name = if bare { path.clone() } else { format!("{path}.weight") };
        let (lead, cols) = (&shape[..shape.len() - 1], shape[shape.len() - 1]);
        match form {
            WeightForm::Bf16 => return self.dense(name, shape, deviation),
            WeightForm::Fp8 => {
                let (&rows, stack) = lead.split_last().expect("a matrix has rows");
                let blocks = [stack, &[rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)]].concat();
                let scale = Fill::Constant(deviation / E4M3_DEVIATION);
                self.put(format!("{name}_scale_inv"), DType::F32, &blocks, scale);
                self.put(name, DType::F8E4M3, shape, Fill::Normal(deviation));
            }
            WeightForm::FourBit => {
                let scale = deviation / CODE_VARIANCE.sqrt();
                let groups = [lead, &[cols / GROUP]].concat();
                let by = format!("{path}.scales");
                let scales = (DType::BF16, &groups[..], Fill::Scales(scale));
                self.put_keyed(by.clone(), &by, scales);
                let offsets = (DType::BF16, &groups[..], Fill::Offsets(scale));
                self.put_keyed(format!("{path}.biases"), &by, offsets);
                self.put(name, DType::U32, &[lead, &[cols / 8]].concat(), Fill::Bits);
            }
        }
        self.parameters += shape.iter().product::<usize>() as u64;
    }

    /// The tables of tokens. MLX packs them too; published FP8 models do not.
    fn table(&mut self, path: String, shape: [usize; 2], deviation: f32) {
        let form = if self.form == WeightForm::Fp8 { WeightForm::Bf16 } else { self.form };
        self.packed(path, &shape, deviation, form);
    }

    fn swiglu(&mut self, at: &str, hidden: usize, ffn: usize) {
        self.projection(format!("{at}.gate_proj"), &[ffn, hidden], 1.0);
        self.projection(format!("{at}.up_proj"), &[ffn, hidden], 1.0);
        self.projection(format!("{at}.down_proj"), &[hidden, ffn], 1.5);
    }

    /// Experts stacked by projection where MLX stores them, else with gate and up fused.
    fn experts(&mut self, [at, stack]: [&str; 2], hidden: usize, experts: ExpertShape) {
        let ExpertShape { count, ffn, .. } = experts;
        if self.form == WeightForm::FourBit {
            self.projection(format!("{stack}.gate_proj"), &[count, ffn, hidden], 1.0);
            self.projection(format!("{stack}.up_proj"), &[count, ffn, hidden], 1.0);
            self.projection(format!("{stack}.down_proj"), &[count, hidden, ffn], 1.5);
        } else {
            self.projection(format!("{at}.gate_up_proj"), &[count, 2 * ffn, hidden], 1.0);
            self.projection(format!("{at}.down_proj"), &[count, hidden, ffn], 1.5);
        }
    }
}

/// Qwen 3.5 and 3.6.
struct Qwen<'a> {
    shape: &'a PublishedShape,
    delta: DeltaHeads,
}

impl Qwen<'_> {
    fn fill(&self, list: &mut TensorList) {
        let PublishedShape { hidden, vocabulary, .. } = *self.shape;
        let root = "model.language_model";
        list.table(format!("{root}.embed_tokens"), [vocabulary, hidden], 1.0);
        list.table("lm_head".into(), [vocabulary, hidden], 3.0 / (hidden as f32).sqrt());
        for i in 0..self.shape.layers {
            let at = format!("{root}.layers.{i}");
            if self.shape.attends_to_all(i) {
                self.attention(list, &format!("{at}.self_attn"));
            } else {
                self.delta_net(list, &format!("{at}.linear_attn"));
            }
            self.block(list, &at);
        }
        self.norm(list, format!("{root}.norm"), hidden);
        for name in ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"] {
            self.norm(list, format!("mtp.{name}"), hidden);
        }
        list.projection("mtp.fc".into(), &[hidden, 2 * hidden], 1.0);
        self.attention(list, "mtp.layers.0.self_attn");
        self.block(list, "mtp.layers.0");
    }

    /// Published files hold norms less one; what MLX has converted holds them whole.
    fn norm(&self, list: &mut TensorList, at: String, len: usize) {
        let value = if list.form == WeightForm::FourBit { 1.0 } else { 0.0 };
        list.constant(format!("{at}.weight"), len, value);
    }

    /// Norms and MLP of a block.
    fn block(&self, list: &mut TensorList, at: &str) {
        let PublishedShape { hidden, ffn, experts, .. } = *self.shape;
        for name in ["input_layernorm", "post_attention_layernorm"] {
            self.norm(list, format!("{at}.{name}"), hidden);
        }
        let at = format!("{at}.mlp");
        let Some(experts) = experts else { return list.swiglu(&at, hidden, ffn) };
        let spread = 2.0 / (hidden as f32).sqrt();
        list.dense(format!("{at}.gate.weight"), &[experts.count, hidden], spread);
        list.experts([&format!("{at}.experts"), &format!("{at}.switch_mlp")], hidden, experts);
        list.swiglu(&format!("{at}.shared_expert"), hidden, ffn);
        list.dense(format!("{at}.shared_expert_gate.weight"), &[1, hidden], 0.5 * spread);
    }

    fn attention(&self, list: &mut TensorList, at: &str) {
        let PublishedShape { hidden, heads, kv_heads, .. } = *self.shape;
        let (wide, kv) = (heads * HEAD_DIM, kv_heads * HEAD_DIM);
        list.projection(format!("{at}.q_proj"), &[2 * wide, hidden], 1.0);
        list.projection(format!("{at}.k_proj"), &[kv, hidden], 1.0);
        list.projection(format!("{at}.v_proj"), &[kv, hidden], 1.0);
        // The gate halves what passes; a larger output makes up for it.
        list.projection(format!("{at}.o_proj"), &[hidden, wide], 2.0);
        for name in ["q_norm", "k_norm"] {
            self.norm(list, format!("{at}.{name}"), HEAD_DIM);
        }
    }

    fn delta_net(&self, list: &mut TensorList, at: &str) {
        let hidden = self.shape.hidden;
        let DeltaHeads { keys, values: heads } = self.delta;
        let (keys, values) = (keys * DELTA_DIM, heads * DELTA_DIM);
        list.projection(format!("{at}.in_proj_qkv"), &[2 * keys + values, hidden], 1.0);
        list.projection(format!("{at}.in_proj_z"), &[values, hidden], 1.0);
        let spread = 0.7 / (hidden as f32).sqrt();
        for name in ["a", "b"] {
            list.dense(format!("{at}.in_proj_{name}.weight"), &[heads, hidden], spread);
        }
        let channels = 2 * keys + values;
        let kernel = if list.form == WeightForm::FourBit {
            [channels, TAPS, 1]
        } else {
            [channels, 1, TAPS]
        };
        list.dense(format!("{at}.conv1d.weight"), &kernel, 0.6);
        list.uniform(format!("{at}.A_log"), DType::F32, heads, ([0.1, 4.0], f32::ln));
        // The inverse of softplus: the decay's step is then what was drawn.
        let inverse = |step: f32| step.exp_m1().ln();
        list.uniform(format!("{at}.dt_bias"), DType::BF16, heads, ([0.01, 0.25], inverse));
        list.constant(format!("{at}.norm.weight"), DELTA_DIM, 1.0);
        list.projection(format!("{at}.out_proj"), &[hidden, values], 1.0);
    }
}

/// GemmaTensors 4.
struct GemmaTensors<'a> {
    shape: &'a PublishedShape,
    gemma: GemmaShape,
}

impl GemmaTensors<'_> {
    fn fill(&self, list: &mut TensorList) {
        let PublishedShape { hidden, vocabulary, .. } = *self.shape;
        let root = "model.language_model";
        // Embeddings are multiplied by the root of the width, and are also the head.
        let spread = 3.0 / (hidden as f32).sqrt();
        list.table(format!("{root}.embed_tokens"), [vocabulary, hidden], spread);
        for i in 0..self.shape.layers {
            self.layer(list, &format!("{root}.layers.{i}"), self.shape.attends_to_all(i));
        }
        list.constant(format!("{root}.norm.weight"), hidden, 1.0);
    }

    fn layer(&self, list: &mut TensorList, at: &str, whole: bool) {
        let PublishedShape { hidden, ffn, experts, .. } = *self.shape;
        for name in [
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ] {
            list.constant(format!("{at}.{name}.weight"), hidden, 1.0);
        }
        self.attention(list, &format!("{at}.self_attn"), whole);
        list.swiglu(&format!("{at}.mlp"), hidden, ffn);
        list.constant(format!("{at}.layer_scalar"), 1, 0.85);
        let Some(experts) = experts else { return };
        // The router's input is divided by the root of the width.
        list.dense(format!("{at}.router.proj.weight"), &[experts.count, hidden], 1.0);
        list.constant(format!("{at}.router.scale"), hidden, 1.0);
        list.constant(format!("{at}.router.per_expert_scale"), experts.count, 1.0);
        let stack = format!("{at}.experts");
        list.experts([&stack, &format!("{stack}.switch_glu")], hidden, experts);
        for name in [
            "pre_feedforward_layernorm_2",
            "post_feedforward_layernorm_1",
            "post_feedforward_layernorm_2",
        ] {
            list.constant(format!("{at}.{name}.weight"), hidden, 1.0);
        }
    }

    fn attention(&self, list: &mut TensorList, at: &str, whole: bool) {
        let PublishedShape { hidden, heads, kv_heads, .. } = *self.shape;
        let GemmaShape { global_head_dim, global_kv_heads, .. } = self.gemma;
        let (head_dim, kv_heads) =
            if whole { (global_head_dim, global_kv_heads) } else { (HEAD_DIM, kv_heads) };
        let (wide, kv) = (heads * head_dim, kv_heads * head_dim);
        list.projection(format!("{at}.q_proj"), &[wide, hidden], 1.0);
        list.projection(format!("{at}.k_proj"), &[kv, hidden], 1.0);
        if !whole {
            list.projection(format!("{at}.v_proj"), &[kv, hidden], 1.0);
        }
        list.projection(format!("{at}.o_proj"), &[hidden, wide], 1.0);
        // Scores are not scaled: these norms set their size.
        for name in ["q_norm", "k_norm"] {
            list.constant(format!("{at}.{name}.weight"), head_dim, 0.6);
        }
    }
}
