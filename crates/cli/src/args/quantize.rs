//! `forerun quantize`.

use super::engine::{at_least_one, threads};
use anyhow::{anyhow, bail};
use clap::{Args, ValueEnum};
use forerun_devices::DeviceName;
use forerun_quantize::Keep;
use forerun_weights::config::{QuantMode, Scheme};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forerun quantize ~/models/qwen3.5 ~/models/qwen3.5-4bit --bits 4
  forerun quantize ~/models/qwen3.5 out --bits 3 --group 32 --check book.txt
  forerun quantize ~/models/qwen3.5 out --mode mxfp4
  forerun quantize ~/models/qwen3.5 out --bits 4 --keep '*.layers.0.*=8' --keep 'mtp.*=full'

What is kept at a higher precision than --bits (affine in every mode):
  the MTP head                                        8 bits
  routers: mlp.gate, shared_expert_gate, router.proj  8 bits
  linear_attn.in_proj_a, in_proj_b, in_proj_ba        8 bits
  linear_attn.in_proj_qkv, in_proj_z, in_proj_qkvz,
  linear_attn.out_proj                                one step more: 2-3, 3-4, 4-5, 5-6, 6-8
  lm_head; the embedding where it serves as the head  6 bits
Norms, convolutions, biases and single vectors stay as stored, and so do matrices whose input
width the group does not divide. --keep overrules all of this.

Exit status: 0 done, 1 error, 2 wrong usage, 130 cancelled.";

/// Write a smaller copy of a model
///
/// Reads any checkpoint that `run` reads and writes a folder in MLX's layout, with the MTP head in
/// `mtp/`. From a GGUF file, config and tokenizer are made as the published model would have them.
/// A source that is packed already is decoded and encoded anew. An interrupted run goes on where it
/// stopped when the same command is given again.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct QuantizeArgs {
    /// Model folder, .safetensors or .gguf file to read
    #[arg(value_name = "SRC")]
    pub(crate) source: PathBuf,

    /// Folder to write
    #[arg(value_name = "DST")]
    pub(crate) target: PathBuf,

    /// Bits per weight: 8, 6, 5, 4, 3 or 2; the float modes have a width of their own
    #[arg(long, value_name = "N", required_unless_present = "mode")]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(["8", "6", "5", "4", "3", "2"]))]
    pub(crate) bits: Option<String>,

    /// Weights that share a scale: 32, 64 or 128 [default: 64]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(["32", "64", "128"]))]
    pub(crate) group: Option<String>,

    /// What a code stands for
    #[arg(long, value_enum, default_value_t = CodeMode::Affine)]
    pub(crate) mode: CodeMode,

    /// Bits for modules by name, `full` for none; may be repeated, the last match counts
    ///
    /// PATTERN is compared with the whole module path as it is written, such as
    /// `model.layers.3.mlp.down_proj`; `*` matches any characters.
    #[arg(long, value_name = "PATTERN=BITS|full")]
    pub(crate) keep: Vec<Keep>,

    /// Write into a folder that is not empty; a model in it is replaced
    #[arg(long)]
    pub(crate) force: bool,

    /// Compare the perplexity of a text before and after
    #[arg(long, value_name = "TEXT-FILE")]
    pub(crate) check: Option<PathBuf>,

    /// Where --check runs the models: cpu, cuda, cuda:N, wgpu, or auto for a GPU if there is a fast one
    #[arg(long, value_name = "DEVICE", default_value_t, requires = "check")]
    pub(crate) device: DeviceName,

    /// Largest weight file; the unit in which an interrupted run goes on
    #[arg(long, value_name = "BYTES", default_value = "5000000000", value_parser = at_least_one)]
    pub(crate) shard_bytes: usize,

    /// Print one JSON object and nothing else on stdout
    ///
    /// Keys: source, target, quantization, bytes_before, bytes_after, parameters, bits_per_weight,
    /// files, resumed_files, kept and unquantized (modules, count, scheme), repacked, dropped,
    /// no_tokenizer (why not, null when there is nothing to say), check (tokens, before, after),
    /// seconds.
    #[arg(long)]
    pub(crate) json: bool,

    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CodeMode {
    /// Scale times code plus bias
    Affine,
    /// 4-bit floats, 32 to a power of two
    Mxfp4,
    /// 8-bit floats, 32 to a power of two
    Mxfp8,
    /// 4-bit floats, 16 to an 8-bit float
    Nvfp4,
}

impl QuantizeArgs {
    /// The scheme of everything without a rule of its own.
    pub(crate) fn scheme(&self) -> anyhow::Result<Scheme> {
        let mode = self.mode.mode();
        if mode == QuantMode::Affine && self.bits.is_none() {
            bail!("--mode affine needs --bits: 8, 6, 5, 4, 3 or 2");
        }
        let usual = mode.usual();
        let number = |text: &Option<String>, default: usize| match text {
            Some(text) => text.parse().map_err(|_| anyhow!("`{text}` is not a number")),
            None => Ok(default),
        };
        let (bits, group) = (number(&self.bits, usual.bits)?, number(&self.group, usual.group)?);
        let scheme = Scheme { mode, bits, group };
        if !scheme.is_known() {
            bail!(
                "--mode {mode} has {} bits in groups of {}, nothing else",
                usual.bits,
                usual.group
            );
        }
        Ok(scheme)
    }
}

impl CodeMode {
    fn mode(self) -> QuantMode {
        match self {
            Self::Affine => QuantMode::Affine,
            Self::Mxfp4 => QuantMode::Mxfp4,
            Self::Mxfp8 => QuantMode::Mxfp8,
            Self::Nvfp4 => QuantMode::Nvfp4,
        }
    }
}
