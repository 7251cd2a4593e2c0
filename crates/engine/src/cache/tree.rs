//! Entries by the tokens they follow, and which of them goes first when room is needed.
//!
//! Everything without a salt stands at [`ROOT`]. A salt has a root of its own: an entry without tokens, so that it
//! counts for the limit and is evicted like any other once nothing follows it. No search crosses from one to another.
//!
//! A *block* holds the keys and values of [`KV_BLOCK`] tokens and stands after another block or at the root. Where
//! an MTP head pairs positions with the tokens after them, the token after the block belongs to it too. A
//! *tail* stands after a block, holds the keys and values of what is no block yet and, where a network needs one,
//! the state at its end: it is where a sequence can be gone on from. Tails have nothing after them.
//!
//! Using an entry uses everything before it, and a stamp of last use is always later than those of all that
//! follow. So the least recently used entry has nothing after it and can be dropped alone.

use super::{CacheSalt, StateShape};
use forerun_backend::StashId;
use forerun_base::Token;
use forerun_model::KV_BLOCK;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// An entry's number.
pub(crate) type EntryId = usize;

/// What everything without a salt follows.
pub(crate) const ROOT: EntryId = 0;

/// Bytes an entry takes besides its payload, rounded up.
const OVERHEAD: usize = 256;

/// Bytes that the device has put aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stash {
    pub(crate) id: StashId,
    pub(crate) bytes: usize,
}

/// What makes an entry a tail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    /// The state at its end; none for networks that need none.
    pub(crate) state: Option<Stash>,
    /// Positions the MTP head has taken in.
    pub(crate) filled: u32,
}

/// What a text leaves behind.
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    /// Tokens since the entry before, and of a block perhaps the one after it.
    pub(crate) tokens: Vec<Token>,
    /// Keys and values, by the blocks the tokens lie in.
    pub(crate) kv: Vec<Stash>,
    /// None of a block.
    pub(crate) tail: Option<Tail>,
}

impl Payload {
    /// Everything it holds on the device.
    pub(crate) fn stashes(&self) -> impl Iterator<Item = Stash> {
        self.kv.iter().copied().chain(self.tail.and_then(|tail| tail.state))
    }

    /// Bytes of memory an entry counts for.
    pub(crate) fn cost(&self) -> u64 {
        Self::cost_of(self.tokens.len(), self.stashes().map(|stash| stash.bytes).sum())
    }

    /// What an entry of these sizes would count for.
    pub(crate) fn cost_of(tokens: usize, bytes: usize) -> u64 {
        (bytes + 4 * tokens + OVERHEAD) as u64
    }

    pub(crate) fn is_tail(&self) -> bool {
        self.tail.is_some()
    }
}

#[derive(Debug)]
struct Entry {
    parent: EntryId,
    children: Vec<EntryId>,
    payload: Payload,
    stamp: u64,
    keep: bool,
    /// Of all tokens up to its end, and of the salt.
    hash: u64,
    /// Of the root of a salt.
    salt: Option<CacheSalt>,
}

impl Entry {
    /// What everything of a salt follows.
    fn root(salt: Option<CacheSalt>, stamp: u64) -> Self {
        Self {
            parent: ROOT,
            children: Vec::new(),
            payload: Payload { tokens: Vec::new(), kv: Vec::new(), tail: None },
            stamp,
            keep: false,
            hash: seed(salt.as_ref()),
            salt,
        }
    }
}

/// The longest known beginning of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Match {
    /// Full blocks to begin with.
    pub(crate) blocks: Vec<EntryId>,
    /// The entry that has the rest of the keys and values, and the state.
    pub(crate) last: Option<EntryId>,
    /// Where the sequence can go on.
    pub(crate) position: usize,
    /// Tokens that agree with something known.
    pub(crate) agreed: usize,
    /// What is known to follow those, if anything.
    pub(crate) expected: Option<Token>,
    /// Whether more was known once.
    pub(crate) evicted: bool,
}

