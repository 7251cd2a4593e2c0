//! Published checkpoints as GGUF files, written from the format's own rules: what the translation undoes.

use forerun_testkit::tiny::{Family, GgufFile, GgufValue, Tiny};
use forerun_weights::Checkpoint;
use std::path::Path;

/// Numbers with axes, slowest first.
#[derive(Clone)]
pub(super) struct NumberArray {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl NumberArray {
    fn width(&self) -> usize {
        self.values.len() / self.shape[0]
    }

    /// The entries `order` of the first axis.
    fn rows(&self, order: &[usize]) -> Self {
        let width = self.width();
        let row = |&i: &usize| self.values[i * width..(i + 1) * width].iter().copied();
        let mut shape = self.shape.clone();
        shape[0] = order.len();
        Self { shape, values: order.iter().flat_map(row).collect() }
    }

    /// The columns `order` of a matrix.
    fn columns(&self, order: &[usize]) -> Self {
        let rows = self.values.chunks_exact(self.width());
        let values = rows.flat_map(|row| order.iter().map(|&i| row[i])).collect();
        Self { shape: vec![self.shape[0], order.len()], values }
    }

    fn map(mut self, f: impl Fn(f32) -> f32) -> Self {
        self.values.iter_mut().for_each(|v| *v = f(*v));
        self
    }

    fn shaped(self, shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), ..self }
    }

    /// Equal parts as one stack.
    fn stack(parts: Vec<Self>) -> Self {
        let shape = [&[parts.len()], &parts[0].shape[..]].concat();
        Self { shape, values: parts.into_iter().flat_map(|part| part.values).collect() }
    }

    /// The same part of every matrix of a stack.
    fn part_of_each(&self, rows: std::ops::Range<usize>) -> Self {
        let [count, height, width] = self.shape[..] else { panic!("a stack has three axes") };
        let flat = self.clone().shaped(&[count * height, width]);
        let order: Vec<usize> =
            (0..count).flat_map(|e| rows.clone().map(move |row| e * height + row)).collect();
        flat.rows(&order).shaped(&[count, rows.len(), width])
    }
}

/// A conversion under way.
pub(super) struct Converter<'a> {
    pub(super) tiny: &'a Tiny,
    arch: &'static str,
    root: &'static str,
    source: Checkpoint,
    pub(super) file: GgufFile,
}

impl<'a> Converter<'a> {
    pub(super) fn new(tiny: &'a Tiny, folder: &Path) -> Self {
        let (arch, root) = match tiny.family {
            Family::Llama => ("llama", "model"),
            Family::Qwen3 => ("qwen3", "model"),
            Family::Qwen3Moe => ("qwen3moe", "model"),
            Family::Qwen3Next => ("qwen3next", "model"),
            Family::Qwen35 => ("qwen35", "model.language_model"),
            Family::Qwen35Moe => ("qwen35moe", "model.language_model"),
            Family::Gemma3 => ("gemma3", "model"),
            Family::Gemma4 => ("gemma4", "model.language_model"),
            Family::Granite => ("granitehybrid", "model"),
            Family::Lfm2 => ("lfm2", "model"),
            Family::Lfm2Moe => ("lfm2moe", "model"),
            Family::NemotronH => ("nemotron_h_moe", "backbone"),
        };
        let source = Checkpoint::open(folder).expect("a checkpoint");
        let file = GgufFile::default().with("general.architecture", GgufValue::text(arch));
        Self { tiny, arch, root, source, file }
    }

    /// A key of the architecture.
    pub(super) fn key(&mut self, name: &str, value: GgufValue) {
        let key = format!("{}.{name}", self.arch);
        self.file.metadata.push((key, value));
    }

    pub(super) fn counts(&mut self, counts: &[(&str, usize)]) {
        for &(name, n) in counts {
            self.key(name, GgufValue::U32(n as u32));
        }
    }

    pub(super) fn holds(&self, name: &str) -> bool {
        self.source.contains(name)
    }

    pub(super) fn take(&self, name: &str) -> NumberArray {
        let shape = self.source.info(name).expect("stored").shape;
        let values = self.source.values(name, &shape).expect("floats");
        NumberArray { shape, values }
    }

    pub(super) fn put(&mut self, name: &str, numbers: &NumberArray) {
        let shape: Vec<u64> = numbers.shape.iter().map(|&n| n as u64).collect();
        self.file = std::mem::take(&mut self.file).f32s(name, &shape, &numbers.values);
    }

    /// A tensor as it is, where it is stored at all.
    pub(super) fn copy(&mut self, name: &str, from: &str) {
        if self.holds(from) {
            self.put(name, &self.take(from));
        }
    }

    /// A norm as the factor itself.
    pub(super) fn norm(&mut self, name: &str, from: &str) {
        let offset = self.tiny.family.is_hybrid() || self.tiny.family == Family::Gemma3;
        if self.holds(from) {
            let weight = self.take(from).map(|w| if offset { w + 1.0 } else { w });
            self.put(name, &weight);
        }
    }

