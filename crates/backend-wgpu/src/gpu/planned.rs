//! A device without an adapter: it lowers operations to dispatches as the real one does, counts them, and computes
//! nothing.
//!
//! What a step costs in dispatches, submissions and bytes follows from the program alone, so it can be known, and held
//! to, on any machine and for models that no machine at hand can hold.

use crate::gpu::layout::{PANEL, WeightLayout};
use crate::gpu::lowering::{LayoutLookup, Lowering};
use crate::gpu::ops::{MISSING, PARTITION};
use forerun_backend::{
    Backend, BackendError, Budget, BufferId, BufferInfo, BufferSpec, Catalog, Cost, CutSizes,
    HostData, HostDataMut, Op, Program, Stashes, Ticket, View, WeightId, WeightInfo,
    for_each_operation, op, read_views, stashes_on_the_host,
};
use forerun_base::{Bytes, Format, Matrix, MatrixParts};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What was asked of a [`Planned`] device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernels started.
    pub dispatches: u64,
    /// Submissions that hold any.
    pub submissions: u64,
    /// What the dispatches do, by estimate; attention as if every table were full.
    pub work: Cost,
    /// The largest estimate of a single dispatch.
    pub longest: Cost,
}

/// The counts of a [`Planned`] device; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct PlannedCounts(Arc<Mutex<Counts>>);

impl PlannedCounts {
    /// The counts so far.
    pub fn get(&self) -> Counts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// How a [`Planned`] device differs from others.
#[derive(Clone, Copy, Debug)]
pub struct PlannedLimits {
    /// Bytes of a binding.
    pub binding: u64,
    /// What one dispatch may do.
    pub dispatch: Budget,
    /// Bytes that it says to have moved in a second, from which a runner learns how much fits a submission.
    pub speed: u64,
    /// Weights of more than one row, but for narrow ones, count as if they were stored like this.
    pub format: Option<Format>,
}

impl Default for PlannedLimits {
    fn default() -> Self {
        Self { binding: u64::MAX, dispatch: Budget::UNLIMITED, speed: u64::MAX, format: None }
    }
}

/// Columns from which a weight counts as a product's, and not as a kernel of a convolution.
const WIDE: usize = 64;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Planned {
    limits: PlannedLimits,
    counts: PlannedCounts,
    buffers: Vec<BufferInfo>,
    layouts: Vec<WeightLayout>,
    last: u64,
    queued: bool,
    /// Bytes of work up to the last wait.
    waited: u64,
    stashes: Stashes<Bytes>,
}

impl Planned {
    /// A device of these limits.
    pub fn new(limits: PlannedLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// What it counts.
    pub fn counts(&self) -> PlannedCounts {
        self.counts.clone()
    }

    fn count(&mut self, ops: &[Op]) -> Result<(), BackendError> {
        for op in ops {
            op.desc(self).check()?;
        }
        let mut lowering = Lowering::new(self, self.limits.dispatch);
        lowering.lower(ops)?;
        let calls = lowering.calls;
        self.queued = true;
        self.counts.change(|counts| {
            for call in calls.iter().filter(|call| !call.grid.contains(&0)) {
                let Cost { bytes, flops, .. } = counts.longest;
                counts.dispatches += 1;
                counts.work = counts.work + call.work;
                counts.longest.bytes = bytes.max(call.work.bytes);
                counts.longest.flops = flops.max(call.work.flops);
            }
        });
        Ok(())
    }
}

impl Catalog for Planned {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.buffers.get(id.0 as usize).copied()
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.layouts.get(id.0 as usize).map(|layout| layout.info)
    }
}

impl LayoutLookup for Planned {
    fn layout(&self, id: WeightId) -> &WeightLayout {
        &self.layouts[id.0 as usize]
    }
}

macro_rules! counted {
    ($($name:ident: $op:ident),* $(,)?) => {$(
        fn $name(&mut self, op: op::$op) -> Result<(), BackendError> {
            self.count(&[op.into()])
        }
    )*};
}

impl Backend for Planned {
    fn name(&self) -> String {
        "a device that only counts".into()
    }

    fn missing(&self) -> &'static [&'static str] {
        MISSING
    }

    fn cut_sizes(&self, _block: usize) -> CutSizes {
        CutSizes { keys: PARTITION, channels: PANEL }
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<BufferId, BackendError> {
        self.buffers.push(BufferInfo { dtype: spec.dtype, len: spec.len });
        Ok(BufferId(self.buffers.len() as u32 - 1))
    }

    fn upload(&mut self, label: &str, matrix: Matrix) -> Result<WeightId, BackendError> {
        self.upload_parts(label, &matrix.into())
    }

    fn upload_parts(&mut self, _: &str, matrix: &MatrixParts) -> Result<WeightId, BackendError> {
        let (rows, cols, format) = (matrix.rows(), matrix.cols(), matrix.format());
        let info = WeightInfo { rows, cols, format, bytes: matrix.bytes() };
        let counted = self.limits.format.filter(|_| rows > 1 && cols >= WIDE);
        let info = counted.map_or(info, |format| {
            let offsets = usize::from(matches!(format, Format::Grouped { offset: true, .. }));
            let row = format.row_bytes(cols) + (1 + offsets) * format.row_scale_bytes(cols);
            WeightInfo { format, bytes: rows * row, ..info }
        });
        self.layouts.push(WeightLayout::of(info, self.limits.binding));
        Ok(WeightId(self.layouts.len() as u32 - 1))
    }

    fn write(&mut self, _dst: View, _src: HostData<'_>) -> Result<(), BackendError> {
        Ok(())
    }

    fn submit(&mut self) -> Result<Ticket, BackendError> {
        if std::mem::take(&mut self.queued) {
            self.counts.change(|counts| counts.submissions += 1);
        }
        self.last += 1;
        Ok(Ticket(self.last))
    }

    fn wait(&mut self, _ticket: Ticket) -> Result<Duration, BackendError> {
        let done = self.counts.get().work.bytes;
        let bytes = done - std::mem::replace(&mut self.waited, done);
        Ok(Duration::from_secs_f64(bytes as f64 / self.limits.speed as f64))
    }

    /// Zeros: nothing was computed.
    fn read(&mut self, _src: View, dst: HostDataMut<'_>) -> Result<(), BackendError> {
        match dst {
            HostDataMut::F32(to) => to.fill(0.0),
            HostDataMut::U32(to) => to.fill(0),
            HostDataMut::Bytes(to) => to.fill(0),
        }
        Ok(())
    }

    fn run(&mut self, program: &Program) -> Result<(), BackendError> {
        self.count(program.ops())
    }

    stashes_on_the_host! { stashes, read_views }

    for_each_operation! { counted }
}
