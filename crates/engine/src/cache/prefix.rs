//! Looking up a prompt, and publishing what a sequence has read.

use super::disk::{DiskTier, Key, Record};
use super::points::Rule;
use super::tree::{EntryId, Match, Payload, Tree};
use super::{
    CacheReport, CacheSalt, CacheSettings, CacheStats, CacheUse, Miss, MissReason, Part,
    StateShape, TierStats,
};
use crate::{EngineError, Lease};
use forerun_base::{Bytes, LeaseId, Token};
use forerun_model::KV_BLOCK;
use std::ops::Range;

/// Bytes read from disk before others get a step: some ten milliseconds.
const READ: u64 = 16 << 20;

/// What is known of texts that were read before.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    shape: StateShape,
    rule: Rule,
    tree: Tree,
    pub(crate) disk: Option<DiskTier>,
    stats: CacheStats,
    refused: u64,
}

/// The state of a sequence that is to be published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held<'a> {
    /// Everything it has read up to there.
    pub(crate) tokens: &'a [Token],
    pub(crate) id: LeaseId,
    pub(crate) lease: &'a Lease,
    /// Positions the MTP head has taken in that depend on those tokens alone.
    pub(crate) filled: u32,
    /// Whether to evict it last.
    pub(crate) keep: bool,
    pub(crate) salt: Option<CacheSalt>,
}

/// Where a sequence begins.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) report: CacheReport,
    /// Positions that are already read.
    pub(crate) position: usize,
    /// Positions the MTP head has taken in.
    pub(crate) filled: u32,
    /// What to copy into the lease.
    pub(crate) parts: Vec<(Part, Bytes)>,
}

/// What a sequence had from disk before it began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fetched {
    /// How far memory alone reached.
    memory: Option<usize>,
    bytes: u64,
}

/// Where a text is added to, in memory and on disk.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: EntryId,
    /// None when nothing goes to disk.
    key: Option<Key>,
    /// What was used since is not evicted.
    since: u64,
    keep: bool,
}

/// Copies a part of a lease into the bytes.
pub(crate) type CopyOut<'a> = &'a mut dyn FnMut(Part, &mut [u8]) -> Result<(), EngineError>;

impl PrefixCache {
    pub(crate) fn new(settings: &CacheSettings, shape: StateShape) -> Self {
        let interval = settings.interval(&shape);
        Self {
            shape,
            rule: Rule::new(interval, &shape),
            tree: Tree::new(settings.bytes, &shape),
            disk: None,
            stats: CacheStats::default(),
            refused: 0,
        }
    }

    /// Where sequences publish.
    pub(crate) fn rule(&self) -> Rule {
        self.rule
    }

    /// What it holds and did.
    pub(crate) fn stats(&self) -> CacheStats {
        let (blocks, states) = self.tree.counts();
        let memory = TierStats {
            bytes: self.tree.bytes(),
            limit: self.tree.limit(),
            blocks,
            states,
            evictions: self.tree.evictions(),
            refused: self.refused,
        };
        CacheStats { memory, disk: self.disk.as_ref().map(DiskTier::stats), ..self.stats }
    }

    /// Forgets everything in memory; counts go on.
    pub(crate) fn clear(&mut self) {
        self.tree.clear();
    }

    /// Positions of `prompt` that need not be read, without using anything.
    pub(crate) fn reach(&self, wish: &CacheUse, prompt: &[Token]) -> usize {
        self.tree.find(wish.salt.as_ref(), prompt).position
    }

    /// Where a sequence with this prompt begins. What it finds is used now.
    pub(crate) fn find(
        &mut self,
        prompt: &[Token],
        salt: Option<&CacheSalt>,
        fetched: Fetched,
        (id, lease): (LeaseId, &Lease),
    ) -> Found {
        let found = self.tree.find(salt, prompt);
        if let Some(last) = found.last {
            self.tree.touch(last, false);
        }
        let memory = fetched.memory.unwrap_or(found.position);
        let report = CacheReport {
            cached_tokens: found.position,
            prompt_tokens: prompt.len(),
            from_disk: found.position.saturating_sub(memory),
            miss: self.miss(&found, salt, prompt),
        };
        self.stats.note(&report);
        let (filled, parts) = self.parts(&found, id, lease);
        Found { report, position: found.position, filled, parts }
    }

    /// What a request that does not read learns.
    pub(crate) fn disabled(prompt: &[Token]) -> Found {
        let found = prompt.first().copied();
        let miss = Miss { reason: MissReason::Disabled, at: 0, expected: None, found };
        let report =
            CacheReport { prompt_tokens: prompt.len(), miss: Some(miss), ..CacheReport::default() };
        Found { report, ..Found::default() }
    }

    /// Counts a request that does not read.
    pub(crate) fn note_disabled(&mut self) {
        self.stats.misses[MissReason::Disabled as usize] += 1;
    }

