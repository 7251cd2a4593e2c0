//! How precise each module becomes.
//!
//! Small parts whose errors repeat in every token keep more bits than the rest:
//!
//! | modules | at least |
//! |---|---|
//! | the MTP head; routers; `linear_attn.in_proj_{a,b,ba}` | 8 |
//! | `linear_attn.in_proj_{qkv,z,qkvz}`, `linear_attn.out_proj` | one step more than the rest |
//! | `lm_head`; the embedding where it serves as the head | 6 |
//!
//! They are affine in every mode. `--keep` has the last word.

use super::keep::Keep;
use super::plan::{CheckpointPlan, JobSource, ModuleJob};
use crate::QuantizeError;
use forerun_weights::config::{QuantMode, Scheme};

/// What becomes of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModulePrecision {
    Encode(Scheme),
    /// Asked to stay as it is.
    Full,
    /// The group does not divide its width.
    Indivisible,
}

/// A choice for every job of the plan; `None` for those that are no matrices.
pub(super) fn choose(
    plan: &CheckpointPlan,
    base: Scheme,
    keeps: &[Keep],
) -> Result<Vec<Option<ModulePrecision>>, QuantizeError> {
    let modules = || plan.jobs.iter().filter(|job| matches!(job.source, JobSource::Matrix { .. }));
    for keep in keeps {
        if !modules().any(|job| keep.matches(&job.target)) {
            let example = modules().next().map_or("none", |job| &job.target).to_owned();
            return Err(QuantizeError::NoMatch { keep: keep.to_string(), example });
        }
    }
    Ok(plan.jobs.iter().map(|job| choice(job, plan.tied, base, keeps)).collect())
}

fn choice(job: &ModuleJob, tied: bool, base: Scheme, keeps: &[Keep]) -> Option<ModulePrecision> {
    let JobSource::Matrix { shape, .. } = &job.source else { return None };
    let cols = shape.last().copied().unwrap_or(0);
    let kept = keeps.iter().rev().find(|keep| keep.matches(&job.target));
    let bits = match kept {
        Some(Keep { bits: None, .. }) => return Some(ModulePrecision::Full),
        Some(Keep { bits: Some(bits), .. }) => Some(*bits),
        None => Some(least_bits(&job.target, tied, base.bits)).filter(|&bits| bits > base.bits),
    };
    let scheme = match bits {
        Some(bits) if base.mode == QuantMode::Affine => Scheme { bits, ..base },
        Some(bits) => Scheme { mode: QuantMode::Affine, bits, group: affine_group(cols) },
        None => base,
    };
    let divides = cols > 0 && cols.is_multiple_of(scheme.group);
    Some(if divides { ModulePrecision::Encode(scheme) } else { ModulePrecision::Indivisible })
}

/// The group of affine modules beside a float mode, which brings no group for them.
fn affine_group(cols: usize) -> usize {
    if cols.is_multiple_of(64) { 64 } else { 32 }
}

/// The precision that a module should have at least.
fn least_bits(path: &str, tied: bool, bits: usize) -> usize {
    let ends = |names: &[&str]| names.iter().any(|name| path.ends_with(name));
    let routers = [".mlp.gate", ".shared_expert_gate", ".router.proj"];
    let decays = [".linear_attn.in_proj_a", ".linear_attn.in_proj_b", ".linear_attn.in_proj_ba"];
    let recurrent = [
        ".linear_attn.in_proj_qkv",
        ".linear_attn.in_proj_z",
        ".linear_attn.in_proj_qkvz",
        ".linear_attn.out_proj",
    ];
    if path.starts_with("mtp.") || ends(&routers) || ends(&decays) {
        8
    } else if ends(&recurrent) {
        one_step_up(bits)
    } else if ends(&["lm_head"]) || (tied && ends(&[".embed_tokens"])) {
        6
    } else {
        0
    }
}

