//! A model on a device, run by plans.

use crate::bounded::{Bounded, key_state_len};
use crate::copies::Copies;
use crate::programs::{Move, PassKey, PassKind, Programs};
use crate::sampling::MAX_BIASES;
use crate::submissions::{Purpose, Submissions};
use crate::{
    Busy, CacheSettings, DraftPlan, DraftTokens, EngineError, ExpertCost, Follow, Recovery, Reload,
    Runner, SampleSpec, SampledTokens, Settings, Span, Speculation, StateCopies, StateShape,
    StepPlan, TokenLogprobs,
};
use forerun_backend::op::{HistoryEntry, Sample, SampleRow, ScatterWords};
use forerun_backend::{
    Backend, BufferId, Cost, HostData, HostDataMut, MemoryPlan, Op, View, submit_and_wait,
};
use forerun_base::{LeaseId, SeqId};
use forerun_model::{
    Batch, BatchShape, BlockTables, Choice, DrafterSpec, Head, HiddenSource, InputBlock, Limits,
    Model, ModelSpec, NewSpan, PassInputs, Planner, StateBuffers, Workspace,
};
use std::time::Duration;

/// Shapes of a step that are kept as programs: widths of a verification, and some prompts.
const STEP_PROGRAMS: usize = 12;
/// Shapes of draft passes that are kept: by depth, and by how many rows come before the first draft.
const CHAIN_PROGRAMS: usize = 48;

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
    pub(crate) settings: Settings,
    pub(crate) plan: MemoryPlan,
    pub(crate) buffers: Buffers,
    pub(crate) copies: Copies,
    pub(crate) batch: Batch,
    pub(crate) block: InputBlock,
    pub(crate) tables: BlockTables,
    pub(crate) steps: Programs,
    pub(crate) chains: Programs,
    pub(crate) submissions: Submissions,
    pub(crate) history_words: Vec<u32>,
    /// A row of logits on the host; empty until someone asks for one.
    row: Vec<f32>,
    pub(crate) draft: ChainScratch,
    tap: Option<Tap>,
    pub(crate) reload: Option<Reload>,
    /// Why the device is lost, where a call has found it so since it last recovered.
    pub(crate) lost: Option<String>,
    /// Why the device is lost and not open again.
    pub(crate) closed: Option<String>,
}

/// What a round of drafts keeps from pass to pass.
pub(crate) struct ChainScratch {
    /// Entries of the last pass that were sampled, in order.
    pub(crate) active: Vec<usize>,
    /// Each entry's newest token and drafts, in lines of `max_drafts + 1`, where the host follows each pass.
    pub(crate) ids: Vec<u32>,
    pub(crate) sampled: Vec<u32>,
    /// Rows of the last pass that the next one goes on from.
    pub(crate) hidden: Vec<u32>,
    /// Indices of a move on the device.
    pub(crate) from: Vec<u32>,
    pub(crate) to: Vec<u32>,
    /// Passes of a chain that are laid down and wait to run.
    pub(crate) passes: Vec<PassKey>,
    /// Rows of a step that the head takes in with it.
    pub(crate) taken: Batch,
    /// The tokens after a span's rows.
    pub(crate) next: Vec<u32>,
}

impl ChainScratch {
    fn with_capacity(spec: &ModelSpec, limits: &Limits, speculation: &Speculation) -> Self {
        let (sequences, drafts) = (limits.sequences, speculation.max_drafts);
        Self {
            active: Vec::with_capacity(sequences),
            ids: Vec::with_capacity(sequences * (drafts + 1)),
            sampled: Vec::with_capacity(sequences * drafts.max(1)),
            hidden: Vec::with_capacity(sequences),
            from: Vec::with_capacity(2 * sequences),
            to: Vec::with_capacity(2 * sequences),
            passes: Vec::with_capacity(drafts),
            taken: Batch::with_capacity(spec, limits),
            next: Vec::with_capacity(limits.rows),
        }
    }
}

/// Device memory besides weights.
pub(crate) struct Buffers {
    pub(crate) states: StateBuffers,
    pub(crate) space: Workspace,
    history: View,
    masks: View,
    sampled: BufferId,
    /// Lines of `max_drafts + 1` tokens, one for each entry of a chain, then the ids of its next pass.
    pub(crate) draft_ids: View,
    /// Tokens that a chain samples, pass by pass.
    pub(crate) drafted: BufferId,
    /// What is carried between the parts of an attention that is cut by keys.
    key_state: View,
}

