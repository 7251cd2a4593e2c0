//! A device that was lost is opened again and gets the model anew.
//!
//! It is tried when a step has failed for it, so that the next one finds a device; where that fails, again behind the
//! next one.

use crate::model_runner::OnDevice;
use crate::{EngineError, ModelRunner};
use forerun_backend::{Backend, BackendError};
use forerun_model::{Model, ModelError};

/// Brings the model that a runner was made for to a device that was opened again.
pub type Reload = Box<dyn FnMut(&mut dyn Backend) -> Result<Model, ModelError> + Send>;

impl ModelRunner {
    /// Opens the device again whenever it is lost. Without this it stays lost.
    pub fn set_reload(&mut self, reload: Reload) {
        self.reload = Some(reload);
    }

    /// An error where the device is lost and could not be opened again.
    pub(crate) fn check_open(&self) -> Result<(), EngineError> {
        let why = |why: &String| Err(BackendError::Lost(why.clone()).into());
        self.closed.as_ref().map_or(Ok(()), why)
    }

    /// Does work on a device that is open, and remembers where that says that it is lost.
    pub(crate) fn noting_loss<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.check_open()?;
        let done = work(self);
        self.note_loss(done)
    }

    /// Passes an outcome on, and remembers where it says that the device is lost.
    pub(crate) fn note_loss<T>(&mut self, done: Result<T, EngineError>) -> Result<T, EngineError> {
        if let Err(EngineError::Backend(why @ BackendError::Lost(_))) = &done {
            self.lost = Some(why.to_string());
        }
        done
    }

    /// Opens a lost device again, or notes why it stays closed.
    pub(crate) fn reopen(&mut self) {
        self.submissions.forget();
        self.closed =
            self.try_reopen().err().map(|why| format!("it cannot be opened again: {why}"));
    }

    fn try_reopen(&mut self) -> Result<(), EngineError> {
        let Self { backend, reload, settings, .. } = self;
        let Some(reload) = reload else {
            return Err(EngineError::Settings(
                "nobody said where its weights come from".to_owned(),
            ));
        };
        let backend = &mut **backend;
        backend.reopen()?;
        let model = reload(backend)?;
        let fresh = OnDevice::new(backend, &model, settings)?;
        let OnDevice { buffers, plan, copies, block, tables, steps, chains } = fresh;
        self.model = model;
        self.buffers = buffers;
        self.plan = plan;
        self.copies.renew(copies);
        self.block = block;
        self.tables = tables;
        self.steps = steps;
        self.chains = chains;
        Ok(())
    }
}
