//! Activations in the layout of a packed weight, cached from product to product: q, k and v read the same rows.

use super::linear::packed;
use super::packed_weight::{ActivationLayout, PackRowsTask};
use super::product::{Input, RowMap};
use crate::memory::DataVersion;
use crate::simd::Scratch;
use crate::simd::elementwise::FusedNorm;
use crate::simd::exec_ctx::ExecCtx;
use crate::weight::Weight;

/// From this many elements on packing is a job of its own, so that every thread packs the rows that it will multiply.
const LARGE: usize = 1 << 14;

/// The input rows of an operation, and which version of the buffer they are.
#[derive(Clone, Copy)]
pub(crate) struct InputRows<'a> {
    pub(crate) data: &'a [f32],
    /// `None` where the rows exist only inside this operation, so that nothing could be reused.
    pub(crate) version: Option<DataVersion>,
    /// A norm to be applied to `data` first.
    pub(crate) norm: Option<FusedNorm<'a>>,
}

/// Packed rows of the last product, and what they were packed from.
#[derive(Debug, Default)]
pub(crate) struct PackedRowsCache {
    buffer: Scratch,
    /// Version of the input, columns, and layout of what `buffer` holds.
    holds: Option<(DataVersion, usize, ActivationLayout)>,
}

impl PackedRowsCache {
    /// `rows` in the layout of the first packed weight, where there is one, and the tasks that have to run before they
    /// are read.
    pub(crate) fn input<'a>(
        &'a mut self,
        ctx: &mut ExecCtx,
        weights: &[&Weight],
        rows: InputRows<'a>,
    ) -> (Input<'a>, Option<PackRowsTask<'a>>) {
        let plain = |data| Input { data, row_map: RowMap::Identity, packed: None };
        let Some(first) = packed(weights).next() else {
            return (plain(rows.all(ctx)), None);
        };
        let wanted = rows.version.map(|version| (version, first.cols(), first.layout()));
        let there = wanted.is_some() && self.holds == wanted;
        self.holds = wanted;
        // A weight with another layout packs the plain rows itself, so they must exist.
        let alone = packed(weights).all(|packed| packed.layout() == first.layout());
        let few = rows.data.len() < LARGE;
        if let (Some(norm), true) = (rows.norm, few && alone) {
            let (packed, task) = first.pack(plain(rows.data), &mut self.buffer);
            return (Input { packed: Some(packed), ..plain(&[]) }, Some(task.normed(norm)));
        }
        let data = rows.all(ctx);
        let (packed, task) = first.pack(plain(data), &mut self.buffer);
        let input = Input { packed: Some(packed), ..plain(data) };
        if few || there {
            return (input, (!there).then_some(task));
        }
        ctx.run(task.tasks(), &task);
        (input, None)
    }
}

impl<'a> InputRows<'a> {
    /// The rows; a norm is applied now.
    fn all(&self, ctx: &mut ExecCtx) -> &'a [f32] {
        self.norm.map_or(self.data, |norm| norm.all(ctx, self.data))
    }

    /// The rows after an operation that applied the norm.
    ///
    /// # Safety
    /// The tasks of the norm ran for every row and have ended, so nothing writes `norm.out` any more.
    pub(crate) unsafe fn made(self) -> Self {
        match self.norm {
            Some(norm) => {
                // SAFETY: nothing writes the normed rows any more (contract above).
                let data = unsafe { norm.out.done(0, norm.out.len()) };
                Self { data, norm: None, ..self }
            }
            None => self,
        }
    }
}
