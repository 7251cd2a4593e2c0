//! The device: memory plus kernels. Operations run when they are called, so every ticket is already complete.

use crate::{Kernels, Memory, Plain};
use forerun_backend::{
    Backend, BackendError, BufferId, BufferInfo, BufferSpec, Bytes, Catalog, CutSizes, HostData,
    HostDataMut, Op, PreparedProgram, Program, Stashes, Ticket, View, WeightId, WeightInfo,
    for_each_operation, op, read_views, stashes_on_the_host,
};
use forerun_base::{Matrix, MatrixParts};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Devices made so far, so that a program is trusted only by the device that checked it.
static DEVICES: AtomicU64 = AtomicU64::new(0);

/// A CPU device with the given kernels.
#[derive(Debug)]
pub struct Cpu<K> {
    memory: Memory,
    kernels: K,
    device: u64,
    /// When the first command since the last submission began.
    began: Option<Instant>,
    /// Submissions that nobody waited for, oldest first, and the time each took.
    submitted: Vec<(Ticket, Duration)>,
    tickets: u64,
    stashes: Stashes<Bytes>,
}

impl<K: Default> Default for Cpu<K> {
    fn default() -> Self {
        Self::of(K::default())
    }
}

/// The reference device: slow, simple, what tuned kernels are tested against.
pub fn plain() -> Cpu<Plain> {
    Cpu::with_kernels(Plain)
}

impl<K: Kernels> Cpu<K> {
    /// A device that runs `kernels`.
    pub fn with_kernels(kernels: K) -> Self {
        Self::of(kernels)
    }

    /// An operation whose description was checked before: buffers and weights are never freed, so it still fits.
    fn run_checked(&mut self, op: Op) -> Result<(), BackendError> {
        let Self { memory, kernels, .. } = self;
        macro_rules! dispatch {
            ($($name:ident: $op:ident),* $(,)?) => {
                match op { $(Op::$op(op) => kernels.$name(memory, op)),* }
            };
        }
        for_each_operation! { dispatch }
    }

    /// What views hold now: commands have run when they are queued.
    fn copied(&mut self, views: &[View]) -> Result<Vec<u8>, BackendError> {
        self.begin();
        read_views(self, views)
    }
}

impl<K> Cpu<K> {
    fn of(kernels: K) -> Self {
        let device = DEVICES.fetch_add(1, Ordering::Relaxed);
        let (began, submitted, tickets) = (None, Vec::with_capacity(8), 0);
        let (memory, stashes) = (Memory::default(), Stashes::default());
        Self { memory, kernels, device, began, submitted, tickets, stashes }
    }

    /// Commands run at once, so a submission has taken the time since its first one.
    fn begin(&mut self) {
        self.began.get_or_insert_with(Instant::now);
    }
}

impl<K> Catalog for Cpu<K> {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.memory.buffer(id)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.memory.weight(id)
    }
}

macro_rules! checked {
    ($($name:ident: $op:ident),* $(,)?) => {$(
        fn $name(&mut self, op: op::$op) -> Result<(), BackendError> {
            self.begin();
            Op::from(op).desc(&self.memory).check()?;
            self.kernels.$name(&mut self.memory, op)
        }
    )*};
}

impl<K: Kernels> Backend for Cpu<K> {
    fn name(&self) -> String {
        self.kernels.name()
    }

    fn arithmetic(&self) -> String {
        self.kernels.arithmetic()
    }

    fn cut_sizes(&self, block: usize) -> CutSizes {
        self.kernels.cut_sizes(block)
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<BufferId, BackendError> {
        self.memory.alloc(spec)
    }

    fn upload(&mut self, label: &str, matrix: Matrix) -> Result<WeightId, BackendError> {
        self.upload_parts(label, &matrix.into())
    }

    fn upload_parts(
        &mut self,
        _label: &str,
        parts: &MatrixParts,
    ) -> Result<WeightId, BackendError> {
        Ok(self.memory.upload(self.kernels.keep(parts)))
    }

    fn prepare(&mut self, program: &mut Program) -> Result<(), BackendError> {
        for op in program.ops() {
            op.desc(&self.memory).check()?;
        }
        program.set_prepared(PreparedProgram { device: self.device, number: 0 });
        Ok(())
    }

    fn run(&mut self, program: &Program) -> Result<(), BackendError> {
        self.begin();
        if program.prepared().is_some_and(|prepared| prepared.device == self.device) {
            return program.ops().iter().try_for_each(|&op| self.run_checked(op));
        }
        program.ops().iter().try_for_each(|op| op.apply(self))
    }

    fn write(&mut self, dst: View, src: HostData<'_>) -> Result<(), BackendError> {
        self.begin();
        self.memory.write(dst, src)
    }

    fn submit(&mut self) -> Result<Ticket, BackendError> {
        let time = self.began.take().map_or(Duration::ZERO, |began| began.elapsed());
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.submitted.push((ticket, time));
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Duration, BackendError> {
        let passed = self.submitted.partition_point(|&(submitted, _)| submitted <= ticket);
        Ok(self.submitted.drain(..passed).map(|(_, time)| time).sum())
    }

    fn read(&mut self, src: View, dst: HostDataMut<'_>) -> Result<(), BackendError> {
        self.memory.read(src, dst)
    }

    stashes_on_the_host! { stashes, Self::copied }

    for_each_operation! { checked }
}
