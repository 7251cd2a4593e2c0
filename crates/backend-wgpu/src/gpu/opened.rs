//! Adapters that were opened and are not in use.
//!
//! Opening one again takes what was compiled for it: a verification opens a device for each of its engines, and
//! pipelines take longer to compile than to run where the adapter is software.

use crate::choice::AdapterChoice;
use crate::gpu::pipelines::Compiled;
use std::sync::{Mutex, PoisonError};

/// An adapter that is open, and what was compiled for it.
pub(crate) struct Opened {
    pub(crate) choice: AdapterChoice,
    pub(crate) info: wgpu::AdapterInfo,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) compiled: Compiled,
}

/// Those that nobody uses: as many as were in use at a time.
static IDLE: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// One that was opened by this choice; it is the caller's until it is put back.
pub(crate) fn take(choice: AdapterChoice) -> Option<Opened> {
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let at = idle.iter().position(|opened| opened.choice == choice)?;
    Some(idle.swap_remove(at))
}

/// Keeps one for whoever opens it next. It is neither lost nor has it anything to do.
pub(crate) fn put_back(opened: Opened) {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(opened);
}
