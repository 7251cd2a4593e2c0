//! One conversation: its tokens, how it is sampled, when it ends, what is drafted of it.

use crate::cache::Published;
use crate::draft::{AcceptanceBySource, NgramIndex};
use crate::history::History;
use crate::{
    Constraint, Depth, Event, FinishReason, Receipt, Request, Sampling, Span, SpanTokens, Watch,
};
use forerun_base::{LeaseId, SeqId, Token};

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No lease yet.
    Waiting,
    /// In every plan.
    Running(LeaseId),
    /// Ended, its state kept for a continuation.
    Retained(LeaseId),
}

pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    /// Prompt and answer.
    pub(crate) tokens: Vec<Token>,
    pub(crate) prompt_len: usize,
    /// Length at which the answer ends.
    pub(crate) end: usize,
    pub(crate) standing: Standing,
    pub(crate) sampling: Sampling,
    pub(crate) history: History,
    pub(crate) drafting: SequenceDrafts,
    pub(crate) retain: bool,
    /// Lower goes first.
    pub(crate) priority: i32,
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    /// Whether its constraint has yet to say what may come; it sits out the steps until then.
    pub(crate) waits: bool,
    /// Why its answer ends, unless the constraint that has yet to say so finds it whole.
    ends: Option<FinishReason>,
    pub(crate) logprobs: Option<usize>,
    pub(crate) published: Published,
    /// Whether it ended without an answer; what it holds is only released.
    pub(crate) failed: bool,
    end_tokens: Vec<Token>,
    watch: Option<Watch>,
}

/// The drafts of a sequence and what is known of them.
pub(crate) struct SequenceDrafts {
    pub(crate) depth: Depth,
    /// For the next step.
    pub(crate) drafts: Vec<Token>,
    pub(crate) source: DraftSource,
    pub(crate) text: NgramIndex,
    pub(crate) acceptance: AcceptanceBySource,
    /// Positions the MTP cache has taken in.
    pub(crate) filled: u32,
    /// Drafts that the constraint has taken to say what may follow them.
    pub(crate) ahead: usize,
    pub(crate) receipt: Receipt,
}

/// Where drafts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DraftSource {
    /// The MTP head or a drafter.
    Head,
    /// The text itself.
    Text,
    /// The constraint, which leaves no choice.
    Constraint,
}

/// What the sizes of a sequence's buffers depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceSizes {
    pub(crate) context: usize,
    pub(crate) vocabulary: usize,
    pub(crate) max_drafts: usize,
    pub(crate) text_drafts: bool,
    /// How likely drafts were accepted in the sequences before it.
    pub(crate) acceptance: AcceptanceBySource,
}

impl Sequence {
    /// A sequence for a checked request. Everything it will need is reserved here.
    pub(crate) fn new(id: SeqId, request: Request, sizes: &SequenceSizes) -> Self {
        let prompt_len = request.prompt.len();
        let end = prompt_len.saturating_add(request.max_tokens).min(sizes.context);
        let mut tokens = request.prompt;
        tokens.reserve_exact(end - prompt_len);
        let history = History::new(&request.sampling, end.min(sizes.vocabulary));
        let drafting = SequenceDrafts {
            depth: request.depth,
            drafts: Vec::with_capacity(sizes.max_drafts),
            source: DraftSource::Head,
            text: NgramIndex::new(if sizes.text_drafts { end } else { 0 }),
            acceptance: AcceptanceBySource::like(&sizes.acceptance),
            filled: 0,
            ahead: 0,
            receipt: Receipt::default(),
        };
        Self {
            id,
            tokens,
            prompt_len,
            end,
            standing: Standing::Waiting,
            sampling: request.sampling,
            history,
            drafting,
            retain: request.retain,
            priority: request.priority,
            constraint: request.constraint,
            waits: false,
            ends: None,
            logprobs: request.logprobs,
            published: Published::new(request.cache),
            failed: false,
            end_tokens: request.end_tokens,
            watch: request.watch,
        }
    }

    /// Notes what the drafter has taken in of a span, in the step that read it.
    pub(crate) fn note_taken(&mut self, span: &Span) {
        if span.taken > 0 {
            self.drafting.filled = span.start + span.taken as u32;
        }
    }

