//! How many answers a server works on or lets wait.

use crate::error::ServerError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A bounded number of places.
#[derive(Debug)]
pub(crate) struct Places {
    capacity: usize,
    taken: AtomicUsize,
    closed: AtomicBool,
}

/// One place, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Places>);

impl Places {
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { capacity, taken: AtomicUsize::new(0), closed: AtomicBool::new(false) })
    }

    /// How many there are in all.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    /// Lets nobody in any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// All of `count` places or none.
    pub(crate) fn take(this: &Arc<Self>, count: usize) -> Result<Vec<Place>, ServerError> {
        if this.is_closed() {
            return Err(ServerError::Unavailable("the server is shutting down"));
        }
        let fits = |taken: usize| taken.checked_add(count).filter(|&sum| sum <= this.capacity);
        this.taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
            .map_err(|waiting| ServerError::Busy { waiting })?;
        Ok((0..count).map(|_| Place(Arc::clone(this))).collect())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_all_or_none_and_come_back() {
        let places = Places::new(3);
        let two = Places::take(&places, 2).unwrap();
        assert!(matches!(Places::take(&places, 2), Err(ServerError::Busy { waiting: 2 })));
        assert_eq!(places.taken(), 2);
        drop(two);
        assert_eq!(Places::take(&places, 3).unwrap().len(), 3);
        places.close();
        assert!(matches!(Places::take(&places, 1), Err(ServerError::Unavailable(_))));
    }
}
