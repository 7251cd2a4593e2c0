//! Logits of chosen clusters. See [`forerun_backend::op::ClusterHead`] for the math.
//!
//! # Layout
//! Every row has its list of tokens; the logits of a list lie side by side in scratch, computed by tasks of some
//! channels each, and are then laid out over the row by tasks that own a range of tokens.

use super::Scratch;
use super::crew::{Crew, piece};
use super::isa::{Isa, Task};
use super::linear::Cut;
use super::moe::select;
use super::product::{Input, Output, Places, Product, Source};
use crate::pool::Shared;
use crate::reference::member;
use crate::weight::Weight;
use forerun_backend::BackendError;
use forerun_backend::op::Store;

/// Elements below which a task is not worth its start.
const SMALLEST: usize = 1 << 13;

/// Operands that are read; the desc checked their sizes.
pub(crate) struct Clusters<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) scores: &'a [f32],
    /// Token ids, cluster by cluster.
    pub(crate) members: &'a [f32],
    pub(crate) head: &'a Weight,
    pub(crate) clusters: usize,
    pub(crate) top_k: usize,
}

impl Clusters<'_> {
    /// Tokens in a cluster.
    fn each(&self) -> usize {
        self.members.len() / self.clusters
    }

    /// The tokens of one row's best clusters; `chosen` is room for the clusters.
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
    op: &'a Clusters<'a>,
    lists: &'a [u32],
    count: usize,
    logits: Shared<'a, f32>,
    cut: Cut,
}

impl Task for LogitTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let (row, piece) = (index / self.cut.tasks(), index % self.cut.tasks());
        let [_, channels] = self.cut.part(piece);
        let product = Product {
            matrix: self.op.head,
            source: Source::Picked(&self.lists[row * self.count..(row + 1) * self.count]),
            input: Input { data: self.op.x, places: Places::Same, packed: None },
            output: Output {
                data: self.logits,
                places: Places::Same,
                stride: self.count,
                first: 0,
                store: Store::Set,
                bias: &[],
            },
            rows: row..row + 1,
            channels,
        };
        // SAFETY: tasks have their own rows and channels; the desc checked the shapes, and lists hold tokens
        // that are rows of the head.
        unsafe { product.run(simd, scratch.floats()) };
    }
}

/// A range of one row's tokens: the floor everywhere, then the logits that fall into it.
struct SpreadTask<'a> {
    lists: &'a [u32],
    logits: &'a [f32],
    count: usize,
    vocabulary: usize,
    out: Shared<'a, f32>,
    pieces: usize,
}

impl Task for SpreadTask<'_> {
    fn run<S: Isa>(&self, _simd: S, index: usize, _scratch: &mut Scratch) {
        let (row, index) = (index / self.pieces, index % self.pieces);
        let tokens = piece(self.vocabulary, self.pieces, 16, index);
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

/// Logits of the tokens in each row's best clusters, a floor for the others. `room` is kept.
pub(crate) fn cluster_head(
    crew: &mut Crew,
    op: &Clusters<'_>,
    room: &mut Scratch,
    out: &mut [f32],
) -> Result<(), BackendError> {
    let (vocabulary, k) = (op.head.rows(), op.head.cols());
    let (rows, count) = (op.x.len() / k, op.top_k * op.each());
    room.reserve(rows * count, op.top_k + rows * count);
    let (logits, words) = room.parts();
    let (chosen, lists) = words.split_at_mut(op.top_k);
    let (logits, lists) = (&mut logits[..rows * count], &mut lists[..rows * count]);
    for (row, list) in lists.chunks_exact_mut(count).enumerate() {
        op.list(row, chosen, list)?;
    }
    let cut = Cut::channels(crew, &[op.head], [1, count, k]);
    crew.reserve(cut.scratch(op.head).0, 0);
    let task = LogitTask { op, lists, count, logits: Shared::new(logits), cut };
    crew.run(rows * cut.tasks(), &task);
    let pieces = crew.pieces(vocabulary, SMALLEST, 1);
    let out = Shared::new(out);
    crew.run(rows * pieces, &SpreadTask { lists, logits, count, vocabulary, out, pieces });
    Ok(())
}
