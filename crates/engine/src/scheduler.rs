//! Which sequences run in the next step, and what a verdict means for them. No device.
//!
//! Policy: first come, first served. Sequences that are decoding go first, one row each, so a long prompt
//! delays nobody by more than a chunk; prompts share the rows that are left. When there are more
//! sequences than rows, turns rotate. Room for the longest answer is leased at admission, so a
//! running sequence never has to be thrown out.

use crate::sequence::{Sequence, Standing};
use crate::{
    Admission, Event, FinishReason, RejectError, Request, SampleSpec, Span, StateStore, StepPlan,
    Verdict,
};
use forerun_backend::op::SampleRow;
use forerun_base::{LeaseId, SeqId, Token};
use forerun_model::Limits;

/// All sequences the engine knows.
pub struct Scheduler {
    limits: Limits,
    vocabulary: usize,
    sequences: Vec<Sequence>,
    next_id: u64,
    turn: usize,
}

impl Scheduler {
    /// A scheduler for what the limits allow.
    pub fn new(limits: Limits, vocabulary: usize) -> Self {
        Self { limits, vocabulary, sequences: Vec::new(), next_id: 0, turn: 0 }
    }

    /// Whether nothing waits or runs.
    pub fn is_idle(&self) -> bool {
        self.sequences.iter().all(|s| matches!(s.standing, Standing::Parked(_)))
    }

    /// Takes a request, or says why it can never run.
    pub fn submit(&mut self, request: Request) -> Result<SeqId, RejectError> {
        self.check(&request)?;
        let id = SeqId(self.next_id);
        self.next_id += 1;
        let Limits { context, .. } = self.limits;
        self.sequences.push(Sequence::new(id, request, context, self.vocabulary));
        Ok(id)
    }