/// Texts that were evicted, to tell a lack of room from news. A rejected draft costs a wrong word.
#[derive(Debug, Default)]
struct Ghosts {
    hashes: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Ghosts {
    const MOST: usize = 4096;

    fn add(&mut self, hash: u64) {
        if !self.hashes.insert(hash) {
            return;
        }
        self.order.push_back(hash);
        if self.order.len() > Self::MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.hashes.remove(&oldest);
        }
    }
}

/// FNV-1a over tokens.
fn mix(hash: u64, token: Token) -> u64 {
    (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3)
}

/// The hash of no tokens.
fn seed(salt: Option<&CacheSalt>) -> u64 {
    let bytes = salt.iter().flat_map(|salt| salt.0);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| mix(hash, byte.into()))
}

/// All entries.
#[derive(Debug)]
pub(crate) struct Tree {
    entries: Vec<Option<Entry>>,
    free: Vec<EntryId>,
    /// Where each salt's entries begin.
    roots: HashMap<CacheSalt, EntryId>,
    /// Least recently used first, those to be kept last.
    order: BTreeMap<(bool, u64), EntryId>,
    clock: u64,
    bytes: u64,
    limit: u64,
    evictions: u64,
    tails: usize,
    /// Whether a sequence can go on only at the end of a tail.
    states: bool,
    /// Tokens of a block, those after it included.
    span: usize,
    ghosts: Ghosts,
    /// Entries that were removed and what they held, for the owner to release.
    dropped: Vec<(EntryId, Payload)>,
}

impl Tree {
    pub(crate) fn new(limit: u64, shape: &StateShape) -> Self {
        Self {
            entries: vec![Some(Entry::root(None, 0))],
            free: Vec::new(),
            roots: HashMap::new(),
            order: BTreeMap::new(),
            clock: 1,
            bytes: 0,
            limit,
            evictions: 0,
            tails: 0,
            states: shape.needs_state(),
            span: KV_BLOCK + shape.ahead(),
            ghosts: Ghosts::default(),
            dropped: Vec::new(),
        }
    }

    /// Entries removed since the last call, and what they held.
    pub(crate) fn take_dropped(&mut self) -> Vec<(EntryId, Payload)> {
        std::mem::take(&mut self.dropped)
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of all stashes that entries have.
    #[cfg(test)]
    pub(crate) fn stash_bytes(&self) -> u64 {
        let stashes = self.entries.iter().flatten().flat_map(|entry| entry.payload.stashes());
        stashes.map(|stash| stash.bytes as u64).sum()
    }

    /// Bytes it may hold.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Blocks and tails.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.order.len() - self.tails - self.roots.len(), self.tails)
    }

    /// Entries dropped to make room.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Whether nothing is known under a salt.
    pub(crate) fn is_empty(&self, salt: Option<&CacheSalt>) -> bool {
        self.root(salt).is_none_or(|root| self.entry(root).children.is_empty())
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        let Self { limit, evictions, clock, states, span, .. } = *self;
        let mut dropped = self.take_dropped();
        let entries = self.entries.drain(..).enumerate();
        dropped.extend(entries.filter_map(|(id, entry)| Some((id, entry?.payload))));
        let empty = Self::new(limit, &StateShape::default());
        *self = Self { evictions, clock, states, span, dropped, ..empty };
    }

    fn entry(&self, id: EntryId) -> &Entry {
        self.entries[id].as_ref().expect("an entry is known until it is removed")
    }

    fn entry_mut(&mut self, id: EntryId) -> &mut Entry {
        self.entries[id].as_mut().expect("an entry is known until it is removed")
    }

    /// Where the entries of a salt begin, if there are any.
    pub(crate) fn root(&self, salt: Option<&CacheSalt>) -> Option<EntryId> {
        salt.map_or(Some(ROOT), |salt| self.roots.get(salt).copied())
    }

