//! The prefix cache over a runner whose sampled tokens depend on every token it was given: thousands of traces, no
//! device. A block restored from the wrong place, a state of another position or a head that missed a row shows as
//! another text.

use forerun_backend::{StashId, Stashes};
use forerun_base::{Bytes, DType, LeaseId, SeqId, Token};
use forerun_engine::{
    CacheSalt, CacheSettings, CacheUse, Depth, DraftPlan, DraftTokens, Engine, EngineError, Event,
    FinishReason, Follow, Request, Runner, SampledTokens, Scheduler, Speculation, StateCopies,
    StatePart, StateShape, StateStore, StepPlan,
};
use forerun_model::{KV_BLOCK, Limits};
use proptest::prelude::*;

const VOCABULARY: usize = 40;

/// A network that is nothing but memory: a token per position in blocks, a hash as recurrent state.
struct MemoryRunner {
    limits: Limits,
    recurrent: bool,
    blocks: Vec<[Token; KV_BLOCK]>,
    slots: Vec<FakeSlot>,
    /// What the head took in, beside the tokens.
    heads: Vec<[u64; KV_BLOCK]>,
    /// Hidden states by slot and position.
    hidden: Vec<Vec<u64>>,
    fails_copies: bool,
    fails_runs: bool,
    fails_submits: bool,
    /// Whether the device says that it has passed everything.
    settled: bool,
    stashes: Stashes<Bytes>,
}

#[derive(Clone, Default)]
struct FakeSlot {
    state: u64,
    log: Vec<Token>,
}

fn mix(state: u64, token: Token) -> u64 {
    (state ^ u64::from(token).wrapping_add(0x9e37_79b9_7f4a_7c15))
        .wrapping_mul(0xff51_afd7_ed55_8ccd)
        .rotate_left(23)
}

impl MemoryRunner {
    fn new(limits: Limits, recurrent: bool) -> Self {
        Self {
            limits,
            recurrent,
            blocks: vec![[0; KV_BLOCK]; limits.blocks()],
            slots: vec![FakeSlot::default(); limits.sequences],
            hidden: vec![vec![0; limits.context]; limits.sequences],
            heads: vec![[0; KV_BLOCK]; limits.blocks()],
            fails_copies: false,
            fails_runs: false,
            fails_submits: false,
            settled: true,
            stashes: Stashes::default(),
        }
    }

    /// What attention sees.
    fn seen(&self, blocks: &[u32], end: usize) -> u64 {
        (0..end)
            .fold(1, |sum, p| mix(sum, self.blocks[blocks[p / KV_BLOCK] as usize][p % KV_BLOCK]))
    }
}

impl Runner for MemoryRunner {
    fn run(&mut self, plan: &StepPlan, output: &mut SampledTokens) -> Result<(), EngineError> {
        if self.fails_runs {
            return Err(EngineError::Settings("the device is lost".to_owned()));
        }
        output.reset(plan);
        for (span, range) in plan.spans.iter().zip(&output.of_span) {
            let slot = span.lease.0 as usize;
            let blocks = &plan.blocks[span.blocks.clone()];
            let tokens = &plan.tokens[span.tokens.clone()];
            let (confirmed, start) = (span.confirmed(), span.start as usize);
            let mut state = if start == 0 { 0 } else { self.slots[slot].state };
            let pending = &self.slots[slot].log[..span.pending as usize];
            state = pending.iter().fold(state, |state, &token| mix(state, token));
            let mut out = Vec::new();
            for (i, &token) in tokens.iter().enumerate() {
                let place = start + i;
                self.blocks[blocks[place / KV_BLOCK] as usize][place % KV_BLOCK] = token;
                state = mix(state, token);
                if i + 1 == confirmed {
                    self.slots[slot] = FakeSlot { state, log: tokens[confirmed..].to_vec() };
                }
                let recurrent = if self.recurrent { state } else { 0 };
                let seen = self.seen(blocks, place + 1);
                self.hidden[slot][place] = mix(seen, 7);
                out.push((mix(seen ^ recurrent, 5) % VOCABULARY as u64) as Token);
            }
            let next = tokens.iter().skip(1).copied().chain(span.next);
            for (place, token) in (start..).zip(next).take(span.taken) {
                self.heads[blocks[place / KV_BLOCK] as usize][place % KV_BLOCK] =
                    mix(self.hidden[slot][place], token);
            }
            let sampled = span.sampled_rows();
            output.tokens[range.clone()].copy_from_slice(&out[out.len() - sampled..]);
        }
        Ok(())
    }

