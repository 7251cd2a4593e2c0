//! The device: every operation is checked by its description, then queued on one stream.

use crate::driver::{Driver, DriverError, Gpu, QueueMark};
use crate::memory::DeviceBuffers;
use crate::ops;
use crate::products::{KernelChoice, Precision, Products};
use crate::programs::{self, Graphs, Programs, Stage};
use crate::queue::Queue;
use crate::stashes::DeviceStashes;
use crate::weights::DeviceWeights;
use forerun_backend::op::CacheOrder;
use forerun_backend::{
    Backend, BackendError, BufferId, BufferInfo, BufferSpec, Catalog, CutSizes, HostData,
    HostDataMut, Op, Program, StashId, Ticket, View, WeightId, WeightInfo, bytes_of_views,
    for_each_operation, op,
};
use forerun_base::{Bytes, Matrix, MatrixParts};
use std::time::Duration;

/// The state that operations work with.
pub(crate) struct Device {
    pub(crate) queue: Queue,
    pub(crate) memory: DeviceBuffers,
    pub(crate) weights: DeviceWeights,
    pub(crate) products: Products,
    /// The precision of activations in products.
    pub(crate) precision: Precision,
}

/// A CUDA device, or the same kernels on another driver.
pub struct Cuda {
    device: Device,
    stashes: DeviceStashes,
    programs: Programs,
    /// Bytes that it counts as its own, where they are fewer than the GPU has.
    memory_limit: Option<u64>,
}

impl Cuda {
    /// GPU number `index`.
    ///
    /// # Errors
    /// When a library of CUDA or the device is missing.
    pub fn open(index: usize) -> Result<Self, BackendError> {
        Self::with_driver(Box::new(Gpu::open(index)?))
    }

    /// GPUs of this machine.
    ///
    /// # Errors
    /// When the driver is missing or does not start.
    pub fn count() -> Result<usize, DriverError> {
        Gpu::count()
    }

    /// A device on a driver.
    pub fn with_driver(driver: Box<dyn Driver>) -> Result<Self, BackendError> {
        let queue = Queue::new(driver)?;
        let (memory, weights) = (DeviceBuffers::default(), DeviceWeights::default());
        let (products, precision) = (Products::default(), Precision::Exact);
        let device = Device { queue, memory, weights, products, precision };
        let (stashes, programs) = (DeviceStashes::default(), Programs::new());
        Ok(Self { device, stashes, programs, memory_limit: None })
    }

    /// Notes that the device has work from here on.
    fn begin(&mut self) -> Result<(), BackendError> {
        Ok(self.device.queue.driver_mut().begin()?)
    }

    /// Queues the operations of a program, some of them together.
    fn apply(&mut self, program: &Program) -> Result<(), BackendError> {
        self.in_program(program, |cuda| {
            let mut rest = program.ops();
            cuda.apply_some(&mut rest, usize::MAX)
        })
    }

    /// Runs `apply` with what a program lets the device know: which rows are multiplied again, and with what next.
    fn in_program<T>(
        &mut self,
        program: &Program,
        apply: impl FnOnce(&mut Self) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let weights = program.ops().iter().map(|op| ops::weights_of(&self.device, op));
        let weights = weights.filter(|weights| !weights.is_empty()).collect();
        self.device.products.keep_columns(true);
        self.device.products.plan_weights(weights);
        let done = apply(self);
        self.device.products.keep_columns(false);
        self.device.products.plan_weights(Vec::new());
        done
    }

    /// Queues the first operations of `rest`, at least `count` of them if there are so many, and takes them off.
    fn apply_some(&mut self, rest: &mut &[Op], count: usize) -> Result<(), BackendError> {
        let wanted = rest.len().saturating_sub(count);
        while let Some(first) = rest.first().filter(|_| rest.len() > wanted) {
            self.device.forget_written(first);
            let together = ops::run_chain(&mut self.device, rest)?;
            if together == 0 {
                first.apply(self)?;
            }
            let (done, later) = rest.split_at(together.max(1));
            // Columns that a chain made are of rows that its first operation wrote.
            done.iter().skip(1).for_each(|op| self.device.forget_written(op));
            *rest = later;
        }
        Ok(())
    }

    /// Records a program that has run before.
    fn record(&mut self, program: &Program) -> Result<Graphs, BackendError> {
        self.in_program(program, |cuda| {
            let (mut rest, mut graphs) = (program.ops(), Graphs::default());
            for (graph, count) in graphs.iter_mut().zip(programs::GRAPH_OPS) {
                if rest.is_empty() {
                    break;
                }
                cuda.device.queue.driver_mut().begin_recording()?;
                let outcome = cuda.apply_some(&mut rest, count);
                // The recording ends whatever went wrong in it.
                let recorded = cuda.device.queue.driver_mut().end_recording();
                outcome?;
                *graph = Some(recorded?);
            }
            Ok(graphs)
        })
    }

    /// The same device, taking at most so many bytes where a number is given.
    #[must_use]
    pub fn with_memory_limit(mut self, bytes: Option<u64>) -> Self {
        self.memory_limit = bytes;
        self
    }

    /// The same device with activations of this precision.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Self {
        self.device.precision = precision;
        self
    }

    /// The same device with a choice of product kernels; all of them give the same bits.
    #[must_use]
    pub fn with_choice(mut self, choice: KernelChoice) -> Self {
        self.device.products.choice = choice;
        self
    }

    /// The name of a weight's packed format.
    pub fn weight_form(&self, id: WeightId) -> Option<String> {
        self.device.weights.info(id).map(|_| self.device.weights.get(id).form())
    }
}