    /// The same, made where there is none yet, from entries not used since `since`; none without room.
    pub(crate) fn open_root(&mut self, salt: Option<&CacheSalt>, since: u64) -> Option<EntryId> {
        let (None, Some(&salt)) = (self.root(salt), salt) else { return self.root(salt) };
        let root = Entry::root(Some(salt), self.clock);
        if !self.make_room(root.payload.cost(), since) {
            return None;
        }
        let id = self.put(root);
        self.roots.insert(salt, id);
        Some(id)
    }

    /// What an entry holds.
    pub(crate) fn payload(&self, id: EntryId) -> &Payload {
        &self.entry(id).payload
    }

    /// The block of these tokens after `parent`.
    pub(crate) fn block(&self, parent: EntryId, tokens: &[Token]) -> Option<EntryId> {
        let is_it = |&id: &EntryId| {
            let payload = self.payload(id);
            !payload.is_tail() && payload.tokens == tokens
        };
        self.entry(parent).children.iter().copied().find(is_it)
    }

    /// The last of a text's leading blocks that are known after `root`, and how many there are.
    pub(crate) fn leading(&self, root: EntryId, text: &[Token]) -> (EntryId, usize) {
        let mut at = (root, 0);
        while let Some(tokens) = text.get(at.1 * KV_BLOCK..at.1 * KV_BLOCK + self.span)
            && let Some(block) = self.block(at.0, tokens)
        {
            at = (block, at.1 + 1);
        }
        at
    }

    /// The entry after `parent` that makes a tail of these tokens unnecessary.
    pub(crate) fn tail(&self, parent: EntryId, tokens: &[Token]) -> Option<EntryId> {
        let serves = |&id: &EntryId| {
            let payload = self.payload(id);
            match self.states {
                true => payload.is_tail() && payload.tokens == tokens,
                false => payload.tokens.starts_with(tokens),
            }
        };
        self.entry(parent).children.iter().copied().find(serves)
    }

    /// The longest beginning of `prompt` known under a salt that leaves at least one token to read.
    pub(crate) fn find(&self, salt: Option<&CacheSalt>, prompt: &[Token]) -> Match {
        let Some(mut at) = self.root(salt) else {
            let evicted = self.known_once(seed(salt), prompt) > 0;
            return Match { evicted, ..Match::default() };
        };
        let mut best = Match::default();
        let mut path: Vec<EntryId> = Vec::new();
        let mut whole = 0;
        loop {
            let start = path.len() * KV_BLOCK;
            let rest = prompt.get(start..).unwrap_or(&[]);
            let mut next = None;
            for &child in &self.entry(at).children {
                let payload = self.payload(child);
                let common = payload.tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
                self.note_agreement(&mut best, start + common, payload.tokens.get(common));
                if let Some(position) = self.goes_on_at(payload, start, common, prompt.len())
                    && position > best.position
                {
                    best.position = position;
                    best.last = Some(child);
                    whole = path.len();
                }
                if !payload.is_tail() && common == self.span {
                    next = Some(child);
                }
            }
            let Some(block) = next else {
                path.truncate(whole);
                let evicted = start + self.known_once(self.entry(at).hash, rest) > best.agreed;
                return Match { blocks: path, evicted, ..best };
            };
            path.push(block);
            at = block;
        }
    }

    /// How many tokens after those of a hash were known until they were evicted, two blocks at most.
    fn known_once(&self, mut hash: u64, rest: &[Token]) -> usize {
        let mut known = 0;
        for (i, &token) in rest.iter().take(2 * KV_BLOCK).enumerate() {
            hash = mix(hash, token);
            if self.ghosts.hashes.contains(&hash) {
                known = i + 1;
            }
        }
        known
    }

    fn note_agreement(&self, best: &mut Match, agreed: usize, expected: Option<&Token>) {
        if agreed > best.agreed {
            (best.agreed, best.expected) = (agreed, None);
        }
        if agreed == best.agreed && best.expected.is_none() {
            best.expected = expected.copied();
        }
    }