    /// Checks that the head took in every position with the token after it. Drafts are sometimes right.
    fn draft(
        &mut self,
        plan: &mut DraftPlan,
        drafts: &mut DraftTokens,
        _follow: &mut Follow<'_>,
    ) -> Result<usize, EngineError> {
        drafts.reset(plan);
        for (i, entry) in plan.entries.iter().enumerate() {
            let slot = entry.lease.0 as usize;
            let (start, blocks) = (entry.start as usize, &plan.blocks[entry.blocks.clone()]);
            let next = &plan.tokens[entry.tokens.clone()];
            let at = |p: usize| (blocks[p / KV_BLOCK] as usize, p % KV_BLOCK);
            for (p, &token) in (start..).zip(next) {
                self.heads[at(p).0][at(p).1] = mix(self.hidden[slot][p], token);
            }
            let mut seen = 1;
            for p in 0..start + next.len() {
                seen = mix(seen, self.blocks[at(p).0][at(p).1]);
                let after = match p.checked_sub(start) {
                    Some(k) => next[k],
                    None => self.blocks[at(p + 1).0][at(p + 1).1],
                };
                let expected = mix(mix(seen, 7), after);
                assert_eq!(self.heads[at(p).0][at(p).1], expected, "the head missed row {p}");
            }
            (0..entry.depth).for_each(|k| drafts.push(i, (seen >> k) as Token % 40));
        }
        Ok(plan.deepest())
    }

    fn shape(&self) -> StateShape {
        StateShape {
            block: 4 * KV_BLOCK + if self.limits.mtp { 8 * KV_BLOCK } else { 0 },
            recurrent: if self.recurrent { 8 } else { 0 },
            hidden: if self.limits.mtp { 8 } else { 0 },
            ..StateShape::default()
        }
    }

    fn copies(&mut self) -> &mut dyn StateCopies {
        self
    }
}

impl MemoryRunner {
    fn part(&self, part: StatePart) -> Vec<u8> {
        let mut out: Vec<u8> = Vec::new();
        match part {
            StatePart::Block(block) => {
                let block = block as usize;
                out.extend(self.blocks[block].iter().flat_map(|token| token.to_le_bytes()));
                if self.limits.mtp {
                    out.extend(self.heads[block].iter().flat_map(|row| row.to_le_bytes()));
                }
            }
            StatePart::State { lease, position, filled } => {
                let slot = lease.0 as usize;
                if self.recurrent {
                    out.extend(self.slots[slot].state.to_le_bytes());
                }
                let rows = &self.hidden[slot][filled as usize..position as usize];
                if self.limits.mtp {
                    out.extend(rows.iter().flat_map(|row| row.to_le_bytes()));
                }
            }
        }
        out
    }

    fn set_part(&mut self, part: StatePart, bytes: &[u8]) {
        match part {
            StatePart::Block(block) => {
                let (tokens, heads) = bytes.split_at(4 * KV_BLOCK);
                let (words, _) = tokens.as_chunks::<4>();
                for (to, from) in self.blocks[block as usize].iter_mut().zip(words) {
                    *to = u32::from_le_bytes(*from);
                }
                let (rows, _) = heads.as_chunks::<8>();
                for (to, from) in self.heads[block as usize].iter_mut().zip(rows) {
                    *to = u64::from_le_bytes(*from);
                }
            }
            StatePart::State { lease, position, filled } => {
                let slot = lease.0 as usize;
                let (mut rows, _) = bytes.as_chunks::<8>();
                if self.recurrent {
                    let (first, rest) = rows.split_first().expect("a state");
                    self.slots[slot] =
                        FakeSlot { state: u64::from_le_bytes(*first), log: Vec::new() };
                    rows = rest;
                }
                for (row, place) in rows.iter().zip(filled as usize..position as usize) {
                    self.hidden[slot][place] = u64::from_le_bytes(*row);
                }
            }
        }
    }