    /// Continues a parked sequence: `request.prompt` is what follows the tokens it holds.
    pub fn resume(&mut self, id: SeqId, mut request: Request) -> Result<(), RejectError> {
        let at = self.find(id).ok_or(RejectError::NotParked(id))?;
        let Standing::Parked(lease) = self.sequences[at].standing else {
            return Err(RejectError::NotParked(id));
        };
        let mut tokens = self.sequences[at].tokens.clone();
        tokens.append(&mut request.prompt);
        request.prompt = tokens;
        self.check(&request)?;
        let Limits { context, .. } = self.limits;
        let mut sequence = Sequence::new(id, request, context, self.vocabulary);
        sequence.standing = Standing::Running(lease);
        // Penalties count what is never read again; the last token held was decided, not read.
        sequence.note_committed(0, self.sequences[at].tokens.len() - 1);
        self.sequences[at] = sequence;
        Ok(())
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
        let vocabulary = self.vocabulary;
        if let Some(&token) = request.prompt.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(RejectError::UnknownToken { token, vocabulary });
        }
        request.sampling.check(vocabulary)
    }

    /// History entries that all sequences together can come to.
    pub(crate) fn history_room(&self) -> usize {
        self.sequences.iter().map(|s| s.history.room()).sum()
    }

    /// Tokens of a sequence so far, and the length of its prompt.
    pub fn tokens(&self, id: SeqId) -> Option<(&[Token], usize)> {
        self.find(id).map(|at| (&self.sequences[at].tokens[..], self.sequences[at].prompt_len))
    }

    fn find(&self, id: SeqId) -> Option<usize> {
        self.sequences.iter().position(|s| s.id == id)
    }

    /// Forgets a sequence and returns its lease; false when it is unknown.
    pub fn remove(&mut self, id: SeqId, states: &mut StateStore) -> bool {
        let Some(at) = self.find(id) else { return false };
        let sequence = self.sequences.remove(at);
        if let Standing::Running(lease) | Standing::Parked(lease) = sequence.standing {
            states.release(lease);
        }
        true
    }

    /// Chooses and reserves; writes the next step into `plan`.
    pub fn plan(&mut self, states: &mut StateStore, plan: &mut StepPlan) {
        plan.clear();
        self.admit(states);
        let (mut rows, mut sampled) = (self.limits.rows, self.limits.sampled);
        let count = self.sequences.len();
        self.turn = if count == 0 { 0 } else { (self.turn + 1) % count };
        // Decoding sequences first, then prompts; within each, in rotating order.
        for decoding in [true, false] {
            for i in 0..count {
                let sequence = &self.sequences[(self.turn + i) % count];
                let Standing::Running(lease) = sequence.standing else { continue };
                let left = sequence.tokens.len() - states.lease(lease).committed as usize;
                if (left == 1) != decoding || rows == 0 {
                    continue;
                }
                let take = left.min(rows);
                let ends = take == left;
                if ends && sampled == 0 {
                    continue;
                }
                rows -= take;
                sampled -= usize::from(ends);
                add_span(plan, sequence, lease, states, take);
            }
        }
    }

    /// Gives leases to waiting sequences, in order of arrival.
    fn admit(&mut self, states: &mut StateStore) {
        for sequence in &mut self.sequences {
            match sequence.standing {
                Standing::Waiting => match states.acquire(sequence.end) {
                    Admission::Ready(lease) => sequence.standing = Standing::Running(lease),
                    Admission::Wait => return,
                },
                Standing::Running(lease) => {
                    // A continued sequence may need more blocks than it held.
                    let extended = states.extend(lease, sequence.end);
                    assert!(extended, "the pool holds a whole context for every sequence");
                }
                Standing::Parked(_) => {}
            }
        }
    }

    /// Takes a span that read part of a prompt: all of it is kept, nothing is said.
    pub fn read(&mut self, span: &Span) -> Verdict {
        let verdict = Verdict { keep: span.tokens.len(), emit: 0 };
        self.apply(span, verdict, &[], &mut Vec::new())
    }

    /// Takes the picks of one span; says what becomes of its tokens and what to commit.
    pub fn apply(
        &mut self,
        span: &Span,
        verdict: Verdict,
        picks: &[Token],
        events: &mut Vec<Event>,
    ) -> Verdict {
        let at = self.find(span.seq).expect("a planned sequence stays until its step is applied");
        let sequence = &mut self.sequences[at];
        let (seq, start) = (span.seq, span.start as usize);
        let mut settled = verdict;
        for (i, &token) in picks[..verdict.emit].iter().enumerate() {
            let end = sequence.push(token);
            events.push(Event::Token { seq, token });
            if let Some(reason) = end {
                settled = verdict.ending_at(i);
                events.push(Event::Finished { seq, reason });
                let Standing::Running(lease) = sequence.standing else { unreachable!("it ran") };
                sequence.standing = Standing::Parked(lease);
                break;
            }
        }
        sequence.note_committed(start, start + settled.keep);
        settled
    }

    /// Releases sequences that ended and were not asked to stay.
    pub fn sweep(&mut self, states: &mut StateStore) {
        self.sequences.retain(|sequence| match sequence.standing {
            Standing::Parked(lease) if !sequence.park => {
                states.release(lease);
                false
            }
            _ => true,
        });
    }

    /// Ends every sequence of a failed step.
    pub fn fail(
        &mut self,
        plan: &StepPlan,
        why: &str,
        states: &mut StateStore,
        events: &mut Vec<Event>,
    ) {
        for span in &plan.spans {
            let reason = FinishReason::Failed(why.to_owned());
            events.push(Event::Finished { seq: span.seq, reason });
            self.remove(span.seq, states);
        }
    }
}

/// Adds the next `take` tokens of a sequence to a plan.
fn add_span(
    plan: &mut StepPlan,
    sequence: &Sequence,
    id: LeaseId,
    states: &StateStore,
    take: usize,
) {
    let lease = states.lease(id);
    let start = lease.committed as usize;
    let first = plan.tokens.len();
    plan.tokens.extend_from_slice(&sequence.tokens[start..start + take]);
    let blocks = plan.blocks.len();
    plan.blocks.extend_from_slice(&lease.blocks);
    let ends = start + take == sequence.tokens.len();
    let history = plan.history.len();
    if ends && sequence.sampling.needs_history() {
        plan.history.extend_from_slice(sequence.history.entries());
    }
    plan.spans.push(Span {
        seq: sequence.id,
        lease: id,
        start: lease.committed,
        tokens: first..plan.tokens.len(),
        drafts: 0,
        pending: lease.pending,
        blocks: blocks..plan.blocks.len(),
        sample: ends.then(|| SampleSpec {
            row: sample_row(sequence),
            prompt_len: sequence.prompt_len as u32,
            history: history..plan.history.len(),
        }),
    });
}

fn sample_row(sequence: &Sequence) -> SampleRow {
    let sampling = &sequence.sampling;
    SampleRow {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition: sampling.repetition_penalty,
        presence: sampling.presence_penalty,
        frequency: sampling.frequency_penalty,
        seed: sampling.seed,
        ..SampleRow::GREEDY
    }
}
