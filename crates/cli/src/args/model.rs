//! Options about the model itself, for every command that loads one.

use clap::{Args, ValueEnum};
use forerun_model::RopeScale;
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// Take the drafter from another checkpoint: Gemma 4's assistant, or one that still has the MTP head
    #[arg(long, value_name = "PATH")]
    pub(crate) drafter: Option<PathBuf>,

    /// Reach N times as far as the model was made for
    #[arg(long, value_name = "N", value_parser = factor)]
    rope_scale: Option<f64>,

    /// How --rope-scale stretches positions
    #[arg(long, value_enum, default_value_t, requires = "rope_scale")]
    rope_scaling: Scaling,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Scaling {
    /// Keeps near positions sharp
    #[default]
    Yarn,
    /// Divides all positions
    Linear,
}

impl ModelArgs {
    /// What becomes of the rope, if anything was asked.
    pub(crate) fn rope(&self) -> Option<RopeScale> {
        self.rope_scale.map(|factor| match self.rope_scaling {
            Scaling::Yarn => RopeScale::Yarn(factor),
            Scaling::Linear => RopeScale::Linear(factor),
        })
    }
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|n| (1.0..=1024.0).contains(n));
    factor.ok_or_else(|| "expected a number from 1 to 1024".to_owned())
}