impl Buffers {
    fn new(
        spec: &ModelSpec,
        settings: &Settings,
        planner: &mut Planner<'_>,
    ) -> Result<Self, EngineError> {
        let limits = &settings.limits(spec)?;
        let drafts = settings.speculation.max_drafts;
        let chained = if limits.mtp { limits.sequences } else { 0 };
        let mut kept = |label: &str, len: usize| -> Result<View, EngineError> {
            Ok(View::head(planner.kept_index(label, len)?, len))
        };
        let history = kept("token history", history_entries(spec, limits))?;
        let masks = kept("masks", mask_words(spec, limits))?;
        let draft_ids = kept("draft ids", chained * (drafts + 2))?;
        let key_state = key_state_len(spec, limits);
        Ok(Self {
            states: StateBuffers::new(spec, limits, planner)?,
            space: Workspace::new(spec, limits, drafts, planner)?,
            history,
            masks,
            sampled: planner.index("sampled", limits.sampled)?,
            draft_ids,
            drafted: planner.index("drafted", chained * drafts)?,
            key_state: View::head(planner.scratch("attention state", key_state)?, key_state),
        })
    }

    /// Writes what is read whole before a request has filled it. What rows look up by index needs nothing.
    fn write_initial(&self, backend: &mut dyn Backend) -> Result<(), EngineError> {
        self.space.write_rings(backend)?;
        backend.write(self.draft_ids, HostData::U32(&vec![0; self.draft_ids.len]))?;
        submit_and_wait(backend)?;
        Ok(())
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

/// Operations that a layer comes to at most, and those around the layers.
const LAYER_OPS: usize = 20;
const OTHER_OPS: usize = 16;

/// Sizes of the programs that are kept, for steps and for draft passes: how many, and operations of each.
fn program_sizes(spec: &ModelSpec, limits: &Limits) -> [(usize, usize); 2] {
    let ops = |layers: usize| layers * LAYER_OPS + OTHER_OPS;
    // What a head takes in with a step is part of it.
    let taken = if limits.mtp && spec.head_block().is_some() { ops(1) } else { 0 };
    let drafter = match spec.drafter.as_ref().filter(|_| limits.mtp) {
        None => 0,
        Some(DrafterSpec::Head(_)) => ops(1),
        Some(DrafterSpec::Assistant(drafter)) => ops(drafter.layers.len()),
    };
    let chains = if limits.mtp { CHAIN_PROGRAMS } else { 0 };
    [(STEP_PROGRAMS, ops(spec.layers.len()) + taken), (chains, drafter)]
}

/// Host memory of the programs.
fn add_programs(plan: &mut MemoryPlan, spec: &ModelSpec, limits: &Limits) {
    let bytes = program_sizes(spec, limits).map(|(count, ops)| Programs::bytes(count, ops));
    plan.add("programs", bytes.iter().sum());
}

/// The most the prefix cache may come to hold, in host memory.
fn add_cache(plan: &mut MemoryPlan, settings: &Settings) {
    if settings.cache.bytes > 0 {
        plan.add("prefix cache", settings.cache.bytes);
    }
}

/// What is made anew with the device: memory on it, and whatever names that memory.
pub(crate) struct OnDevice {
    pub(crate) buffers: Buffers,
    pub(crate) plan: MemoryPlan,
    pub(crate) copies: Copies,
    pub(crate) block: InputBlock,
    pub(crate) tables: BlockTables,
    pub(crate) steps: Programs,
    pub(crate) chains: Programs,
}

impl OnDevice {
    pub(crate) fn new(
        backend: &mut dyn Backend,
        model: &Model,
        settings: &Settings,
    ) -> Result<Self, EngineError> {
        let limits = settings.limits(&model.spec)?;
        let mut planner = Planner::on(backend);
        let buffers = Buffers::new(&model.spec, settings, &mut planner)?;
        let mut plan = MemoryPlan::default();
        plan.add("weights", model.weight_bytes);
        planner.finish().items.iter().for_each(|item| plan.add(&item.label, item.bytes));
        add_programs(&mut plan, &model.spec, &limits);
        add_cache(&mut plan, settings);
        buffers.write_initial(backend)?;
        let programs = program_sizes(&model.spec, &limits);
        let [steps, chains] = programs.map(|(count, ops)| Programs::with_capacity(count, ops));
        Ok(Self {
            copies: Copies::new(&buffers.states, &limits),
            block: buffers.space.input_block(settings.speculation.max_drafts),
            tables: buffers.space.block_tables(),
            buffers,
            plan,
            steps,
            chains,
        })
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
        let fresh = OnDevice::new(&mut *backend, &model, settings)?;
        let OnDevice { buffers, plan, copies, block, tables, steps, chains } = fresh;
        let draft = ChainScratch::with_capacity(&model.spec, &limits, &settings.speculation);
        Ok(Self {
            batch: Batch::with_capacity(&model.spec, &limits),
            submissions: Submissions::new(settings.submission_budget),
            copies,
            block,
            tables,
            steps,
            chains,
            backend,
            model,
            limits,
            speculation: settings.speculation,
            step_budget: settings.step_budget,
            cache: settings.cache,
            settings: *settings,
            plan,
            buffers,
            history_words: Vec::new(),
            row: Vec::new(),
            draft,
            tap: None,
            reload: None,
            lost: None,
            closed: None,
        })
    }

    /// What [`Self::new`] would allocate besides weights.
    pub fn memory_plan(spec: &ModelSpec, settings: &Settings) -> Result<MemoryPlan, EngineError> {
        let mut planner = Planner::dry();
        Buffers::new(spec, settings, &mut planner)?;
        let mut plan = planner.finish();
        add_programs(&mut plan, spec, &settings.limits(spec)?);
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

    /// Shows the logits of every sampled row to `tap` from now on, for proofs. Tokens are sampled as ever, so logits
    /// cost the head a second time and a copy a row.
    pub fn set_tap(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    fn show(&mut self, plan: &StepPlan) -> Result<(), EngineError> {
        let Some(mut tap) = self.tap.take() else { return Ok(()) };
        let vocabulary = self.model.spec.vocabulary;
        let logits = self.buffers.space.logits(self.batch.sampled.len() * vocabulary);
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
    fn tell(&mut self, plan: &StepPlan, sampled: &mut SampledTokens) -> Result<(), EngineError> {
        let vocabulary = self.model.spec.vocabulary;
        let logits = self.buffers.space.logits(self.batch.sampled.len() * vocabulary);
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

    /// Shapes of steps and draft passes for which a program was built, those built again included.
    pub fn programs_built(&self) -> u64 {
        self.steps.built() + self.chains.built()
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

    /// Reads f32 numbers (f16 widened) from a buffer.
    pub fn read(&mut self, view: View) -> Result<Vec<f32>, EngineError> {
        self.settle()?;
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
        self.check_open()?;
        self.fill(plan, |span| span.tokens.len())?;
        let inputs = self.lay_inputs();
        self.write_block()?;
        self.run_pass(PassKey::without_tokens(PassKind::Score, inputs))?;
        self.read_rows(sink)
    }

    /// Runs the plan's rows and hands the hidden state of every row behind the last norm to `sink`, row by row.
    pub fn hidden(
        &mut self,
        plan: &StepPlan,
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<(), EngineError> {
        self.check_open()?;
        self.fill(plan, |_| 0)?;
        let inputs = self.lay_inputs();
        self.write_block()?;
        self.run_pass(PassKey::without_tokens(PassKind::Score, inputs))?;
        self.finish(Purpose::Other)?;
        let width = self.model.spec.hidden;
        let mut states = vec![0.0; self.batch.rows() * width];
        let view = self.buffers.space.final_hidden(states.len());
        self.backend.read(view, HostDataMut::F32(&mut states))?;
        states.chunks_exact(width).for_each(sink);
        Ok(())
    }

    /// Waits for rows of logits and hands them over one by one.
    pub(crate) fn read_rows(&mut self, sink: &mut dyn FnMut(&[f32])) -> Result<(), EngineError> {
        self.finish(Purpose::Other)?;
        let (rows, vocabulary) = (self.batch.sampled.len(), self.model.spec.vocabulary);
        let logits = self.buffers.space.logits(rows * vocabulary);
        let mut row = vec![0.0; vocabulary];
        for i in 0..rows {
            let view = logits.part(i * vocabulary, vocabulary);
            self.backend.read(view, HostDataMut::F32(&mut row))?;
            sink(&row);
        }
        Ok(())
    }

    /// Hands everything queued to the device.
    pub(crate) fn submit(&mut self, purpose: Purpose) -> Result<(), EngineError> {
        self.submissions.submit(&mut *self.backend, purpose)
    }

    /// The same, and waits until nothing is in flight.
    pub(crate) fn finish(&mut self, purpose: Purpose) -> Result<(), EngineError> {
        self.submit(purpose)?;
        self.settle()
    }

    /// Waits until nothing is in flight.
    pub(crate) fn settle(&mut self) -> Result<(), EngineError> {
        self.submissions.finish(&mut *self.backend)
    }

    /// Lays the batch down as the first thing of a submission's inputs.
    pub(crate) fn lay_inputs(&mut self) -> PassInputs {
        self.block.clear();
        self.block.add(&self.batch)
    }

    /// Queues the one write of what the host has computed.
    pub(crate) fn write_block(&mut self) -> Result<(), EngineError> {
        let bytes = self.block.write(&mut *self.backend)?;
        self.submissions.queue(Cost { bytes, ..Cost::default() });
        Ok(())
    }

    /// Queues a pass whose inputs are written.
    pub(crate) fn run_pass(&mut self, key: PassKey) -> Result<(), EngineError> {
        let Self { backend, model, buffers, steps, chains, submissions, block, .. } = self;
        let backend = &mut **backend;
        let (programs, purpose) = match key.kind.drafts() {
            true => (chains, Purpose::Other),
            false => (steps, Purpose::Step { ends: false }),
        };
        let pass = programs.ready(backend, key, |ops| lay_pass(ops, model, buffers, key))?;
        let key_state = buffers.key_state;
        Bounded { backend, submissions, block, key_state, purpose }.run(pass)
    }

    /// Writes what the rows' sampling points into, where any row needs it.
    pub(crate) fn write_choices(&mut self, masks: &[u32]) -> Result<(), EngineError> {
        for (view, words) in
            [(self.buffers.history, &self.history_words[..]), (self.buffers.masks, masks)]
        {
            if !words.is_empty() {
                self.backend.write(view.part(0, words.len()), HostData::U32(words))?;
            }
        }
        Ok(())
    }

    /// Lays the plan's spans out as rows.
    fn fill(
        &mut self,
        plan: &StepPlan,
        sampled: impl Fn(&Span) -> usize,
    ) -> Result<(), EngineError> {
        self.batch.clear();
        for span in &plan.spans {
            self.set_table(span.lease, &plan.blocks[span.blocks.clone()])?;
            self.push_span(plan, span, sampled(span));
        }
        Ok(())
    }

    /// Adds a span's rows to the batch, the last `sampled` of them with logits.
    pub(crate) fn push_span(&mut self, plan: &StepPlan, span: &Span, sampled: usize) {
        let shape = BatchShape::of(&self.limits);
        let window = if self.limits.mtp { shape.hidden_window } else { 0 };
        let new = NewSpan {
            tokens: &plan.tokens[span.tokens.clone()],
            start: span.start,
            confirmed: span.confirmed() as u32,
            pending: span.pending,
            slot: span.lease.0,
            blocks: &plan.blocks[span.blocks.clone()],
            sampled,
            kept: span.kept(window),
        };
        self.batch.push(new, shape);
    }

    /// Writes a lease's block table unless the device has it.
    pub(crate) fn set_table(&mut self, lease: LeaseId, blocks: &[u32]) -> Result<(), EngineError> {
        Ok(self.tables.set(lease.0 as usize, blocks, &mut *self.backend)?)
    }

    /// Runs what is queued; tokens that it has sampled, in scratch that the caller puts back to `draft.sampled`.
    pub(crate) fn drafted(&mut self, count: usize) -> Result<Vec<u32>, EngineError> {
        let all = View::head(self.buffers.drafted, count);
        if count > 0 {
            self.backend.post(all)?;
        }
        self.finish(Purpose::Other)?;
        let mut sampled = std::mem::take(&mut self.draft.sampled);
        sampled.clear();
        sampled.resize(count, 0);
        if count > 0 {
            self.backend.read(all, HostDataMut::U32(&mut sampled))?;
        }
        Ok(sampled)
    }

    /// Lays out what rows point into; room is made for all the plan can come to.
    pub(crate) fn lay_history(&mut self, history: &Vec<HistoryEntry>) {
        self.history_words.clear();
        self.history_words.reserve(history.capacity() * HistoryEntry::WORDS);
        history.iter().for_each(|entry| self.history_words.extend_from_slice(&entry.words()));
    }

    /// Lays out how each sampled row is sampled.
    fn fill_sampling(&mut self, plan: &StepPlan) {
        self.lay_history(&plan.history);
        let mut first_row = 0;
        for span in &plan.spans {
            if let Some(sample) = &span.sample {
                for (at, i) in (span.confirmed() - 1..span.tokens.len()).enumerate() {
                    let mask = plan.masks.number(&sample.masks, at);
                    let row = sample_row(span, sample, first_row, i as u32);
                    let row = SampleRow { mask, ..row };
                    self.batch.sample_rows.extend_from_slice(&row.words());
                }
            }
            first_row += span.tokens.len() as u32;
        }
    }
}

impl ModelRunner {
    /// One step: one write, one submission, one wait. A step that samples nothing is not waited for: what comes next is
    /// queued behind it.
    fn run_step(
        &mut self,
        plan: &StepPlan,
        sampled: &mut SampledTokens,
    ) -> Result<(), EngineError> {
        self.fill(plan, Span::sampled_rows)?;
        self.fill_sampling(plan);
        let inputs = self.lay_inputs();
        let taken = self.lay_taken(plan);
        self.write_block()?;
        self.write_choices(plan.masks.words())?;
        let out = View::head(self.buffers.sampled, sampled.tokens.len());
        let logits = plan.wants_logprobs() || self.tap.is_some();
        let (kind, ids) = (PassKind::Step { logits }, inputs.ids);
        self.run_pass(PassKey { kind, inputs, ids, out, before: None, after: None, taken })?;
        if out.len == 0 {
            return self.submit(Purpose::Step { ends: true });
        }
        self.backend.post(out)?;
        self.finish(Purpose::Step { ends: true })?;
        self.backend.read(out, HostDataMut::U32(&mut sampled.tokens))?;
        self.note_not_finite(plan, sampled);
        if plan.wants_logprobs() {
            self.tell(plan, sampled)?;
        }
        self.show(plan)?;
        self.find_not_finite(plan, sampled)
    }
}

impl PassKey {
    /// A pass that samples no token.
    pub(crate) fn without_tokens(kind: PassKind, inputs: PassInputs) -> Self {
        let out = inputs.ids.part(0, 0);
        Self { kind, inputs, ids: inputs.ids, out, before: None, after: None, taken: None }
    }
}

/// The operations of a pass.
fn lay_pass(ops: &mut Vec<Op>, model: &Model, buffers: &Buffers, key: PassKey) {
    let Buffers { space, states, history, masks, draft_ids, .. } = buffers;
    let PassKey { kind, inputs, ids, out, before, after, taken } = key;
    let limit = model.spec.vocabulary as u32;
    let scatter =
        |Move { words, from, to }: Move| ScatterWords { words, from, to, out: *draft_ids, limit };
    ops.extend(before.map(|moved| Op::from(scatter(moved))));
    let (head, tokens) = match kind {
        PassKind::Step { logits } => {
            let head = model.forward(ops, space, states, inputs);
            (if logits { Head::Logits(head.logits(ops)) } else { head }, true)
        }
        PassKind::Score => {
            (Head::Logits(model.forward(ops, space, states, inputs).logits(ops)), false)
        }
        PassKind::Draft { source, candidates } => {
            (model.draft(ops, space, states, inputs, source).first(candidates), true)
        }
        PassKind::DraftScore => {
            let head = model.draft(ops, space, states, inputs, HiddenSource::Trunk);
            (Head::Logits(head.logits(ops)), false)
        }
    };
    if tokens && out.len > 0 {
        let (rows, history, masks) = (inputs.sample_rows, *history, *masks);
        head.sample(ops, Choice { rows, history, ids, masks, out });
    }
    ops.extend(after.map(|moved| Op::from(scatter(moved))));
    if let Some(taken) = taken {
        // Nothing is sampled, so there is no head.
        model.draft(ops, space, states, taken, HiddenSource::Step);
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
        self.noting_loss(|runner| {
            sampled.reset(plan);
            runner.run_step(plan, sampled)
        })
    }

    fn draft(
        &mut self,
        plan: &mut DraftPlan,
        drafts: &mut DraftTokens,
        follow: &mut Follow<'_>,
    ) -> Result<usize, EngineError> {
        self.noting_loss(|runner| runner.run_draft(plan, drafts, follow))
    }

    fn take_busy(&mut self) -> Option<Busy> {
        let longest_dispatch = self.backend.longest_dispatch();
        Some(Busy { longest_dispatch, ..self.submissions.take_busy() })
    }

    fn experts(&self) -> Option<ExpertCost> {
        ExpertCost::of(&self.model.spec)
    }

    fn recover(&mut self) -> Recovery {
        // What was queued writes nothing but scratch and leases that are released; it runs now rather than under the
        // next plan. A device that fails says so then, too.
        let rest = self.check_open().and_then(|()| self.finish(Purpose::Other));
        let _ = self.note_loss(rest);
        self.tables.forget();
        if self.lost.take().is_none() {
            return Recovery::Kept;
        }
        self.reopen();
        Recovery::Lost
    }

    fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    fn shape(&self) -> StateShape {
        self.copies.shape()
    }

    fn copies(&mut self) -> &mut dyn StateCopies {
        self
    }
}
