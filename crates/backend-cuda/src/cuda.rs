//! The device: every operation is checked by its description, then queued on one stream.

use crate::driver::{Driver, DriverError, Gpu, QueueMark};
use crate::memory::DeviceBuffers;
use crate::ops;
use crate::products::{KernelChoice, Precision, Products};
use crate::queue::Queue;
use crate::stashes::DeviceStashes;
use crate::weights::DeviceWeights;
use forerun_backend::{
    Backend, BackendError, BufferId, BufferInfo, BufferSpec, Catalog, CutSizes, HostData,
    HostDataMut, Op, StashId, Ticket, View, WeightId, WeightInfo, bytes_of_views,
    for_each_operation, op,
};
use forerun_base::{Bytes, Matrix, MatrixParts};
use std::time::{Duration, Instant};

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
    /// When the first command since the last submission was queued.
    began: Option<Instant>,
    /// Submissions that were not waited for, oldest first, and when they began.
    submitted: Vec<(Ticket, Instant)>,
    /// When the last of those that were waited for was done.
    done: Instant,
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
        let (stashes, submitted) = (DeviceStashes::default(), Vec::with_capacity(8));
        let (began, done, memory_limit) = (None, Instant::now(), None);
        Ok(Self { device, stashes, began, submitted, done, memory_limit })
    }

    fn begin(&mut self) {
        self.began.get_or_insert_with(Instant::now);
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

impl Catalog for Device {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.memory.info(id)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.weights.info(id)
    }
}

impl Catalog for Cuda {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.device.buffer(id)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.device.weight(id)
    }
}

macro_rules! checked {
    ($($name:ident: $op:ident),* $(,)?) => {$(
        fn $name(&mut self, op: op::$op) -> Result<(), BackendError> {
            self.begin();
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
        self.begin();
        self.device.memory.write(&mut self.device.queue, dst, src)
    }

    fn submit(&mut self) -> Result<Ticket, BackendError> {
        let mark = self.device.queue.mark()?;
        self.stashes.submitted(mark);
        let ticket = Ticket(mark.0);
        self.submitted.push((ticket, self.began.take().unwrap_or_else(Instant::now)));
        Ok(ticket)
    }

    /// The time is the host's, from the first command of a submission, or the end of the one before, to its end: at
    /// least what the device was busy.
    fn wait(&mut self, ticket: Ticket) -> Result<Duration, BackendError> {
        let outcome = self.device.queue.wait(QueueMark(ticket.0));
        let passed = self.submitted.partition_point(|&(submitted, _)| submitted <= ticket);
        let first = self.submitted.drain(..passed).map(|(_, began)| began).next();
        let now = Instant::now();
        let began = first.unwrap_or(now).max(self.done);
        self.done = now;
        outcome.map(|()| now - began)
    }

    fn read(&mut self, src: View, dst: HostDataMut<'_>) -> Result<(), BackendError> {
        self.device.memory.read(&mut self.device.queue, src, dst)
    }

    fn stash(&mut self, views: &[View]) -> Result<StashId, BackendError> {
        self.begin();
        let bytes = bytes_of_views(self, "stash", views)?;
        let Device { queue, memory, .. } = &mut self.device;
        self.stashes.stash((queue, memory), views, bytes)
    }

    fn stash_host(&mut self, bytes: Bytes) -> Result<StashId, BackendError> {
        self.stashes.stash_host(bytes)
    }

    fn unstash(&mut self, stash: StashId, views: &[View]) -> Result<(), BackendError> {
        self.begin();
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
