//! `--check`: what a text costs the model before and after.

use crate::args::{DeviceArgs, ModelArgs};
use crate::load::ModelSource;
use crate::score;
use anyhow::{Context, bail};
use forerun_base::Token;
use forerun_engine::Settings;
use forerun_quantize::PerplexityChange;
use std::path::Path;

/// A text, read before anything is written.
pub(super) struct Check {
    tokens: Vec<Token>,
    settings: Settings,
    device: DeviceArgs,
}

impl Check {
    pub(super) fn prepare(
        path: &Path,
        source: &ModelSource,
        device: DeviceArgs,
    ) -> anyhow::Result<Self> {
        let shown = path.display();
        let tokens =
            score::tokens_of_file(path, source).with_context(|| format!("--check {shown}"))?;
        let (count, most) = (tokens.len(), source.blueprint.spec.max_positions);
        if count < 2 {
            bail!("--check {shown}: one token leaves nothing to predict; give a longer text");
        }
        if count > most {
            bail!("--check {shown}: {count} tokens; this model was made for {most}");
        }
        let settings = Settings { context: count, ..Settings::default() };
        Ok(Self { tokens, settings, device })
    }

    /// Loads one model, then the other.
    pub(super) fn compare(
        &self,
        before: &ModelSource,
        after: &Path,
    ) -> anyhow::Result<PerplexityChange> {
        let after = ModelSource::open(after, &ModelArgs::default())?;
        Ok(PerplexityChange {
            tokens: self.tokens.len(),
            before: self.perplexity(before)?,
            after: self.perplexity(&after)?,
        })
    }

    fn perplexity(&self, source: &ModelSource) -> anyhow::Result<f64> {
        let mut loaded = source.load(&self.settings, self.device)?;
        let perplexity = score::perplexity(source, &mut loaded, &self.tokens)?;
        perplexity.context("a text of at least two tokens has a perplexity")
    }
}
