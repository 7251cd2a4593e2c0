//! The driver of a GPU: this file and `nvrtc.rs` alone name cudarc.
//!
//! CUDA's libraries are loaded when a device is opened; the binary runs without them. Kernels go through NVRTC to
//! machine code, which is kept on disk under a name that follows from the text, the architecture and the compiler's
//! version.

use super::nvrtc::{self, OPTIONS};
use super::{
    Address, Driver, DriverError, FaultReport, GraphId, HostAddress, KernelId, KernelSource,
    Launch, MemoryInfo, ModuleId, Passed, Properties, QueueMark, STAGE, cache,
};
use cudarc::driver::{result, sys};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::ptr;
use std::thread::{self, ThreadId};
use std::time::Duration;

/// Bytes of pinned memory through which results come to the host.
const STAGING: usize = 1 << 20;

fn failed(call: &'static str) -> impl Fn(result::DriverError) -> DriverError {
    move |error| {
        let text = error.error_string().ok().map(|text| text.to_string_lossy().into_owned());
        DriverError::call(call, text.unwrap_or_else(|| format!("{:?}", error.0)))
    }
}

/// Refuses where a library of CUDA is not there: cudarc would panic at its first call.
fn libraries() -> Result<(), DriverError> {
    // SAFETY: the question only opens a library of the system.
    if !unsafe { sys::is_culib_present() } {
        return Err(DriverError::Missing {
            library: "the CUDA driver (libcuda)",
            hint: "install NVIDIA's driver 580 or later",
        });
    }
    Ok(())
}

/// See the module's text.
pub struct Gpu {
    properties: Properties,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// The thread for which the context is current.
    thread: Option<ThreadId>,
    folder: Option<PathBuf>,
    modules: Vec<sys::CUmodule>,
    kernels: Vec<LoadedKernel>,
    /// Marks not waited for, oldest first.
    marks: VecDeque<(u64, Signal)>,
    /// To use again.
    signals: Vec<Signal>,
    last_mark: u64,
    /// That of the next mark, once its work has begun.
    began: Option<Signal>,
    /// What the marks that were waited for reported, and how long their work took.
    passed: Passed,
    graphs: HashMap<u64, sys::CUgraphExec>,
    last_graph: u64,
    staging: *mut u8,
    /// Pinned memory that was given out.
    pinned: HashSet<u64>,
    /// Through which weights come, and the one that was taken last.
    pieces: Vec<Piece>,
    piece: usize,
}

/// Pinned memory on its way to the device, and the event behind its copy.
#[derive(Clone, Copy)]
struct Piece {
    at: *mut u8,
    copied: sys::CUevent,
}

impl Piece {
    /// A new piece; a context is current.
    fn new() -> Result<Self, DriverError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let copied = result::event::create(flags).map_err(failed("cuEventCreate"))?;
        // SAFETY: a context is current.
        let at = unsafe { result::malloc_host(STAGE, 0) };
        Ok(Self { at: at.map_err(failed("cuMemHostAlloc"))?.cast(), copied })
    }
}

/// What a mark is made of: events before and behind its work, pinned memory for its report, and an event behind that.
#[derive(Clone, Copy)]
struct Signal {
    start: sys::CUevent,
    end: sys::CUevent,
    reported: sys::CUevent,
    report: *mut FaultReport,
    /// Whether `start` was recorded.
    timed: bool,
}

struct LoadedKernel {
    name: String,
    function: sys::CUfunction,
    bytes: usize,
    /// Dynamic shared memory that it may use, as set by `cuFuncSetAttribute`.
    shared: u32,
}

// SAFETY: handles of CUDA may be used from any thread, and one thread at a time has the driver; each call makes
// the context current for its own thread.
unsafe impl Send for Gpu {}

