//! From what was typed to an engine: names of the hub, a progress bar, messages for people around what the library
//! does.

use crate::args::{DeviceArgs, ModelArgs};
use crate::{device, hub_model, terminal};
use anyhow::{Context, anyhow};
use forerun::{Depth, Model, ModelFiles, TextParts, TextProcessor};
use forerun_backend::Backend;
use forerun_engine::{Engine, ModelRunner, Settings};
use indicatif::ProgressBar;
use std::ops::Deref;
use std::path::Path;
use std::time::Instant;

/// Loading less than this is over before a bar is seen.
const BAR_FROM_BYTES: u64 = 256 << 20;

/// A model on disk.
pub(crate) struct ModelSource(ModelFiles);

/// A model on a device.
pub(crate) struct Loaded {
    pub(crate) engine: Engine<ModelRunner>,
    pub(crate) load_s: f64,
}

impl Deref for ModelSource {
    type Target = ModelFiles;

    fn deref(&self) -> &ModelFiles {
        &self.0
    }
}

impl ModelSource {
    /// Opens a path, or a model of the hub's cache by its name.
    pub(crate) fn open(path: &Path, options: &ModelArgs) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        Self::with_options(ModelFiles::open(&hub_model::locate(path)?, &name)?, options)
    }

    /// A model whose headers are known, with what was typed about it.
    pub(crate) fn with_options(mut files: ModelFiles, options: &ModelArgs) -> anyhow::Result<Self> {
        if let Some(drafter) = &options.drafter {
            let name = format!("--drafter {}", drafter.display());
            files.attach_drafter(&hub_model::locate_drafter(drafter)?, &name)?;
        }
        if let Some(scale) = options.rope() {
            files.extend_context(scale);
        }
        for warning in &files.text.warnings {
            terminal::note(&format!("warning: {warning}"));
        }
        Ok(Self(files))
    }

    /// The text side for a context; `raw` goes without the chat template.
    pub(crate) fn processor(&self, context: usize, raw: bool) -> anyhow::Result<TextProcessor> {
        let parts = TextParts::of(self, context);
        if raw {
            return Ok(TextProcessor::new(parts.raw()));
        }
        if let Err(error) = &parts.template {
            return Err(error.clone()).context("--raw goes without the chat template");
        }
        Ok(TextProcessor::new(parts))
    }

    /// Brings the weights to a device; shows a bar on a terminal.
    pub(crate) fn load(&self, settings: &Settings, device: DeviceArgs) -> anyhow::Result<Loaded> {
        let started = Instant::now();
        let backend = device::open(device)?;
        let bar = progress_bar(self.blueprint.total_bytes());
        let engine = self.0.load(settings, backend, &mut |bytes| bar.set_position(bytes));
        bar.finish_and_clear();
        let engine = engine.map_err(with_option)?;
        Ok(Loaded { engine, load_s: started.elapsed().as_secs_f64() })
    }

    /// The same for a device that is open, without an engine around it.
    pub(crate) fn runner(
        &self,
        backend: Box<dyn Backend>,
        settings: &Settings,
    ) -> anyhow::Result<ModelRunner> {
        let bar = progress_bar(self.blueprint.total_bytes());
        let runner = self.0.runner(settings, backend, &mut |bytes| bar.set_position(bytes));
        bar.finish_and_clear();
        runner.map_err(with_option)
    }

    /// A model for requests.
    pub(crate) fn model(
        &self,
        processor: TextProcessor,
        settings: &Settings,
        device: DeviceArgs,
        depth: Depth,
    ) -> anyhow::Result<(Model, f64)> {
        let Loaded { engine, load_s } = self.load(settings, device)?;
        Ok((Model::from_parts(&self.path, processor, engine, depth), load_s))
    }
}

/// An error with the option that mends it.
pub(crate) fn with_option(error: forerun::Error) -> anyhow::Error {
    use forerun::Error::{Buffer, Memory, Prepare};
    match error {
        Memory { longest: Some(longest), .. } => {
            anyhow!(
                "{error}: --ctx {longest}; --kv i8 halves the KV cache, and --memory (a GPU: --gpu-memory) says how much may be used"
            )
        }
        Memory { longest: None, .. } => {
            anyhow!("{error}; --memory (a GPU: --gpu-memory) says how much may be used")
        }
        Buffer { .. } | Prepare(_) => anyhow::Error::from(error)
            .context("--ctx N gives a smaller context, --kv i8 an 8-bit KV cache"),
        error => error.into(),
    }
}

/// A bar on stderr; hidden where stderr is not a terminal.
fn progress_bar(bytes: u64) -> ProgressBar {
    if bytes < BAR_FROM_BYTES {
        return ProgressBar::hidden();
    }
    terminal::bar(
        bytes,
        "loading {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
    )
}
