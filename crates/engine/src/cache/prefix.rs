//! Looking up a prompt, and publishing what a sequence has read.

use super::backlog::Backlog;
use super::disk::{DiskTier, Key, Record, TailBytes};
use super::points::Rule;
use super::tree::{EntryId, Match, Payload, Stash, Tail, Tree};
use super::{
    CacheReport, CacheSalt, CacheSettings, CacheStats, CacheUse, Miss, MissReason, StatePart,
    StateShape, TierStats,
};
use crate::{EngineError, Lease, StateCopies};
use forerun_backend::StashId;
use forerun_base::{Bytes, LeaseId, Token};
use forerun_model::KV_BLOCK;

/// Bytes that go from or to disk before others get a step: some ten milliseconds.
const PIECE: u64 = 16 << 20;

/// What is known of texts that were read before.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    shape: StateShape,
    rule: Rule,
    tree: Tree,
    pub(crate) disk: Option<DiskTier>,
    backlog: Backlog,
    /// Entries added since the device was last known to have made all stashes, oldest first. Some may be gone.
    unsettled: Vec<EntryId>,
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
    pub(crate) parts: Vec<(StatePart, StashId)>,
}

/// What a sequence had from disk before it began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FetchedEntry {
    /// How far memory alone reached.
    memory: Option<usize>,
    bytes: u64,
}

/// Where a text is added to, in memory and on disk.
#[derive(Clone, Copy, Debug)]
struct EntryPlace {
    at: EntryId,
    /// None when nothing goes to disk.
    key: Option<Key>,
    /// What was used since is not evicted.
    since: u64,
    keep: bool,
}

/// Where the bytes of an entry come from, and how many there are.
#[derive(Clone, Debug)]
enum EntrySource {
    Lease(StatePart, usize),
    Host(Bytes),
}

impl EntrySource {
    fn bytes(&self) -> usize {
        match self {
            Self::Lease(_, bytes) => *bytes,
            Self::Host(bytes) => bytes.len(),
        }
    }

    fn stash(&self, copies: &mut dyn StateCopies) -> Result<Stash, EngineError> {
        let id = match self {
            Self::Lease(part, _) => copies.stash(*part),
            Self::Host(bytes) => copies.stash_host(bytes.clone()),
        }?;
        Ok(Stash { id, bytes: self.bytes() })
    }
}

/// An entry to be added.
#[derive(Clone, Debug)]
struct NewEntry {
    tokens: Vec<Token>,
    /// By blocks.
    kv: Vec<EntrySource>,
    /// Of a tail: its state, where there is one, and what the MTP head has taken in.
    tail: Option<(Option<EntrySource>, u32)>,
}

impl NewEntry {
    fn sources(&self) -> impl Iterator<Item = &EntrySource> {
        self.kv.iter().chain(self.tail.iter().filter_map(|(state, _)| state.as_ref()))
    }

    fn cost(&self) -> u64 {
        Payload::cost_of(self.tokens.len(), self.sources().map(EntrySource::bytes).sum())
    }
}

