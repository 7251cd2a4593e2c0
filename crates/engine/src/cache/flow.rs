//! When the step loop asks the cache, and when it feeds it.

use super::disk::DiskTier;
use super::prefix::{Found, Held};
use super::{
    CacheReport, CacheSettings, CacheStats, DiskSettings, DiskStats, PrefixCache, Published,
};
use crate::recover::Stage;
use crate::scheduler::lease_of;
use crate::sequence::{Sequence, Standing};
use crate::{Engine, EngineError, Event, FinishReason, ModelRunner, Runner};
use forerun_base::{LeaseId, SeqId, Token};
use forerun_model::{KV_BLOCK, MAX_LAG};
use sha2::{Digest as _, Sha256};

impl Engine<ModelRunner> {
    /// Gives the prefix cache a folder that outlives the process.
    ///
    /// What is in it counts only for the same identity, arithmetic of the device, sizes and types of elements.
    pub fn open_disk_cache(&mut self, settings: &DiskSettings) -> Result<DiskStats, EngineError> {
        let Some(cache) = &mut self.cache else {
            let why = "a folder needs a cache in memory too; give it bytes";
            return Err(EngineError::Cache(why.to_owned()));
        };
        let kinds = format!("{:?}, {}, {KV_BLOCK}", self.runner.shape(), self.runner.limits().kv);
        let mut hash = Sha256::new();
        for part in [&settings.identity, &self.runner.arithmetic(), &kinds] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let disk = DiskTier::open(settings, hash.finalize().into())?;
        let stats = disk.stats();
        cache.disk = Some(disk);
        Ok(stats)
    }
}

impl<R: Runner> Engine<R> {
    /// The same engine with a prefix cache; without one of no bytes.
    #[must_use]
    pub fn with_cache(mut self, settings: &CacheSettings) -> Self {
        self.cache = (settings.bytes > 0).then(|| {
            self.runner.copies().limit(settings.bytes);
            PrefixCache::new(settings, self.runner.shape())
        });
        self
    }

