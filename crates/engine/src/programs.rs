//! Programs by shape: a pass of a shape that was seen before is run without describing its operations again.
//!
//! A fixed number of programs is kept, and the least recently used one makes room. Their memory is made at load, so a
//! new shape allocates nothing.

use crate::EngineError;
use forerun_backend::op::CacheOrder;
use forerun_backend::{
    Backend, BufferId, BufferInfo, Catalog, Cost, Op, Program, View, WeightId, WeightInfo,
};
use forerun_model::{HiddenSource, PassInputs};

/// What a pass computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassKind {
    /// The model; a token for each sampled row. `logits` are kept only where someone reads them.
    Step { logits: bool },
    /// The model; logits of the sampled rows and no token.
    Score,
    /// The drafter; a token from the first `candidates` for each sampled row.
    Draft { source: HiddenSource, candidates: usize },
    /// The drafter; logits of the sampled rows and no token.
    DraftScore,
}

impl PassKind {
    /// Whether the drafter runs, not the model.
    pub(crate) fn drafts(self) -> bool {
        matches!(self, Self::Draft { .. } | Self::DraftScore)
    }
}

/// Everything that a program depends on besides the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassKey {
    pub(crate) kind: PassKind,
    pub(crate) inputs: PassInputs,
    /// Tokens that the rows' histories point into.
    pub(crate) ids: View,
    /// Where sampled tokens go.
    pub(crate) out: View,
    /// Tokens moved before the pass: the newest of each sequence, into the chain's lines.
    pub(crate) before: Option<Move>,
    /// Tokens moved after the pass: what was sampled, into the next pass.
    pub(crate) after: Option<Move>,
    /// Rows of a step that the drafter takes in behind it.
    pub(crate) taken: Option<PassInputs>,
}

/// Words moved by index on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) words: View,
    pub(crate) from: View,
    pub(crate) to: View,
}

/// Programs of equal size.
pub(crate) struct Programs {
    slots: Vec<Slot>,
    clock: u64,
    built: u64,
}

struct Slot {
    key: Option<PassKey>,
    prepared: PreparedPass,
    used: u64,
}

/// A pass that is ready to run, and what it costs.
#[derive(Debug)]
pub(crate) struct PreparedPass {
    pub(crate) program: Program,
    /// Cost of each operation whatever the step holds; none of those whose cost follows from it.
    pub(crate) costs: Vec<Cost>,
    /// The sum of those.
    pub(crate) fixed: Cost,
    /// Operations whose cost follows from what a step holds, see [`varies`].
    pub(crate) varying: Vec<usize>,
}

/// Whether an operation's cost follows from the positions or spans of a step: how many keys there are, how many rows
/// are folded.
pub(crate) fn varies(op: &Op) -> bool {
    matches!(
        op,
        Op::Attention(_)
            | Op::ShortConv(_)
            | Op::DeltaInputs(_)
            | Op::DeltaRule(_)
            | Op::NgramEmbed(_)
            | Op::PoolEntries(_)
            | Op::ChooseEntries(_)
            | Op::SparseAttention(_)
            | Op::CompressedAttention(_)
    )
}

/// What a device knows of sizes. What its buffers hold just now is another matter in the next step.
struct Shapes<'a>(&'a dyn Catalog);

impl Catalog for Shapes<'_> {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.0.buffer(id)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.0.weight(id)
    }

    fn cache_order(&self) -> CacheOrder {
        self.0.cache_order()
    }
}

impl PreparedPass {
    fn with_capacity(ops: usize) -> Self {
        Self {
            program: Program::with_capacity(ops),
            costs: Vec::with_capacity(ops),
            fixed: Cost::default(),
            varying: Vec::with_capacity(ops),
        }
    }

    fn rewrite(
        &mut self,
        backend: &mut dyn Backend,
        build: impl FnOnce(&mut Vec<Op>),
    ) -> Result<(), EngineError> {
        backend.release(&mut self.program);
        build(self.program.rewrite());
        backend.prepare(&mut self.program)?;
        self.costs.clear();
        self.varying.clear();
        self.fixed = Cost::default();
        let catalog = &Shapes(backend);
        for (i, op) in self.program.ops().iter().enumerate() {
            let varies = varies(op);
            let cost = if varies { Cost::default() } else { op.desc(catalog).cost() };
            self.varying.extend(varies.then_some(i));
            self.costs.push(cost);
            self.fixed = self.fixed + cost;
        }
        Ok(())
    }
}

impl Programs {
    /// Room for `count` programs of `ops` operations.
    pub(crate) fn with_capacity(count: usize, ops: usize) -> Self {
        let slot = || Slot { key: None, prepared: PreparedPass::with_capacity(ops), used: 0 };
        Self { slots: std::iter::repeat_with(slot).take(count).collect(), clock: 0, built: 0 }
    }

    /// Host memory of so many programs.
    pub(crate) const fn bytes(count: usize, ops: usize) -> u64 {
        let op = size_of::<Op>() + size_of::<Cost>() + size_of::<usize>();
        (count * (size_of::<Slot>() + ops * op)) as u64
    }

    /// Programs built so far.
    pub(crate) fn built(&self) -> u64 {
        self.built
    }

    /// The program of a key; `build` lays down its operations where there is none yet.
    pub(crate) fn ready(
        &mut self,
        backend: &mut dyn Backend,
        key: PassKey,
        build: impl FnOnce(&mut Vec<Op>),
    ) -> Result<&PreparedPass, EngineError> {
        self.clock += 1;
        let found = self.slots.iter().position(|slot| slot.key == Some(key));
        let at = match found {
            Some(at) => at,
            None => {
                let oldest = self.slots.iter().enumerate().min_by_key(|(_, slot)| slot.used);
                let at = oldest.expect("there is at least one slot").0;
                let Slot { key: of, prepared, .. } = &mut self.slots[at];
                *of = None;
                prepared.rewrite(backend, build)?;
                self.built += 1;
                *of = Some(key);
                at
            }
        };
        self.slots[at].used = self.clock;
        Ok(&self.slots[at].prepared)
    }
}
