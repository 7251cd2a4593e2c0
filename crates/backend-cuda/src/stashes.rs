//! What is put aside: in pinned host memory, copied by the queue both ways, so neither the host nor the queue waits.
//!
//! Pinned memory is expensive to make, and states come in few sizes, so what a released stash had is used again. Only
//! the queue writes to it, so it may be given out anew while older copies from it are still queued. Bytes that come
//! from the host stay where they are: CUDA stages them.

use crate::driver::{HostAddress, QueueMark};
use crate::memory::DeviceBuffers;
use crate::queue::Queue;
use forerun_backend::{BackendError, StashId, Stashes, View};
use forerun_base::Bytes;

/// Pinned memory of the driver.
#[derive(Clone, Copy, Debug)]
struct Pinned {
    at: HostAddress,
    bytes: usize,
}

/// Where a stash is.
#[derive(Debug)]
enum StashPlace {
    /// There when the mark is passed; none before it is submitted.
    Pinned(Pinned, Option<QueueMark>),
    Host(Bytes),
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct DeviceStashes {
    books: Stashes<StashPlace>,
    /// Made by the next submission.
    queued: Vec<StashId>,
    /// Pinned memory that no stash has.
    spare: Vec<Pinned>,
    /// Bytes of all pinned memory.
    pinned: u64,
    limit: Option<u64>,
}

impl DeviceStashes {
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.limit = Some(bytes);
        self.books.set_limit(bytes);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.books.bytes()
    }

    /// Pinned memory of exactly this size, so that spare memory never counts twice.
    fn pin(&mut self, queue: &mut Queue, bytes: usize) -> Result<Pinned, BackendError> {
        if let Some(at) = self.spare.iter().position(|spare| spare.bytes == bytes) {
            return Ok(self.spare.swap_remove(at));
        }
        let limit = self.limit.unwrap_or(u64::MAX);
        while self.pinned.saturating_add(bytes as u64) > limit
            && let Some(spare) = self.spare.pop()
        {
            self.pinned -= spare.bytes as u64;
            // SAFETY: the memory came from `alloc_host` and was just forgotten; `free_host` waits until the queue is
            // empty.
            unsafe { queue.driver_mut().free_host(spare.at) }?;
        }
        let at = queue.driver_mut().alloc_host(bytes)?;
        self.pinned += bytes as u64;
        Ok(Pinned { at, bytes })
    }

    /// Queues copying views of so many bytes to pinned memory.
    pub(crate) fn stash(
        &mut self,
        (queue, memory): (&mut Queue, &DeviceBuffers),
        views: &[View],
        bytes: usize,
    ) -> Result<StashId, BackendError> {
        self.books.require_room(bytes)?;
        if bytes == 0 {
            return self.books.insert(0, StashPlace::Host(Vec::new().into()));
        }
        let pinned = self.pin(queue, bytes)?;
        let copied = copy(queue, memory, views, pinned, Direction::ToHost);
        if let Err(error) = copied {
            self.spare.push(pinned);
            return Err(error);
        }
        let stash = self.books.insert(bytes, StashPlace::Pinned(pinned, None))?;
        self.queued.push(stash);
        Ok(stash)
    }

    pub(crate) fn stash_host(&mut self, bytes: Bytes) -> Result<StashId, BackendError> {
        self.books.insert(bytes.len(), StashPlace::Host(bytes))
    }

    /// Queues copying a stash to views of so many bytes.
    pub(crate) fn unstash(
        &self,
        (queue, memory): (&mut Queue, &DeviceBuffers),
        stash: StashId,
        views: &[View],
        bytes: usize,
    ) -> Result<(), BackendError> {
        match self.books.get_sized(stash, bytes)? {
            StashPlace::Pinned(pinned, _) => {
                copy(queue, memory, views, *pinned, Direction::ToDevice)
            }
            StashPlace::Host(bytes) => {
                let mut rest = &bytes[..];
                for &view in views {
                    let (part, behind) = rest.split_at(view.len * memory.dtype(view).size());
                    // SAFETY: the caller compared the views with their buffers, and `part` has the view's size.
                    unsafe { queue.driver_mut().copy_in(memory.at(view), part) }?;
                    rest = behind;
                }
                Ok(())
            }
        }
    }

    /// Notes that everything queued was handed over.
    pub(crate) fn submitted(&mut self, mark: QueueMark) {
        for stash in self.queued.drain(..) {
            // What was released since has no place.
            if let Some(StashPlace::Pinned(_, made)) = self.books.get_mut(stash) {
                *made = Some(mark);
            }
        }
    }

    pub(crate) fn read(&self, queue: &mut Queue, stash: StashId) -> Result<Bytes, BackendError> {
        match self.books.get("read_stash", stash)? {
            StashPlace::Host(bytes) => Ok(bytes.clone()),
            StashPlace::Pinned(_, None) => Err(BackendError::Protocol(format!(
                "read of stash {}, which was not submitted",
                stash.0
            ))),
            StashPlace::Pinned(pinned, Some(mark)) => {
                let mut bytes = vec![0; pinned.bytes];
                queue.driver_mut().reach(*mark)?;
                // SAFETY: the memory came from `alloc_host` with this size; the copy that fills it ended before the
                // mark, and while the stash has it nothing else is queued that writes to it.
                unsafe { queue.driver_mut().read_host(pinned.at, &mut bytes) };
                Ok(bytes.into())
            }
        }
    }

    pub(crate) fn release(&mut self, stash: StashId) -> Result<(), BackendError> {
        if let StashPlace::Pinned(pinned, _) = self.books.remove(stash)? {
            self.spare.push(pinned);
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Direction {
    ToHost,
    ToDevice,
}

/// Queues copies between views, which were compared with their buffers, and pinned memory of the size of all of them.
fn copy(
    queue: &mut Queue,
    memory: &DeviceBuffers,
    views: &[View],
    pinned: Pinned,
    direction: Direction,
) -> Result<(), BackendError> {
    let driver = queue.driver_mut();
    let mut at = pinned.at;
    for &view in views {
        let bytes = (view.len * memory.dtype(view).size()) as u64;
        // SAFETY: the view lies inside its buffer, and the views together have the size of the pinned memory, which
        // lives on after a release: it is freed only when the queue is empty.
        unsafe {
            match direction {
                Direction::ToHost => driver.queue_to_host(at, memory.at(view), bytes),
                Direction::ToDevice => driver.queue_from_host(memory.at(view), at, bytes),
            }
        }?;
        at = at.offset(bytes);
    }
    Ok(())
}