fn one_step_up(bits: usize) -> usize {
    [3, 4, 5, 6, 8].into_iter().find(|&wider| wider > bits).unwrap_or(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFFINE: Scheme = Scheme { mode: QuantMode::Affine, bits: 4, group: 64 };

    fn job(target: &str, cols: usize) -> ModuleJob {
        let source = JobSource::Matrix { shape: vec![8, cols], parts: Vec::new() };
        ModuleJob { target: target.into(), source }
    }

    fn bits(target: &str, tied: bool, base: Scheme) -> usize {
        match choice(&job(target, 128), tied, base, &[]) {
            Some(ModulePrecision::Encode(scheme)) => scheme.bits,
            other => panic!("{target}: {other:?}"),
        }
    }

    #[test]
    fn the_table_of_the_help_text_is_followed() {
        let at = |bits| Scheme { bits, ..AFFINE };
        let cases = [
            ("mtp.fc", [8, 8, 8, 8]),
            ("mtp.layers.0.self_attn.q_proj", [8, 8, 8, 8]),
            ("model.layers.0.mlp.gate", [8, 8, 8, 8]),
            ("model.layers.0.mlp.shared_expert_gate", [8, 8, 8, 8]),
            ("model.layers.0.router.proj", [8, 8, 8, 8]),
            ("model.layers.0.linear_attn.in_proj_b", [8, 8, 8, 8]),
            ("model.layers.0.linear_attn.in_proj_ba", [8, 8, 8, 8]),
            ("model.layers.0.linear_attn.in_proj_qkvz", [3, 5, 8, 8]),
            ("model.layers.0.linear_attn.out_proj", [3, 5, 8, 8]),
            ("language_model.lm_head", [6, 6, 6, 8]),
            ("model.embed_tokens", [2, 4, 6, 8]),
            ("model.embed_tokens_per_layer", [2, 4, 6, 8]),
            ("model.layers.0.mlp.gate_proj", [2, 4, 6, 8]),
            ("model.layers.0.self_attn.out_proj", [2, 4, 6, 8]),
        ];
        for (path, expected) in cases {
            assert_eq!([2, 4, 6, 8].map(|b| bits(path, false, at(b))), expected, "{path}");
        }
        assert_eq!(bits("model.embed_tokens", true, at(4)), 6);
        assert_eq!(bits("model.embed_tokens_per_layer", true, at(4)), 4);
    }

    #[test]
    fn a_float_mode_is_raised_to_affine() {
        let base = QuantMode::Mxfp4.usual();
        let scheme = |cols| choice(&job("mtp.fc", cols), false, base, &[]);
        assert_eq!(scheme(128), Some(ModulePrecision::Encode(Scheme { bits: 8, ..AFFINE })));
        assert_eq!(
            scheme(96),
            Some(ModulePrecision::Encode(Scheme { bits: 8, group: 32, ..AFFINE }))
        );
        let plain = choice(&job("a.mlp.up_proj", 128), false, base, &[]);
        assert_eq!(plain, Some(ModulePrecision::Encode(base)));
        let eight = choice(&job("mtp.fc", 128), false, QuantMode::Mxfp8.usual(), &[]);
        assert_eq!(eight, Some(ModulePrecision::Encode(QuantMode::Mxfp8.usual())));
    }

    #[test]
    fn the_last_pattern_wins_over_earlier_ones_and_over_the_table() {
        let keeps: Vec<Keep> = ["*=8", "mtp.*=full", "*.fc=3"].map(|k| k.parse().unwrap()).into();
        let found = |path| choice(&job(path, 128), false, AFFINE, &keeps);
        assert_eq!(found("mtp.fc"), Some(ModulePrecision::Encode(Scheme { bits: 3, ..AFFINE })));
        assert_eq!(found("mtp.x"), Some(ModulePrecision::Full));
        assert_eq!(found("model.x"), Some(ModulePrecision::Encode(Scheme { bits: 8, ..AFFINE })));
        assert_eq!(choice(&job("a", 100), false, AFFINE, &[]), Some(ModulePrecision::Indivisible));
    }
}
