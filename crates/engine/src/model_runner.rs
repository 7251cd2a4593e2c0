//! A model on a device, run by plans.

use crate::copies::Copies;
use crate::finite::FiniteCheck;
use crate::sampling::MAX_BIASES;
use crate::{
    CacheSettings, DraftPlan, DraftTokens, EngineError, Follow, Part, Runner, SampleSpec,
    SampledTokens, Settings, Span, Speculation, StateShape, StepPlan, TokenLogprobs,
};
use forerun_backend::op::{HistoryEntry, Sample, SampleRow};
use forerun_backend::{
    Backend, BufferId, HostData, HostDataMut, MemoryPlan, View, submit_and_wait,
};
use forerun_base::{Bytes, SeqId};
use forerun_model::{
    Batch, BatchShape, Choice, Head, Limits, Model, ModelSpec, NewSpan, Planner, StateBuffers,
    Workspace,
};
use std::time::Duration;

/// Sees the logits of each sampled row: the sequence, the row's position, the numbers. A row of a
/// rejected draft is seen too, and its position again when the true token is there.
pub type Tap = Box<dyn FnMut(SeqId, u32, &[f32]) + Send>;

/// Everything a device holds for one engine.
pub struct ModelRunner {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) model: Model,
    pub(crate) limits: Limits,
    pub(crate) speculation: Speculation,
    pub(crate) step_budget: Duration,
    cache: CacheSettings,
    plan: MemoryPlan,
    pub(crate) buffers: Buffers,
    pub(crate) copies: Copies,
    pub(crate) batch: Batch,
    pub(crate) sample_words: Vec<u32>,
    pub(crate) history_words: Vec<u32>,
    /// A row of logits on the host; empty until someone asks for one.
    row: Vec<f32>,
    pub(crate) finite: FiniteCheck,
    pub(crate) draft: ChainScratch,
    tap: Option<Tap>,
}

/// What a draft keeps from pass to pass.
pub(crate) struct ChainScratch {
    /// Entries of the last pass that were sampled, in order.
    pub(crate) active: Vec<usize>,
    /// Each entry's newest token and drafts, in lines of `max_drafts + 1`.
    pub(crate) ids: Vec<u32>,
    pub(crate) sampled: Vec<u32>,
    /// Rows of the last pass that the next one goes on from.
    pub(crate) hidden: Vec<u32>,
}

impl ChainScratch {
    fn with_capacity(limits: &Limits, speculation: &Speculation) -> Self {
        let sequences = limits.sequences;
        Self {
            active: Vec::with_capacity(sequences),
            ids: Vec::with_capacity(sequences * (speculation.max_drafts + 1)),
            sampled: Vec::with_capacity(sequences),
            hidden: Vec::with_capacity(sequences),
        }
    }
}

/// Device memory besides weights.
pub(crate) struct Buffers {
    pub(crate) states: StateBuffers,
    pub(crate) space: Workspace,
    sample_rows: BufferId,
    history: BufferId,
    masks: BufferId,
    sampled: BufferId,
    pub(crate) draft_ids: BufferId,
}

impl Buffers {
    fn new(
        spec: &ModelSpec,
        settings: &Settings,
        planner: &mut Planner<'_>,
    ) -> Result<Self, EngineError> {
        let limits = &settings.limits(spec)?;
        let line = settings.speculation.max_drafts + 1;
        let draft_ids = if limits.mtp { limits.sequences * line } else { 0 };
        Ok(Self {
            states: StateBuffers::new(spec, limits, planner)?,
            space: Workspace::new(spec, limits, planner)?,
            sample_rows: planner.index("sample rows", limits.sampled * SampleRow::WORDS)?,
            history: planner.index("token history", history_entries(spec, limits))?,
            masks: planner.index("masks", mask_words(spec, limits))?,
            sampled: planner.index("sampled", limits.sampled)?,
            draft_ids: planner.index("draft ids", draft_ids)?,
        })
    }
}

/// Words of history that all sequences together can need.
fn history_entries(spec: &ModelSpec, limits: &Limits) -> usize {
    let per_sequence = (limits.context + MAX_BIASES).min(spec.vocabulary);
    limits.sequences * per_sequence * HistoryEntry::WORDS
}

/// Words of the masks that all sequences together can need: one for each row of an answer.
fn mask_words(spec: &ModelSpec, limits: &Limits) -> usize {
    let rows = limits.sequences.saturating_mul(limits.log_rows + 1).min(limits.sampled);
    // Each sequence that drafts has one mask for its first draft, also where nothing is verified.
    rows.max(limits.sequences) * Sample::mask_words(spec.vocabulary)
}

/// The most the prefix cache may come to hold, in host memory.
fn add_cache(plan: &mut MemoryPlan, settings: &Settings) {
    if settings.cache.bytes > 0 {
        plan.add("prefix cache", settings.cache.bytes);
    }
}

