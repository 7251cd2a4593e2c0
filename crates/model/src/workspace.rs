//! Scratch of one step, sized for the largest step and named by what flows through it.

use crate::{
    BlockTables, DrafterSpec, Frame, InputBlock, LayerSpec, Limits, MlpSpec, ModelError, ModelSpec,
    MoeSpec, Planner, SharedExpertSpec,
};
use forerun_backend::{Backend, BackendError, BufferId, HostData, View};
use forerun_base::DType;

/// Buffers whose contents end with the step.
#[derive(Clone, Debug)]
pub struct Workspace {
    pub(crate) limits: Limits,
    /// What the host computes for a submission, see [`InputBlock`].
    pub(crate) inputs: BufferId,
    /// Block tables, `[slots, table_width]`, see [`BlockTables`].
    pub(crate) tables: BufferId,
    /// The same for layers with a window: block `b` of a slot lies at `b % ring_width` of its ring, always.
    pub(crate) ring_tables: BufferId,
    /// Cosines and sines, one table per rope.
    pub(crate) ropes: Vec<BufferId>,
    /// The residual stream.
    pub(crate) x: BufferId,
    pub(crate) normed: BufferId,
    /// What a mixer or MLP gives before its norm, in a sandwich.
    pub(crate) branch: BufferId,
    /// The same one level deeper, for two parts side by side.
    pub(crate) raw: BufferId,
    /// Scratch of mixers: buffer `i` is as wide as the widest `i`-th that any layer's mixer declares.
    pub(crate) mixer: Vec<BufferId>,
    /// Parallel residual streams, where a model has them.
    pub(crate) streams: BufferId,
    /// Scratch of what stands between them and a block's parts, by number as above.
    pub(crate) frame: Vec<BufferId>,
    /// Entries that an index chose, u32.
    pub(crate) chosen_entries: BufferId,
    pub(crate) activated: BufferId,
    pub(crate) up: BufferId,
    pub(crate) moe: MoeBuffers,
    pub(crate) per_layer: PerLayerBuffers,
    pub(crate) altup: StreamBuffers,
    /// Two hidden states side by side, for the drafter.
    pub(crate) joined: BufferId,
    pub(crate) final_hidden: BufferId,
    /// Outlives the step: a chain of drafts goes on from it.
    pub(crate) sampled_hidden: BufferId,
    pub(crate) logits: BufferId,
    /// Scores of clusters of the vocabulary.
    pub(crate) cluster_scores: BufferId,
    /// Sampled rows of the drafter's own width.
    pub(crate) drafted_hidden: BufferId,
}

/// Vectors per layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerLayerBuffers {
    pub(crate) vectors: BufferId,
    pub(crate) context: BufferId,
    pub(crate) gate: BufferId,
}