    /// What all architectures say and store outside of blocks.
    pub(super) fn outside(&mut self, eps: f32, theta: f32) {
        let (tiny, root) = (self.tiny, self.root);
        self.counts(&[
            ("context_length", 4096),
            ("embedding_length", tiny.hidden),
            ("attention.head_count", tiny.heads),
        ]);
        self.key("attention.layer_norm_rms_epsilon", GgufValue::F32(eps));
        self.key("rope.freq_base", GgufValue::F32(theta));
        self.copy("token_embd.weight", &format!("{root}.embed_tokens.weight"));
        self.norm("output_norm.weight", &format!("{root}.norm.weight"));
        self.copy("output.weight", "lm_head.weight");
    }

    /// The published path of block `i`, the MTP block being one past the last.
    pub(super) fn block(&self, i: usize) -> String {
        if i < self.tiny.layers {
            format!("{}.layers.{i}", self.root)
        } else {
            "mtp.layers.0".into()
        }
    }

    /// Projections and norms of an attention mixer.
    pub(super) fn attention(&mut self, at: &str, b: &str) {
        let interleaved = self.tiny.family == Family::Llama || self.tiny.family.has_scans();
        let mixer = if self.tiny.family == Family::NemotronH { "mixer" } else { "self_attn" };
        for (name, stored, heads) in [
            ("q_proj", "attn_q", Some(self.tiny.heads)),
            ("k_proj", "attn_k", Some(self.tiny.kv_heads)),
            ("v_proj", "attn_v", None),
            ("o_proj", "attn_output", None),
        ] {
            let from = format!("{at}.{mixer}.{name}.weight");
            match heads.filter(|_| interleaved) {
                Some(heads) => {
                    let order = interleaved_rows(heads, self.tiny.head_dim);
                    self.put(&format!("{b}.{stored}.weight"), &self.take(&from).rows(&order));
                }
                None => self.copy(&format!("{b}.{stored}.weight"), &from),
            }
        }
        for name in ["q_norm", "k_norm"] {
            let from = format!("{at}.self_attn.{name}.weight");
            self.norm(&format!("{b}.attn_{name}.weight"), &from);
        }
    }

    /// Gate, up and down of a dense MLP.
    pub(super) fn dense(&mut self, at: &str, b: &str, suffix: &str) {
        for name in ["gate", "up", "down"] {
            let from = format!("{at}.{name}_proj.weight");
            self.copy(&format!("{b}.ffn_{name}{suffix}.weight"), &from);
        }
    }

    /// Stacked experts, gate and up apart or as one.
    pub(super) fn experts(&mut self, at: &str, b: &str, fused: bool) {
        let (count, ffn) = (self.tiny.experts.count, self.tiny.experts.ffn);
        let fused_name = format!("{at}.experts.gate_up_proj");
        if fused {
            self.copy(&format!("{b}.ffn_gate_up_exps.weight"), &fused_name);
            return self
                .copy(&format!("{b}.ffn_down_exps.weight"), &format!("{at}.experts.down_proj"));
        }
        let [gate, up, down] = if self.holds(&fused_name) {
            let both = self.take(&fused_name);
            let down = self.take(&format!("{at}.experts.down_proj"));
            [both.part_of_each(0..ffn), both.part_of_each(ffn..2 * ffn), down]
        } else {
            ["gate", "up", "down"].map(|name| {
                let one = |e| self.take(&format!("{at}.experts.{e}.{name}_proj.weight"));
                NumberArray::stack((0..count).map(one).collect())
            })
        };
        for (name, numbers) in [("gate", gate), ("up", up), ("down", down)] {
            self.put(&format!("{b}.ffn_{name}_exps.weight"), &numbers);
        }
    }

    /// A Gated DeltaNet mixer.
    pub(super) fn delta(&mut self, at: &str, b: &str) {
        let linear = self.tiny.linear;
        let (nk, nv, dv) = (linear.key_heads, linear.value_heads, linear.value_dim);
        let keys = 2 * nk * linear.key_dim;
        let grouped = self.tiny.family == Family::Qwen3Next;
        // Value heads are dealt out over key heads, except in Qwen3-Next.
        let heads: Vec<usize> = if grouped {
            (0..nv).collect()
        } else {
            (0..nv).map(|j| j % nk * (nv / nk) + j / nk).collect()
        };
        let values = widened(&heads, dv, 0);
        let channels: Vec<usize> = (0..keys).chain(widened(&heads, dv, keys)).collect();
        let of = |name: &str| format!("{at}.linear_attn.{name}");
        let (qkv, z) = if grouped {
            self.put(&format!("{b}.ssm_ba.weight"), &self.take(&of("in_proj_ba.weight")));
            ungrouped(&self.take(&of("in_proj_qkvz.weight")), self.tiny)
        } else {
            for (name, stored) in [("a", "ssm_alpha"), ("b", "ssm_beta")] {
                let rows = self.take(&of(&format!("in_proj_{name}.weight"))).rows(&heads);
                self.put(&format!("{b}.{stored}.weight"), &rows);
            }
            (self.take(&of("in_proj_qkv.weight")), self.take(&of("in_proj_z.weight")))
        };
        let conv = self.take(&of("conv1d.weight")).shaped(&[keys + nv * dv, linear.taps]);
        let rate = self.take(&of("A_log")).map(|a| -a.exp());
        for (name, numbers) in [
            ("attn_qkv.weight", qkv.rows(&channels)),
            ("attn_gate.weight", z.rows(&values)),
            ("ssm_conv1d.weight", conv.rows(&channels)),
            ("ssm_a", rate.rows(&heads)),
            ("ssm_dt.bias", self.take(&of("dt_bias")).rows(&heads)),
            ("ssm_norm.weight", self.take(&of("norm.weight"))),
            ("ssm_out.weight", self.take(&of("out_proj.weight")).columns(&values)),
        ] {
            self.put(&format!("{b}.{name}"), &numbers);
        }
    }