impl ModelRunner {
    /// Allocates everything the settings ask for.
    pub fn new(
        mut backend: Box<dyn Backend>,
        model: Model,
        settings: &Settings,
    ) -> Result<Self, EngineError> {
        let limits = settings.limits(&model.spec)?;
        let mut planner = Planner::on(&mut *backend);
        let buffers = Buffers::new(&model.spec, settings, &mut planner)?;
        let mut plan = MemoryPlan::default();
        plan.add("weights", model.weight_bytes);
        planner.finish().items.iter().for_each(|item| plan.add(&item.label, item.bytes));
        add_cache(&mut plan, settings);
        let batch = Batch::with_capacity(&model.spec, &limits);
        let hidden = model.spec.hidden;
        Ok(Self {
            copies: Copies::new(&model, &buffers.states, &limits),
            backend,
            model,
            limits,
            speculation: settings.speculation,
            step_budget: settings.step_budget,
            cache: settings.cache,
            plan,
            buffers,
            batch,
            sample_words: Vec::with_capacity(limits.sampled * SampleRow::WORDS),
            history_words: Vec::new(),
            row: Vec::new(),
            finite: FiniteCheck::with_capacity(&limits, hidden),
            draft: ChainScratch::with_capacity(&limits, &settings.speculation),
            tap: None,
        })
    }

    /// What [`Self::new`] would allocate besides weights.
    pub fn memory_plan(spec: &ModelSpec, settings: &Settings) -> Result<MemoryPlan, EngineError> {
        let mut planner = Planner::dry();
        Buffers::new(spec, settings, &mut planner)?;
        let mut plan = planner.finish();
        add_cache(&mut plan, settings);
        Ok(plan)
    }

    /// The network.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The sizes everything was made for.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What is kept for prompts to come.
    pub fn cache_settings(&self) -> CacheSettings {
        self.cache
    }

    /// How drafts are made.
    pub fn speculation(&self) -> Speculation {
        self.speculation
    }

