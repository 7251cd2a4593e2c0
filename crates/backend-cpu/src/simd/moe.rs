//! Mixture of experts. See [`forerun_backend::op::Experts`] for the math.
//!
//! # Layout
//! Assignments (row, choice) are grouped by expert, so that each expert's weights are read once for all rows that chose
//! it; results lie per assignment in `hidden` and `partial` and are added in order of choice afterwards. So which other
//! rows chose an expert changes nothing but the time.

use super::Scratch;
use super::isa::{Isa, Kernel, LANES, Task};
use crate::gemm::linear::{Gated, GemmPartition, GemmShape};
use crate::gemm::product::{ChannelMap, GemmInput, GemmOutput, Product, RowMap};
use crate::pool::SharedSlice;
use crate::reference::index;
use crate::simd::exec_ctx::{ExecCtx, part_of};
use crate::weight::Weight;
use forerun_backend::BackendError;
use forerun_backend::op::{Activation, Store};

/// A stack of expert matrices.
#[derive(Clone, Copy)]
pub(crate) struct Stack<'a> {
    pub(crate) matrix: &'a Weight,
    pub(crate) first: usize,
    pub(crate) stride: usize,
}

impl<'a> Stack<'a> {
    fn expert(&self, e: u32) -> (&'a Weight, usize) {
        (self.matrix, self.first + e as usize * self.stride)
    }
}

/// Operands that are read; their sizes were checked against the operation's declaration.
pub(crate) struct Mixture<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) chosen: &'a [u32],
    pub(crate) weights: &'a [f32],
    pub(crate) gate: Stack<'a>,
    pub(crate) up: Stack<'a>,
    pub(crate) down: Stack<'a>,
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    pub(crate) ffn: usize,
    pub(crate) dim: usize,
    pub(crate) activation: Activation,
    pub(crate) store: Store,
}

/// Assignments grouped by expert.
#[derive(Clone, Copy)]
struct ByExpert<'a> {
    /// Experts that were chosen at all.
    active: &'a [u32],
    /// Where the assignments of each expert start, and the end.
    starts: &'a [u32],
    assignments: &'a [u32],
}

impl<'a> ByExpert<'a> {
    /// Words that [`ByExpert::new`] needs.
    fn words(experts: usize, assignments: usize) -> usize {
        2 * experts + 1 + assignments
    }

    /// A counting sort of the assignments, in ascending order within an expert.
    fn new(chosen: &[u32], experts: usize, words: &'a mut [u32]) -> Self {
        let (active, rest) = words.split_at_mut(experts);
        let (starts, rest) = rest.split_at_mut(experts + 1);
        let assignments = &mut rest[..chosen.len()];
        starts.fill(0);
        chosen.iter().for_each(|&e| starts[e as usize + 1] += 1);
        let mut count = 0;
        for e in 0..experts {
            if starts[e + 1] > 0 {
                active[count] = e as u32;
                count += 1;
            }
            starts[e + 1] += starts[e];
        }
        // Filling moves every start to its end; walking back from there restores it.
        for (assignment, &e) in chosen.iter().enumerate().rev() {
            starts[e as usize + 1] -= 1;
            assignments[starts[e as usize + 1] as usize] = assignment as u32;
        }
        let active: &'a [u32] = active;
        Self { active: &active[..count], starts: &starts[1..], assignments }
    }

    fn assignments(&self, expert: u32) -> &'a [u32] {
        let e = expert as usize;
        let end = self.starts.get(e + 1).map_or(self.assignments.len(), |&s| s as usize);
        &self.assignments[self.starts[e] as usize..end]
    }

    fn most(&self) -> usize {
        self.active.iter().map(|&e| self.assignments(e).len()).max().unwrap_or(0)
    }
}

/// `hidden = act(gate x) · (up x)`, or `partial = down hidden`, for one expert and some channels.
struct ExpertTask<'a> {
    op: &'a Mixture<'a>,
    by: ByExpert<'a>,
    partition: GemmPartition,
    /// Input of the down projection; the gated half reads `x`.
    hidden: Option<&'a [f32]>,
    out: SharedSlice<'a, f32>,
}

