//! Which sequences run in the next step, and what a verdict means for them. No device.
//!
//! Policy: sequences that are answering go first, so a long prompt delays nobody by more than a chunk; prompts share
//! the rows that are left ([`crate::share`]) and that the step has time for ([`crate::pace`]). When there are more
//! answers than rows, turns rotate. Leases go by priority, then arrival, and one in four by arrival alone.
//! Room for the longest answer is leased at admission, so a running sequence never has to be thrown out.

use crate::draft::{AcceptanceBySource, Tuning};
use crate::pace::StepTimes;
use crate::sequence::{Sequence, SequenceSizes, Standing};
use crate::share::{Claim, SHARE, share};
use crate::{
    Admission, Event, FinishReason, MAX_LOGPROBS, Receipt, RejectError, Request, SampleSpec, Span,
    SpanTokens, Speculation, SpeculationMode, StateStore, StepPlan, Verdict, check_tokens,
};
use forerun_backend::op::{HistoryEntry, SampleRow};
use forerun_base::{LeaseId, SeqId, Token};
use forerun_model::Limits;

/// All sequences the engine knows.
pub struct Scheduler {
    pub(crate) limits: Limits,
    pub(crate) speculation: Speculation,
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) vocabulary: usize,
    /// What speculation did, for all sequences there were.
    pub(crate) speculated: Receipt,
    /// How likely drafts were accepted, for all sequences there were.
    acceptance: AcceptanceBySource,
    /// Tokens of all answers there were.
    pub(crate) generated: u64,
    next_id: u64,
    /// Counts plans.
    turn: u64,
    /// Counts leases given.
    admitted: usize,
    claims: Vec<Claim>,
}

impl Scheduler {
    /// A scheduler for what the limits allow.
    pub fn new(limits: Limits, vocabulary: usize, speculation: Speculation) -> Self {
        Self {
            limits,
            speculation,
            vocabulary,
            sequences: Vec::new(),
            speculated: Receipt::default(),
            acceptance: AcceptanceBySource::shared(Tuning::DEFAULT),
            generated: 0,
            next_id: 0,
            turn: 0,
            admitted: 0,
            claims: Vec::with_capacity(limits.sequences),
        }
    }

    /// Whether nothing waits or runs.
    pub fn is_idle(&self) -> bool {
        self.sequences.iter().all(|s| matches!(s.standing, Standing::Retained(_)))
    }

    /// Takes a request, or says why it can never run.
    pub fn submit(&mut self, request: Request) -> Result<SeqId, RejectError> {
        self.check(&request)?;
        let id = SeqId(self.next_id);
        self.next_id += 1;
        self.sequences.push(Sequence::new(id, request, &self.sequence_sizes()));
        Ok(id)
    }

    /// Continues a retained sequence: `request.prompt` is what follows the tokens it holds.
    pub fn resume(
        &mut self,
        id: SeqId,
        mut request: Request,
        states: &StateStore,
    ) -> Result<(), RejectError> {
        let at = self.find(id).ok_or(RejectError::NotRetained(id))?;
        let Standing::Retained(lease) = self.sequences[at].standing else {
            return Err(RejectError::NotRetained(id));
        };
        let mut tokens = self.sequences[at].tokens.clone();
        tokens.append(&mut request.prompt);
        request.prompt = tokens;
        self.check(&request)?;
        let mut sequence = Sequence::new(id, request, &self.sequence_sizes());
        sequence.standing = Standing::Running(lease);
        sequence.drafting.filled = self.sequences[at].drafting.filled;
        // Penalties count what is never read again.
        sequence.note_committed(0, states.lease(lease).committed as usize);
        sequence.published.started = true;
        sequence.published.resume(&self.sequences[at].published, sequence.prompt_len);
        self.sequences[at] = sequence;
        Ok(())
    }

    fn sequence_sizes(&self) -> SequenceSizes {
        SequenceSizes {
            context: self.limits.context,
            vocabulary: self.vocabulary,
            max_drafts: self.max_drafts(),
            text_drafts: self.speculation.text && self.speculation.mode != SpeculationMode::Off,
            acceptance: self.acceptance,
        }
    }

