//! The device: every operation is checked by its description, lowered to launches, and queued.

use crate::choice::AdapterChoice;
use crate::gpu::adapter;
use crate::gpu::bound::{Bound, Rates};
use crate::gpu::launch::Launch;
use crate::gpu::layout::PANEL;
use crate::gpu::lowering::SCRATCH;
use crate::gpu::memory::Memory;
use crate::gpu::opened::{self, Opened};
use crate::gpu::ops::{MISSING, PARTITION};
use crate::gpu::pipelines::{Compiled, IMMEDIATES, Pipelines};
use crate::gpu::queue::Queue;
use crate::gpu::weights::Weights;
use forerun_backend::{
    Backend, BackendError, BufferId, BufferInfo, BufferSpec, Catalog, Cost, CutSizes, HostData,
    HostDataMut, Op, PreparedProgram, Program, Stashes, Ticket, View, WeightId, WeightInfo,
    for_each_operation, op, stashes_on_the_host,
};
use forerun_base::{Bytes, Matrix, MatrixParts};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What operations work with.
pub(crate) struct Device {
    pub(crate) queue: Queue,
    pub(crate) memory: Memory,
    pub(crate) weights: Weights,
    pub(crate) pipelines: Pipelines,
    /// Memory that every operation may use and none may rely on, by purpose.
    pub(crate) scratch: [Option<wgpu::Buffer>; SCRATCH],
    pub(crate) bound: Bound,
}

/// Launches of operations that follow each other.
pub(crate) struct Launches {
    pub(crate) launches: Vec<Launch>,
    /// What they do together.
    pub(crate) work: Cost,
    /// What was known of the adapter when they were cut.
    pub(crate) rates: Rates,
}

/// Loses a device as a driver's reset does: for tests of what comes after.
#[derive(Clone, Debug)]
pub struct LossSwitch(wgpu::Device);

impl LossSwitch {
    /// Everything on the device is gone, and every call fails.
    pub fn lose(&self) {
        self.0.destroy();
    }
}

/// An adapter of wgpu.
pub struct Wgpu {
    device: Device,
    info: wgpu::AdapterInfo,
    choice: AdapterChoice,
    /// Tells devices apart: two may run side by side.
    number: u64,
    /// By number: the launches of prepared programs.
    programs: Vec<Option<Launches>>,
    stashes: Stashes<Bytes>,
}

impl Wgpu {
    /// Opens an adapter.
    ///
    /// # Errors
    /// When there is no such adapter, or it lacks what the kernels need.
    pub fn open(choice: AdapterChoice) -> Result<Self, BackendError> {
        let idle = opened::take(choice);
        idle.map_or_else(|| Self::open_anew(choice), |opened| Ok(Self::with(opened)))
    }