    fn keep(&mut self, bytes: Bytes) -> Result<StashId, EngineError> {
        self.stashes.insert(bytes.len(), bytes).map_err(EngineError::from)
    }
}

impl StateCopies for MemoryRunner {
    fn limit(&mut self, bytes: u64) {
        self.stashes.set_limit(bytes);
    }

    fn bytes(&self) -> u64 {
        self.stashes.bytes()
    }

    fn stash(&mut self, part: StatePart) -> Result<StashId, EngineError> {
        if self.fails_copies {
            return Err(EngineError::Settings("no copies today".to_owned()));
        }
        let bytes = self.part(part).into();
        self.keep(bytes)
    }

    fn stash_host(&mut self, bytes: Bytes) -> Result<StashId, EngineError> {
        self.keep(bytes)
    }

    fn unstash(&mut self, parts: &[(StatePart, StashId)]) -> Result<(), EngineError> {
        for &(part, stash) in parts {
            let bytes = self.stashes.get_sized(stash, self.part(part).len())?.clone();
            self.set_part(part, &bytes);
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<(), EngineError> {
        match self.fails_submits {
            true => Err(EngineError::Settings("no submissions today".to_owned())),
            false => Ok(()),
        }
    }

    fn read(&mut self, stash: StashId) -> Result<Bytes, EngineError> {
        Ok(self.stashes.get("read", stash)?.clone())
    }

    fn release(&mut self, stash: StashId) {
        self.stashes.remove(stash).expect("a stash is released once");
    }

    fn release_all(&mut self) {
        unreachable!("nothing panics here");
    }

    fn is_settled(&self) -> bool {
        self.settled
    }
}

fn engine(sequences: usize, rows: usize, drafts: usize, recurrent: bool) -> Engine<MemoryRunner> {
    let log_rows = drafts.min(rows - 1);
    let limits = Limits {
        context: 400,
        sequences,
        rows,
        sampled: (sequences * (log_rows + 1)).min(rows),
        log_rows,
        kv: DType::F16,
        mtp: log_rows > 0,
        window: 0,
    };
    let speculation = Speculation { text: true, ..Speculation::mtp(log_rows) };
    let scheduler = Scheduler::new(limits, VOCABULARY, speculation);
    Engine::with_parts(scheduler, StateStore::new(&limits), MemoryRunner::new(limits, recurrent))
}

/// A request by what it shares: a common beginning, then a line of its own.
fn prompt(shared: usize, own: usize, line: u32) -> Vec<Token> {
    let shared = (0..shared as u32).map(|i| (i * i + 3) % VOCABULARY as u32);
    shared.chain((0..own as u32).map(|i| (i * 7 + line) % VOCABULARY as u32)).collect()
}

fn text_of(events: &[Event], id: SeqId) -> Vec<Token> {
    let own = |event: &Event| match event {
        Event::Token { seq, token, .. } if *seq == id => Some(*token),
        _ => None,
    };
    events.iter().filter_map(own).collect()
}

fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// What the cache had of a prompt, once it began.
fn cached(events: &[Event], id: SeqId) -> Option<usize> {
    events.iter().find_map(|event| match event {
        Event::Started { seq, cached } if *seq == id => Some(cached.cached_tokens),
        _ => None,
    })
}

/// One thing a client does.
#[derive(Clone, Debug)]
struct ClientRequest {
    shared: usize,
    own: usize,
    line: u32,
    max_tokens: usize,
    gap: usize,
    cancel: bool,
    keep: bool,
    write: bool,
    marks: Vec<u32>,
    drafts: usize,
    salt: Option<CacheSalt>,
}

fn asks() -> impl Strategy<Value = Vec<ClientRequest>> {
    let sizes = (0usize..200, 1usize..90, 0u32..3, 1usize..50, 0usize..25);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 0usize..5, 0u8..3);
    let marks = prop::collection::vec(1u32..290, 0..4);
    let ask = (sizes, flags, marks).prop_map(|(sizes, flags, mut marks)| {
        let (shared, own, line, max_tokens, gap) = sizes;
        let (once, again, keep, write, drafts, salt) = flags;
        marks.sort_unstable();
        ClientRequest {
            shared,
            own,
            line,
            max_tokens,
            gap,
            cancel: once && again,
            keep,
            write: write || keep,
            marks,
            drafts,
            salt: (salt > 0).then_some(CacheSalt([salt; 32])),
        }
    });
    prop::collection::vec(ask, 2..16)
}

impl ClientRequest {
    fn request(&self) -> Request {
        let (keep, write, marks, salt) = (self.keep, self.write, self.marks.clone(), self.salt);
        Request {
            depth: Depth::Fixed(self.drafts),
            cache: CacheUse { keep, write, marks, salt, read: true },
            ..Request::greedy(prompt(self.shared, self.own, self.line), self.max_tokens)
        }
    }