    /// Most drafts of a round.
    pub(crate) fn max_drafts(&self) -> usize {
        match self.speculation.mode {
            SpeculationMode::Off => 0,
            SpeculationMode::Verified => self.limits.log_rows,
            SpeculationMode::Optimistic => self.speculation.max_drafts.min(self.limits.rows - 1),
        }
    }

    fn check(&self, request: &Request) -> Result<(), RejectError> {
        let (prompt, context) = (request.prompt.len(), self.limits.context);
        if prompt == 0 {
            return Err(RejectError::EmptyPrompt);
        }
        if prompt >= context {
            return Err(RejectError::PromptTooLong { prompt, context });
        }
        if request.max_tokens == 0 {
            return Err(RejectError::NoTokens);
        }
        if let Some(asked) = request.logprobs.filter(|&asked| asked > MAX_LOGPROBS) {
            let (name, value) = ("logprobs", asked.to_string());
            return Err(RejectError::Sampling { name, value, expected: "at most 128" });
        }
        check_tokens(&request.prompt, self.vocabulary)?;
        request.sampling.check(self.vocabulary)
    }

    /// History entries that all sequences together can come to.
    pub(crate) fn history_capacity(&self) -> usize {
        self.sequences.iter().map(|s| s.history.capacity()).sum()
    }

    /// Tokens of a sequence so far, and the length of its prompt.
    pub fn tokens(&self, id: SeqId) -> Option<(&[Token], usize)> {
        self.find(id).map(|at| (&self.sequences[at].tokens[..], self.sequences[at].prompt_len))
    }

    /// What a sequence holds, once it has it.
    pub(crate) fn lease(&self, id: SeqId) -> Option<LeaseId> {
        self.find(id).and_then(|at| lease_of(&self.sequences[at]))
    }

    /// How many sequences run, wait and are retained.
    pub(crate) fn standings(&self) -> [usize; 3] {
        let mut counts = [0; 3];
        for sequence in &self.sequences {
            counts[match sequence.standing {
                Standing::Running(_) => 0,
                Standing::Waiting => 1,
                Standing::Retained(_) => 2,
            }] += 1;
        }
        counts
    }

    /// Whether a sequence holds a lease and has not ended.
    pub(crate) fn is_running(&self, id: SeqId) -> bool {
        let running = |at: usize| matches!(self.sequences[at].standing, Standing::Running(_));
        self.find(id).is_some_and(running)
    }

    pub(crate) fn find(&self, id: SeqId) -> Option<usize> {
        self.sequences.iter().position(|s| s.id == id)
    }

    /// Forgets a sequence and returns its lease; what it was about, if it was known.
    pub(crate) fn remove(&mut self, id: SeqId, states: &mut StateStore) -> Option<Sequence> {
        let sequence = self.sequences.remove(self.find(id)?);
        if let Standing::Running(lease) | Standing::Retained(lease) = sequence.standing {
            states.release(lease);
        }
        Some(sequence)
    }

    /// Ends a sequence with a reason, or forgets a retained one.
    pub fn end(
        &mut self,
        id: SeqId,
        reason: FinishReason,
        states: &mut StateStore,
        events: &mut Vec<Event>,
    ) {
        if let Some(sequence) = self.remove(id, states) {
            let receipt = Box::new(sequence.drafting.receipt);
            events.push(Event::Finished { seq: id, reason, receipt });
        }
    }

    /// Chooses among the sequences that hold a lease; writes the next step into `plan`.
    pub(crate) fn plan(&mut self, states: &StateStore, times: StepTimes<'_>, plan: &mut StepPlan) {
        plan.clear();
        self.turn += 1;
        self.gather_claims(states);
        self.plan_answers(states, plan);
        self.plan_prompts(states, times, plan);
    }

    /// Notes who is reading a prompt and how much of it is left.
    fn gather_claims(&mut self, states: &StateStore) {
        self.claims.clear();
        for (at, sequence) in self.sequences.iter().enumerate() {
            let Standing::Running(lease) = sequence.standing else { continue };
            if !sequence.is_answering() && sequence.published.started {
                let committed = states.lease(lease).committed as usize;
                let left = sequence.tokens.len() - committed;
                let most = sequence.published.until_stop(committed, left);
                self.claims.push(Claim { at, priority: sequence.priority, left, most, rows: 0 });
            }
        }
    }

