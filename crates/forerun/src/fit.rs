//! Whether a model and its caches fit into memory, and the longest context that does.

use crate::{Error, ModelFiles, Options};
use forerun_devices::{DeviceName, MemorySizes};
use forerun_engine::{ModelRunner, Settings};

/// What kernels of a device allocate besides the plan.
const SPARE_BYTES: u64 = 256 << 20;
/// A context that is chosen to fit is a multiple of this, and no shorter.
const STEP: usize = 256;

/// What an engine takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    /// All weights.
    pub weights: u64,
    /// KV cache, recurrent state, scratch and prefix cache.
    pub planned: u64,
    /// For what kernels allocate themselves.
    pub spare: u64,
}

impl MemoryNeed {
    /// In all.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.planned).saturating_add(self.spare)
    }
}

/// Bytes that programs can still get where a device computes in the memory of the machine, within a container's limit;
/// `None` where the system does not tell, or the device has memory of its own, which it tells once it is open.
pub fn free_host_memory(device: DeviceName) -> Option<u64> {
    if device == DeviceName::Cpu { MemorySizes::read().available_bytes } else { None }
}

impl ModelFiles {
    /// What an engine of these sizes takes.
    ///
    /// # Errors
    /// When no engine has these sizes.
    pub fn memory_need(&self, settings: &Settings) -> Result<MemoryNeed, Error> {
        let planned = ModelRunner::memory_plan(&self.blueprint.spec, settings)?.total();
        Ok(MemoryNeed { weights: self.blueprint.total_bytes(), planned, spare: SPARE_BYTES })
    }

    /// The longest context that fits into `free` bytes with these settings otherwise, up to what the model was made for
    /// or the settings ask, whichever is longer; `None` where none does.
    ///
    /// # Errors
    /// When no engine has these sizes.
    pub fn longest_context(&self, settings: &Settings, free: u64) -> Result<Option<usize>, Error> {
        let fits = |context: usize| -> Result<bool, Error> {
            Ok(self.memory_need(&Settings { context, ..*settings })?.total() <= free)
        };
        let most = self.blueprint.spec.max_positions.max(settings.context);
        if fits(most)? {
            return Ok(Some(most));
        }
        // In steps: `low` fits, where it is not 0, and `high` does not.
        let (mut low, mut high) = (0, most.div_ceil(STEP));
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle * STEP)? { low = middle } else { high = middle }
        }
        Ok((low > 0).then_some(low * STEP))
    }

    /// Refuses what does not fit into `free` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`], with the longest context that fits.
    pub fn check_fits(&self, settings: &Settings, free: u64) -> Result<(), Error> {
        let need = self.memory_need(settings)?;
        if need.total() <= free {
            return Ok(());
        }
        let longest = self.longest_context(settings, free)?;
        Err(Error::Memory { free, need, context: settings.context, longest })
    }

    /// The sizes of an engine within `free` bytes: a context that nobody asked for is shortened to what fits.
    ///
    /// # Errors
    /// When the context that was asked for does not fit, or none does.
    pub fn fit(&self, settings: Settings, asked: bool, free: u64) -> Result<Settings, Error> {
        if self.memory_need(&settings)?.total() <= free {
            return Ok(settings);
        }
        match self.longest_context(&settings, free)? {
            Some(context) if !asked => Ok(Settings { context, ..settings }),
            longest => {
                let need = self.memory_need(&settings)?;
                Err(Error::Memory { free, need, context: settings.context, longest })
            }
        }
    }

    /// The sizes that options mean for this model on this machine.
    ///
    /// # Errors
    /// When they do not fit into memory.
    pub fn settings(&self, options: &Options) -> Result<Settings, Error> {
        let settings = options.settings(&self.blueprint.spec);
        match free_host_memory(options.device.device) {
            Some(free) => self.fit(settings, options.context.is_some(), free),
            None => Ok(settings),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn bundled() -> ModelFiles {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tales-28m");
        ModelFiles::open(&path, "tales").unwrap()
    }

    fn settings(context: usize) -> Settings {
        Settings { context, sequences: 4, ..Settings::default() }
    }

    #[test]
    fn the_longest_context_fits_and_the_next_step_does_not() {
        let files = bundled();
        let need = |context| files.memory_need(&settings(context)).unwrap().total();
        for (free, expected) in [
            (need(1024), Some(1024)),
            (need(1024) + 1, Some(1024)),
            (need(1024) - 1, Some(768)),
            (need(256), Some(256)),
            (need(256) - 1, None),
            (0, None),
            (u64::MAX, Some(4096)),
        ] {
            assert_eq!(files.longest_context(&settings(4096), free).unwrap(), expected, "{free}");
        }
    }

    #[test]
    fn a_context_nobody_asked_for_is_shortened_and_one_that_was_asked_for_is_refused() {
        let files = bundled();
        let free = files.memory_need(&settings(512)).unwrap().total();
        assert_eq!(files.fit(settings(4096), false, free).unwrap().context, 512);
        assert_eq!(files.fit(settings(300), false, free).unwrap().context, 300, "it fits");
        let refused = files.fit(settings(4096), true, free).unwrap_err();
        assert!(
            matches!(refused, Error::Memory { context: 4096, longest: Some(512), .. }),
            "{refused}"
        );
        let words = refused.to_string();
        assert!(words.contains("MiB") && words.contains("512"), "{words}");
        let none = files.fit(settings(4096), false, 1 << 20).unwrap_err();
        assert!(matches!(none, Error::Memory { longest: None, .. }), "{none}");
    }
}
