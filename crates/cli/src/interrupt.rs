//! Ctrl-C: stops the answer while there is one, else the program.
//!
//! The state is global because a signal is. At the chat prompt the line editor reads Ctrl-C as a
//! key and no signal arrives.

use crate::exit::CANCELLED as CANCELLED_CODE;
use anyhow::Context;
use std::sync::atomic::{AtomicBool, Ordering};

static ANSWERING: AtomicBool = AtomicBool::new(false);
static CANCELLED: AtomicBool = AtomicBool::new(false);

/// Takes over Ctrl-C.
pub(crate) fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        // A second Ctrl-C during one answer means it: a device step may be long.
        let asked_before = CANCELLED.swap(true, Ordering::SeqCst);
        if asked_before || !ANSWERING.load(Ordering::SeqCst) {
            std::process::exit(i32::from(CANCELLED_CODE));
        }
    })
    .context("cannot take over Ctrl-C")
}

/// While this lives, the first Ctrl-C only raises a flag.
pub(crate) struct Answering(());

impl Answering {
    pub(crate) fn begin() -> Self {
        CANCELLED.store(false, Ordering::SeqCst);
        ANSWERING.store(true, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        ANSWERING.store(false, Ordering::SeqCst);
        CANCELLED.store(false, Ordering::SeqCst);
    }
}

/// Whether Ctrl-C came during this answer.
pub(crate) fn is_cancelled() -> bool {
    CANCELLED.load(Ordering::SeqCst)
}
