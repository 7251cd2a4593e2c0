//! Scratch of one step, sized for the largest step and named by what flows through it.

use crate::{AttentionSpec, Batch, DeltaSpec, Limits, MixerSpec, MlpSpec, ModelError, ModelSpec};
use crate::{LayerSpec, MoeSpec, Planner};
use forerun_backend::op::SpanEntry;
use forerun_backend::{Backend, BackendError, BufferId, HostData, View};
use forerun_base::DType;

/// Buffers whose contents end with the step.
#[derive(Clone, Copy, Debug)]
pub struct Workspace {
    pub(crate) limits: Limits,
    pub(crate) index: IndexBuffers,
    pub(crate) rope: BufferId,
    /// The residual stream.
    pub(crate) x: BufferId,
    pub(crate) normed: BufferId,
    pub(crate) q: BufferId,
    pub(crate) gate: BufferId,
    pub(crate) k: BufferId,
    pub(crate) v: BufferId,
    /// What a mixer hands to its output projection.
    pub(crate) mixed: BufferId,
    pub(crate) qkv: BufferId,
    pub(crate) conv: BufferId,
    pub(crate) a: BufferId,
    pub(crate) b: BufferId,
    pub(crate) decay: BufferId,
    pub(crate) beta: BufferId,
    pub(crate) activated: BufferId,
    pub(crate) up: BufferId,
    pub(crate) moe: MoeBuffers,
    /// Two hidden states side by side, for the MTP head.
    pub(crate) joined: BufferId,
    pub(crate) final_hidden: BufferId,
    /// Outlives the step: a chain of drafts goes on from it.
    pub(crate) sampled_hidden: BufferId,
    pub(crate) logits: BufferId,
}

/// The batch's arrays on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexBuffers {
    pub(crate) ids: BufferId,
    pub(crate) positions: BufferId,
    pub(crate) span_of: BufferId,
    pub(crate) places: BufferId,
    pub(crate) hidden_places: BufferId,
    pub(crate) tables: BufferId,
    pub(crate) spans: BufferId,
    pub(crate) sampled: BufferId,
}

/// What a mixture of experts needs besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeBuffers {
    pub(crate) logits: BufferId,
    pub(crate) chosen: BufferId,
    pub(crate) weights: BufferId,
    pub(crate) hidden: BufferId,
    pub(crate) partial: BufferId,
    pub(crate) shared: BufferId,
    pub(crate) shared_gate: BufferId,
}

impl Workspace {
    /// Makes (or plans) the scratch of a model.
    pub fn new(
        spec: &ModelSpec,
        limits: &Limits,
        planner: &mut Planner<'_>,
    ) -> Result<Self, ModelError> {
        let widths = Widths::of(spec);
        let rows = limits.rows;
        let index = IndexBuffers::new(limits, planner)?;
        let moe = MoeBuffers::new(&widths, spec.hidden, rows, planner)?;
        let mut scratch = |label: &str, width: usize| planner.scratch(label, rows * width);
        Ok(Self {
            limits: *limits,
            index,
            rope: scratch("rope", spec.rope.rotary)?,
            x: scratch("x", spec.hidden)?,
            normed: scratch("normed", spec.hidden)?,
            q: scratch("q", widths.query)?,
            gate: scratch("gate", widths.mixed)?,
            k: scratch("k", widths.key)?,
            v: scratch("v", widths.key)?,
            mixed: scratch("mixed", widths.mixed)?,
            qkv: scratch("qkv", widths.channels)?,
            conv: scratch("conv", widths.channels)?,
            a: scratch("a", widths.value_heads)?,
            b: scratch("b", widths.value_heads)?,
            decay: scratch("decay", widths.value_heads)?,
            beta: scratch("beta", widths.value_heads)?,
            activated: scratch("activated", widths.ffn)?,
            up: scratch("up", widths.ffn)?,
            moe,
            joined: scratch("joined", if limits.mtp { 2 * spec.hidden } else { 0 })?,
            final_hidden: scratch("final_hidden", spec.hidden)?,
            sampled_hidden: planner.state(
                "hidden window",
                DType::F32,
                limits.sampled * spec.hidden,
            )?,
            logits: planner.scratch("logits", limits.sampled * spec.vocabulary)?,
        })
    }