impl Gpu {
    /// CUDA devices of the machine.
    pub fn count() -> Result<usize, DriverError> {
        libraries()?;
        result::init().map_err(failed("cuInit"))?;
        let count = result::device::get_count().map_err(failed("cuDeviceGetCount"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Opens device number `index`.
    pub fn open(index: usize) -> Result<Self, DriverError> {
        let count = Self::count()?;
        let ordinal = i32::try_from(index).ok().filter(|_| index < count);
        let ordinal = ordinal.ok_or(DriverError::NoDevice { index, count })?;
        let device = result::device::get(ordinal).map_err(failed("cuDeviceGet"))?;
        // SAFETY: the device exists.
        let context = unsafe { result::primary_ctx::retain(device) };
        let context = context.map_err(failed("cuDevicePrimaryCtxRetain"))?;
        let mut gpu = Self {
            properties: properties(device)?,
            device,
            context,
            stream: ptr::null_mut(),
            thread: None,
            folder: cache::folder(),
            modules: Vec::new(),
            kernels: Vec::new(),
            marks: VecDeque::new(),
            signals: Vec::new(),
            last_mark: 0,
            began: None,
            passed: Passed::default(),
            graphs: HashMap::new(),
            last_graph: 0,
            staging: ptr::null_mut(),
            pinned: HashSet::new(),
            pieces: Vec::new(),
            piece: 0,
        };
        gpu.bind()?;
        let kind = result::stream::StreamKind::NonBlocking;
        gpu.stream = result::stream::create(kind).map_err(failed("cuStreamCreate"))?;
        // SAFETY: the context is current.
        let staging = unsafe { result::malloc_host(STAGING, 0) };
        gpu.staging = staging.map_err(failed("cuMemHostAlloc"))?.cast();
        Ok(gpu)
    }

    /// Makes the context current for this thread.
    fn bind(&mut self) -> Result<(), DriverError> {
        let thread = Some(thread::current().id());
        if self.thread != thread {
            // SAFETY: the context lives as long as the driver.
            unsafe { result::ctx::set_current(self.context) }.map_err(failed("cuCtxSetCurrent"))?;
            self.thread = thread;
        }
        Ok(())
    }

    /// A signal that nothing waits for; the context is current.
    fn unused_signal(&mut self) -> Result<Signal, DriverError> {
        self.signals.pop().map_or_else(signal, Ok)
    }

    /// The machine code of a source, from disk or compiled.
    fn code(&self, source: &KernelSource) -> Result<Vec<u8>, DriverError> {
        let arch = self.properties.arch();
        let (text, version) = (source.text(), nvrtc::version()?);
        let key = cache::key(&[
            text.as_bytes(),
            arch.as_bytes(),
            version.as_bytes(),
            OPTIONS.join(" ").as_bytes(),
        ]);
        let name = format!("{}-{key}.cubin", source.name);
        if let Some(code) = self.folder.as_ref().and_then(|folder| cache::read(folder, &name)) {
            return Ok(code);
        }
        let code = nvrtc::compile(source, &arch)?;
        if let Some(folder) = &self.folder {
            // A folder that cannot be written costs time, nothing else.
            let _ = cache::write(folder, &name, &code);
        }
        Ok(code)
    }
}

fn properties(device: sys::CUdevice) -> Result<Properties, DriverError> {
    use sys::CUdevice_attribute as Attribute;
    let attribute = |attribute| {
        // SAFETY: the device exists.
        let value = unsafe { result::device::get_attribute(device, attribute) };
        value.map(|value| u32::try_from(value).unwrap_or(0)).map_err(failed("cuDeviceGetAttribute"))
    };
    Ok(Properties {
        name: result::device::get_name(device).map_err(failed("cuDeviceGetName"))?,
        capability: [
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ],
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_per_block: attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
    })
}

/// A new signal; a context is current.
fn signal() -> Result<Signal, DriverError> {
    use sys::CUevent_flags::{CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING};
    let event = |flags| result::event::create(flags).map_err(failed("cuEventCreate"));
    let (start, end) = (event(CU_EVENT_DEFAULT)?, event(CU_EVENT_DEFAULT)?);
    let reported = event(CU_EVENT_DISABLE_TIMING)?;
    // SAFETY: a context is current.
    let report = unsafe { result::malloc_host(size_of::<FaultReport>(), 0) };
    let report = report.map_err(failed("cuMemHostAlloc"))?.cast();
    Ok(Signal { start, end, reported, report, timed: false })
}

/// Attributes of a launch on a device of this compute capability.
///
/// Programmatic dependent launch exists from sm_90 on. Below it the driver refuses the attribute, and
/// `wait_for_previous` is empty (see `prelude.cuh`), so a kernel must start after the one before it.
fn attributes([major, _]: [u32; 2]) -> Option<sys::CUlaunchAttribute> {
    let value = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
    let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    (major >= 9).then_some(sys::CUlaunchAttribute { id, pad: [0; 4], value })
}

impl Driver for Gpu {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory(&self) -> Result<MemoryInfo, DriverError> {
        // SAFETY: the context lives as long as the driver.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed("cuCtxSetCurrent"))?;
        let (free, total) = result::mem_get_info().map_err(failed("cuMemGetInfo"))?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn alloc(&mut self, bytes: u64) -> Result<Address, DriverError> {
        self.bind()?;
        // SAFETY: the context is current.
        let memory = unsafe { result::malloc_sync(bytes.max(1) as usize) };
        memory.map(Address).map_err(|error| {
            if error.0 != sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                return failed("cuMemAlloc")(error);
            }
            let free = self.memory().map_or(0, |memory| memory.free);
            DriverError::Memory { bytes, free }
        })
    }

    unsafe fn free(&mut self, address: Address) -> Result<(), DriverError> {
        self.synchronize()?;
        // SAFETY: `address` is memory of this driver (contract of `free`), and the queue, which may still use it, is
        // empty.
        unsafe { result::free_sync(address.0) }.map_err(failed("cuMemFree"))
    }

    unsafe fn copy_in(&mut self, to: Address, from: &[u8]) -> Result<(), DriverError> {
        self.bind()?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the bytes at `to` are memory of this driver (contract of `copy_in`). The copy reads `from` before it
        // returns: CUDA stages memory that is not pinned.
        unsafe { result::memcpy_htod_async(to.0, from, self.stream) }
            .map_err(failed("cuMemcpyHtoDAsync"))
    }

    fn stage(&mut self, bytes: usize) -> Result<&mut [u8], DriverError> {
        self.bind()?;
        debug_assert!(bytes <= STAGE, "a piece has {STAGE} bytes");
        let piece = match self.pieces.len() {
            0 | 1 => {
                self.pieces.push(Piece::new()?);
                self.pieces.len() - 1
            }
            count => (self.piece + 1) % count,
        };
        self.piece = piece;
        let Piece { at, copied } = self.pieces[piece];
        // SAFETY: the event exists, and the piece has `STAGE` bytes, which the queue no longer reads once the event is
        // passed; an event that was never recorded is.
        unsafe {
            result::event::synchronize(copied).map_err(failed("cuEventSynchronize"))?;
            Ok(std::slice::from_raw_parts_mut(at, bytes))
        }
    }

    unsafe fn copy_staged(&mut self, to: Address, bytes: usize) -> Result<(), DriverError> {
        self.bind()?;
        let Piece { at, copied } = self.pieces[self.piece];
        // SAFETY: the piece has `STAGE >= bytes` bytes, which nobody writes to before `stage` has waited for `copied`;
        // those at `to` are memory of this driver (contract of `copy_staged`).
        unsafe {
            let from = std::slice::from_raw_parts(at.cast_const(), bytes);
            result::memcpy_htod_async(to.0, from, self.stream)
                .map_err(failed("cuMemcpyHtoDAsync"))?;
            result::event::record(copied, self.stream).map_err(failed("cuEventRecord"))
        }
    }

    unsafe fn copy_out(&mut self, from: Address, to: &mut [u8]) -> Result<(), DriverError> {
        self.bind()?;
        for (i, part) in to.chunks_mut(STAGING).enumerate() {
            // SAFETY: `part.len() <= STAGING`, the size of `staging`, which nobody else uses and which is read after
            // the stream is idle; the bytes at `from` are memory of this driver (contract of `copy_out`).
            unsafe {
                let staging = std::slice::from_raw_parts_mut(self.staging, part.len());
                let at = from.0 + (i * STAGING) as u64;
                result::memcpy_dtoh_async(staging, at, self.stream)
                    .map_err(failed("cuMemcpyDtoHAsync"))?;
                result::stream::synchronize(self.stream).map_err(failed("cuStreamSynchronize"))?;
                part.copy_from_slice(staging);
            }
        }
        Ok(())
    }

    unsafe fn copy(&mut self, to: Address, from: Address, bytes: u64) -> Result<(), DriverError> {
        self.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges are memory of this driver and do not overlap (contract of `copy`).
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes as usize, self.stream) }
            .map_err(failed("cuMemcpyDtoDAsync"))
    }

    unsafe fn fill(&mut self, to: Address, value: u8, bytes: u64) -> Result<(), DriverError> {
        self.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the bytes are memory of this driver (contract of `fill`).
        unsafe { result::memset_d8_async(to.0, value, bytes as usize, self.stream) }
            .map_err(failed("cuMemsetD8Async"))
    }

    fn alloc_host(&mut self, bytes: usize) -> Result<HostAddress, DriverError> {
        self.bind()?;
        // SAFETY: the context is current.
        let memory = unsafe { result::malloc_host(bytes.max(1), 0) };
        let at = memory.map_err(failed("cuMemHostAlloc"))? as u64;
        self.pinned.insert(at);
        Ok(HostAddress(at))
    }

    unsafe fn free_host(&mut self, at: HostAddress) -> Result<(), DriverError> {
        self.synchronize()?;
        if !self.pinned.remove(&at.0) {
            return Err(DriverError::call("cuMemFreeHost", "memory that was not allocated"));
        }
        // SAFETY: the memory was pinned by this driver and is forgotten, and the queue, which may still use it, is
        // empty.
        unsafe { result::free_host(at.0 as *mut c_void) }.map_err(failed("cuMemFreeHost"))
    }

    unsafe fn queue_to_host(
        &mut self,
        to: HostAddress,
        from: Address,
        bytes: u64,
    ) -> Result<(), DriverError> {
        self.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges are memory of this driver, and nobody reads `to` before the copy is over (contract of
        // `queue_to_host`), so for the time of this call the slice is the only way to it.
        unsafe {
            let to = std::slice::from_raw_parts_mut(to.0 as *mut u8, bytes as usize);
            result::memcpy_dtoh_async(to, from.0, self.stream)
        }
        .map_err(failed("cuMemcpyDtoHAsync"))
    }

    unsafe fn queue_from_host(
        &mut self,
        to: Address,
        from: HostAddress,
        bytes: u64,
    ) -> Result<(), DriverError> {
        self.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges are memory of this driver, and only the queue writes to `from` (contract of
        // `queue_from_host`).
        unsafe {
            let from = std::slice::from_raw_parts(from.0 as *const u8, bytes as usize);
            result::memcpy_htod_async(to.0, from, self.stream)
        }
        .map_err(failed("cuMemcpyHtoDAsync"))
    }

    unsafe fn read_host(&self, from: HostAddress, to: &mut [u8]) {
        // SAFETY: the bytes are pinned memory of this driver, and nothing queued writes to them (contract of
        // `read_host`).
        to.copy_from_slice(unsafe { std::slice::from_raw_parts(from.0 as *const u8, to.len()) });
    }

    fn load(&mut self, source: &KernelSource) -> Result<ModuleId, DriverError> {
        self.bind()?;
        let code = self.code(source)?;
        // SAFETY: the code is a whole image that NVRTC made.
        let module = unsafe { result::module::load_data(code.as_ptr().cast()) };
        self.modules.push(module.map_err(failed("cuModuleLoadData"))?);
        Ok(ModuleId(self.modules.len() - 1))
    }

    fn kernel(&mut self, module: ModuleId, name: &str) -> Result<KernelId, DriverError> {
        self.bind()?;
        let missing =
            |why: &dyn std::fmt::Display| DriverError::call(format!("kernel {name}"), why);
        let text = CString::new(name).map_err(|why| missing(&why))?;
        // SAFETY: modules are never unloaded while the driver lives.
        let function = unsafe { result::module::get_function(self.modules[module.0], text) };
        let function = function.map_err(|error| missing(&failed("cuModuleGetFunction")(error)))?;
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: the function exists, and every kernel has one parameter.
        unsafe { sys::cuFuncGetParamInfo(function, 0, &mut offset, &mut bytes) }
            .result()
            .map_err(failed("cuFuncGetParamInfo"))?;
        self.kernels.push(LoadedKernel {
            name: name.to_owned(),
            function,
            bytes,
            shared: 48 << 10,
        });
        Ok(KernelId(self.kernels.len() - 1))
    }

    unsafe fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DriverError> {
        self.bind()?;
        let kernel = &mut self.kernels[launch.kernel.0];
        let args = launch.args.bytes();
        let why =
            |why: &dyn std::fmt::Display| DriverError::call(format!("kernel {}", kernel.name), why);
        if args.len() != kernel.bytes {
            return Err(why(&format!("a struct of {} bytes, not {}", args.len(), kernel.bytes)));
        }
        if launch.shared > kernel.shared {
            let attribute =
                sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function exists.
            unsafe {
                result::function::set_function_attribute(
                    kernel.function,
                    attribute,
                    launch.shared as i32,
                )
            }
            .map_err(|error| why(&failed("cuFuncSetAttribute")(error)))?;
            kernel.shared = launch.shared;
        }
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        let mut attributes = attributes(self.properties.capability);
        let config = sys::CUlaunchConfig {
            gridDimX: gx,
            gridDimY: gy,
            gridDimZ: gz,
            blockDimX: bx,
            blockDimY: by,
            blockDimZ: bz,
            sharedMemBytes: launch.shared,
            hStream: self.stream,
            numAttrs: u32::from(attributes.is_some()),
            attrs: attributes.as_mut().map_or(ptr::null_mut(), ptr::from_mut),
        };
        let mut params = [args.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: `args` has the size of the kernel's only parameter (compared above), and the call copies it; what its
        // addresses point at is memory of this driver (contract of `launch`).
        unsafe {
            sys::cuLaunchKernelEx(&config, kernel.function, params.as_mut_ptr(), ptr::null_mut())
        }
        .result()
        .map_err(|error| why(&failed("cuLaunchKernelEx")(error)))
    }

    fn begin(&mut self) -> Result<(), DriverError> {
        if self.began.is_some() {
            return Ok(());
        }
        self.bind()?;
        let mut signal = self.unused_signal()?;
        // SAFETY: the signal was taken from the unused ones, so nothing waits for its events.
        unsafe { result::event::record(signal.start, self.stream) }
            .map_err(failed("cuEventRecord"))?;
        signal.timed = true;
        self.began = Some(signal);
        Ok(())
    }

    unsafe fn mark(&mut self, report: Address) -> Result<QueueMark, DriverError> {
        self.bind()?;
        let signal = match self.began.take() {
            Some(signal) => signal,
            None => self.unused_signal()?,
        };
        // SAFETY: the signal was taken from the unused ones, so nothing waits for its event or writes its `report`,
        // which is pinned memory of this size; `report` on the device is a `FaultReport` (contract of `mark`).
        unsafe {
            // The time ends before the report is copied: what is measured is the work.
            result::event::record(signal.end, self.stream).map_err(failed("cuEventRecord"))?;
            let words = &mut *signal.report;
            result::memcpy_dtoh_async(words, report.0, self.stream)
                .map_err(failed("cuMemcpyDtoHAsync"))?;
            result::event::record(signal.reported, self.stream).map_err(failed("cuEventRecord"))?;
        }
        self.last_mark += 1;
        self.marks.push_back((self.last_mark, signal));
        Ok(QueueMark(self.last_mark))
    }

    fn wait(&mut self, mark: QueueMark) -> Result<Passed, DriverError> {
        self.bind()?;
        while let Some(&(_, signal)) = self.marks.front().filter(|(number, _)| *number <= mark.0) {
            // SAFETY: the events exist, and the report is written before the second one is passed.
            unsafe {
                result::event::synchronize(signal.reported)
                    .map_err(failed("cuEventSynchronize"))?;
                let report = signal.report.read();
                // A fault reported at an earlier mark is kept until someone waits.
                if report != FaultReport::default() || self.passed.report == FaultReport::default()
                {
                    self.passed.report = report;
                }
                if signal.timed {
                    let ms = result::event::elapsed(signal.start, signal.end)
                        .map_err(failed("cuEventElapsedTime"))?;
                    self.passed.busy += Duration::from_secs_f32(ms.max(0.0) / 1e3);
                }
            }
            self.marks.pop_front();
            self.signals.push(Signal { timed: false, ..signal });
        }
        Ok(std::mem::take(&mut self.passed))
    }

    fn reach(&mut self, mark: QueueMark) -> Result<(), DriverError> {
        self.bind()?;
        // A mark that is not there was waited for.
        let Some(&(_, signal)) = self.marks.iter().find(|(number, _)| *number == mark.0) else {
            return Ok(());
        };
        // SAFETY: the event exists: its mark was not waited for.
        unsafe { result::event::synchronize(signal.reported) }.map_err(failed("cuEventSynchronize"))
    }

    fn begin_recording(&mut self) -> Result<(), DriverError> {
        self.bind()?;
        // Other threads may go on: a relaxed capture forbids them nothing.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream exists.
        unsafe { result::stream::begin_capture(self.stream, mode) }
            .map_err(failed("cuStreamBeginCapture"))
    }

    fn end_recording(&mut self) -> Result<GraphId, DriverError> {
        self.bind()?;
        let mut ready = ptr::null_mut();
        // SAFETY: the stream is being captured; the graph is destroyed once it was instantiated.
        unsafe {
            let graph =
                result::stream::end_capture(self.stream).map_err(failed("cuStreamEndCapture"))?;
            let made = sys::cuGraphInstantiateWithFlags(&mut ready, graph, 0).result();
            let _ = result::graph::destroy(graph);
            made.map_err(failed("cuGraphInstantiate"))?;
        }
        self.last_graph += 1;
        self.graphs.insert(self.last_graph, ready);
        Ok(GraphId(self.last_graph))
    }

    unsafe fn replay(&mut self, graph: GraphId) -> Result<(), DriverError> {
        self.bind()?;
        let missing = || DriverError::call("cuGraphLaunch", "a graph that was released");
        let ready = *self.graphs.get(&graph.0).ok_or_else(missing)?;
        // SAFETY: the graph was instantiated and not destroyed; what its launches refer to is memory of this driver
        // (contract of `replay`).
        unsafe { result::graph::launch(ready, self.stream) }.map_err(failed("cuGraphLaunch"))
    }

    fn release(&mut self, graph: GraphId) -> Result<(), DriverError> {
        self.bind()?;
        let Some(ready) = self.graphs.remove(&graph.0) else { return Ok(()) };
        // SAFETY: the graph was instantiated, and nobody finds it again; CUDA keeps what runs until it has ended.
        unsafe { result::graph::exec_destroy(ready) }.map_err(failed("cuGraphExecDestroy"))
    }

    fn synchronize(&mut self) -> Result<(), DriverError> {
        self.bind()?;
        // SAFETY: the stream exists.
        unsafe { result::stream::synchronize(self.stream) }.map_err(failed("cuStreamSynchronize"))
    }

    fn stream(&self) -> u64 {
        self.stream as u64
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        // SAFETY: everything was made by this driver and is not used again. Errors are ignored: `drop` cannot return
        // them.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            for (_, graph) in self.graphs.drain() {
                let _ = result::graph::exec_destroy(graph);
            }
            let marks = self.marks.drain(..).map(|(_, signal)| signal);
            for signal in marks.chain(self.signals.drain(..)).chain(self.began.take()) {
                for event in [signal.start, signal.end, signal.reported] {
                    let _ = result::event::destroy(event);
                }
                let _ = result::free_host(signal.report.cast());
            }
            for module in self.modules.drain(..) {
                let _ = result::module::unload(module);
            }
            for at in self.pinned.drain() {
                let _ = result::free_host(at as *mut c_void);
            }
            for piece in self.pieces.drain(..) {
                let _ = result::event::destroy(piece.copied);
                let _ = result::free_host(piece.at.cast());
            }
            if !self.staging.is_null() {
                let _ = result::free_host(self.staging.cast());
            }
            if !self.stream.is_null() {
                let _ = result::stream::destroy(self.stream);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependent_launches_are_requested_from_sm_90_on() {
        for (capability, dependent) in
            [([8, 0], false), ([8, 9], false), ([9, 0], true), ([12, 0], true)]
        {
            assert_eq!(attributes(capability).is_some(), dependent, "{capability:?}");
        }
    }
}