/// A residual of several streams.
#[derive(Clone, Debug)]
pub(crate) struct StreamBuffers {
    pub(crate) all: Vec<BufferId>,
    pub(crate) router: BufferId,
    /// What the path beside attention is projected to.
    pub(crate) laurel: BufferId,
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
    /// Makes (or plans) the scratch of a model whose chains have up to `drafts` passes.
    pub fn new(
        spec: &ModelSpec,
        limits: &Limits,
        drafts: usize,
        planner: &mut Planner<'_>,
    ) -> Result<Self, ModelError> {
        let widths = Widths::of(spec, limits);
        let rows = limits.rows;
        let stream = spec.hidden.max(widths.drafted);
        let rings = usize::from(limits.window > 0);
        let lines = limits.sequences * limits.table_width();
        let inputs = planner.index("step inputs", InputBlock::capacity_of(limits, drafts))?;
        let tables = planner.kept_index("block tables", lines)?;
        let ring_tables = planner.kept_index("ring tables", rings * lines)?;
        let moe = MoeBuffers::new(&widths, spec.hidden, rows, planner)?;
        let per_layer = PerLayerBuffers::new(spec, rows, planner)?;
        let altup = StreamBuffers::new(spec, rows, planner)?;
        let ropes = widths.ropes.iter().map(|&width| planner.scratch("rope", rows * width));
        let ropes = ropes.collect::<Result<_, _>>()?;
        let sampled = |width: usize| limits.sampled * width;
        let sampled_hidden = planner.state("hidden window", DType::F32, sampled(spec.hidden))?;
        let logits = planner.scratch("logits", sampled(spec.vocabulary))?;
        let cluster_scores = planner.scratch("cluster scores", sampled(widths.clusters))?;
        let drafted_hidden = planner.scratch("drafted hidden", sampled(widths.drafted))?;
        let chosen_entries = planner.index("chosen entries", rows * widths.chosen)?;
        let mut scratch = |label: &str, width: usize| planner.scratch(label, rows * width);
        let frame = widths.frame.iter().map(|&width| scratch("streams", width));
        let frame = frame.collect::<Result<_, _>>()?;
        let mixer = widths.mixer.iter().map(|&width| scratch("mixer", width));
        let mixer = mixer.collect::<Result<_, _>>()?;
        Ok(Self {
            limits: *limits,
            inputs,
            tables,
            ring_tables,
            ropes,
            x: scratch("x", stream)?,
            normed: scratch("normed", stream)?,
            branch: scratch("branch", widths.branch)?,
            raw: scratch("raw", widths.raw)?,
            mixer,
            streams: scratch("streams", widths.streams)?,
            frame,
            chosen_entries,
            activated: scratch("activated", widths.ffn)?,
            up: scratch("up", widths.ffn)?,
            moe,
            per_layer,
            altup,
            joined: scratch("joined", if limits.mtp { 2 * spec.hidden } else { 0 })?,
            final_hidden: scratch("final_hidden", stream)?,
            sampled_hidden,
            logits,
            cluster_scores,
            drafted_hidden,
        })
    }

    /// Writes what never changes: the tables of rings.
    pub fn write_rings(&self, backend: &mut dyn Backend) -> Result<(), BackendError> {
        let limits = &self.limits;
        let (width, ring) = (limits.table_width(), limits.ring_width());
        if ring == 0 {
            return Ok(());
        }
        let line = |slot: usize| (0..width).map(move |block| (slot * ring + block % ring) as u32);
        let words: Vec<u32> = (0..limits.sequences).flat_map(line).collect();
        backend.write(View::head(self.ring_tables, words.len()), HostData::U32(&words))
    }

    /// An empty input block over this workspace's buffer.
    pub fn input_block(&self, drafts: usize) -> InputBlock {
        InputBlock::new(self.inputs, InputBlock::capacity_of(&self.limits, drafts))
    }

    /// Block tables over this workspace's buffer.
    pub fn block_tables(&self) -> BlockTables {
        BlockTables::new(self.tables, &self.limits)
    }

    /// Where a pass that keeps them leaves the logits of its sampled rows.
    pub fn logits(&self, len: usize) -> View {
        View::head(self.logits, len)
    }

    /// Where a pass leaves the hidden states of its rows behind the last norm.
    pub fn final_hidden(&self, len: usize) -> View {
        View::head(self.final_hidden, len)
    }

    /// The tables of layers whose cache is a ring, or of the others.
    pub(crate) fn tables_of(&self, ring: bool) -> View {
        let buffer = if ring { self.ring_tables } else { self.tables };
        View::head(buffer, self.limits.sequences * self.limits.table_width())
    }
}

impl PerLayerBuffers {
    fn new(spec: &ModelSpec, rows: usize, planner: &mut Planner<'_>) -> Result<Self, ModelError> {
        let width = spec.per_layer.map_or(0, |inputs| inputs.width);
        let all = rows * width * spec.layers.len();
        Ok(Self {
            vectors: planner.scratch("per-layer vectors", all)?,
            context: planner.scratch("per-layer context", all)?,
            gate: planner.scratch("per-layer gate", rows * width)?,
        })
    }
}