    /// Copies a batch's arrays to the device.
    pub fn write(&self, backend: &mut dyn Backend, batch: &Batch) -> Result<(), BackendError> {
        let index = &self.index;
        for (buffer, words) in [
            (index.ids, &batch.ids),
            (index.positions, &batch.positions),
            (index.span_of, &batch.span_of),
            (index.places, &batch.places),
            (index.hidden_places, &batch.hidden_places),
            (index.tables, &batch.tables),
            (index.spans, &batch.spans),
            (index.sampled, &batch.sampled),
        ] {
            backend.write(View::head(buffer, words.len()), HostData::U32(words))?;
        }
        Ok(())
    }

    /// The batch's token ids on the device.
    pub fn ids(&self, rows: usize) -> View {
        View::head(self.index.ids, rows)
    }
}

impl IndexBuffers {
    fn new(limits: &Limits, planner: &mut Planner<'_>) -> Result<Self, ModelError> {
        let Limits { rows, sequences, sampled, .. } = *limits;
        Ok(Self {
            ids: planner.index("ids", rows)?,
            positions: planner.index("positions", rows)?,
            span_of: planner.index("span_of", rows)?,
            places: planner.index("places", rows)?,
            hidden_places: planner.index("hidden_places", rows)?,
            tables: planner.index("tables", sequences * limits.table_width())?,
            spans: planner.index("spans", sequences * SpanEntry::WORDS)?,
            sampled: planner.index("sampled", sampled)?,
        })
    }
}

impl MoeBuffers {
    fn new(
        widths: &Widths,
        hidden: usize,
        rows: usize,
        planner: &mut Planner<'_>,
    ) -> Result<Self, ModelError> {
        let Widths { experts, picks, expert_hidden, shared, .. } = *widths;
        let shared_rows = if shared { rows } else { 0 };
        Ok(Self {
            logits: planner.scratch("router logits", rows * experts)?,
            chosen: planner.index("chosen experts", rows * picks)?,
            weights: planner.scratch("expert weights", rows * picks)?,
            hidden: planner.scratch("expert hidden", rows * expert_hidden)?,
            partial: planner.scratch("expert outputs", rows * picks * hidden)?,
            shared: planner.scratch("shared expert", shared_rows * hidden)?,
            shared_gate: planner.scratch("shared gate", shared_rows)?,
        })
    }
}

/// The widest of each kind over all layers.
#[derive(Default)]
struct Widths {
    query: usize,
    key: usize,
    mixed: usize,
    channels: usize,
    value_heads: usize,
    ffn: usize,
    experts: usize,
    picks: usize,
    expert_hidden: usize,
    shared: bool,
}

impl Widths {
    fn of(spec: &ModelSpec) -> Self {
        let mut widths = Self::default();
        spec.layers.iter().chain(&spec.mtp).for_each(|layer| widths.include(layer));
        widths
    }

    fn include(&mut self, layer: &LayerSpec) {
        let widen = |width: &mut usize, to: usize| *width = (*width).max(to);
        match &layer.mixer {
            MixerSpec::Attention(AttentionSpec { heads, kv_heads, head_dim, .. }) => {
                widen(&mut self.query, heads * head_dim);
                widen(&mut self.key, kv_heads * head_dim);
                widen(&mut self.mixed, heads * head_dim);
            }
            MixerSpec::Delta(DeltaSpec { shape, .. }) => {
                widen(&mut self.channels, shape.channels());
                widen(&mut self.value_heads, shape.value_heads);
                widen(&mut self.mixed, shape.value_heads * shape.dv);
            }
        }
        match &layer.mlp {
            MlpSpec::Dense(ffn) => widen(&mut self.ffn, *ffn),
            MlpSpec::Moe(MoeSpec { experts, top_k, ffn, shared, .. }) => {
                widen(&mut self.experts, *experts);
                widen(&mut self.picks, *top_k);
                widen(&mut self.expert_hidden, top_k * ffn);
                widen(&mut self.ffn, shared.unwrap_or(0));
                self.shared |= shared.is_some();
            }
        }
    }
}
