//! Ctrl-C: stops the answer while there is one, else the program.
//!
//! The state is global because a signal is; answers get it as a [`CancelToken`]. At the chat prompt the line editor
//! reads Ctrl-C as a key and no signal arrives.

use crate::exit::CANCELLED as CANCELLED_CODE;
use anyhow::Context;
use forerun::CancelToken;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

static ANSWERING: AtomicBool = AtomicBool::new(false);
static CANCELLED: LazyLock<CancelToken> = LazyLock::new(CancelToken::new);

/// Takes over Ctrl-C.
pub(crate) fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        // A second Ctrl-C during one answer means it: a device step may be long.
        let again = CANCELLED.is_cancelled();
        CANCELLED.cancel();
        if again || !ANSWERING.load(Ordering::SeqCst) {
            std::process::exit(i32::from(CANCELLED_CODE));
        }
    })
    .context("cannot take over Ctrl-C")
}

/// While this lives, the first Ctrl-C only raises a flag.
pub(crate) struct Answering(());

impl Answering {
    pub(crate) fn begin() -> Self {
        CANCELLED.reset();
        ANSWERING.store(true, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        ANSWERING.store(false, Ordering::SeqCst);
        CANCELLED.reset();
    }
}

/// Whether Ctrl-C came during this answer.
pub(crate) fn is_cancelled() -> bool {
    CANCELLED.is_cancelled()
}

/// What ends an answer when Ctrl-C comes.
pub(crate) fn token() -> &'static CancelToken {
    &CANCELLED
}