    /// Where a sequence that agrees with `common` tokens of an entry can go on.
    fn goes_on_at(
        &self,
        payload: &Payload,
        start: usize,
        common: usize,
        prompt: usize,
    ) -> Option<usize> {
        if !self.states {
            return Some((start + common).min(prompt - 1));
        }
        let end = start + payload.tokens.len();
        (payload.is_tail() && common == payload.tokens.len() && end < prompt).then_some(end)
    }

    /// The time of the next use; what is used from now on is safe from [`Self::make_room`] with it.
    pub(crate) fn now(&self) -> u64 {
        self.clock
    }

    /// Notes that an entry and all before it are used.
    pub(crate) fn touch(&mut self, id: EntryId, keep: bool) {
        let mut at = id;
        while at != ROOT {
            let stamp = self.clock;
            self.clock += 1;
            let entry = self.entry_mut(at);
            let old = (entry.keep, entry.stamp);
            entry.stamp = stamp;
            entry.keep |= keep;
            let (new, parent) = ((entry.keep, stamp), entry.parent);
            self.order.remove(&old);
            self.order.insert(new, at);
            at = parent;
        }
    }

    /// Drops entries not used since `since` until `cost` bytes fit; false when there are too few.
    pub(crate) fn make_room(&mut self, cost: u64, since: u64) -> bool {
        while self.bytes.saturating_add(cost) > self.limit {
            let oldest = |keep| self.order.range((keep, 0)..(keep, since)).next();
            let Some((_, &id)) = oldest(false).or_else(|| oldest(true)) else { return false };
            self.ghosts.add(self.entry(id).hash);
            self.remove(id);
            self.evictions += 1;
        }
        true
    }

    /// Adds an entry after `parent`, for which there is room.
    pub(crate) fn insert(&mut self, parent: EntryId, payload: Payload, keep: bool) -> EntryId {
        if !self.states {
            self.drop_shorter(parent, &payload.tokens);
        }
        let (before, stamp) = (self.entry(parent).hash, self.clock);
        let hash = payload.tokens.iter().fold(before, |hash, &token| mix(hash, token));
        let children = Vec::new();
        let id = self.put(Entry { parent, children, payload, stamp, keep, hash, salt: None });
        self.entry_mut(parent).children.push(id);
        id
    }

    /// Gives an entry that is used now a number.
    fn put(&mut self, entry: Entry) -> EntryId {
        let cost = entry.payload.cost();
        assert!(self.bytes + cost <= self.limit, "room is made before an entry is added");
        self.clock += 1;
        self.bytes += cost;
        self.tails += usize::from(entry.payload.is_tail());
        let order = (entry.keep, entry.stamp);
        let id = match self.free.pop() {
            Some(id) => {
                self.entries[id] = Some(entry);
                id
            }
            None => {
                self.entries.push(Some(entry));
                self.entries.len() - 1
            }
        };
        self.order.insert(order, id);
        id
    }

    /// Where every position will do, an entry makes the tails it begins with worthless.
    fn drop_shorter(&mut self, parent: EntryId, tokens: &[Token]) {
        let children = self.entry(parent).children.clone();
        for id in children {
            let payload = self.payload(id);
            if payload.is_tail() && tokens.starts_with(&payload.tokens) {
                self.remove(id);
            }
        }
    }

    /// Forgets an entry without one after it, unless it is gone.
    pub(crate) fn forget(&mut self, id: EntryId) {
        let entry = self.entries.get(id).and_then(Option::as_ref);
        if id != ROOT && entry.is_some_and(|entry| entry.children.is_empty()) {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: EntryId) {
        let entry = self.entries[id].take().expect("an entry is removed once");
        assert!(entry.children.is_empty(), "what is dropped has nothing after it");
        self.order.remove(&(entry.keep, entry.stamp));
        self.bytes -= entry.payload.cost();
        self.tails -= usize::from(entry.payload.is_tail());
        match entry.salt {
            Some(salt) => drop(self.roots.remove(&salt)),
            None => self.entry_mut(entry.parent).children.retain(|&child| child != id),
        }
        self.free.push(id);
        self.dropped.push((id, entry.payload));
    }
}

#[cfg(test)]
mod tests;
