//! Decoding rows of a weight: one kernel for decoded tiles of products and for embeddings.

use super::Scratch;
use super::exec_ctx::{ExecCtx, part_of};
use super::isa::{Isa, Kernel, LANES, Task};
use super::math::Scale;
use crate::gemm::decode::{Decode, WithDecode, padded_groups, with_decode};
use crate::gemm::micro_kernel::{decode_row, steps, stored};
use crate::pool::SharedSlice;
use crate::reference::index;
use crate::weight::{Weight, WeightForm};
use forerun_backend::BackendError;
use forerun_base::Matrix;

/// A task with fewer elements costs more to dispatch than it saves.
const SMALLEST: usize = 1 << 13;

/// Decodes row `row` of a matrix to `out` in whole steps, `stride` f32 from step to step. `scales` is scratch for its
/// scales.
pub(crate) struct DecodeRow<'a, D> {
    pub(crate) decode: D,
    pub(crate) matrix: &'a Matrix,
    pub(crate) row: usize,
    pub(crate) out: &'a mut [f32],
    pub(crate) stride: usize,
    pub(crate) scales: &'a mut [f32],
}

impl<D: Decode> Kernel for DecodeRow<'_, D> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { decode, matrix, row, out, stride, scales } = self;
        let k = matrix.cols();
        assert!(
            k == 0 || out.len() >= (steps(k) - 1) * stride + LANES,
            "output too short for the row"
        );
        let channel = stored::<S, D, 1>(simd, decode, matrix, [row], scales);
        // SAFETY: `stored` took a checked slice of the row, and `out` has room for every step (asserted).
        unsafe { decode_row(simd, &channel, k, out.as_mut_ptr(), stride) };
    }
}

struct EmbedTask<'a> {
    table: &'a Weight,
    ids: &'a [u32],
    scale: f32,
    out: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for EmbedTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let (weight, dim) = (self.table, self.table.cols());
        for i in part_of(self.ids.len(), self.parts, 1, index) {
            let (row, scratch) = (self.ids[i] as usize, scratch.floats());
            // SAFETY: a row belongs to one task.
            let out = unsafe { self.out.part(i * dim, dim) };
            match &weight.0 {
                WeightForm::Canonical(matrix) => {
                    with_decode(matrix.format(), ToScratch { simd, matrix, row, scratch });
                    out.copy_from_slice(&scratch[..dim]);
                }
                WeightForm::Packed(weight) => weight.decode_row(row, out),
            }
            if self.scale != 1.0 {
                simd.call(Scale { x: out, factor: self.scale });
            }
        }
    }
}

/// Decodes a row to the front of `scratch`; its scales lie behind it.
pub(crate) struct ToScratch<'a, S> {
    pub(crate) simd: S,
    pub(crate) matrix: &'a Matrix,
    pub(crate) row: usize,
    pub(crate) scratch: &'a mut [f32],
}

impl<S: Isa> WithDecode for ToScratch<'_, S> {
    fn run<D: Decode>(self, decode: D) {
        let Self { simd, matrix, row, scratch } = self;
        let (out, scales) = scratch.split_at_mut(steps(matrix.cols()) * LANES);
        simd.call(DecodeRow { decode, matrix, row, out, stride: LANES, scales });
    }
}

/// `out[i] = table[ids[i]] · scale`.
pub(crate) fn embed(
    ctx: &mut ExecCtx,
    table: &Weight,
    ids: &[u32],
    scale: f32,
    out: &mut [f32],
) -> Result<(), BackendError> {
    for &id in ids {
        index("embed", "ids", id, table.rows())?;
    }
    ctx.reserve(steps(table.cols()) * LANES + 2 * padded_groups(table.format(), table.cols()), 0);
    let parts = ctx.parts(ids.len(), SMALLEST.div_ceil(table.cols().max(1)), 2);
    ctx.run(parts, &EmbedTask { table, ids, scale, out: SharedSlice::new(out), parts });
    Ok(())
}
