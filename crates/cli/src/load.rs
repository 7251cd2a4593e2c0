//! From a path to an engine, in two steps: [`Source::open`] reads headers and configuration, so that
//! every complaint about options comes before [`Source::load`] reads gigabytes.

use crate::args::{DeviceArgs, ModelArgs};
use crate::model_text::ModelText;
use crate::{device, hub_model, terminal};
use anyhow::{Context, bail};
use forerun_backend::Backend;
use forerun_engine::{Engine, ModelRunner, Settings};
use forerun_model::{Blueprint, Model};
use indicatif::{HumanBytes, ProgressBar};
use std::path::Path;
use std::time::{Duration, Instant};

/// Loading less than this is over before a bar is seen.
const BAR_FROM_BYTES: u64 = 256 << 20;

/// What kernels of a device need besides the plan.
const SCRATCH_BYTES: u64 = 256 << 20;

/// Time spent at most on pricing steps before the first answer.
const CALIBRATION: Duration = Duration::from_millis(100);

/// A model on disk.
pub(crate) struct Source {
    /// As it was given.
    pub(crate) path: String,
    pub(crate) blueprint: Blueprint,
    pub(crate) text: ModelText,
}

/// A model on a device.
pub(crate) struct Loaded {
    pub(crate) engine: Engine<ModelRunner>,
    pub(crate) load_s: f64,
}

impl Source {
    /// Opens a path, or a model of the hub's cache by its name.
    pub(crate) fn open(path: &Path, options: &ModelArgs) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let mut blueprint =
            Blueprint::open(&hub_model::locate(path)?).with_context(|| name.clone())?;
        if let Some(drafter) = &options.drafter {
            blueprint
                .attach_drafter(&hub_model::locate_drafter(drafter)?)
                .with_context(|| format!("--drafter {}", drafter.display()))?;
        }
        if let Some(scale) = options.rope() {
            blueprint.extend_context(scale);
        }
        let text = ModelText::open(&blueprint.checkpoint)?;
        Ok(Self { path: name, blueprint, text })
    }

    /// Brings the weights to a device; shows a bar on a terminal.
    pub(crate) fn load(&self, settings: &Settings, device: DeviceArgs) -> anyhow::Result<Loaded> {
        let started = Instant::now();
        let mut engine = Engine::new(self.runner(device::open(device)?, settings)?);
        if engine.speculation_off().is_none() {
            engine.calibrate(CALIBRATION)?;
        }
        Ok(Loaded { engine, load_s: started.elapsed().as_secs_f64() })
    }

    /// The same for a device that is open, without an engine around it.
    pub(crate) fn runner(
        &self,
        mut backend: Box<dyn Backend>,
        settings: &Settings,
    ) -> anyhow::Result<ModelRunner> {
        // What makes no engine is refused before weights are read.
        settings.limits(&self.blueprint.spec)?;
        if let Some(free) = backend.free_memory() {
            self.check_fits(settings, free)?;
        }
        let bar = progress_bar(self.blueprint.total_bytes());
        let mut progress = |bytes| bar.set_position(bytes);
        let model = Model::load(&self.blueprint, &mut *backend, &mut progress)
            .with_context(|| self.path.clone())?;
        bar.finish_and_clear();
        ModelRunner::new(backend, model, settings)
            .context("cannot prepare the engine; a smaller --ctx needs less memory")
    }
}

impl Source {
    /// Refuses what a device with `free` bytes of memory has no room for.
    fn check_fits(&self, settings: &Settings, free: u64) -> anyhow::Result<()> {
        let plan = ModelRunner::memory_plan(&self.blueprint.spec, settings)?;
        let weights = self.blueprint.total_bytes();
        let needed = weights.saturating_add(plan.total()).saturating_add(SCRATCH_BYTES);
        if needed <= free {
            return Ok(());
        }
        bail!(
            "the device has {} free and {} are needed: {} for weights, {} for caches, states and \
             work at --ctx {}, {} to spare; a smaller --ctx or --kv i8 needs less",
            HumanBytes(free),
            HumanBytes(needed),
            HumanBytes(weights),
            HumanBytes(plan.total()),
            settings.context,
            HumanBytes(SCRATCH_BYTES)
        )
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