    /// Opens an adapter of which nothing is known.
    fn open_anew(choice: AdapterChoice) -> Result<Self, BackendError> {
        let failed = |why: &dyn std::fmt::Display| BackendError::Device(why.to_string());
        let adapter = adapter::find(choice).map_err(BackendError::Device)?;
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let lacks = |what: &str| {
            BackendError::Device(format!("{} has no {what}, which the kernels need", info.name))
        };
        if !adapter.features().contains(wgpu::Features::IMMEDIATES) {
            return Err(lacks("immediates"));
        }
        for (enough, what) in [
            (limits.max_immediate_size >= IMMEDIATES, "128 bytes of immediates"),
            (limits.max_storage_buffers_per_shader_stage >= 16, "16 storage buffers for a kernel"),
            (limits.max_compute_invocations_per_workgroup >= 256, "workgroups of 256 invocations"),
            (limits.max_compute_workgroup_storage_size >= 16_384, "16 KiB of workgroup memory"),
        ] {
            if !enough {
                return Err(lacks(what));
            }
        }
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("forerun"),
            required_features: wgpu::Features::IMMEDIATES
                | (adapter.features() & wgpu::Features::TIMESTAMP_QUERY),
            required_limits: limits,
            ..Default::default()
        };
        let opened = pollster::block_on(adapter.request_device(&descriptor));
        let (device, queue) = opened.map_err(|why| failed(&why))?;
        let compiled = Compiled::default();
        Ok(Self::with(Opened { choice, info, device, queue, compiled }))
    }

    /// An adapter that is open.
    fn with(opened: Opened) -> Self {
        let Opened { choice, info, device, queue, compiled } = opened;
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let device = Device {
            pipelines: Pipelines::new(device.clone(), compiled),
            queue: Queue::new(device, queue),
            memory: Memory::default(),
            weights: Weights::default(),
            scratch: [const { None }; SCRATCH],
            bound: Bound::default(),
        };
        let (programs, stashes) = (Vec::new(), Stashes::default());
        Self { device, info, choice, number, programs, stashes }
    }

    /// The same device, taking at most so many bytes where a number is given.
    #[must_use]
    pub fn with_memory_limit(mut self, bytes: Option<u64>) -> Self {
        self.device.queue.memory_limit = bytes;
        self
    }

    /// What loses this device, until it is opened again.
    pub fn loss_switch(&self) -> LossSwitch {
        LossSwitch(self.device.queue.device.clone())
    }

    /// Checks operations that follow each other and lays down their launches.
    fn lower(&mut self, ops: &[Op]) -> Result<Launches, BackendError> {
        for op in ops {
            op.desc(&self.device).check()?;
        }
        self.device.lowered(ops)
    }

    /// Queues an operation.
    fn apply(&mut self, op: Op) -> Result<(), BackendError> {
        let lowered = self.lower(&[op])?;
        self.device.bound.queue(lowered.work);
        lowered.launches.into_iter().for_each(|launch| self.device.queue.push(launch));
        Ok(())
    }

    /// Cuts operations into dispatches that take at most so long each, by estimate. Programs that are prepared stay as
    /// they are.
    pub fn limit_dispatches(&mut self, limit: Duration) {
        self.device.bound.limit(limit);
    }

    /// The number of a program's launches here, if it is prepared.
    fn prepared(&self, program: &Program) -> Option<usize> {
        let prepared = program.prepared().filter(|prepared| prepared.device == self.number)?;
        usize::try_from(prepared.number).ok()
    }

    /// What views hold at this point of the queue, for which this waits.
    fn copied(&mut self, views: &[View]) -> Result<Vec<u8>, BackendError> {
        forerun_backend::submit_and_wait(self)?;
        forerun_backend::read_views(self, views)
    }

    /// Launches of a prepared program: dispatches each time it runs.
    pub fn dispatches(&self, program: &Program) -> Option<usize> {
        Some(self.programs.get(self.prepared(program)?)?.as_ref()?.launches.len())
    }
}

impl Drop for Wgpu {
    fn drop(&mut self) {
        let Device { queue, pipelines, .. } = &mut self.device;
        if queue.is_at_rest() {
            opened::put_back(Opened {
                choice: self.choice,
                info: self.info.clone(),
                device: queue.device.clone(),
                queue: queue.queue.clone(),
                compiled: std::mem::take(&mut pipelines.compiled),
            });
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
}

impl Catalog for Wgpu {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.device.buffer(id)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.device.weight(id)
    }
}

macro_rules! applied {
    ($($name:ident: $op:ident),* $(,)?) => {$(
        fn $name(&mut self, op: op::$op) -> Result<(), BackendError> {
            self.apply(op.into())
        }
    )*};
}

impl Backend for Wgpu {
    fn name(&self) -> String {
        format!("{} ({})", self.info.name, self.info.backend)
    }

    fn arithmetic(&self) -> String {
        // Compilers of drivers may join operations each in their own way.
        let wgpu::AdapterInfo { name, backend, driver, driver_info, .. } = &self.info;
        format!("wgpu {} {backend} {name} {driver} {driver_info}", env!("CARGO_PKG_VERSION"))
    }

    fn missing(&self) -> &'static [&'static str] {
        MISSING
    }