    /// Adds the answers, each with its drafts.
    fn plan_answers(&self, states: &StateStore, plan: &mut StepPlan) {
        let mut rows = self.limits.rows;
        let running = |s: &&Sequence| matches!(s.standing, Standing::Running(_));
        let answers = self.sequences.iter().filter(running).filter(|s| s.is_answering()).count();
        // Drafts take rows only when every answer has its own, and leave half of the rest to prompts.
        let spare = rows.min(self.limits.sampled).saturating_sub(answers);
        let wanted: usize = self.claims.iter().map(|claim| claim.left).sum();
        let mut spare = spare - wanted.min(spare.div_ceil(2));
        let count = self.sequences.len();
        let first = (self.turn % count.max(1) as u64) as usize;
        for i in 0..count {
            let sequence = &self.sequences[(first + i) % count];
            let Standing::Running(lease) = sequence.standing else { continue };
            if rows == 0 || !sequence.is_answering() || sequence.waits {
                continue;
            }
            let left = sequence.tokens.len() - states.lease(lease).committed as usize;
            let take = left.min(rows);
            let most = sequence.draft_capacity().min(spare).min(rows - take);
            let drafts = if take == left { sequence.drafting.drafts.len().min(most) } else { 0 };
            rows -= take + drafts;
            spare -= drafts;
            add_span(plan, sequence, states, take, drafts);
        }
    }

    /// Adds prompts in the rows that are left, as many as the step has time for.
    fn plan_prompts(&mut self, states: &StateStore, times: StepTimes<'_>, plan: &mut StepPlan) {
        if self.claims.is_empty() {
            return;
        }
        let [running, waiting, _] = self.standings();
        let committed = |claim: &Claim| {
            let sequence = &self.sequences[claim.at];
            sequence.tokens.len() - claim.left
        };
        let context = self.claims.iter().map(committed).max().unwrap_or(0);
        let answers = times.costs.answers(plan);
        let timely = times.pace.prompt_rows(context, running + waiting == 1, answers);
        let rows = timely.min(self.limits.rows - plan.tokens.len());
        let mut sampled =
            self.limits.sampled - plan.spans.iter().map(Span::sampled_rows).sum::<usize>();
        share(&mut self.claims, rows, self.turn);
        for claim in &self.claims {
            let mut take = claim.rows;
            if take == claim.left {
                // Without a row to sample, or a mask for it, the last token waits.
                let waits = sampled == 0 || self.sequences[claim.at].waits;
                take -= usize::from(waits);
                sampled -= usize::from(!waits);
            }
            if take > 0 {
                plan.prompt_rows += take;
                add_span(plan, &self.sequences[claim.at], states, take, 0);
                let takes_in = self.head_may_draft(claim.at, states);
                if let Some(span) = plan.spans.last_mut().filter(|_| takes_in) {
                    span.taken = take - usize::from(span.next.is_none());
                }
            }
        }
    }

    /// Gives leases to waiting sequences.
    pub(crate) fn admit(&mut self, states: &mut StateStore) {
        for sequence in &self.sequences {
            if let Standing::Running(lease) = sequence.standing {
                // A continued sequence may need more blocks than it held.
                let extended = states.extend(lease, sequence.end);
                assert!(extended, "the pool holds a whole context for every sequence");
            }
        }
        while let Some(at) = self.next_waiting() {
            let Admission::Ready(lease) = states.acquire(self.sequences[at].end) else { return };
            self.sequences[at].standing = Standing::Running(lease);
            self.admitted += 1;
        }
    }

    /// Who gets the next lease. Sequences stand in the order of their arrival.
    fn next_waiting(&self) -> Option<usize> {
        let mut waiting = (0..self.sequences.len())
            .filter(|&at| self.sequences[at].standing == Standing::Waiting);
        if self.admitted % SHARE == SHARE - 1 {
            waiting.next()
        } else {
            waiting.min_by_key(|&at| self.sequences[at].priority)
        }
    }

