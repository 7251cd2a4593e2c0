//! Looking up a prompt, and publishing what a sequence has read.

use super::points::Rule;
use super::tree::{EntryId, Match, Payload, ROOT, Tree};
use super::{
    CacheReport, CacheSettings, CacheStats, Miss, MissReason, Part, StateShape, TierStats,
};
use crate::{EngineError, Lease};
use forerun_base::{Bytes, LeaseId, Token};
use forerun_model::KV_BLOCK;

/// What is known of texts that were read before.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    shape: StateShape,
    rule: Rule,
    tree: Tree,
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

/// Copies a part of a lease into the bytes.
pub(crate) type CopyOut<'a> = &'a mut dyn FnMut(Part, &mut [u8]) -> Result<(), EngineError>;

impl PrefixCache {
    pub(crate) fn new(settings: &CacheSettings, shape: StateShape) -> Self {
        let interval = settings.interval(&shape);
        Self {
            shape,
            rule: Rule::new(interval, &shape),
            tree: Tree::new(settings.bytes, shape.needs_state()),
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
        CacheStats { memory, ..self.stats }
    }

    /// Forgets everything; counts go on.
    pub(crate) fn clear(&mut self) {
        self.tree.clear();
    }

    /// Positions of `prompt` that need not be read, without using anything.
    pub(crate) fn reach(&self, prompt: &[Token]) -> usize {
        self.tree.find(prompt).position
    }

    /// Where a sequence with this prompt begins. What it finds is used now.
    pub(crate) fn find(&mut self, prompt: &[Token], id: LeaseId, lease: &Lease) -> Found {
        let found = self.tree.find(prompt);
        if let Some(last) = found.last {
            self.tree.touch(last, false);
        }
        let report = CacheReport {
            cached_tokens: found.position,
            prompt_tokens: prompt.len(),
            from_disk: 0,
            miss: self.miss(&found, prompt),
        };
        self.stats.note(&report);
        self.found(&found, report, id, lease)
    }

    /// What a request that does not read learns.
    pub(crate) fn disabled(prompt: &[Token]) -> Found {
        let miss = Miss {
            reason: MissReason::Disabled,
            at: 0,
            expected: None,
            found: prompt.first().copied(),
        };
        let report =
            CacheReport { prompt_tokens: prompt.len(), miss: Some(miss), ..CacheReport::default() };
        Found { report, ..Found::default() }
    }

    /// Counts a request that does not read.
    pub(crate) fn note_disabled(&mut self) {
        self.stats.misses[MissReason::Disabled as usize] += 1;
    }

    /// Why no more was found. A prompt that only goes on where a known text ended misses nothing.
    fn miss(&self, found: &Match, prompt: &[Token]) -> Option<Miss> {
        let Match { position, agreed, expected, .. } = *found;
        if position + 1 == prompt.len() {
            return None;
        }
        let differs = agreed < prompt.len() && expected.is_some();
        let reason = match () {
            () if self.tree.is_empty() => MissReason::Empty,
            () if agreed == 0 => MissReason::NoCommonPrefix,
            () if differs => MissReason::Diverged,
            () if agreed > position => MissReason::NoState,
            () => return None,
        };
        let found = prompt.get(agreed).copied();
        Some(Miss { reason, at: agreed, expected, found })
    }

    fn found(&self, found: &Match, report: CacheReport, id: LeaseId, lease: &Lease) -> Found {
        let position = found.position;
        let mut parts = Vec::with_capacity(found.blocks.len() + 2);
        for (&entry, &block) in found.blocks.iter().zip(&lease.blocks) {
            parts.push((Part::Block(block), self.tree.payload(entry).kv.clone()));
        }
        let mut filled = position as u32;
        if let Some(last) = found.last {
            let payload = self.tree.payload(last);
            if position > found.blocks.len() * KV_BLOCK {
                let block = lease.blocks[found.blocks.len()];
                parts.push((Part::Block(block), payload.kv.clone()));
            }
            if let Some(state) = payload.state.as_ref().filter(|_| self.shape.needs_state()) {
                filled = payload.filled;
                let part = Part::State { lease: id, position: position as u32, filled };
                parts.push((part, state.clone()));
            }
        }
        Found { report, position, filled, parts }
    }

    /// Keeps what a sequence has read. Only what is missing is copied. False when it is too much to keep.
    pub(crate) fn publish(&mut self, held: &Held<'_>, copy: CopyOut<'_>) -> bool {
        let since = self.tree.now();
        let whole = held.tokens.chunks_exact(KV_BLOCK);
        let rest = whole.remainder();
        let mut at = ROOT;
        let mut known = 0;
        for tokens in whole.clone() {
            let Some(block) = self.tree.block(at, tokens) else { break };
            (at, known) = (block, known + 1);
        }
        self.tree.touch(at, held.keep);
        if self.cost_of(held) > self.tree.limit() {
            self.refused += 1;
            return false;
        }
        for (i, tokens) in whole.enumerate().skip(known) {
            let copied = self.copy_block(held, i, copy);
            let Some(kv) = copied else { break };
            let payload = Payload { tokens: tokens.to_vec(), kv, state: None, filled: 0 };
            let Some(block) = self.add(at, payload, held.keep, since) else { break };
            at = block;
            known += 1;
        }
        if known == held.tokens.len() / KV_BLOCK {
            at = self.publish_tail(held, at, rest, copy, since).unwrap_or(at);
        }
        self.tree.touch(at, held.keep);
        true
    }

    /// The end of what a sequence has read.
    fn publish_tail(
        &mut self,
        held: &Held<'_>,
        parent: EntryId,
        rest: &[Token],
        copy: CopyOut<'_>,
        since: u64,
    ) -> Option<EntryId> {
        if let Some(known) = self.tree.tail(parent, rest) {
            return Some(known);
        }
        if rest.is_empty() && !self.shape.needs_state() {
            return None;
        }
        let kv = match rest.len() {
            0 => Bytes::from(Vec::new()),
            _ => self.copy_block(held, held.tokens.len() / KV_BLOCK, copy)?,
        };
        let position = held.tokens.len() as u32;
        let mut state = vec![0; self.shape.state(position as usize, held.filled as usize)];
        if !state.is_empty() {
            let part = Part::State { lease: held.id, position, filled: held.filled };
            self.copied(copy(part, &mut state))?;
        }
        let (tokens, state) = (rest.to_vec(), Some(Bytes::from(state)));
        self.add(parent, Payload { tokens, kv, state, filled: held.filled }, held.keep, since)
    }

    fn copy_block(&mut self, held: &Held<'_>, number: usize, copy: CopyOut<'_>) -> Option<Bytes> {
        let mut kv = vec![0; self.shape.block];
        self.copied(copy(Part::Block(held.lease.blocks[number]), &mut kv))?;
        Some(kv.into())
    }

    /// A copy that failed leaves a text unpublished; whoever runs next will see the device fail.
    fn copied(&mut self, done: Result<(), EngineError>) -> Option<()> {
        self.stats.failed_copies += u64::from(done.is_err());
        done.ok()
    }

    fn add(
        &mut self,
        parent: EntryId,
        payload: Payload,
        keep: bool,
        since: u64,
    ) -> Option<EntryId> {
        let room = self.tree.make_room(payload.cost(), since);
        self.stats.published += u64::from(room);
        room.then(|| self.tree.insert(parent, payload, keep))
    }

    /// Bytes of everything a published text needs.
    fn cost_of(&self, held: &Held<'_>) -> u64 {
        let (blocks, rest) = (held.tokens.len() / KV_BLOCK, held.tokens.len() % KV_BLOCK);
        let block = Payload::cost_of(KV_BLOCK, self.shape.block, 0);
        let kv = if rest == 0 { 0 } else { self.shape.block };
        let state = self.shape.state(held.tokens.len(), held.filled as usize);
        (blocks as u64).saturating_mul(block).saturating_add(Payload::cost_of(rest, kv, state))
    }
}