    /// Whether the prompt has been read.
    pub(crate) fn is_answering(&self) -> bool {
        self.tokens.len() > self.prompt_len
    }

    /// Drafts that still make sense: each could become a token, and one more is always sampled.
    pub(crate) fn draft_capacity(&self) -> usize {
        (self.end - self.tokens.len()).saturating_sub(1)
    }

    /// Whether its constraint is fulfilled and nothing may follow.
    pub(crate) fn is_whole(&mut self) -> bool {
        self.constraint.as_mut().is_some_and(|constraint| constraint.is_done())
    }

    /// Takes one decided token, which its constraint has taken; the reason if it is the last.
    fn push(&mut self, token: Token) -> Option<FinishReason> {
        self.tokens.push(token);
        let complete = !self.end_tokens.contains(&token) && self.is_whole();
        // The watch sees every token, also one that ends the answer for another reason.
        let watched = self.watch.as_mut().is_some_and(|watch| watch(token));
        if self.end_tokens.contains(&token) {
            return Some(FinishReason::EndToken);
        }
        if complete {
            return Some(FinishReason::Complete);
        }
        let end = if watched {
            FinishReason::Watched
        } else if self.tokens.len() >= self.end {
            FinishReason::Length
        } else {
            return None;
        };
        if self.constraint.as_mut().is_none_or(|constraint| constraint.is_decided()) {
            return Some(end);
        }
        // Whether the answer is whole comes first, and must not depend on when that becomes known.
        self.ends = Some(end);
        None
    }

    /// Why the answer is over, now that its constraint can say whether it is whole.
    pub(crate) fn decided(&mut self) -> Option<FinishReason> {
        let whole = self.is_answering() && self.is_whole();
        if whole { Some(FinishReason::Complete) } else { self.ends.take() }
    }

    /// Makes tokens text until one ends the answer; how many were, and why it ended if it did. One that the
    /// constraint refuses, or whose logits were not finite, counts and is no text.
    pub(crate) fn emit(
        &mut self,
        sampled: SpanTokens<'_>,
        events: &mut Vec<Event>,
    ) -> (usize, Option<FinishReason>) {
        let (seq, tokens) = (self.id, sampled.tokens);
        for (i, &token) in tokens.iter().enumerate() {
            if let Some((_, why)) = sampled.fault.filter(|&(bad, _)| bad == i) {
                return (i + 1, Some(FinishReason::Failed(why.to_owned())));
            }
            if self.constraint.as_mut().is_some_and(|constraint| !constraint.take(token)) {
                let why = format!("token {token} was sampled, which its grammar does not allow");
                return (i + 1, Some(FinishReason::Refused(why)));
            }
            let end = self.push(token);
            let logprobs = sampled.logprobs.get(i).cloned().flatten();
            events.push(Event::Token { seq, token, logprobs });
            if end.is_some() || self.ends.is_some() {
                return (i + 1, end);
            }
        }
        (tokens.len(), None)
    }

    /// Retains the state of the sequence if its answer ended, and tells; everything that counts was counted before.
    pub(crate) fn finish(&mut self, end: Option<FinishReason>, events: &mut Vec<Event>) {
        let Some(reason) = end else { return };
        let Standing::Running(lease) = self.standing else { unreachable!("only what runs ends") };
        self.standing = Standing::Retained(lease);
        // What failed is not continued, and nothing is published of it: its last token may not be part of its text.
        let failed = reason.is_failure();
        self.retain &= !failed;
        self.published.active &= !failed;
        self.failed = failed;
        let receipt = Box::new(self.drafting.receipt.clone());
        events.push(Event::Finished { seq: self.id, reason, receipt });
    }

    /// Counts tokens that just became part of the state.
    pub(crate) fn note_committed(&mut self, from: usize, to: usize) {
        for position in from..to {
            self.history.push(self.tokens[position], position >= self.prompt_len);
        }
    }
}

impl SequenceDrafts {
    /// Takes the outcome of a round.
    pub(crate) fn note_round(&mut self, drafted: usize, accepted: usize) {
        self.receipt.note(self.source, drafted, accepted);
        self.acceptance.note(self.source, drafted, accepted);
        self.drafts.clear();
        self.source = DraftSource::Head;
    }
}