    /// Takes a span that read part of a prompt: all of it is kept, nothing is said.
    pub fn read(&mut self, span: &Span) -> Verdict {
        let at = self.find(span.seq).expect("a planned sequence stays until its step is applied");
        let keep = span.tokens.len();
        self.sequences[at].note_committed(span.start as usize, span.start as usize + keep);
        self.sequences[at].note_taken(span);
        Verdict { keep, emit: 0 }
    }

    /// Takes the sampled tokens of one span: its tokens become text up to the first terminator, and only what is
    /// text counts. Says what to commit.
    pub fn apply(
        &mut self,
        span: &Span,
        verdict: Verdict,
        sampled: SpanTokens<'_>,
        events: &mut Vec<Event>,
    ) -> Verdict {
        let at = self.find(span.seq).expect("a planned sequence stays until its step is applied");
        let start = span.start as usize;
        let sequence = &mut self.sequences[at];
        let said = SpanTokens { tokens: &sampled.tokens[..verdict.emit], ..sampled };
        let (emitted, end) = sequence.emit(said, events);
        let settled = verdict.ending_at(emitted - 1);
        sequence.note_committed(start, start + settled.keep);
        sequence.note_taken(span);
        let (drafted, accepted) = (span.drafts, settled.keep - span.confirmed());
        self.speculated.note(sequence.drafting.source, drafted, accepted);
        self.generated += emitted as u64;
        self.acceptance.note(sequence.drafting.source, drafted, accepted);
        sequence.drafting.note_round(drafted, accepted);
        sequence.finish(end, events);
        settled
    }

    /// Releases sequences that ended and were not asked to stay.
    pub fn sweep(&mut self, states: &mut StateStore) {
        self.sequences.retain(|sequence| match sequence.standing {
            Standing::Retained(lease) if !sequence.retain => {
                states.release(lease);
                false
            }
            _ => true,
        });
    }
}

/// Adds the next `take` tokens of a sequence, and `drafts` drafts, to a plan.
fn add_span(
    plan: &mut StepPlan,
    sequence: &Sequence,
    states: &StateStore,
    take: usize,
    drafts: usize,
) {
    let Standing::Running(id) = sequence.standing else {
        unreachable!("only what runs is planned")
    };
    let lease = states.lease(id);
    let start = lease.committed as usize;
    let first = plan.tokens.len();
    plan.tokens.extend_from_slice(&sequence.tokens[start..start + take]);
    plan.tokens.extend_from_slice(&sequence.drafting.drafts[..drafts]);
    let blocks = plan.blocks.len();
    plan.blocks.extend_from_slice(&lease.blocks);
    let next = sequence.tokens.get(start + take).copied();
    plan.spans.push(Span {
        seq: sequence.id,
        lease: id,
        start: lease.committed,
        tokens: first..plan.tokens.len(),
        drafts,
        pending: lease.pending,
        blocks: blocks..plan.blocks.len(),
        sample: next.is_none().then(|| sample_spec(sequence, &mut plan.history)),
        next,
        taken: 0,
    });
}

/// How a sequence is sampled; its history is added to `history`.
pub(crate) fn sample_spec(sequence: &Sequence, history: &mut Vec<HistoryEntry>) -> SampleSpec {
    let sampling = &sequence.sampling;
    let first = history.len();
    if sampling.needs_history() {
        history.extend_from_slice(sequence.history.entries());
    }
    SampleSpec {
        row: SampleRow {
            temperature: sampling.row_temperature(),
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repetition: sampling.repetition_penalty,
            presence: sampling.presence_penalty,
            frequency: sampling.frequency_penalty,
            seed: sampling.seed,
            ..SampleRow::GREEDY
        },
        prompt_len: sequence.prompt_len as u32,
        history: first..history.len(),
        masks: 0..0,
        logprobs: sequence.logprobs,
    }
}

/// The lease of a sequence that runs or is retained.
pub(crate) fn lease_of(sequence: &Sequence) -> Option<LeaseId> {
    match sequence.standing {
        Standing::Running(lease) | Standing::Retained(lease) => Some(lease),
        Standing::Waiting => None,
    }
}