    fn cut_sizes(&self, _block: usize) -> CutSizes {
        CutSizes { keys: PARTITION, channels: PANEL }
    }

    fn free_memory(&self) -> Option<u64> {
        self.device.queue.free_memory()
    }

    fn largest_buffer(&self) -> Option<u64> {
        Some(self.device.queue.largest_buffer())
    }

    /// By what the adapter was seen to do, and what the operation asks for.
    fn longest_dispatch(&self) -> Option<Duration> {
        Some(self.device.bound.longest())
    }

    fn reopens(&self) -> bool {
        true
    }

    fn reopen(&mut self) -> Result<(), BackendError> {
        let before = self.arithmetic();
        let device = &mut self.device;
        // The lost device gives its memory back before the new one is asked for some.
        device.queue.device.destroy();
        (device.memory, device.weights) = (Memory::default(), Weights::default());
        device.scratch.fill(None);
        self.programs.clear();
        let limit = device.queue.memory_limit;
        let mut fresh = Self::open_anew(self.choice)?.with_memory_limit(limit);
        let after = fresh.arithmetic();
        if after != before {
            let why =
                format!("{after} is there now, and results of {before} would not go on there");
            return Err(BackendError::Device(why));
        }
        fresh.stashes = std::mem::take(&mut self.stashes);
        *self = fresh;
        Ok(())
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<BufferId, BackendError> {
        self.device.memory.alloc(&self.device.queue, spec)
    }

    fn upload(&mut self, label: &str, matrix: Matrix) -> Result<WeightId, BackendError> {
        self.upload_parts(label, &matrix.into())
    }

    fn upload_parts(&mut self, label: &str, parts: &MatrixParts) -> Result<WeightId, BackendError> {
        self.device.weights.upload(&mut self.device.queue, label, parts)
    }

    fn write(&mut self, dst: View, src: HostData<'_>) -> Result<(), BackendError> {
        let device = &mut self.device;
        device.memory.write((&mut device.queue, &mut device.pipelines), dst, src)
    }

    fn submit(&mut self) -> Result<Ticket, BackendError> {
        let ticket = self.device.queue.submit()?;
        self.device.bound.submit(ticket);
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Duration, BackendError> {
        let busy = self.device.queue.wait(ticket)?;
        self.device.bound.wait(ticket, busy);
        Ok(busy)
    }

    fn read(&mut self, src: View, dst: HostDataMut<'_>) -> Result<(), BackendError> {
        self.device.memory.read(&mut self.device.queue, src, dst)
    }

    fn prepare(&mut self, program: &mut Program) -> Result<(), BackendError> {
        let all = self.lower(program.ops())?;
        let free = self.programs.iter().position(Option::is_none);
        let at = free.unwrap_or(self.programs.len());
        if at == self.programs.len() {
            self.programs.push(None);
        }
        self.programs[at] = Some(all);
        program.set_prepared(PreparedProgram { device: self.number, number: at as u64 });
        Ok(())
    }

    fn run(&mut self, program: &Program) -> Result<(), BackendError> {
        let Some(at) = self.prepared(program).filter(|&at| self.programs[at].is_some()) else {
            return program.ops().iter().try_for_each(|op| op.apply(self));
        };
        let rates = self.device.bound.rates();
        if self.programs[at].as_ref().is_some_and(|known| rates.is_behind(known.rates)) {
            self.programs[at] = Some(self.lower(program.ops())?);
        }
        if let Some(Launches { launches, work, .. }) = &self.programs[at] {
            self.device.bound.queue(*work);
            launches.iter().for_each(|launch| self.device.queue.push(launch.clone()));
        }
        Ok(())
    }

    fn release(&mut self, program: &mut Program) {
        if let Some(at) = self.prepared(program)
            && let Some(launches) = self.programs.get_mut(at)
        {
            *launches = None;
        }
    }

    stashes_on_the_host! { stashes, Self::copied }

    for_each_operation! { applied }
}