    /// What the prefix cache holds and did; nothing without one.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.as_ref().map_or_else(CacheStats::default, PrefixCache::stats)
    }

    /// Forgets everything the prefix cache holds in memory. What is on its way to disk gets there.
    pub fn clear_cache(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.clear(self.runner.copies());
        }
    }

    /// Waits until everything published so far is on disk, where there is a folder.
    pub fn flush_cache(&mut self) {
        while self.write_behind() {}
        if let Some(disk) = self.cache.as_ref().and_then(|cache| cache.disk.as_ref()) {
            disk.flush();
        }
    }

    /// Hands some of what was published to the disk, if anything waits for that.
    pub(crate) fn write_behind(&mut self) -> bool {
        let Some(cache) = self.cache.as_mut().filter(|cache| cache.has_backlog()) else {
            return false;
        };
        self.place.enter(Stage::Publish);
        cache.write_some(self.runner.copies());
        true
    }

    /// Makes the cache whole again behind a step that broke off. Where it was being changed, nothing of it is trusted;
    /// else all that the device is known to have.
    pub(crate) fn recover_cache(&mut self) {
        let Some(cache) = &mut self.cache else { return };
        match self.place.stage {
            Stage::Start | Stage::Publish => cache.abandon(self.runner.copies()),
            _ => cache.forget_unsettled(self.runner.copies()),
        }
    }

    /// Begins every sequence that got its lease: what the cache has of its prompt is copied in.
    pub(crate) fn start(&mut self, events: &mut Vec<Event>) {
        self.place.enter(Stage::Start);
        let mut at = 0;
        while at < self.scheduler.sequences.len() {
            let sequence = &self.scheduler.sequences[at];
            let fresh = match sequence.standing {
                Standing::Running(lease) if !sequence.published.started => Some(lease),
                _ => None,
            };
            let (seq, waits) = (sequence.id, fresh.is_some() && self.waits_for_another(at));
            let Some(lease) = fresh.filter(|_| !waits && !self.fetches(at)) else {
                at += 1;
                continue;
            };
            self.place.seq = Some(seq);
            let restored = self.restore(at, lease);
            self.place.seq = None;
            match restored {
                Ok(report) => {
                    events.push(Event::Started { seq, cached: Box::new(report) });
                    at += 1;
                }
                Err(error) => {
                    let reason = FinishReason::Failed(error.to_string());
                    self.scheduler.end(seq, reason, &mut self.states, events);
                }
            }
        }
    }

    /// Whether someone else is about to publish more of this prompt than the cache has: then it is read once.
    /// Nobody waits for somebody who waits, so all begin in the end.
    fn waits_for_another(&self, at: usize) -> bool {
        let Some(cache) = &self.cache else { return false };
        let sequence = &self.scheduler.sequences[at];
        if !sequence.published.cache_use.read {
            return false;
        }
        let mut reach = None;
        self.scheduler.sequences.iter().any(|other| {
            let reads = other.published.started && matches!(other.standing, Standing::Running(_));
            // Who matters more does not wait for who matters less, and nobody for what it will not find.
            let shares = other.published.cache_use.salt == sequence.published.cache_use.salt;
            if !reads || !shares || other.priority > sequence.priority {
                return false;
            }
            let common = common(&sequence.tokens, &other.tokens[..other.prompt_len]);
            let limit = common.min(sequence.tokens.len() - 1);
            let Some(promised) = other.published.promises(limit, other.prompt_len) else {
                return false;
            };
            let reach = *reach.get_or_insert_with(|| {
                cache.reach(&sequence.published.cache_use, &sequence.tokens)
            });
            promised >= reach + cache.rule().short()
        })
    }

    /// Reads some of what the disk has of a prompt; whether there is more.
    fn fetches(&mut self, at: usize) -> bool {
        let Self { scheduler, cache, runner, .. } = self;
        let sequence = &mut scheduler.sequences[at];
        match cache {
            Some(cache) if sequence.published.cache_use.read => {
                let Published { cache_use, fetched, .. } = &mut sequence.published;
                cache.fetch(&sequence.tokens, cache_use.salt.as_ref(), fetched, runner.copies())
            }
            _ => false,
        }
    }

    /// Copies in what the cache has of a prompt, and counts it as read.
    fn restore(&mut self, at: usize, id: LeaseId) -> Result<CacheReport, EngineError> {
        let Self { scheduler, states, cache, runner, .. } = self;
        let sequence = &mut scheduler.sequences[at];
        let found = match cache.as_mut() {
            Some(cache) if sequence.published.cache_use.read => {
                let Published { cache_use, fetched, .. } = &sequence.published;
                let lease = (id, states.lease(id));
                cache.find(&sequence.tokens, cache_use.salt.as_ref(), *fetched, lease)
            }
            cache => {
                cache.into_iter().for_each(PrefixCache::note_disabled);
                PrefixCache::disabled(&sequence.tokens)
            }
        };
        let Found { report, position, filled, parts } = found;
        sequence.published.started = true;
        if let Some(cache) = cache {
            sequence.published.begin(position, sequence.prompt_len, cache.rule());
        }
        if position > 0 {
            runner.copies().unstash(&parts)?;
            states.restore(id, position as u32);
            sequence.note_committed(0, position);
            sequence.drafting.filled = filled;
        }
        Ok(report)
    }

    /// Publishes the sequences of the step just settled that are due.
    pub(crate) fn publish(&mut self) {
        let Some(cache) = &mut self.cache else { return };
        if self.runner.copies().is_settled() {
            cache.settle();
            self.write_behind();
        }
        for i in 0..self.plan.spans.len() {
            let Some(at) = self.scheduler.find(self.plan.spans[i].seq) else { continue };
            let sequence = &self.scheduler.sequences[at];
            let ended = matches!(sequence.standing, Standing::Retained(_));
            let Some((id, position)) = self.folded(sequence) else { continue };
            if sequence.published.is_due(position, sequence.prompt_len, ended) {
                self.publish_at(at, id, position);
            }
        }
    }

    /// Publishes a sequence that will not go on, where that is worth a copy.
    pub(crate) fn publish_unfinished(&mut self, seq: SeqId) {
        let Some(at) = self.scheduler.find(seq) else { return };
        let sequence = &self.scheduler.sequences[at];
        let Some((id, position)) = self.folded(sequence) else { return };
        if sequence.published.is_worthwhile(position) {
            self.publish_at(at, id, position);
        }
    }

    /// A sequence's lease and the position its recurrent state stands at.
    fn folded(&self, sequence: &Sequence) -> Option<(LeaseId, usize)> {
        let id = lease_of(sequence)?;
        let lease = self.states.lease(id);
        Some((id, (lease.committed - lease.pending) as usize))
    }

    /// Lets the MTP head take in what it missed of a sequence, so that what is published leaves room for a chunk.
    fn catch_up(&mut self, at: usize) -> Result<(), EngineError> {
        self.draft_plan.clear();
        self.scheduler.add_entry(&mut self.draft_plan, at, &self.states, 0, MAX_LAG);
        self.take_in().map(drop)
    }

    fn publish_at(&mut self, at: usize, id: LeaseId, position: usize) {
        let caught_up = self.catch_up(at).is_ok();
        let Self { scheduler, states, cache, runner, .. } = self;
        let Some(cache) = cache else { return };
        let remembers = runner.shape().hidden > 0;
        let sequence = &mut scheduler.sequences[at];
        // The head's newest row was paired with a token that is not part of what is published.
        let filled = match remembers {
            true => sequence.drafting.filled.min(position as u32 - 1),
            false => position as u32,
        };
        let kept = if !caught_up || position - filled as usize > MAX_LAG {
            // The hidden states the head has yet to take in are gone, or the device failed to.
            false
        } else {
            let held = Held {
                tokens: &sequence.tokens[..position],
                id,
                lease: states.lease(id),
                filled,
                keep: sequence.published.cache_use.keep,
                salt: sequence.published.cache_use.salt,
            };
            cache.publish(&held, runner.copies())
        };
        cache.submit(runner.copies());
        sequence.published.upto = position;
        // What did not fit will not fit when it is longer.
        sequence.published.active &= kept;
    }
}

fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
