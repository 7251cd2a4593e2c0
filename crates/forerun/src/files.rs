//! From a path to an engine, in two steps: [`ModelFiles::open`] reads headers and configuration, so that every
//! complaint about options comes before [`ModelFiles::load`] reads gigabytes.

use crate::{Error, ModelText};
use forerun_backend::{Backend, PlanItem};
use forerun_engine::{CacheSettings, Engine, ModelRunner, Settings};
use forerun_model::{Blueprint, Model, RopeScale};
use std::path::Path;
use std::time::Duration;

/// Time spent at most on pricing steps before the first answer.
const CALIBRATION: Duration = Duration::from_millis(100);

/// A model on disk: headers and configuration, no weights yet.
pub struct ModelFiles {
    /// The model as it was given, for messages.
    pub path: String,
    /// The network and its tensors.
    pub blueprint: Blueprint,
    /// Tokenizer, template, defaults.
    pub text: ModelText,
}

impl ModelFiles {
    /// Opens a model folder, a safetensors file or a GGUF file; errors call it `name`.
    pub fn open(path: &Path, name: &str) -> Result<Self, Error> {
        let opened = Blueprint::open(path);
        let blueprint = opened.map_err(|cause| Error::Open { path: name.to_owned(), cause })?;
        Self::of(blueprint, name)
    }

    /// A network whose checkpoint is open; errors call it `name`.
    pub fn of(blueprint: Blueprint, name: &str) -> Result<Self, Error> {
        let text = ModelText::open(&blueprint.checkpoint)?;
        Ok(Self { path: name.to_owned(), blueprint, text })
    }

    /// Takes the drafter from another checkpoint, which errors call `name`.
    pub fn attach_drafter(&mut self, path: &Path, name: &str) -> Result<(), Error> {
        let attached = self.blueprint.attach_drafter(path);
        attached.map_err(|cause| Error::Drafter { path: name.to_owned(), cause })
    }

    /// Reaches further than the model was made for.
    pub fn extend_context(&mut self, scale: RopeScale) {
        self.blueprint.extend_context(scale);
    }

    /// Brings the weights to a device and builds an engine there; `progress` gets the bytes so far.
    pub fn load(
        &self,
        settings: &Settings,
        backend: Box<dyn Backend>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Engine<ModelRunner>, Error> {
        let mut engine = Engine::new(self.runner(settings, backend, progress)?);
        if engine.speculation_off().is_none() {
            engine.calibrate(CALIBRATION)?;
        }
        Ok(engine)
    }

    /// The same without an engine around it.
    pub fn runner(
        &self,
        settings: &Settings,
        mut backend: Box<dyn Backend>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ModelRunner, Error> {
        // What makes no engine is refused before weights are read.
        settings.limits(&self.blueprint.spec)?;
        self.check_device(settings, &*backend)?;
        let model = Model::load(&self.blueprint, &mut *backend, progress)
            .map_err(|cause| Error::Open { path: self.path.clone(), cause })?;
        let reopens = backend.reopens();
        let mut runner = ModelRunner::new(backend, model, settings).map_err(Error::Prepare)?;
        if reopens {
            let blueprint = self.blueprint.clone();
            runner
                .set_reload(Box::new(move |backend| Model::load(&blueprint, backend, &mut |_| {})));
        }
        Ok(runner)
    }

    /// Refuses what does not fit a device with limits of its own.
    fn check_device(&self, settings: &Settings, backend: &dyn Backend) -> Result<(), Error> {
        if let Some(most) = backend.largest_buffer()
            && let Some(PlanItem { label, bytes }) =
                ModelRunner::memory_plan(&self.blueprint.spec, settings)?.largest
            && bytes > most
        {
            return Err(Error::Buffer { label, bytes, most, context: settings.context });
        }
        let Some(free) = backend.free_memory() else { return Ok(()) };
        // The prefix cache lies in the memory of the machine.
        let cache = CacheSettings { bytes: 0, ..settings.cache };
        self.check_fits(&Settings { cache, ..*settings }, free)
    }
}