impl Task for ExpertTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let (op, parts) = (self.op, self.partition.tasks());
        let expert = self.by.active[index / parts];
        let list = self.by.assignments(expert);
        let [_, channels] = self.partition.part(index % parts);
        let own = RowMap::Gather { list, per_row: 1 };
        let stride = if self.hidden.is_some() { op.dim } else { op.ffn };
        let (data, store) = (self.out, Store::Set);
        let output = GemmOutput { data, row_map: own, stride, first: 0, store, bias: &[] };
        let rows = 0..list.len();
        // SAFETY: an assignment is in one expert's list and parts of channels are disjoint; the operation's checks saw
        // to it that experts lie inside their stacks.
        unsafe {
            if let Some(hidden) = self.hidden {
                let (matrix, base) = op.down.expert(expert);
                let input = GemmInput { data: hidden, row_map: own, packed: None };
                let channel_map = ChannelMap::Offset(base);
                Product { matrix, channel_map, input, output, rows, channels }
                    .run(simd, scratch.floats());
            } else {
                let weights = [op.gate.expert(expert), op.up.expert(expert)];
                let row_map = RowMap::Gather { list, per_row: op.top_k };
                let input = GemmInput { data: op.x, row_map, packed: None };
                let activation = op.activation;
                Gated { weights, input, output, rows, channels, activation }
                    .run(simd, scratch.floats());
            }
        }
    }
}

struct AddTask<'a> {
    op: &'a Mixture<'a>,
    partial: &'a [f32],
    out: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for AddTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let Mixture { top_k, dim, weights, store, .. } = *self.op;
        for row in part_of(weights.len() / top_k, self.parts, 1, index) {
            let assignments = row * top_k..(row + 1) * top_k;
            simd.call(AddAssignments {
                weights: &weights[assignments.clone()],
                partial: &self.partial[assignments.start * dim..assignments.end * dim],
                // SAFETY: a row belongs to one task.
                out: unsafe { self.out.part(row * dim, dim) },
                store,
            });
        }
    }
}

/// `out (+)= Σ_j weights[j] · partial[j]`, `j` ascending.
struct AddAssignments<'a> {
    weights: &'a [f32],
    partial: &'a [f32],
    out: &'a mut [f32],
    store: Store,
}

impl Kernel for AddAssignments<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let dim = self.out.len();
        for at in (0..dim).step_by(LANES) {
            let lanes = LANES.min(dim - at);
            let mut sum = simd.splat(0.0);
            for (weight, partial) in self.weights.iter().zip(self.partial.chunks_exact(dim)) {
                // SAFETY: `lanes` elements are left in a row of `dim`.
                let partial = unsafe { simd.load_part(partial[at..].as_ptr(), lanes) };
                sum = simd.fma(simd.splat(*weight), partial, sum);
            }
            let out = self.out[at..].as_mut_ptr();
            // SAFETY: `lanes` elements are left.
            unsafe {
                if self.store == Store::Add {
                    sum = simd.add(simd.load_part(out, lanes), sum);
                }
                simd.store_part(out, lanes, sum);
            }
        }
    }
}

/// Runs the chosen experts and stores the weighted sum of their outputs to `out`. `words` is scratch that is kept
/// between calls.
pub(crate) fn experts(
    ctx: &mut ExecCtx,
    op: &Mixture<'_>,
    words: &mut Scratch,
    [hidden, partial, out]: [&mut [f32]; 3],
) -> Result<(), BackendError> {
    for &e in op.chosen {
        index("experts", "chosen", e, op.experts)?;
    }
    words.reserve(0, ByExpert::words(op.experts, op.chosen.len()));
    let by = ByExpert::new(op.chosen, op.experts, words.parts().1);
    let most = by.most();
    let partition = GemmPartition::channels(
        ctx,
        &[op.gate.matrix, op.up.matrix],
        GemmShape { rows: most, channels: op.ffn, k: 2 * op.dim },
    );
    let (gate, results) = partition.scratch(op.gate.matrix);
    ctx.reserve(results + gate.max(partition.scratch(op.up.matrix).0), 0);
    let task = ExpertTask { op, by, partition, hidden: None, out: SharedSlice::new(hidden) };
    ctx.run(by.active.len() * partition.tasks(), &task);
    let partition = GemmPartition::channels(
        ctx,
        &[op.down.matrix],
        GemmShape { rows: most, channels: op.dim, k: op.ffn },
    );
    ctx.reserve(partition.scratch(op.down.matrix).0, 0);
    let task =
        ExpertTask { op, by, partition, hidden: Some(hidden), out: SharedSlice::new(partial) };
    ctx.run(by.active.len() * partition.tasks(), &task);
    let parts = ctx.parts(op.weights.len() / op.top_k, 8, 2);
    ctx.run(parts, &AddTask { op, partial, out: SharedSlice::new(out), parts });
    Ok(())
}
