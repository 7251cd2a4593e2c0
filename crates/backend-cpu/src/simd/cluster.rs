//! Logits of chosen clusters. See [`forerun_backend::op::ClusterHead`] for the math.
//!
//! # Layout
//! Every row has its list of tokens; the logits of a list are contiguous in scratch, computed by tasks of some channels
//! each, and are then scattered over the row by tasks that own a range of tokens.

use super::Scratch;
use super::isa::{Isa, Task};
use super::router::select;
use crate::gemm::linear::{GemmPartition, GemmShape};
use crate::gemm::product::{ChannelMap, GemmInput, GemmOutput, Product, RowMap};
use crate::pool::SharedSlice;
use crate::reference::member;
use crate::simd::exec_ctx::{ExecCtx, part_of};
use crate::weight::Weight;
use forerun_backend::BackendError;
use forerun_backend::op::Store;

/// A task with fewer elements costs more to dispatch than it saves.
const SMALLEST: usize = 1 << 13;

/// Operands that are read; their sizes were checked against the operation's declaration.
pub(crate) struct ClusterOperands<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) scores: &'a [f32],
    /// Token ids, cluster by cluster.
    pub(crate) members: &'a [f32],
    pub(crate) head: &'a Weight,
    pub(crate) clusters: usize,
    pub(crate) top_k: usize,
}

impl ClusterOperands<'_> {
    /// Tokens in a cluster.
    fn each(&self) -> usize {
        self.members.len() / self.clusters
    }

    /// The tokens of one row's best clusters; `chosen` is scratch for the clusters.
    fn list(&self, row: usize, chosen: &mut [u32], list: &mut [u32]) -> Result<(), BackendError> {
        select(&self.scores[row * self.clusters..(row + 1) * self.clusters], chosen);
        for (&cluster, list) in chosen.iter().zip(list.chunks_exact_mut(self.each())) {
            let numbers = &self.members[cluster as usize * self.each()..];
            for (token, &number) in list.iter_mut().zip(numbers) {
                *token = member(number, self.head.rows())? as u32;
            }
        }
        Ok(())
    }
}

/// The logits of some tokens of one row's list.
struct LogitTask<'a> {
    op: &'a ClusterOperands<'a>,
    lists: &'a [u32],
    count: usize,
    logits: SharedSlice<'a, f32>,
    partition: GemmPartition,
}

impl Task for LogitTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let (row, part_of) = (index / self.partition.tasks(), index % self.partition.tasks());
        let [_, channels] = self.partition.part(part_of);
        let product = Product {
            matrix: self.op.head,
            channel_map: ChannelMap::Gather(&self.lists[row * self.count..(row + 1) * self.count]),
            input: GemmInput { data: self.op.x, row_map: RowMap::Identity, packed: None },
            output: GemmOutput {
                data: self.logits,
                row_map: RowMap::Identity,
                stride: self.count,
                first: 0,
                store: Store::Set,
                bias: &[],
            },
            rows: row..row + 1,
            channels,
        };
        // SAFETY: parts of a partition are disjoint, and each row has its own part of the logits; shapes were checked
        // before the operation ran, and lists hold tokens that were checked to be rows of the head.
        unsafe { product.run(simd, scratch.floats()) };
    }
}

/// A range of one row's tokens: the floor everywhere, then the logits that fall into it.
struct SpreadTask<'a> {
    lists: &'a [u32],
    logits: &'a [f32],
    count: usize,
    vocabulary: usize,
    out: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for SpreadTask<'_> {
    fn run<S: Isa>(&self, _simd: S, index: usize, _scratch: &mut Scratch) {
        let (row, index) = (index / self.parts, index % self.parts);
        let tokens = part_of(self.vocabulary, self.parts, 16, index);
        // SAFETY: a range of a row belongs to one task.
        let out = unsafe { self.out.part(row * self.vocabulary + tokens.start, tokens.len()) };
        let own = row * self.count..(row + 1) * self.count;
        let (list, logits) = (&self.lists[own.clone()], &self.logits[own]);
        let least = logits.iter().copied().fold(f32::INFINITY, f32::min);
        out.fill(least - 1.0);
        for (&token, &logit) in list.iter().zip(logits) {
            if tokens.contains(&(token as usize)) {
                out[token as usize - tokens.start] = logit;
            }
        }
    }
}

/// Logits of the tokens in each row's best clusters, a floor for the others. `scratch` is kept between calls.
pub(crate) fn cluster_head(
    ctx: &mut ExecCtx,
    op: &ClusterOperands<'_>,
    scratch: &mut Scratch,
    out: &mut [f32],
) -> Result<(), BackendError> {
    let (vocabulary, k) = (op.head.rows(), op.head.cols());
    let (rows, count) = (op.x.len() / k, op.top_k * op.each());
    scratch.reserve(rows * count, op.top_k + rows * count);
    let (logits, words) = scratch.parts();
    let (chosen, lists) = words.split_at_mut(op.top_k);
    let (logits, lists) = (&mut logits[..rows * count], &mut lists[..rows * count]);
    for (row, list) in lists.chunks_exact_mut(count).enumerate() {
        op.list(row, chosen, list)?;
    }
    let partition =
        GemmPartition::channels(ctx, &[op.head], GemmShape { rows: 1, channels: count, k });
    ctx.reserve(partition.scratch(op.head).0, 0);
    let task = LogitTask { op, lists, count, logits: SharedSlice::new(logits), partition };
    ctx.run(rows * partition.tasks(), &task);
    let parts = ctx.parts(vocabulary, SMALLEST, 1);
    let out = SharedSlice::new(out);
    ctx.run(rows * parts, &SpreadTask { lists, logits, count, vocabulary, out, parts });
    Ok(())
}