    /// Why no more was found. A prompt that only goes on where a known text ended misses nothing.
    fn miss(&self, found: &Match, salt: Option<&CacheSalt>, prompt: &[Token]) -> Option<Miss> {
        let Match { position, agreed, expected, evicted, .. } = *found;
        if position + 1 == prompt.len() {
            return None;
        }
        let differs = agreed < prompt.len() && expected.is_some();
        let reason = match () {
            () if evicted => MissReason::Evicted,
            () if self.tree.is_empty(salt) => MissReason::Empty,
            () if agreed == 0 => MissReason::NoCommonPrefix,
            () if differs => MissReason::Diverged,
            () if agreed > position => MissReason::NoState,
            () => return None,
        };
        let found = prompt.get(agreed).copied();
        Some(Miss { reason, at: agreed, expected, found })
    }

    /// What is copied into a lease, and how far the MTP head has taken it in.
    fn parts(&self, found: &Match, id: LeaseId, lease: &Lease) -> (u32, Vec<(Part, Bytes)>) {
        let position = found.position;
        let mut parts = Vec::with_capacity(found.blocks.len() + 2);
        for (&entry, &block) in found.blocks.iter().zip(&lease.blocks) {
            parts.push((Part::Block(block), self.tree.payload(entry).kv.clone()));
        }
        let mut filled = position as u32;
        if let Some(last) = found.last {
            let payload = self.tree.payload(last);
            let needed = position.div_ceil(KV_BLOCK);
            let each = self.shape.block;
            for (i, &block) in lease.blocks[found.blocks.len()..needed].iter().enumerate() {
                let kv = payload.kv.slice(i * each..(i + 1) * each);
                parts.push((Part::Block(block), kv.expect("a tail has all its blocks")));
            }
            if let Some(state) = payload.state.as_ref().filter(|_| self.shape.needs_state()) {
                filled = payload.filled;
                let part = Part::State { lease: id, position: position as u32, filled };
                parts.push((part, state.clone()));
            }
        }
        (filled, parts)
    }

    /// Brings what the disk has of a prompt beyond what memory has, a part at a time; true when there is more to
    /// come. A sequence never brings more than memory can hold, whoever evicts it meanwhile.
    pub(crate) fn fetch(
        &mut self,
        prompt: &[Token],
        salt: Option<&CacheSalt>,
        fetched: &mut Fetched,
    ) -> bool {
        let Some(disk) = &self.disk else { return false };
        let reach = self.tree.find(salt, prompt).position;
        let memory = *fetched.memory.get_or_insert(reach);
        let known = self.tree.root(salt).map_or(0, |root| self.tree.leading(root, prompt).1);
        let wanted = disk.find(salt, prompt, known, &self.shape);
        let total = fetched.bytes.saturating_add(wanted.bytes);
        if wanted.position <= reach.max(memory) || total > self.tree.limit() {
            return false;
        }
        let since = self.tree.now();
        let Some(root) = self.tree.open_root(salt, since) else { return false };
        let (at, _) = self.tree.leading(root, prompt);
        let mut place = Place { at, key: None, since, keep: false };
        self.tree.touch(at, false);
        let end = fetched.bytes + READ;
        let blocks = wanted.blocks.iter().map(|&(number, key)| (number, key));
        let mut more = false;
        for (number, key) in blocks.chain(wanted.tail) {
            more = fetched.bytes >= end;
            if more {
                break;
            }
            let rest = &prompt[number * KV_BLOCK..];
            let Some(payload) = self.read(key, rest, number * KV_BLOCK) else { break };
            fetched.bytes += payload.cost();
            if !self.add(&mut place, payload) {
                break;
            }
        }
        self.tree.touch(place.at, false);
        more
    }

    /// An entry from disk that is what the text needs there.
    fn read(&self, key: Key, rest: &[Token], start: usize) -> Option<Payload> {
        let payload = self.disk.as_ref()?.read(&key)?.payload;
        let end = start + payload.tokens.len();
        let filled = payload.filled as usize;
        let fits = match &payload.state {
            None => payload.kv.len() == self.shape.block,
            Some(state) => {
                payload.kv.len() == payload.tokens.len().div_ceil(KV_BLOCK) * self.shape.block
                    && filled <= end
                    && state.len() == self.shape.state(end, filled)
            }
        };
        let fits = fits && (!self.shape.needs_state() || rest.starts_with(&payload.tokens));
        fits.then_some(payload)
    }