    fn alone(&self, recurrent: bool) -> Vec<Token> {
        let mut engine = engine(1, 400, 0, recurrent);
        let id = engine.submit(self.request()).expect("accepted");
        let mut events = Vec::new();
        while !engine.is_idle() {
            engine.step(&mut events);
        }
        text_of(&events, id)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_trace_says_what_each_request_says_alone(
        asks in asks(),
        recurrent in any::<bool>(),
        sequences in 1usize..5,
        rows in prop_oneof![Just(1usize), Just(7), Just(64), Just(100)],
        bytes in prop_oneof![Just(600u64), Just(3_000), Just(20_000), Just(10_000_000)],
        interval in prop_oneof![Just(Some(1usize)), Just(Some(40)), Just(None)],
    ) {
        let mut engine = engine(sequences, rows, 4, recurrent).with_cache(&CacheSettings { bytes, interval });
        let mut events = Vec::new();
        let mut ids = Vec::new();
        let check = |engine: &mut Engine<MemoryRunner>, events: &mut Vec<Event>| {
            engine.step(events);
            let memory = engine.cache_stats().memory;
            assert!(memory.bytes <= bytes, "{memory:?}");
            assert!(engine.runner().stashes.bytes() <= memory.bytes, "every byte is counted");
        };
        for ask in &asks {
            let id = engine.submit(ask.request()).expect("accepted");
            ids.push(id);
            (0..ask.gap).for_each(|_| check(&mut engine, &mut events));
            if ask.cancel {
                engine.cancel(id, &mut events);
            }
        }
        let mut steps = 0;
        while !engine.is_idle() {
            check(&mut engine, &mut events);
            steps += 1;
            prop_assert!(steps < 50_000, "somebody waits for ever");
        }
        for (ask, id) in asks.iter().zip(&ids) {
            let alone = ask.alone(recurrent);
            let text = text_of(&events, *id);
            let same = if ask.cancel { alone.starts_with(&text) } else { alone == text };
            prop_assert!(same, "{:?}: {:?}, alone {:?}", ask, text, alone);
        }
        for (i, (ask, id)) in asks.iter().zip(&ids).enumerate() {
            // Nothing is found but what requests of the same salt left behind.
            let own = prompt(ask.shared, ask.own, ask.line);
            let reach = asks.iter().enumerate().filter(|(j, other)| *j != i && other.salt == ask.salt);
            let reach = reach.map(|(_, other)| common(&own, &[prompt(other.shared, other.own, other.line), other.alone(recurrent)].concat())).max();
            let found = cached(&events, *id).unwrap_or(0);
            prop_assert!(found <= reach.unwrap_or(0), "{ask:?} found {found} of {reach:?}");
        }
        prop_assert_eq!(engine.states().free().0, sequences, "every lease came back");
        engine.clear_cache();
        let memory = engine.cache_stats().memory;
        prop_assert_eq!((memory.bytes, memory.blocks, memory.states), (0, 0, 0));
        prop_assert_eq!(engine.runner().stashes.count(), 0, "nothing leaks");
    }
}

/// A request for ten tokens after 170.
fn plain_ask() -> ClientRequest {
    ClientRequest {
        shared: 150,
        own: 20,
        line: 1,
        max_tokens: 10,
        gap: 0,
        cancel: false,
        keep: false,
        write: true,
        marks: Vec::new(),
        drafts: 0,
        salt: None,
    }
}

/// Runs a request; whether it failed.
fn fails(engine: &mut Engine<MemoryRunner>, ask: &ClientRequest) -> bool {
    engine.submit(ask.request()).expect("accepted");
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    let failed =
        |event: &Event| matches!(event, Event::Finished { reason: FinishReason::Failed(_), .. });
    events.iter().any(failed)
}

#[test]
fn a_lost_device_takes_along_what_it_may_never_have_copied_and_nothing_else() {
    let asks = [None, Some(CacheSalt([1; 32]))].map(|salt| ClientRequest { salt, ..plain_ask() });
    let mut engine =
        engine(1, 64, 0, true).with_cache(&CacheSettings { bytes: 1 << 20, interval: None });
    // Known to be there: what was published before the last step that was waited for.
    assert!(!fails(&mut engine, &asks[0]) && !fails(&mut engine, &asks[1]));
    let kept = engine.cache_stats().memory;
    engine.runner().settled = false;
    let late = ClientRequest { line: 2, ..asks[0].clone() };
    assert!(!fails(&mut engine, &late));
    assert!(engine.cache_stats().memory.states > kept.states);
    engine.runner().fails_runs = true;
    assert!(fails(&mut engine, &ClientRequest { line: 3, ..asks[1].clone() }));
    engine.runner().fails_runs = false;
    let left = engine.cache_stats().memory;
    // The end of the last answer was published by the last step, too.
    assert!(left.bytes <= kept.bytes && left.states + 1 >= kept.states && left.states > 1);
    assert!(engine.runner().stashes.bytes() <= left.bytes);
    assert_eq!(left.evictions, 0);
    engine.runner().settled = true;
    for ask in &asks {
        let id = engine.submit(ask.request()).expect("accepted");
        let mut events = Vec::new();
        while !engine.is_idle() {
            engine.step(&mut events);
        }
        assert_eq!(text_of(&events, id), ask.alone(true));
        assert!(cached(&events, id) >= Some(150), "{:?}", cached(&events, id));
    }
    engine.clear_cache();
    assert_eq!(engine.runner().stashes.count(), 0);
}

#[test]
fn a_device_that_fails_to_copy_loses_nothing_but_the_cache() {
    let ask = plain_ask();
    for submits in [false, true] {
        let mut engine =
            engine(1, 64, 0, true).with_cache(&CacheSettings { bytes: 1 << 20, interval: None });
        (engine.runner().fails_copies, engine.runner().fails_submits) = (!submits, submits);
        // Only what was published since is in doubt.
        engine.runner().settled = false;
        let id = engine.submit(ask.request()).expect("accepted");
        let mut events = Vec::new();
        while !engine.is_idle() {
            engine.step(&mut events);
        }
        assert_eq!(text_of(&events, id), ask.alone(true));
        let stats = engine.cache_stats();
        assert!(stats.failed_copies > 0);
        assert_eq!((stats.memory.bytes, engine.runner().stashes.count()), (0, 0));
        let ended =
            |event: &Event| matches!(event, Event::Finished { reason: FinishReason::Length, .. });
        assert!(events.iter().any(ended));
    }
}

#[test]
fn leases_are_named_by_parts() {
    let part = StatePart::State { lease: LeaseId(3), position: 9, filled: 8 };
    let shape = StateShape { recurrent: 100, hidden: 10, ring_block: 1000, window: 20, block: 5 };
    let StatePart::State { position, filled, .. } = part else { unreachable!() };
    assert_eq!(shape.state(position as usize, filled as usize), 100 + 1000 + 10);
    // 43..64 and 64..128 are seen from 128 with a window of 84 and a key more.
    assert_eq!(StateShape { window: 84, ..shape }.ring_blocks(128), 0..2);
    assert_eq!(StateShape { window: 20, ..shape }.ring_blocks(128), 1..2);
    assert_eq!(StateShape { window: 20, ..shape }.ring_blocks(64 + 21), 1..2);
    assert_eq!(StateShape { window: 20, ..shape }.ring_blocks(64 + 20), 0..2);
}
