//! Who holds a connection, and who is hung up on when there are too many.
//!
//! A connection that has asked nothing yet, or nothing more, costs its client nothing and must not keep others out: the
//! one that is silent for longest goes first, then the one that sends a body for longest. One that has just come goes
//! last, so that many slow ones do not cost a quick one its turn, and one that waits for its answer is never dropped.
//! Where all wait for answers, a few more connections are taken for health checks alone.

use crate::service::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// As long a connection that does nothing yet is taken for one that will.
const FRESH: Duration = Duration::from_secs(1);
/// Connections beyond the limit, for health checks.
const RESERVE: usize = 16;

/// What a connection is doing, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No request has come in whole since then.
    Silent(Instant),
    /// A body is on its way.
    Sending(Instant),
    /// Its answer is being made or read.
    Answering,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    phase: Mutex<Phase>,
    /// Told to go; not counted any more.
    shed: AtomicBool,
    go: Notify,
    reserve: bool,
}

impl ConnectionSlot {
    fn new(reserve: bool) -> Self {
        let phase = Mutex::new(Phase::Silent(Instant::now()));
        Self { phase, shed: AtomicBool::new(false), go: Notify::new(), reserve }
    }

    /// Whether it is only there for health checks.
    pub(crate) fn is_reserve(&self) -> bool {
        self.reserve
    }

    /// A head has come in.
    pub(super) fn head(&self, has_body: bool) {
        let now = if has_body { Phase::Sending(Instant::now()) } else { Phase::Answering };
        *lock(&self.phase) = now;
    }

    /// The whole request has come in.
    pub(crate) fn request(&self) {
        *lock(&self.phase) = Phase::Answering;
    }

    /// The answer is out.
    pub(super) fn answered(&self) {
        *lock(&self.phase) = Phase::Silent(Instant::now());
    }

    /// Waits until it has to go; whether a request came in meanwhile that is to be answered first.
    pub(super) async fn told_to_go(&self) -> bool {
        self.go.notified().await;
        *lock(&self.phase) == Phase::Answering
    }

    /// How early it goes: less goes first, none does not go.
    fn rank(&self, now: Instant) -> Option<(u8, Instant)> {
        let (order, since) = match *lock(&self.phase) {
            Phase::Silent(since) => (0, since),
            Phase::Sending(since) => (1, since),
            Phase::Answering => return None,
        };
        let fresh = now.saturating_duration_since(since) < FRESH;
        Some((if fresh { 2 } else { order }, since))
    }
}

/// All connections.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    most: usize,
    taken: Mutex<Vec<Arc<ConnectionSlot>>>,
    open: watch::Sender<usize>,
}

/// A slot, given back when dropped.
#[derive(Debug)]
pub(super) struct HeldSlot {
    pub(super) slot: Arc<ConnectionSlot>,
    slots: Arc<ConnectionSlots>,
}

impl ConnectionSlots {
    pub(super) fn new(most: usize) -> Arc<Self> {
        let (most, taken) = (most.max(1), Mutex::default());
        Arc::new(Self { most, taken, open: watch::channel(0).0 })
    }

    /// Room for a connection, if need be where another one is told to go.
    pub(super) fn take(self: &Arc<Self>) -> Option<HeldSlot> {
        let mut taken = lock(&self.taken);
        let counted = |reserve| {
            let counts = |slot: &&Arc<ConnectionSlot>| {
                slot.reserve == reserve && !slot.shed.load(Ordering::Relaxed)
            };
            taken.iter().filter(counts).count()
        };
        let room = |reserve, most| counted(reserve) < most || shed(&taken, reserve);
        let reserve = match (room(false, self.most), RESERVE) {
            (true, _) => false,
            (false, most) if room(true, most) => true,
            (false, _) => return None,
        };
        let slot = Arc::new(ConnectionSlot::new(reserve));
        taken.push(Arc::clone(&slot));
        self.open.send_replace(taken.len());
        Some(HeldSlot { slot, slots: Arc::clone(self) })
    }

    /// Tells the connection to go that is silent for longest: the system has no more of them.
    pub(super) fn make_room(&self) {
        shed(&lock(&self.taken), false);
    }

    /// Waits until no connection is open, for so long.
    pub(super) async fn emptied(&self, patience: Duration) {
        let mut open = self.open.subscribe();
        let empty = open.wait_for(|&open| open == 0);
        // What is still open then is closed with the runtime.
        let _ = tokio::time::timeout(patience, empty).await;
    }
}

/// Tells one connection to go; whether there is one that may.
fn shed(taken: &[Arc<ConnectionSlot>], reserve: bool) -> bool {
    let stays =
        |slot: &&Arc<ConnectionSlot>| slot.reserve == reserve && !slot.shed.load(Ordering::Relaxed);
    let now = Instant::now();
    let ranked = taken.iter().filter(stays).filter_map(|slot| Some((slot.rank(now)?, slot)));
    let Some((_, slot)) = ranked.min_by_key(|&(rank, _)| rank) else { return false };
    slot.shed.store(true, Ordering::Relaxed);
    slot.go.notify_one();
    true
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        let mut taken = lock(&self.slots.taken);
        taken.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
        self.slots.open.send_replace(taken.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shed_of(held: &[HeldSlot]) -> Vec<bool> {
        held.iter().map(|held| held.slot.shed.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn who_has_just_come_goes_after_those_who_are_slow() {
        let [sending, silent, answering, fresh] = [(); 4].map(|()| ConnectionSlot::new(false));
        sending.head(true);
        silent.answered();
        answering.head(false);
        let later = Instant::now() + 2 * FRESH;
        *lock(&fresh.phase) = Phase::Silent(later);
        let ranks = [&silent, &sending, &fresh].map(|slot| slot.rank(later));
        assert!(ranks.is_sorted() && ranks.iter().all(Option::is_some), "{ranks:?}");
        assert_eq!(answering.rank(later), None);
    }

    #[test]
    fn the_silent_go_first_then_those_who_send_and_who_waits_for_an_answer_never() {
        let slots = ConnectionSlots::new(4);
        let mut held: Vec<HeldSlot> = (0..4).map(|_| slots.take().unwrap()).collect();
        held[0].slot.head(false);
        held[1].slot.head(true);
        let mut expected = vec![false; 4];
        for goes in [2, 3, 1] {
            held.push(slots.take().unwrap());
            held.last().unwrap().slot.head(false);
            expected.push(false);
            expected[goes] = true;
            assert_eq!(shed_of(&held), expected);
        }
        // All wait for answers: the rest is for health checks.
        let reserve: Vec<HeldSlot> = (0..RESERVE).map(|_| slots.take().unwrap()).collect();
        assert!(reserve.iter().all(|held| held.slot.is_reserve()));
        let one_more = slots.take().unwrap();
        assert!(one_more.slot.is_reserve() && shed_of(&reserve)[0]);
        reserve.iter().chain([&one_more]).for_each(|held| held.slot.head(false));
        assert!(slots.take().is_none());
        held[0].slot.answered();
        assert!(!slots.take().unwrap().slot.is_reserve());
        assert!(shed_of(&held)[0]);
        drop((held, reserve, one_more));
        assert_eq!(*slots.open.borrow(), 0);
    }
}
