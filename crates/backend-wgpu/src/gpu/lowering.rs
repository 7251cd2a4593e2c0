//! Operations as calls of kernels. Nothing here needs a device: what a program costs in dispatches can be known without
//! one.

use crate::gpu::launch::{BoundOperand, Call};
use crate::gpu::layout::WeightLayout;
use crate::gpu::ops;
use forerun_backend::{BackendError, Budget, Catalog, Cost, Op, View, WeightId, WeightInfo};
use forerun_base::DType;

/// Pieces of scratch memory that a call may use at once.
pub(crate) const SCRATCH: usize = 4;

/// What a device knows, and how weights lie in it.
pub(crate) trait LayoutLookup: Catalog {
    /// The layout of a weight that exists.
    fn layout(&self, id: WeightId) -> &WeightLayout;
}

/// Calls of the operations that are being lowered.
pub(crate) struct Lowering<'a> {
    shapes: &'a dyn LayoutLookup,
    /// What one dispatch may do, by estimate.
    most: Budget,
    pub(crate) calls: Vec<Call>,
    /// Bytes of scratch memory that the calls use.
    pub(crate) scratch: [usize; SCRATCH],
}

/// Some of the units that a call's work is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) work: Cost,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(shapes: &'a dyn LayoutLookup, most: Budget) -> Self {
        Self { shapes, most, calls: Vec::new(), scratch: [0; SCRATCH] }
    }

    /// Lays down the calls of operations that follow each other, which were checked.
    pub(crate) fn lower(&mut self, ops: &[Op]) -> Result<(), BackendError> {
        let mut rest = ops;
        while let [first, after @ ..] = rest {
            let next = after.first().copied();
            rest = match ops::lower_pair(self, *first, next)? {
                true => &after[1..],
                false => after,
            };
        }
        Ok(())
    }

    pub(crate) fn layout(&self, id: WeightId) -> &'a WeightLayout {
        self.shapes.layout(id)
    }

    pub(crate) fn info(&self, id: WeightId) -> WeightInfo {
        self.shapes.layout(id).info
    }

    /// The type of a view's elements.
    pub(crate) fn dtype(&self, view: View) -> DType {
        self.shapes.buffer(view.buffer).map_or(DType::F32, |info| info.dtype)
    }

    /// What the operation does, by its own description.
    pub(crate) fn work(&self, op: impl Into<Op>) -> Cost {
        op.into().desc(self.shapes).cost()
    }

    /// What an operation does that goes once through so many numbers.
    pub(crate) fn elements(&self, count: usize) -> Cost {
        let count = count as u64;
        Cost { bytes: 12 * count, flops: 10 * count, ..Cost::default() }
    }

    /// Scratch memory of at least so many bytes.
    pub(crate) fn scratch(&mut self, number: usize, bytes: usize) -> BoundOperand {
        self.scratch[number] = self.scratch[number].max(bytes);
        BoundOperand::Scratch(number)
    }

    /// Shares of `count` units, whole `grain`s, each of which is within what a dispatch may do; a grain is never cut.
    pub(crate) fn shares(&self, work: Cost, count: usize, grain: usize) -> Vec<Share> {
        let fits = (count as f64 * self.most.share(work)) as usize;
        let each = if fits >= count { count } else { (fits / grain * grain).max(grain) };
        let share = |first: usize| {
            let part = each.min(count - first);
            Share { first, count: part, work: portion(work, part, count) }
        };
        (0..count).step_by(each.max(1)).map(share).collect()
    }
}

/// `part` of `whole` equal parts of some work.
pub(crate) fn portion(work: Cost, part: usize, whole: usize) -> Cost {
    let of = |total: u64| (total as u128 * part as u128 / whole.max(1) as u128) as u64;
    Cost {
        bytes: of(work.bytes),
        weights: of(work.weights),
        state: of(work.state),
        flops: of(work.flops),
    }
}

/// Where a view lies; nothing where it is empty, since it may name any buffer.
pub(crate) fn bound(view: View) -> BoundOperand {
    if view.len > 0 { BoundOperand::Buffer(view.buffer) } else { BoundOperand::Absent }
}

/// As [`bound`], of a view that may be missing.
pub(crate) fn bound_or_absent(view: Option<View>) -> BoundOperand {
    view.map_or(BoundOperand::Absent, bound)
}

/// A weight's numbers in f32, if there is one.
pub(crate) fn plain(id: Option<WeightId>) -> BoundOperand {
    id.map_or(BoundOperand::Absent, BoundOperand::Plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_backend::{BufferId, BufferInfo};

    struct Nothing;

    impl Catalog for Nothing {
        fn buffer(&self, _: BufferId) -> Option<BufferInfo> {
            None
        }

        fn weight(&self, _: WeightId) -> Option<WeightInfo> {
            None
        }
    }

    impl LayoutLookup for Nothing {
        fn layout(&self, _: WeightId) -> &WeightLayout {
            panic!("there is no weight")
        }
    }

    #[test]
    fn shares_cover_all_units_and_stay_within_the_budget() {
        let most = Budget { bytes: u64::MAX, flops: 1000 };
        let lowering = Lowering::new(&Nothing, most);
        for (count, flops, grain) in
            [(1, 0, 1), (7, 900, 1), (64, 7000, 4), (65, 7000, 4), (9, 90_000, 4)]
        {
            let work = Cost { flops, ..Cost::default() };
            let shares = lowering.shares(work, count, grain);
            let mut next = 0;
            for share in &shares {
                assert_eq!(share.first, next, "{count} units");
                assert!(share.first.is_multiple_of(grain));
                assert!(share.work.flops <= 1000 || share.count <= grain, "{share:?}");
                next += share.count;
            }
            assert_eq!(next, count);
        }
        assert_eq!(lowering.shares(Cost::default(), 0, 1), []);
    }
}