    /// Keeps what a sequence has read. Only what is missing is copied. False when it is too much to keep.
    pub(crate) fn publish(&mut self, held: &Held<'_>, copy: CopyOut<'_>) -> bool {
        let cost = self.cost_of(held);
        if cost > self.tree.limit() {
            self.refused += 1;
            return false;
        }
        let since = self.tree.now();
        let salt = held.salt.as_ref();
        let Some(root) = self.tree.open_root(salt, since) else { return false };
        let (at, known) = self.tree.leading(root, held.tokens);
        self.tree.touch(at, held.keep);
        let disk = self.disk.as_ref().filter(|disk| cost <= disk.limit());
        let key = disk.map(|disk| disk.root(salt));
        let mut place = Place { at: root, key, since, keep: held.keep };
        let whole = self.shape.whole_blocks(held.filled as usize);
        let mut published = 0;
        for number in 0..whole {
            let start = number * KV_BLOCK;
            let tokens = &held.tokens[start..start + KV_BLOCK + self.shape.ahead()];
            let added = match self.tree.block(place.at, tokens) {
                Some(block) if number < known => self.pass(&mut place, block),
                _ => self
                    .copy_blocks(held, number..number + 1, copy)
                    .map(|kv| Payload { tokens: tokens.to_vec(), kv, state: None, filled: 0 })
                    .is_some_and(|payload| self.add(&mut place, payload)),
            };
            if !added {
                break;
            }
            published += 1;
        }
        if published == whole {
            self.publish_tail(held, &mut place, copy);
        }
        self.tree.touch(place.at, held.keep);
        true
    }

    /// The end of what a sequence has read.
    fn publish_tail(
        &mut self,
        held: &Held<'_>,
        place: &mut Place,
        copy: CopyOut<'_>,
    ) -> Option<()> {
        let whole = self.shape.whole_blocks(held.filled as usize);
        let rest = &held.tokens[whole * KV_BLOCK..];
        if let Some(known) = self.tree.tail(place.at, rest) {
            self.pass(place, known);
            return Some(());
        }
        if rest.is_empty() && !self.shape.needs_state() {
            return None;
        }
        let kv = self.copy_blocks(held, whole..held.tokens.len().div_ceil(KV_BLOCK), copy)?;
        let position = held.tokens.len() as u32;
        let mut state = vec![0; self.shape.state(position as usize, held.filled as usize)];
        if !state.is_empty() {
            let part = Part::State { lease: held.id, position, filled: held.filled };
            self.copied(copy(part, &mut state))?;
        }
        let (tokens, state) = (rest.to_vec(), Some(Bytes::from(state)));
        self.add(place, Payload { tokens, kv, state, filled: held.filled }).then_some(())
    }

    fn copy_blocks(
        &mut self,
        held: &Held<'_>,
        numbers: Range<usize>,
        copy: CopyOut<'_>,
    ) -> Option<Bytes> {
        let each = self.shape.block;
        let mut kv = vec![0; numbers.len() * each];
        for (number, bytes) in numbers.zip(kv.chunks_exact_mut(each.max(1))) {
            self.copied(copy(Part::Block(held.lease.blocks[number]), bytes))?;
        }
        Some(kv.into())
    }

    /// A copy that failed leaves a text unpublished; whoever runs next will see the device fail.
    fn copied(&mut self, done: Result<(), EngineError>) -> Option<()> {
        self.stats.failed_copies += u64::from(done.is_err());
        done.ok()
    }

    /// Goes on to an entry that memory has; disk may have lost it.
    fn pass(&self, place: &mut Place, entry: EntryId) -> bool {
        self.offer(place, self.tree.payload(entry));
        place.at = entry;
        true
    }

    /// Adds an entry and goes on to it; false without room.
    fn add(&mut self, place: &mut Place, payload: Payload) -> bool {
        if !self.tree.make_room(payload.cost(), place.since) {
            return false;
        }
        self.stats.published += 1;
        self.offer(place, &payload);
        place.at = self.tree.insert(place.at, payload, place.keep);
        true
    }

    fn offer(&self, place: &mut Place, payload: &Payload) {
        if let (Some(disk), Some(parent)) = (&self.disk, place.key) {
            let record = Record { parent, payload: payload.clone() };
            place.key = Some(record.key());
            disk.offer(record);
        }
    }

    /// Bytes of everything a published text needs.
    fn cost_of(&self, held: &Held<'_>) -> u64 {
        let blocks = self.shape.whole_blocks(held.filled as usize);
        let rest = held.tokens.len() - blocks * KV_BLOCK;
        let block = Payload::cost_of(KV_BLOCK + self.shape.ahead(), self.shape.block, 0);
        let kv = rest.div_ceil(KV_BLOCK) * self.shape.block;
        let state = self.shape.state(held.tokens.len(), held.filled as usize);
        let tail = Payload::cost_of(rest, kv, state);
        let root = held.salt.map_or(0, |_| Payload::cost_of(0, 0, 0));
        (blocks as u64).saturating_mul(block).saturating_add(tail).saturating_add(root)
    }
}
