//! Small results on their way to the host: copied to pinned memory behind the work that makes them, and read from there
//! without a call of the driver, whatever was queued since.

use crate::driver::{HostAddress, QueueMark};
use crate::queue::Queue;
use forerun_backend::{BackendError, View};

/// Letters that may be on their way at a time: one for each submission in flight, and as many that wait to be read.
const SLOTS: usize = 4;
/// Bytes of a slot: the sampled tokens of a step. What is larger is read as everything else is.
const SLOT_BYTES: usize = 16 << 10;

/// A view that was copied.
#[derive(Clone, Copy, Debug)]
struct Letter {
    view: View,
    bytes: usize,
    slot: usize,
    /// Behind which it is there; none before it is submitted.
    mark: Option<QueueMark>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    memory: Option<HostAddress>,
    letters: Vec<Letter>,
    /// The last mark that was waited for.
    passed: Option<QueueMark>,
}

impl Mailbox {
    /// A free slot, if there is one.
    fn slot(&self) -> Option<usize> {
        (0..SLOTS).find(|slot| self.letters.iter().all(|letter| letter.slot != *slot))
    }

    /// Queues a copy of a view of so many bytes at `from`, where there is room for it.
    pub(crate) fn post(
        &mut self,
        queue: &mut Queue,
        view: View,
        (from, bytes): (crate::driver::Address, usize),
    ) -> Result<(), BackendError> {
        self.letters.retain(|letter| letter.view != view);
        if bytes == 0 || bytes > SLOT_BYTES {
            return Ok(());
        }
        let Some(slot) = self.slot() else { return Ok(()) };
        let memory = match self.memory {
            Some(memory) => memory,
            None => *self.memory.insert(queue.driver_mut().alloc_host(SLOTS * SLOT_BYTES)?),
        };
        let to = memory.offset((slot * SLOT_BYTES) as u64);
        // SAFETY: `from` has so many bytes (the caller compared the view with its buffer), the slot has room for them,
        // and no other letter is in it.
        unsafe { queue.driver_mut().queue_to_host(to, from, bytes as u64) }?;
        self.letters.push(Letter { view, bytes, slot, mark: None });
        Ok(())
    }

    /// Notes that everything queued was handed over.
    pub(crate) fn submitted(&mut self, mark: QueueMark) {
        self.letters.iter_mut().for_each(|letter| letter.mark = letter.mark.or(Some(mark)));
    }

    /// Notes that a mark was waited for.
    pub(crate) fn passed(&mut self, mark: QueueMark) {
        self.passed = self.passed.max(Some(mark));
    }

    /// Forgets what has arrived: something is queued that may write over its views.
    pub(crate) fn clear(&mut self) {
        if !self.letters.is_empty() {
            let passed = self.passed;
            self.letters.retain(|letter| letter.mark.is_none() || letter.mark > passed);
        }
    }

    /// Takes the letter of a view out, if it has arrived.
    pub(crate) fn take(&mut self, queue: &Queue, view: View, to: &mut [u8]) -> bool {
        let there = |letter: &Letter| letter.mark.is_some() && letter.mark <= self.passed;
        let found = self
            .letters
            .iter()
            .position(|letter| letter.view == view && letter.bytes == to.len() && there(letter));
        let (Some(found), Some(memory)) = (found, self.memory) else { return false };
        let letter = self.letters.swap_remove(found);
        let at = memory.offset((letter.slot * SLOT_BYTES) as u64);
        // SAFETY: the slot is pinned memory of the driver with room for the letter; the copy into it lies before a mark
        // that was waited for, and a slot has one letter at a time.
        unsafe { queue.driver().read_host(at, to) };
        true
    }
}
