//! The largest logit that each row may sample, found while the head is multiplied: logits never leave a task's scratch.

use super::Scratch;
use super::isa::{Isa, LANES, Task};
use super::math::Cap;
use super::sample::{Largest, SampleArgs, first_largest};
use crate::gemm::linear::{GemmPartition, GemmShape};
use crate::gemm::packed_rows::InputRows;
use crate::gemm::product::{ChannelMap, GemmInput, GemmOutput, Product, RowMap};
use crate::pool::SharedSlice;
use crate::reference::mask_out;
use crate::simd::exec_ctx::ExecCtx;
use crate::weight::Weight;
use forerun_backend::op::Store;

/// f32 of logits at a time: half of a 48 KiB L1 cache.
const NEAR: usize = 6 << 10;

/// Operands that are read; their sizes were checked against the operation's declaration.
pub(crate) struct GreedyHead<'a> {
    pub(crate) x: InputRows<'a>,
    pub(crate) weight: &'a Weight,
    /// How the rows choose; all of them are greedy.
    pub(crate) choice: SampleArgs<'a>,
    /// Softcap of the logits.
    pub(crate) cap: Option<f32>,
}

struct HeadTask<'a> {
    op: &'a GreedyHead<'a>,
    input: GemmInput<'a>,
    partition: GemmPartition,
    rows: usize,
    /// Channels at a time.
    step: usize,
    /// Per part of channels and row: the largest logit's bits and its token.
    found: SharedSlice<'a, u32>,
}

impl Task for HeadTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let GreedyHead { weight: matrix, cap, ref choice, .. } = *self.op;
        let [rows, channels] = self.partition.part(index);
        let at = index % self.partition.channel_parts() * self.rows + rows.start;
        // SAFETY: a task has its own rows of its own part of channels.
        let found = unsafe { self.found.part(2 * at, 2 * rows.len()) };
        let (logits, scratch) = scratch.floats().split_at_mut(logits_len(rows.len(), self.step));
        for start in channels.clone().step_by(self.step) {
            let some = start..channels.end.min(start + self.step);
            let wide = some.len();
            let logits = &mut logits[..rows.len() * wide];
            let output = GemmOutput {
                data: SharedSlice::new(logits),
                row_map: RowMap::Offset(rows.start),
                stride: wide,
                first: start,
                store: Store::Set,
                bias: &[],
            };
            let (channel_map, input, all) = (ChannelMap::Offset(0), self.input, rows.clone());
            // SAFETY: the output is this thread's scratch; shapes were checked before the operation ran.
            unsafe {
                Product { matrix, channel_map, input, output, rows: all, channels: some }
                    .run(simd, scratch);
            }
            let each = logits.chunks_exact_mut(wide).zip(found.chunks_exact_mut(2));
            for (row, (logits, found)) in rows.clone().zip(each) {
                if let Some(cap) = cap {
                    simd.call(Cap { x: logits, cap });
                }
                if let Some(mask) = choice.mask(row) {
                    mask_out(logits, start, mask);
                }
                let (best, at) = simd.call(Largest(logits));
                if start == channels.start || best > f32::from_bits(found[0]) {
                    found.copy_from_slice(&[best.to_bits(), (start + at) as u32]);
                }
            }
        }
    }
}

/// f32 of the logits of some rows and channels.
fn logits_len(rows: usize, channels: usize) -> usize {
    (rows * channels).next_multiple_of(LANES)
}

/// The token of the largest logit of each row, ties to the lower id. `found` is scratch that is kept between calls.
pub(crate) fn greedy_head(
    ctx: &mut ExecCtx,
    op: &GreedyHead<'_>,
    found: &mut Scratch,
    out: &mut [u32],
) {
    let (rows, n, matrix) = (out.len(), op.choice.candidates, op.weight);
    if rows == 0 {
        return;
    }
    let partition =
        GemmPartition::new(ctx, &[matrix], GemmShape { rows, channels: n, k: matrix.cols() });
    let (most_rows, most_channels) = partition.largest();
    let step = (NEAR / most_rows).next_multiple_of(LANES).min(most_channels);
    ctx.reserve(logits_len(most_rows, step) + partition.scratch(matrix).0, 0);
    let parts = partition.channel_parts();
    found.reserve(0, 2 * rows * parts);
    let words = &mut found.parts().1[..2 * rows * parts];
    ctx.with_rows(&[matrix], op.x, |ctx, input, first| {
        let found = SharedSlice::new(&mut *words);
        let task = HeadTask { op, input, partition, rows, step, found };
        ctx.run_with_prologue(first, partition.tasks(), &task);
    });
    for (row, out) in out.iter_mut().enumerate() {
        *out = first_largest((0..parts).map(|part_of| &words[2 * (part_of * rows + row)..][..2]));
    }
}
