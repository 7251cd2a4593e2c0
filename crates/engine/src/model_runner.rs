//! A model on a device, run by plans.

use crate::sampling::MAX_BIASES;
use crate::{EngineError, Picks, Runner, SampleSpec, Settings, Span, StepPlan};
use forerun_backend::op::{HistoryEntry, Sample, SampleRow};
use forerun_backend::{
    Backend, BufferId, HostData, HostDataMut, MemoryPlan, View, submit_and_wait,
};
use forerun_model::{
    Batch, Limits, Model, ModelError, ModelSpec, NewSpan, Planner, StateBuffers, Workspace,
};

/// Everything a device holds for one engine.
pub struct ModelRunner {
    backend: Box<dyn Backend>,
    model: Model,
    limits: Limits,
    plan: MemoryPlan,
    buffers: Buffers,
    batch: Batch,
    sample_words: Vec<u32>,
    history_words: Vec<u32>,
}

/// Device memory besides weights.
struct Buffers {
    states: StateBuffers,
    space: Workspace,
    sample_rows: BufferId,
    history: BufferId,
    picks: BufferId,
}

impl Buffers {
    fn new(
        spec: &ModelSpec,
        limits: &Limits,
        planner: &mut Planner<'_>,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            states: StateBuffers::new(spec, limits, planner)?,
            space: Workspace::new(spec, limits, planner)?,
            sample_rows: planner.index("sample rows", limits.sampled * SampleRow::WORDS)?,
            history: planner.index("token history", history_entries(spec, limits))?,
            picks: planner.index("picks", limits.sampled)?,
        })
    }
}

/// Words of history that all sequences together can need.
fn history_entries(spec: &ModelSpec, limits: &Limits) -> usize {
    let per_sequence = (limits.context + MAX_BIASES).min(spec.vocabulary);
    limits.sequences * per_sequence * HistoryEntry::WORDS
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
        let buffers = Buffers::new(&model.spec, &limits, &mut planner)?;
        let mut plan = MemoryPlan::default();
        plan.add("weights", model.weight_bytes);
        planner.finish().items.iter().for_each(|item| plan.add(&item.label, item.bytes));
        Ok(Self {
            backend,
            model,
            limits,
            plan,
            buffers,
            batch: Batch::default(),
            sample_words: Vec::new(),
            history_words: Vec::new(),
        })
    }

    /// What [`Self::new`] would allocate besides weights.
    pub fn memory_plan(spec: &ModelSpec, settings: &Settings) -> Result<MemoryPlan, EngineError> {
        let mut planner = Planner::dry();
        Buffers::new(spec, &settings.limits(spec)?, &mut planner)?;
        Ok(planner.finish())
    }

    /// The network.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The sizes everything was made for.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Memory held.
    pub fn memory(&self) -> &MemoryPlan {
        &self.plan
    }

    /// The device in words.
    pub fn device(&self) -> String {
        self.backend.name()
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
        let logits = self.forward()?;
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

    fn forward(&mut self) -> Result<View, EngineError> {
        let Buffers { space, states, .. } = &self.buffers;
        Ok(self.model.forward(&mut *self.backend, space, states, &self.batch)?)
    }

    /// Lays the plan's spans out as rows.
    fn fill(&mut self, plan: &StepPlan, sampled: impl Fn(&Span) -> usize) {
        self.batch.clear();
        for span in &plan.spans {
            let new = NewSpan {
                tokens: &plan.tokens[span.tokens.clone()],
                start: span.start,
                certain: span.certain() as u32,
                pending: span.pending,
                slot: span.lease.0,
                blocks: &plan.blocks[span.blocks.clone()],
                sampled: sampled(span),
            };
            self.batch.push(new, self.limits.table_width());
        }
    }

    /// Lays out how each sampled row is sampled.
    fn fill_sampling(&mut self, plan: &StepPlan) {
        self.sample_words.clear();
        self.history_words.clear();
        self.history_words.reserve(plan.history.capacity() * HistoryEntry::WORDS);
        for entry in &plan.history {
            self.history_words.extend_from_slice(&entry.words());
        }
        let mut first_row = 0;
        for span in &plan.spans {
            if let Some(sample) = &span.sample {
                for i in span.certain() - 1..span.tokens.len() {
                    let row = sample_row(span, sample, first_row, i as u32);
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
    fn run(&mut self, plan: &StepPlan, picks: &mut Picks) -> Result<(), EngineError> {
        picks.reset(plan);
        self.fill(plan, Span::sampled_rows);
        self.fill_sampling(plan);
        let logits = self.forward()?;
        let count = picks.tokens.len();
        if count > 0 {
            let Buffers { space, sample_rows, history, picks: out, .. } = &self.buffers;
            let rows = View::head(*sample_rows, self.sample_words.len());
            let history = View::head(*history, self.history_words.len());
            let out = View::head(*out, count);
            self.backend.write(rows, HostData::U32(&self.sample_words))?;
            self.backend.write(history, HostData::U32(&self.history_words))?;
            let ids = space.ids(self.batch.rows());
            let vocabulary = self.model.spec.vocabulary;
            self.backend.sample(Sample { logits, vocabulary, rows, history, ids, out })?;
            submit_and_wait(&mut *self.backend)?;
            self.backend.read(out, HostDataMut::U32(&mut picks.tokens))?;
        } else {
            submit_and_wait(&mut *self.backend)?;
        }
        Ok(())
    }
}