impl Device {
    /// Forgets columns of rows that an operation is about to write.
    fn forget_written(&mut self, op: &Op) {
        let desc = op.desc(self);
        let written = desc.operands().iter().filter(|operand| operand.access.writes());
        let ranges: Vec<_> = written.map(|operand| self.memory.range(operand.view)).collect();
        for range in ranges {
            self.products.forget(range);
        }
    }
}

impl Catalog for Device {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.memory.info(id)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.weights.info(id)
    }

    fn cache_order(&self) -> CacheOrder {
        CacheOrder::Swizzled
    }
}

impl Catalog for Cuda {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.device.buffer(id)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.device.weight(id)
    }

    fn cache_order(&self) -> CacheOrder {
        self.device.cache_order()
    }
}

macro_rules! checked {
    ($($name:ident: $op:ident),* $(,)?) => {$(
        fn $name(&mut self, op: op::$op) -> Result<(), BackendError> {
            self.begin()?;
            Op::from(op).desc(&self.device).check()?;
            ops::$name(&mut self.device, op)
        }
    )*};
}

impl Backend for Cuda {
    fn name(&self) -> String {
        self.device.queue.driver().properties().name.clone()
    }

    fn arithmetic(&self) -> String {
        // Tensor cores of another generation may cut their sums elsewhere.
        let [major, minor] = self.device.queue.driver().properties().capability;
        let precision = match self.device.precision {
            Precision::Half => "half",
            Precision::Exact => "exact",
        };
        format!("cuda {} sm_{major}{minor} {precision}", env!("CARGO_PKG_VERSION"))
    }

    fn free_memory(&self) -> Option<u64> {
        let free = self.device.queue.driver().memory().ok().map(|memory| memory.free);
        free.into_iter().chain(self.memory_limit).min()
    }

    fn missing(&self) -> &'static [&'static str] {
        ops::MISSING
    }

    fn cut_sizes(&self, _block: usize) -> CutSizes {
        // No row of a product takes a thousandth of a submission's time.
        CutSizes { keys: ops::ATTENTION_CHUNK, channels: 0 }
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<BufferId, BackendError> {
        self.device.memory.alloc(&mut self.device.queue, spec)
    }

    fn upload(&mut self, label: &str, matrix: Matrix) -> Result<WeightId, BackendError> {
        self.upload_parts(label, &matrix.into())
    }

    fn upload_parts(&mut self, label: &str, parts: &MatrixParts) -> Result<WeightId, BackendError> {
        self.device.weights.upload(&mut self.device.queue, label, parts)
    }

    fn write(&mut self, dst: View, src: HostData<'_>) -> Result<(), BackendError> {
        self.begin()?;
        self.device.memory.write(&mut self.device.queue, dst, src)
    }

    fn submit(&mut self) -> Result<Ticket, BackendError> {
        let mark = self.device.queue.mark()?;
        self.stashes.submitted(mark);
        Ok(Ticket(mark.0))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Duration, BackendError> {
        self.device.queue.wait(QueueMark(ticket.0))
    }

    fn prepare(&mut self, program: &mut Program) -> Result<(), BackendError> {
        for op in program.ops() {
            op.desc(&self.device).check()?;
        }
        program.set_prepared(self.programs.add());
        Ok(())
    }

    fn run(&mut self, program: &Program) -> Result<(), BackendError> {
        self.begin()?;
        let Some((number, stage)) = self.programs.stage(program) else {
            return self.apply(program);
        };
        let graphs = match stage {
            Stage::New => {
                self.apply(program)?;
                self.programs.set(number, Stage::Warm);
                return Ok(());
            }
            Stage::Warm => {
                let graphs = self.record(program)?;
                self.programs.set(number, Stage::Recorded(graphs));
                graphs
            }
            Stage::Recorded(graphs) => graphs,
        };
        for graph in graphs.into_iter().flatten() {
            // SAFETY: the operations were checked when they were recorded. Buffers and weights are never freed, and
            // scratch that is replaced is kept (`GrowingBuffer`), so the recorded addresses are memory of this driver.
            unsafe { self.device.queue.driver_mut().replay(graph) }?;
        }
        Ok(())
    }

    fn release(&mut self, program: &mut Program) {
        for graph in self.programs.remove(program).into_iter().flatten() {
            // A graph that cannot be destroyed is a device that was lost, which the next call reports.
            let _ = self.device.queue.driver_mut().release(graph);
        }
    }

    fn read(&mut self, src: View, dst: HostDataMut<'_>) -> Result<(), BackendError> {
        self.device.memory.read(&mut self.device.queue, src, dst)
    }

    fn stash(&mut self, views: &[View]) -> Result<StashId, BackendError> {
        self.begin()?;
        let bytes = bytes_of_views(self, "stash", views)?;
        let Device { queue, memory, .. } = &mut self.device;
        self.stashes.stash((queue, memory), views, bytes)
    }

    fn stash_host(&mut self, bytes: Bytes) -> Result<StashId, BackendError> {
        self.stashes.stash_host(bytes)
    }

    fn unstash(&mut self, stash: StashId, views: &[View]) -> Result<(), BackendError> {
        self.begin()?;
        let bytes = bytes_of_views(self, "unstash", views)?;
        let Device { queue, memory, .. } = &mut self.device;
        self.stashes.unstash((queue, memory), stash, views, bytes)
    }

    fn read_stash(&mut self, stash: StashId) -> Result<Bytes, BackendError> {
        self.stashes.read(&mut self.device.queue, stash)
    }

    fn release_stash(&mut self, stash: StashId) -> Result<(), BackendError> {
        self.stashes.release(stash)
    }

    fn limit_stashes(&mut self, bytes: u64) {
        self.stashes.set_limit(bytes);
    }

    fn stash_bytes(&self) -> u64 {
        self.stashes.bytes()
    }

    for_each_operation! { checked }
}