    /// Shows the logits of every sampled row to `tap` from now on, for proofs. Picks are made as ever, so logits cost the head a second
    /// time and a copy a row.
    pub fn set_tap(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    fn show(&mut self, plan: &StepPlan, head: Head) -> Result<(), EngineError> {
        let Some(mut tap) = self.tap.take() else { return Ok(()) };
        let logits = head.logits(&mut *self.backend)?;
        submit_and_wait(&mut *self.backend)?;
        let vocabulary = self.model.spec.vocabulary;
        let mut row = vec![0.0; vocabulary];
        let mut at = 0;
        for span in plan.spans.iter().filter(|span| span.sample.is_some()) {
            for i in span.confirmed() - 1..span.tokens.len() {
                let view = logits.part(at * vocabulary, vocabulary);
                self.backend.read(view, HostDataMut::F32(&mut row))?;
                tap(span.seq, span.start + i as u32, &row);
                at += 1;
            }
        }
        self.tap = Some(tap);
        Ok(())
    }

    /// Reads the logits of the rows whose requests ask what the model thought of them.
    fn tell(
        &mut self,
        plan: &StepPlan,
        head: Head,
        sampled: &mut SampledTokens,
    ) -> Result<(), EngineError> {
        let Head::Logits(logits) = head else { return Ok(()) };
        let vocabulary = self.model.spec.vocabulary;
        self.row.resize(vocabulary, 0.0);
        for (span, of) in plan.spans.iter().zip(&sampled.of_span) {
            let Some(most) = span.sample.as_ref().and_then(|sample| sample.logprobs) else {
                continue;
            };
            for at in of.clone() {
                let view = logits.part(at * vocabulary, vocabulary);
                self.backend.read(view, HostDataMut::F32(&mut self.row))?;
                let told = TokenLogprobs::of(&self.row, sampled.tokens[at], most);
                sampled.logprobs[at] = Some(Box::new(told));
            }
        }
        Ok(())
    }

    /// Memory held.
    pub fn memory(&self) -> &MemoryPlan {
        &self.plan
    }

    /// The device in words.
    pub fn device(&self) -> String {
        self.backend.name()
    }

    /// What the device's results depend on besides operands.
    pub fn arithmetic(&self) -> String {
        self.backend.arithmetic()
    }

    /// State of all leases, for tests and for publishing.
    pub fn states(&self) -> &StateBuffers {
        &self.buffers.states
    }

    /// Reads f32 numbers (halves widened) from a buffer.
    pub fn read(&mut self, view: View) -> Result<Vec<f32>, EngineError> {
        let mut out = vec![0.0; view.len];
        self.backend.read(view, HostDataMut::F32(&mut out))?;
        Ok(out)
    }

    /// Runs the plan's rows and hands the logits of *every* row to `sink`, row by row.
    pub fn logits(
        &mut self,
        plan: &StepPlan,
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<(), EngineError> {
        self.fill(plan, |span| span.tokens.len());
        let head = self.forward()?;
        self.read_rows(head, sink)
    }

    /// Waits for rows of logits and hands them over one by one.
    pub(crate) fn read_rows(
        &mut self,
        head: Head,
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<(), EngineError> {
        let logits = head.logits(&mut *self.backend)?;
        submit_and_wait(&mut *self.backend)?;
        let vocabulary = self.model.spec.vocabulary;
        let mut row = vec![0.0; vocabulary];
        for i in 0..self.batch.sampled.len() {
            let view = logits.part(i * vocabulary, vocabulary);
            self.backend.read(view, HostDataMut::F32(&mut row))?;
            sink(&row);
        }
        Ok(())
    }

    fn forward(&mut self) -> Result<Head, EngineError> {
        let Buffers { space, states, .. } = &self.buffers;
        Ok(self.model.forward(&mut *self.backend, space, states, &self.batch)?)
    }

    /// Samples rows as `sample_words` and `history_words` say, under `masks`, and waits for the sampled tokens.
    pub(crate) fn sample(
        &mut self,
        head: Head,
        ids: View,
        masks: &[u32],
        sampled: &mut [u32],
    ) -> Result<(), EngineError> {
        if sampled.is_empty() {
            return Ok(submit_and_wait(&mut *self.backend)?);
        }
        let Buffers { sample_rows, history, masks: room, sampled: out, .. } = &self.buffers;
        let words = masks;
        let masks = View::head(*room, words.len());
        let rows = View::head(*sample_rows, self.sample_words.len());
        let history = View::head(*history, self.history_words.len());
        let out = View::head(*out, sampled.len());
        self.backend.write(rows, HostData::U32(&self.sample_words))?;
        self.backend.write(history, HostData::U32(&self.history_words))?;
        self.backend.write(masks, HostData::U32(words))?;
        head.sample(&mut *self.backend, Choice { rows, history, ids, masks, out })?;
        submit_and_wait(&mut *self.backend)?;
        Ok(self.backend.read(out, HostDataMut::U32(sampled))?)
    }

    /// Lays the plan's spans out as rows.
    fn fill(&mut self, plan: &StepPlan, sampled: impl Fn(&Span) -> usize) {
        self.batch.clear();
        for span in &plan.spans {
            let new = NewSpan {
                tokens: &plan.tokens[span.tokens.clone()],
                start: span.start,
                confirmed: span.confirmed() as u32,
                pending: span.pending,
                slot: span.lease.0,
                blocks: &plan.blocks[span.blocks.clone()],
                sampled: sampled(span),
            };
            self.batch.push(new, BatchShape::of(&self.limits));
        }
    }

    /// Lays out what rows point into; room is made for all the plan can come to.
    pub(crate) fn lay_history(&mut self, history: &Vec<HistoryEntry>) {
        self.history_words.clear();
        self.history_words.reserve(history.capacity() * HistoryEntry::WORDS);
        history.iter().for_each(|entry| self.history_words.extend_from_slice(&entry.words()));
    }

    /// Lays out how each sampled row is sampled.
    fn fill_sampling(&mut self, plan: &StepPlan) {
        self.sample_words.clear();
        self.lay_history(&plan.history);
        let mut first_row = 0;
        for span in &plan.spans {
            if let Some(sample) = &span.sample {
                for (at, i) in (span.confirmed() - 1..span.tokens.len()).enumerate() {
                    let mask = plan.masks.number(&sample.masks, at);
                    let row = sample_row(span, sample, first_row, i as u32);
                    let row = SampleRow { mask, ..row };
                    self.sample_words.extend_from_slice(&row.words());
                }
            }
            first_row += span.tokens.len() as u32;
        }
    }
}

/// The sampling of row `i` of a span.
fn sample_row(span: &Span, sample: &SampleSpec, first_row: u32, i: u32) -> SampleRow {
    let ids_len = i + 1;
    SampleRow {
        position: span.start + i + 1,
        history_first: sample.history.start as u32,
        history_len: sample.history.len() as u32,
        ids_first: first_row,
        ids_len,
        ids_prompt: sample.prompt_len.saturating_sub(span.start).min(ids_len),
        ..sample.row
    }
}

impl Runner for ModelRunner {
    fn run(&mut self, plan: &StepPlan, sampled: &mut SampledTokens) -> Result<(), EngineError> {
        sampled.reset(plan);
        self.fill(plan, Span::sampled_rows);
        self.fill_sampling(plan);
        let mut head = self.forward()?;
        let rows = head.rows();
        if plan.wants_logprobs() {
            head = Head::Logits(head.logits(&mut *self.backend)?);
        }
        let ids = self.buffers.space.ids(self.batch.rows());
        self.sample(head, ids, plan.masks.words(), &mut sampled.tokens)?;
        self.tell(plan, head, sampled)?;
        self.show(plan, head)?;
        self.check_finite(plan, rows, sampled)
    }

    fn draft(
        &mut self,
        plan: &mut DraftPlan,
        drafts: &mut DraftTokens,
        follow: &mut Follow<'_>,
    ) -> Result<usize, EngineError> {
        self.run_draft(plan, drafts, follow)
    }

    fn shape(&self) -> StateShape {
        self.copies.shape()
    }

    fn copy_out(&mut self, part: Part, bytes: &mut [u8]) -> Result<(), EngineError> {
        self.part_to_host(part, bytes)
    }

    fn copy_in(&mut self, parts: &[(Part, Bytes)]) -> Result<(), EngineError> {
        self.parts_to_device(parts)
    }
}
