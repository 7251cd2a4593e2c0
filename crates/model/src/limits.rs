//! Sizes fixed at load, and the one place that turns them into buffers or into a plan.

use crate::ModelError;
use forerun_backend::op::CacheOrder;
use forerun_backend::{Backend, BufferId, BufferRole, BufferSpec, MemoryPlan};
use forerun_base::DType;

/// Positions in a block of the key/value cache, and keys merged at a time in attention.
pub const KV_BLOCK: usize = 64;

/// Positions by which the MTP head's cache may lag behind in what is published.
pub const MAX_LAG: usize = 64;
/// Hidden states of a sequence that wait for its head at most, besides [`MAX_LAG`].
const MAX_WAITING: usize = 320;

/// Everything that sizes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Positions a sequence can reach.
    pub context: usize,
    /// Sequences that hold a lease at a time.
    pub sequences: usize,
    /// Rows in a step.
    pub rows: usize,
    /// Rows of logits in a step.
    pub sampled: usize,
    /// Drafts a span can hold: rows of a slot's log.
    pub log_rows: usize,
    /// Element type of the key/value cache: F32, F16, BF16, or I8 for codes with scales.
    pub kv: DType,
    /// Whether a head or a separate drafter drafts: its cache and the window of hidden states are kept.
    pub mtp: bool,
    /// The widest attention window; 0 when no layer has one.
    pub window: usize,
}

impl Limits {
    /// Blocks one sequence can reach.
    pub const fn table_width(&self) -> usize {
        self.context.div_ceil(KV_BLOCK)
    }

    /// Hidden states of a sequence's last positions that are kept for the MTP head: those of an answer that does not
    /// draft at present, or of a step with drafts. A prompt's rows are taken in by the step that reads them.
    pub const fn hidden_window(&self) -> usize {
        MAX_LAG + if self.rows < MAX_WAITING { self.rows } else { MAX_WAITING }
    }

    /// Blocks of a slot's ring for layers with a window: the window, a step's rows, and a key more for
    /// drafters that look one further back, wherever in a block they begin. A ring never needs more than the
    /// context.
    pub const fn ring_width(&self) -> usize {
        let needed = (self.window + self.rows + 1).div_ceil(KV_BLOCK) + 1;
        if self.window == 0 {
            0
        } else if needed < self.table_width() {
            needed
        } else {
            self.table_width()
        }
    }

    /// Blocks of all rings.
    pub const fn ring_blocks(&self) -> usize {
        self.sequences * self.ring_width()
    }

    /// Blocks in the pool.
    pub const fn blocks(&self) -> usize {
        self.sequences * self.table_width()
    }
}

/// Makes buffers and notes them in a plan; without a device it only notes.
pub struct Planner<'a> {
    backend: Option<&'a mut dyn Backend>,
    plan: MemoryPlan,
}

impl<'a> Planner<'a> {
    /// Notes only: for `inspect` and for refusing what does not fit.
    pub fn dry() -> Self {
        Self { backend: None, plan: MemoryPlan::default() }
    }

    /// Allocates on a device.
    pub fn on(backend: &'a mut dyn Backend) -> Self {
        Self { backend: Some(backend), plan: MemoryPlan::default() }
    }

    /// How keys and values will lie in the caches.
    pub(crate) fn cache_order(&self) -> CacheOrder {
        self.backend.as_ref().map_or(CacheOrder::default(), |backend| backend.cache_order())
    }

    /// What was noted.
    pub fn finish(self) -> MemoryPlan {
        self.plan
    }

    pub(crate) fn state(
        &mut self,
        line: &str,
        dtype: DType,
        len: usize,
    ) -> Result<BufferId, ModelError> {
        self.buffer(line, BufferSpec { label: line, dtype, len, role: BufferRole::State })
    }

    /// An f32 buffer whose contents end with the step.
    pub fn scratch(&mut self, label: &str, len: usize) -> Result<BufferId, ModelError> {
        let (dtype, role) = (DType::F32, BufferRole::Scratch);
        self.buffer("scratch", BufferSpec { label, dtype, len, role })
    }

    /// A u32 buffer that keeps what it holds.
    pub fn kept_index(&mut self, label: &str, len: usize) -> Result<BufferId, ModelError> {
        let (dtype, role) = (DType::U32, BufferRole::State);
        self.buffer("scratch", BufferSpec { label, dtype, len, role })
    }

    /// A u32 buffer whose contents end with the step.
    pub fn index(&mut self, label: &str, len: usize) -> Result<BufferId, ModelError> {
        let (dtype, role) = (DType::U32, BufferRole::Scratch);
        self.buffer("scratch", BufferSpec { label, dtype, len, role })
    }

    fn buffer(&mut self, line: &str, spec: BufferSpec<'_>) -> Result<BufferId, ModelError> {
        let bytes = (spec.len as u64).saturating_mul(spec.dtype.size() as u64);
        self.plan.add_buffer(line, spec.label, bytes);
        match &mut self.backend {
            Some(backend) => Ok(backend.alloc(spec)?),
            None => Ok(BufferId(u32::MAX)),
        }
    }
}