impl StreamBuffers {
    fn new(spec: &ModelSpec, rows: usize, planner: &mut Planner<'_>) -> Result<Self, ModelError> {
        let (count, laurel) = spec.altup().map_or((0, 0), |spec| (spec.streams, spec.laurel));
        let each = (0..count).map(|_| planner.scratch("stream", rows * spec.hidden));
        Ok(Self {
            all: each.collect::<Result<_, _>>()?,
            router: planner.scratch("stream router", rows * count)?,
            laurel: planner.scratch("laurel", rows * laurel)?,
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
        let Widths { experts, top_k, expert_hidden, gated_shared, .. } = *widths;
        let shared_rows = if gated_shared { rows } else { 0 };
        Ok(Self {
            logits: planner.scratch("router logits", rows * experts)?,
            chosen: planner.index("chosen experts", rows * top_k)?,
            weights: planner.scratch("expert weights", rows * top_k)?,
            hidden: planner.scratch("expert hidden", rows * expert_hidden)?,
            partial: planner.scratch("expert outputs", rows * top_k * hidden)?,
            shared: planner.scratch("shared expert", shared_rows * hidden)?,
            shared_gate: planner.scratch("shared gate", shared_rows)?,
        })
    }
}

/// The widest of each kind over all layers.
#[derive(Default)]
struct Widths {
    ropes: Vec<usize>,
    branch: usize,
    raw: usize,
    /// By number of the mixer's scratch.
    mixer: Vec<usize>,
    streams: usize,
    frame: [usize; 7],
    chosen: usize,
    ffn: usize,
    experts: usize,
    top_k: usize,
    expert_hidden: usize,
    gated_shared: bool,
    clusters: usize,
    drafted: usize,
}

fn widen(width: &mut usize, to: usize) {
    *width = (*width).max(to);
}

impl Widths {
    fn of(spec: &ModelSpec, limits: &Limits) -> Self {
        let ropes = spec.ropes.iter().map(|rope| rope.rotary).collect();
        let mut widths = Self { ropes, ..Self::default() };
        spec.layers.iter().for_each(|layer| widths.include(layer, spec.hidden));
        match spec.drafter.as_ref().filter(|_| limits.mtp) {
            None => {}
            Some(DrafterSpec::Head(block)) => widths.include(block, spec.hidden),
            Some(DrafterSpec::Assistant(drafter)) => {
                for (i, rope) in drafter.ropes.iter().enumerate() {
                    match widths.ropes.get_mut(i) {
                        Some(width) => widen(width, rope.rotary),
                        None => widths.ropes.push(rope.rotary),
                    }
                }
                drafter.layers.iter().for_each(|layer| widths.include(layer, drafter.hidden));
                widths.clusters = drafter.clusters.map_or(0, |c| c.count);
                widths.drafted = drafter.hidden;
            }
        }
        widths
    }

    fn include(&mut self, layer: &LayerSpec, hidden: usize) {
        if layer.frame != Frame::Pre {
            widen(&mut self.branch, hidden);
        }
        if let Frame::Streams(streams) = layer.frame {
            widen(&mut self.streams, streams.count * hidden);
            let widths = self.frame.iter_mut().zip(streams.scratch(hidden));
            widths.for_each(|(widest, width)| widen(widest, width));
        }
        widen(&mut self.chosen, layer.mixer.chosen());
        for (i, width) in layer.mixer.scratch().into_iter().enumerate() {
            match self.mixer.get_mut(i) {
                Some(widest) => widen(widest, width),
                None => self.mixer.push(width),
            }
        }
        match &layer.mlp {
            MlpSpec::Dense(ffn) | MlpSpec::Sparse { ffn, .. } => widen(&mut self.ffn, *ffn),
            MlpSpec::Moe(moe) | MlpSpec::Hashed(moe) => self.include_experts(moe),
            MlpSpec::None => {}
            MlpSpec::Beside { dense, moe } => {
                widen(&mut self.ffn, *dense);
                widen(&mut self.raw, hidden);
                self.include_experts(moe);
            }
        }
    }

    fn include_experts(&mut self, moe: &MoeSpec) {
        let MoeSpec { experts, top_k, ffn, shared, .. } = *moe;
        widen(&mut self.experts, experts);
        widen(&mut self.top_k, top_k);
        widen(&mut self.expert_hidden, top_k * ffn);
        if let Some(SharedExpertSpec { width, gated }) = shared {
            widen(&mut self.ffn, width);
            self.gated_shared |= gated;
        }
    }
}