impl PrefixCache {
    pub(crate) fn new(settings: &CacheSettings, shape: StateShape) -> Self {
        let interval = settings.interval(&shape);
        Self {
            shape,
            rule: Rule::new(interval, &shape),
            tree: Tree::new(settings.bytes, &shape),
            disk: None,
            backlog: Backlog::default(),
            unsettled: Vec::new(),
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

    /// Bytes of all stashes that entries have.
    #[cfg(test)]
    pub(crate) fn stash_bytes(&self) -> u64 {
        self.tree.stash_bytes()
    }

    /// Forgets everything in memory, once the disk has what it is to have; counts go on.
    pub(crate) fn clear(&mut self, copies: &mut dyn StateCopies) {
        self.tree.clear();
        self.sweep(copies);
    }

    /// Forgets everything in memory after a panic, which may have left anything half done.
    pub(crate) fn abandon(&mut self, copies: &mut dyn StateCopies) {
        self.backlog.clear();
        self.unsettled.clear();
        self.tree.clear();
        drop(self.tree.take_dropped());
        copies.release_all();
    }

    /// Notes that the device has made all stashes there are.
    pub(crate) fn settle(&mut self) {
        self.unsettled.clear();
    }

    /// Forgets what the device may never have made, because it failed.
    pub(crate) fn forget_unsettled(&mut self, copies: &mut dyn StateCopies) {
        // The newest first: whatever follows an entry is newer.
        for entry in std::mem::take(&mut self.unsettled).into_iter().rev() {
            self.backlog.take(entry);
            self.tree.forget(entry);
        }
        self.sweep(copies);
    }

    /// Releases what was dropped; what was still to go to disk goes there now.
    fn sweep(&mut self, copies: &mut dyn StateCopies) {
        for (entry, payload) in self.tree.take_dropped() {
            if let Some(parent) = self.backlog.take(entry) {
                self.write(parent, &payload, copies);
            }
            payload.stashes().for_each(|stash| copies.release(stash.id));
        }
    }

    /// Whether something waits to be handed to the disk.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Hands some of what waits to the disk, for which it is read from the device.
    pub(crate) fn write_some(&mut self, copies: &mut dyn StateCopies) {
        let mut written = 0;
        while written < PIECE
            && let Some((entry, parent)) = self.backlog.take_oldest()
        {
            let payload = self.tree.payload(entry).clone();
            written += payload.cost();
            self.write(parent, &payload, copies);
        }
    }

    fn write(&mut self, parent: Key, payload: &Payload, copies: &mut dyn StateCopies) {
        let mut read = |stash: &Stash| copies.read(stash.id);
        let kv: Result<Vec<Bytes>, EngineError> = payload.kv.iter().map(&mut read).collect();
        let tail = payload.tail.map(|Tail { state, filled }| {
            let state = state.map_or_else(|| Ok(Vec::new().into()), |stash| read(&stash));
            state.map(|state| TailBytes { state, filled })
        });
        match (&self.disk, kv, tail.transpose()) {
            (Some(disk), Ok(kv), Ok(tail)) => {
                disk.offer(Record { parent, tokens: payload.tokens.clone(), kv, tail });
            }
            (Some(_), ..) => self.stats.failed_copies += 1,
            (None, ..) => {}
        }
    }

    /// Positions of `prompt` that need not be read, without using anything.
    pub(crate) fn reach(&self, cache_use: &CacheUse, prompt: &[Token]) -> usize {
        self.tree.find(cache_use.salt.as_ref(), prompt).position
    }

    /// Where a sequence with this prompt begins. What it finds is used now.
    pub(crate) fn find(
        &mut self,
        prompt: &[Token],
        salt: Option<&CacheSalt>,
        fetched: FetchedEntry,
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
    fn parts(&self, found: &Match, id: LeaseId, lease: &Lease) -> (u32, Vec<(StatePart, StashId)>) {
        let position = found.position;
        let entries = found.blocks.iter().chain(&found.last);
        let kv = entries.flat_map(|&entry| &self.tree.payload(entry).kv);
        let needed = &lease.blocks[..position.div_ceil(KV_BLOCK)];
        let mut parts = Vec::with_capacity(needed.len() + 1);
        parts.extend(needed.iter().zip(kv).map(|(&block, kv)| (StatePart::Block(block), kv.id)));
        let mut filled = position as u32;
        if let Some(Tail { state, filled: taken_in }) =
            found.last.and_then(|last| self.tree.payload(last).tail)
            && self.shape.needs_state()
        {
            filled = taken_in;
            let part = StatePart::State { lease: id, position: position as u32, filled };
            parts.extend(state.map(|state| (part, state.id)));
        }
        (filled, parts)
    }

    /// Brings what the disk has of a prompt beyond what memory has, a part at a time; true when there is more to
    /// come. A sequence never brings more than memory can hold, whoever evicts it meanwhile.
    pub(crate) fn fetch(
        &mut self,
        prompt: &[Token],
        salt: Option<&CacheSalt>,
        fetched: &mut FetchedEntry,
        copies: &mut dyn StateCopies,
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
        let root = self.tree.open_root(salt, since);
        self.sweep(copies);
        let Some(root) = root else { return false };
        let (at, _) = self.tree.leading(root, prompt);
        let mut place = EntryPlace { at, key: None, since, keep: false };
        self.tree.touch(at, false);
        let end = fetched.bytes + PIECE;
        let blocks = wanted.blocks.iter().map(|&(number, key)| (number, key));
        let mut more = false;
        for (number, key) in blocks.chain(wanted.tail) {
            more = fetched.bytes >= end;
            if more {
                break;
            }
            let rest = &prompt[number * KV_BLOCK..];
            let Some(new) = self.read(key, rest, number * KV_BLOCK) else { break };
            fetched.bytes += new.cost();
            if !self.add(&mut place, new, copies) {
                break;
            }
        }
        self.tree.touch(place.at, false);
        more
    }

    /// An entry from disk that is what the text needs there.
    fn read(&self, key: Key, rest: &[Token], start: usize) -> Option<NewEntry> {
        let record = self.disk.as_ref()?.read(&key)?;
        let (end, [kv, state]) = (start + record.tokens.len(), record.sizes());
        let (each, filled) = (self.shape.block, record.tail.as_ref().map_or(0, |tail| tail.filled));
        let (blocks, expected) = match &record.tail {
            None => (1, 0),
            Some(_) => {
                let filled = (filled as usize).min(end);
                (record.tokens.len().div_ceil(KV_BLOCK), self.shape.state(end, filled))
            }
        };
        let fits = kv == blocks * each && state == expected && filled as usize <= end;
        let fits = fits && (!self.shape.needs_state() || rest.starts_with(&record.tokens));
        let kv = record.kv.first().filter(|_| fits)?;
        let blocks = if each > 0 { blocks } else { 0 };
        let kv = (0..blocks).map(|i| kv.slice(i * each..(i + 1) * each).map(EntrySource::Host));
        let state = |state: Bytes| (!state.is_empty()).then_some(EntrySource::Host(state));
        let tail = record.tail.map(|tail| (state(tail.state), filled));
        Some(NewEntry { tokens: record.tokens, kv: kv.collect::<Option<_>>()?, tail })
    }

    /// Keeps what a sequence has read. Only what is missing is copied. False when it is too much to keep.
    pub(crate) fn publish(&mut self, held: &Held<'_>, copies: &mut dyn StateCopies) -> bool {
        let cost = self.cost_of(held);
        if cost > self.tree.limit() {
            self.refused += 1;
            return false;
        }
        let since = self.tree.now();
        let salt = held.salt.as_ref();
        let root = self.tree.open_root(salt, since);
        self.sweep(copies);
        let Some(root) = root else { return false };
        let (at, known) = self.tree.leading(root, held.tokens);
        self.tree.touch(at, held.keep);
        let disk = self.disk.as_ref().filter(|disk| cost <= disk.limit());
        let key = disk.map(|disk| disk.root(salt));
        let mut place = EntryPlace { at: root, key, since, keep: held.keep };
        let whole = self.shape.whole_blocks(held.filled as usize);
        let mut published = 0;
        for number in 0..whole {
            let start = number * KV_BLOCK;
            let tokens = &held.tokens[start..start + KV_BLOCK + self.shape.ahead()];
            let added = match self.tree.block(place.at, tokens) {
                Some(block) if number < known => self.pass(&mut place, block),
                _ => {
                    let kv = self.blocks(held, number, number + 1);
                    let new = NewEntry { tokens: tokens.to_vec(), kv, tail: None };
                    self.add(&mut place, new, copies)
                }
            };
            if !added {
                break;
            }
            published += 1;
        }
        if published == whole {
            self.publish_tail(held, &mut place, copies);
        }
        self.tree.touch(place.at, held.keep);
        true
    }

    /// The end of what a sequence has read.
    fn publish_tail(
        &mut self,
        held: &Held<'_>,
        place: &mut EntryPlace,
        copies: &mut dyn StateCopies,
    ) -> bool {
        let whole = self.shape.whole_blocks(held.filled as usize);
        let rest = &held.tokens[whole * KV_BLOCK..];
        if let Some(known) = self.tree.tail(place.at, rest) {
            return self.pass(place, known);
        }
        if rest.is_empty() && !self.shape.needs_state() {
            return false;
        }
        let kv = self.blocks(held, whole, held.tokens.len().div_ceil(KV_BLOCK));
        let (position, filled) = (held.tokens.len(), held.filled);
        let bytes = self.shape.state(position, filled as usize);
        let part = StatePart::State { lease: held.id, position: position as u32, filled };
        let state = (bytes > 0).then_some(EntrySource::Lease(part, bytes));
        self.add(place, NewEntry { tokens: rest.to_vec(), kv, tail: Some((state, filled)) }, copies)
    }

    /// Blocks of a lease.
    fn blocks(&self, held: &Held<'_>, first: usize, end: usize) -> Vec<EntrySource> {
        let bytes = self.shape.block;
        let source = |&block: &u32| EntrySource::Lease(StatePart::Block(block), bytes);
        let end = if bytes > 0 { end } else { first };
        held.lease.blocks[first..end].iter().map(source).collect()
    }

    /// Goes on to an entry that memory has; disk may have lost it.
    fn pass(&mut self, place: &mut EntryPlace, entry: EntryId) -> bool {
        self.offer(place, entry);
        place.at = entry;
        true
    }

    /// Adds an entry and goes on to it; false without room, or when the device cannot copy.
    fn add(&mut self, place: &mut EntryPlace, new: NewEntry, copies: &mut dyn StateCopies) -> bool {
        let room = self.tree.make_room(new.cost(), place.since);
        self.sweep(copies);
        let Some(payload) = room.then(|| self.stash(new, copies)).flatten() else { return false };
        self.stats.published += 1;
        place.at = self.tree.insert(place.at, payload, place.keep);
        self.sweep(copies);
        self.unsettled.push(place.at);
        self.offer(place, place.at);
        true
    }

    /// Has the device put everything of an entry aside. A copy that failed leaves a text unpublished; whoever runs
    /// next will see the device fail.
    fn stash(&mut self, new: NewEntry, copies: &mut dyn StateCopies) -> Option<Payload> {
        let mut made = Vec::with_capacity(new.kv.len() + 1);
        for source in new.sources() {
            match source.stash(copies) {
                Ok(stash) => made.push(stash),
                Err(_) => {
                    made.into_iter().for_each(|stash| copies.release(stash.id));
                    self.stats.failed_copies += 1;
                    return None;
                }
            }
        }
        let tail =
            new.tail.map(|(state, filled)| Tail { state: state.and_then(|_| made.pop()), filled });
        Some(Payload { tokens: new.tokens, kv: made, tail })
    }

    /// Hands what was copied to the device; what it refuses is not there.
    pub(crate) fn submit(&mut self, copies: &mut dyn StateCopies) {
        if copies.submit().is_err() {
            self.stats.failed_copies += 1;
            self.forget_unsettled(copies);
        }
    }

    /// Notes that an entry is to go to disk, unless it is there.
    fn offer(&mut self, place: &mut EntryPlace, entry: EntryId) {
        if let (Some(disk), Some(parent)) = (&self.disk, place.key) {
            let payload = self.tree.payload(entry);
            let key = parent.next(payload.is_tail(), &payload.tokens);
            if !disk.has(&key) {
                self.backlog.add(entry, parent);
            }
            place.key = Some(key);
        }
    }

    /// Bytes of everything a published text needs.
    fn cost_of(&self, held: &Held<'_>) -> u64 {
        let blocks = self.shape.whole_blocks(held.filled as usize);
        let rest = held.tokens.len() - blocks * KV_BLOCK;
        let block = Payload::cost_of(KV_BLOCK + self.shape.ahead(), self.shape.block);
        let kv = rest.div_ceil(KV_BLOCK) * self.shape.block;
        let state = self.shape.state(held.tokens.len(), held.filled as usize);
        let tail = Payload::cost_of(rest, kv + state);
        let root = held.salt.map_or(0, |_| Payload::cost_of(0, 0));
        (blocks as u64).saturating_mul(block).saturating_add(tail).saturating_add(root)
    }
}