    /// A Mamba-2 mixer.
    pub(super) fn scan(&mut self, at: &str, b: &str) {
        let linear = self.tiny.linear;
        let (groups, heads) = (linear.key_heads, linear.value_heads);
        let inner = heads * linear.value_dim;
        let channels = inner + 2 * groups * linear.key_dim;
        let of = |name: &str| format!("{at}.{name}");
        let kernel = self.take(&of("conv1d.weight")).shaped(&[channels, linear.taps]);
        let rate = self.take(&of("A_log")).map(|a| -a.exp()).shaped(&[heads, 1]);
        for (name, numbers) in [
            ("ssm_conv1d.weight", kernel),
            ("ssm_a", rate),
            ("ssm_d", self.take(&of("D")).shaped(&[heads, 1])),
            ("ssm_norm.weight", self.take(&of("norm.weight")).shaped(&[groups, inner / groups])),
        ] {
            self.put(&format!("{b}.{name}"), &numbers);
        }
        self.copy(&format!("{b}.ssm_in.weight"), &of("in_proj.weight"));
        self.copy(&format!("{b}.ssm_conv1d.bias"), &of("conv1d.bias"));
        self.copy(&format!("{b}.ssm_dt.bias"), &of("dt_bias"));
        self.copy(&format!("{b}.ssm_out.weight"), &of("out_proj.weight"));
    }

    /// Matrices of all experts as one.
    pub(super) fn stacked(&mut self, name: &str, from: impl Fn(usize) -> String) {
        let stack = (0..self.tiny.experts.count).map(|e| self.take(&from(e))).collect();
        self.put(name, &NumberArray::stack(stack));
    }

    /// Some rows of every matrix of a stack, or of a matrix.
    pub(super) fn some_rows(&mut self, name: &str, from: &str, rows: std::ops::Range<usize>) {
        let all = self.take(from);
        let part = match all.shape.len() {
            2 => all.rows(&rows.collect::<Vec<_>>()),
            _ => all.part_of_each(rows),
        };
        self.put(name, &part);
    }

    /// The kernel of a short convolution, without the axis of length one.
    pub(super) fn conv_kernel_of(&mut self, at: &str, b: &str) {
        let from = format!("{at}.conv.conv.weight");
        if self.holds(&from) {
            let shape = [self.tiny.hidden, self.tiny.linear.taps];
            let kernel = self.take(&from).shaped(&shape);
            self.put(&format!("{b}.shortconv.conv.weight"), &kernel);
        }
    }

    /// Adds numbers made here.
    pub(super) fn vector(&mut self, name: &str, values: Vec<f32>) {
        self.put(name, &NumberArray { shape: vec![values.len()], values });
    }

    /// One row as a vector.
    pub(super) fn flat(&mut self, name: &str, from: &str) {
        let row = self.take(from);
        self.vector(name, row.values);
    }
}

/// Row `2i + c` of a head holds what was row `c·d/2 + i`.
fn interleaved_rows(heads: usize, head_dim: usize) -> Vec<usize> {
    let row = |r: usize| r / head_dim * head_dim + r % 2 * (head_dim / 2) + r % head_dim / 2;
    (0..heads * head_dim).map(row).collect()
}

/// Entries of heads `width` wide, after `before` others.
fn widened(heads: &[usize], width: usize, before: usize) -> Vec<usize> {
    heads.iter().flat_map(|&h| (0..width).map(move |i| before + h * width + i)).collect()
}

/// Rows grouped by key head `[q | k | v | z]` as all of q, k, v, and z.
fn ungrouped(rows: &NumberArray, tiny: &Tiny) -> (NumberArray, NumberArray) {
    let linear = tiny.linear;
    let (nk, dk) = (linear.key_heads, linear.key_dim);
    let values = linear.value_heads / nk * linear.value_dim;
    let group = 2 * dk + 2 * values;
    let part = |first: usize, len: usize| {
        (0..nk).flat_map(move |k| (0..len).map(move |i| k * group + first + i))
    };
    let qkv: Vec<usize> = part(0, dk).chain(part(dk, dk)).chain(part(2 * dk, values)).collect();
    let z: Vec<usize> = part(2 * dk + values, values).collect();
    (rows.rows(&qkv), rows.rows(&z))
}
