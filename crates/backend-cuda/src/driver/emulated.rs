//! The driver that runs kernels on the CPU: their text goes through g++ into a library of one module.
//!
//! Device memory is host memory, and a launch has ended when it returns. Libraries are kept in a folder under a name
//! that follows from the text, so a text is compiled once.

use super::{
    Address, Args, Driver, DriverError, FaultReport, GraphId, HostAddress, KernelId, KernelSource,
    Launch, MemoryInfo, ModuleId, Passed, Properties, QueueMark, cache,
};
use libloading::{Library, Symbol};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, process, ptr, slice};

/// CUDA's built-ins.
const SHIM: &str = include_str!("../../kernels/emulated.h");
/// Alignment that devices promise.
const ALIGN: usize = 256;
/// What a launch fills new memory with: not a number, and no index.
const POISON: u8 = 0xff;

type KernelEntry = unsafe extern "C" fn(*const c_void);
type RunFn =
    unsafe extern "C" fn(KernelEntry, *const c_void, *const u32, *const u32, u32) -> *const c_char;

/// One module: its library runs one launch at a time.
struct LoadedModule {
    name: String,
    library: Library,
    run: RunFn,
}

struct LoadedKernel {
    module: usize,
    name: String,
    entry: KernelEntry,
    bytes: u32,
}

/// See the module's text.
pub struct Emulated {
    properties: Properties,
    folder: PathBuf,
    modules: Vec<Arc<Mutex<LoadedModule>>>,
    kernels: Vec<LoadedKernel>,
    memory: HashMap<u64, Layout>,
    pinned: HashMap<u64, Layout>,
    staged: Vec<u8>,
    /// Bytes allocated, of [`Emulated::TOTAL`].
    taken: u64,
    marks: Vec<FaultReport>,
    /// When the work of the next mark began.
    began: Option<Instant>,
    /// How long the work of marks took that nobody has waited for.
    busy: Duration,
    /// What is being recorded.
    recording: Option<Vec<Recorded>>,
    graphs: Vec<Vec<Recorded>>,
}

/// Something that can be recorded.
#[derive(Clone, Debug)]
enum Recorded {
    Launch { kernel: KernelId, grid: [u32; 3], block: [u32; 3], shared: u32, args: Box<Args> },
    Copy { to: Address, from: Address, bytes: u64 },
    Fill { to: Address, value: u8, bytes: u64 },
}

/// Libraries of this process by file: a second copy would be the same one, with the same shared memory.
static LOADED: Mutex<Option<HashMap<PathBuf, Arc<Mutex<LoadedModule>>>>> = Mutex::new(None);

impl Emulated {
    /// Bytes of device memory.
    pub const TOTAL: u64 = 4 << 30;

    /// A device whose libraries are kept in `folder`.
    pub fn new(folder: &Path) -> Self {
        Self {
            properties: Properties {
                name: "CUDA kernels on the CPU".to_owned(),
                capability: [9, 0],
                multiprocessors: 4,
                shared_per_block: 227 << 10,
            },
            folder: folder.to_owned(),
            modules: Vec::new(),
            kernels: Vec::new(),
            memory: HashMap::new(),
            pinned: HashMap::new(),
            staged: Vec::new(),
            taken: 0,
            marks: Vec::new(),
            began: None,
            busy: Duration::ZERO,
            recording: None,
            graphs: Vec::new(),
        }
    }

    /// Options of g++: the arithmetic that CUDA's are chosen for, and fused multiply-adds as instructions where there
    /// are any.
    fn options() -> Vec<&'static str> {
        let mut options = vec![
            "-std=c++17",
            "-O1",
            "-fPIC",
            "-shared",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-fno-stack-protector",
            // Shared memory of an inline function would be one for all libraries of the process.
            "-fno-gnu-unique",
            "-fvisibility-inlines-hidden",
            "-w",
            "-DFORERUN_EMULATED",
            "-D__CUDA_ARCH__=900",
        ];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("fma") {
            options.push("-mfma");
        }
        options
    }

    /// The library of a source, compiled unless it is there.
    fn build(&self, source: &KernelSource) -> Result<PathBuf, DriverError> {
        let options = Self::options();
        let text = format!("#line 1 \"emulated.h\"\n{SHIM}\n{}", source.text());
        let key = cache::key(&[text.as_bytes(), options.join(" ").as_bytes()]);
        let to = self.folder.join(format!("{}-{key}.so", source.name));
        if to.exists() {
            return Ok(to);
        }
        let failed = |what: &str, why: std::io::Error| DriverError::call(what, why);
        cache::make_private(&self.folder).map_err(|why| failed("make the folder", why))?;
        let from = self.folder.join(format!("{}-{key}-{}.cpp", source.name, process::id()));
        let new = to.with_extension(format!("{}.so", process::id()));
        fs::write(&from, text).map_err(|why| failed("write the text", why))?;
        let mut gcc = Command::new("g++");
        gcc.args(&options).arg("-o").arg(&new).arg(&from);
        let done = gcc.output().map_err(|why| failed("g++", why))?;
        let _ = fs::remove_file(&from);
        if !done.status.success() {
            return Err(DriverError::Compile {
                name: source.name.to_owned(),
                arch: "g++".to_owned(),
                log: String::from_utf8_lossy(&done.stderr).into_owned(),
            });
        }
        fs::rename(&new, &to).map_err(|why| failed("keep the library", why))?;
        Ok(to)
    }

    /// Memory that is no number and no index; none where there is too little.
    fn poisoned(bytes: usize) -> Option<(u64, Layout)> {
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).ok()?;
        // SAFETY: the layout has at least one byte.
        let memory = unsafe { alloc_zeroed(layout) };
        if memory.is_null() {
            return None;
        }
        // SAFETY: the memory was just made with this size.
        unsafe { ptr::write_bytes(memory, POISON, layout.size()) };
        Some((memory as u64, layout))
    }

    fn open(path: &Path, name: &str) -> Result<LoadedModule, DriverError> {
        // SAFETY: the library was made of our text, which does nothing when it is loaded.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|why| DriverError::call("dlopen", why))?;
        // SAFETY: emulated.h defines the function with this type.
        let run = unsafe { library.get::<RunFn>(b"forerun_launch") };
        let run = *run.map_err(|why| DriverError::call("forerun_launch", why))?;
        Ok(LoadedModule { name: name.to_owned(), library, run })
    }
}

impl Driver for Emulated {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory(&self) -> Result<MemoryInfo, DriverError> {
        Ok(MemoryInfo { free: Self::TOTAL - self.taken, total: Self::TOTAL })
    }

    fn alloc(&mut self, bytes: u64) -> Result<Address, DriverError> {
        let bytes = bytes.max(1);
        let free = Self::TOTAL - self.taken;
        let none = DriverError::Memory { bytes, free };
        let size = usize::try_from(bytes).ok().filter(|_| bytes <= free).ok_or(none.clone())?;
        let (address, layout) = Self::poisoned(size).ok_or(none)?;
        self.taken += bytes;
        self.memory.insert(address, layout);
        Ok(Address(address))
    }

    unsafe fn free(&mut self, address: Address) -> Result<(), DriverError> {
        let Some(layout) = self.memory.remove(&address.0) else {
            return Err(DriverError::call("free", "memory that was not allocated"));
        };
        self.taken -= layout.size() as u64;
        // SAFETY: the memory was made with this layout, and is forgotten.
        unsafe { dealloc(address.0 as *mut u8, layout) };
        Ok(())
    }

    fn stage(&mut self, bytes: usize) -> Result<&mut [u8], DriverError> {
        self.staged.resize(bytes, 0);
        Ok(&mut self.staged)
    }

    unsafe fn copy_staged(&mut self, to: Address, bytes: usize) -> Result<(), DriverError> {
        let staged = std::mem::take(&mut self.staged);
        // SAFETY: the bytes at `to` are memory of this driver (contract of `copy_staged`).
        let done = unsafe { self.copy_in(to, &staged[..bytes]) };
        self.staged = staged;
        done
    }

    unsafe fn copy_in(&mut self, to: Address, from: &[u8]) -> Result<(), DriverError> {
        // SAFETY: the bytes at `to` are memory of this driver (contract of `copy_in`), which no slice of the caller
        // overlaps.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.0 as *mut u8, from.len()) };
        Ok(())
    }

    unsafe fn copy_out(&mut self, from: Address, to: &mut [u8]) -> Result<(), DriverError> {
        if !to.is_empty() {
            // SAFETY: the bytes at `from` are memory of this driver (contract of `copy_out`), which was zeroed when it
            // was made.
            to.copy_from_slice(unsafe { slice::from_raw_parts(from.0 as *const u8, to.len()) });
        }
        Ok(())
    }

    unsafe fn copy(&mut self, to: Address, from: Address, bytes: u64) -> Result<(), DriverError> {
        if let Some(recording) = &mut self.recording {
            recording.push(Recorded::Copy { to, from, bytes });
            return Ok(());
        }
        // SAFETY: both ranges are memory of this driver and do not overlap (contract of `copy`).
        unsafe { ptr::copy_nonoverlapping(from.0 as *const u8, to.0 as *mut u8, bytes as usize) };
        Ok(())
    }

    unsafe fn fill(&mut self, to: Address, value: u8, bytes: u64) -> Result<(), DriverError> {
        if let Some(recording) = &mut self.recording {
            recording.push(Recorded::Fill { to, value, bytes });
            return Ok(());
        }
        // SAFETY: the bytes are memory of this driver (contract of `fill`).
        unsafe { ptr::write_bytes(to.0 as *mut u8, value, bytes as usize) };
        Ok(())
    }

    fn alloc_host(&mut self, bytes: usize) -> Result<HostAddress, DriverError> {
        let none = || DriverError::call("alloc_host", format!("no memory for {bytes} bytes"));
        let (address, layout) = Self::poisoned(bytes).ok_or_else(none)?;
        self.pinned.insert(address, layout);
        Ok(HostAddress(address))
    }

    unsafe fn free_host(&mut self, at: HostAddress) -> Result<(), DriverError> {
        let Some(layout) = self.pinned.remove(&at.0) else {
            return Err(DriverError::call("free_host", "memory that was not allocated"));
        };
        // SAFETY: the memory was made with this layout, and is forgotten.
        unsafe { dealloc(at.0 as *mut u8, layout) };
        Ok(())
    }

    unsafe fn queue_to_host(
        &mut self,
        to: HostAddress,
        from: Address,
        bytes: u64,
    ) -> Result<(), DriverError> {
        // SAFETY: both ranges are memory of this driver of two kinds, so they do not overlap (contract of
        // `queue_to_host`).
        unsafe { ptr::copy_nonoverlapping(from.0 as *const u8, to.0 as *mut u8, bytes as usize) };
        Ok(())
    }

    unsafe fn queue_from_host(
        &mut self,
        to: Address,
        from: HostAddress,
        bytes: u64,
    ) -> Result<(), DriverError> {
        // SAFETY: both ranges are memory of this driver of two kinds, so they do not overlap (contract of
        // `queue_from_host`).
        unsafe { ptr::copy_nonoverlapping(from.0 as *const u8, to.0 as *mut u8, bytes as usize) };
        Ok(())
    }

    unsafe fn read_host(&self, from: HostAddress, to: &mut [u8]) {
        // SAFETY: the bytes are pinned memory of this driver (contract of `read_host`), which was filled when it was
        // made.
        to.copy_from_slice(unsafe { slice::from_raw_parts(from.0 as *const u8, to.len()) });
    }

    fn load(&mut self, source: &KernelSource) -> Result<ModuleId, DriverError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = loaded.get_or_insert_with(HashMap::new);
        let path = self.build(source)?;
        let module = match loaded.get(&path) {
            Some(module) => module.clone(),
            None => {
                let module = Arc::new(Mutex::new(Self::open(&path, source.name)?));
                loaded.insert(path, module.clone());
                module
            }
        };
        self.modules.push(module);
        Ok(ModuleId(self.modules.len() - 1))
    }

    fn kernel(&mut self, module: ModuleId, name: &str) -> Result<KernelId, DriverError> {
        let loaded = self.modules[module.0].lock().unwrap_or_else(PoisonError::into_inner);
        let missing = |why| DriverError::call(format!("kernel {}::{name}", loaded.name), why);
        // SAFETY: the macro KERNEL defines an entry of this type for each name, and its struct's size.
        let (entry, bytes) = unsafe {
            let entry: Symbol<'_, KernelEntry> =
                loaded.library.get(name.as_bytes()).map_err(missing)?;
            let bytes: Symbol<'_, *const u32> =
                loaded.library.get(format!("{name}_bytes").as_bytes()).map_err(missing)?;
            (*entry, **bytes)
        };
        self.kernels.push(LoadedKernel { module: module.0, name: name.to_owned(), entry, bytes });
        Ok(KernelId(self.kernels.len() - 1))
    }

    unsafe fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DriverError> {
        if let Some(recording) = &mut self.recording {
            let Launch { kernel, grid, block, shared, args, .. } = *launch;
            let args = Box::new(args.clone());
            recording.push(Recorded::Launch { kernel, grid, block, shared, args });
            return Ok(());
        }
        let kernel = &self.kernels[launch.kernel.0];
        let failed = |why: &str| Err(DriverError::call(format!("kernel {}", kernel.name), why));
        let args = launch.args.bytes();
        if args.len() != kernel.bytes as usize {
            return failed(&format!("a struct of {} bytes, not {}", args.len(), kernel.bytes));
        }
        if launch.shared > self.properties.shared_per_block {
            return failed(&format!("{} bytes of shared memory", launch.shared));
        }
        // Fields want their alignment.
        let mut aligned = [0_u64; 64];
        for (word, bytes) in aligned.iter_mut().zip(args.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        let module = self.modules[kernel.module].lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the entry and its library live on, the struct has the kernel's size, the lock keeps other launches of
        // this library away, and what the struct points at is memory of this driver (contract of `launch`).
        let why = unsafe {
            let (grid, block) = (launch.grid.as_ptr(), launch.block.as_ptr());
            (module.run)(kernel.entry, aligned.as_ptr().cast(), grid, block, launch.shared)
        };
        if why.is_null() {
            return Ok(());
        }
        // SAFETY: what is not null is a text of the library.
        failed(&unsafe { CStr::from_ptr(why) }.to_string_lossy())
    }

    fn begin(&mut self) -> Result<(), DriverError> {
        self.began.get_or_insert_with(Instant::now);
        Ok(())
    }

    fn begin_recording(&mut self) -> Result<(), DriverError> {
        self.recording = Some(Vec::new());
        Ok(())
    }

    fn end_recording(&mut self) -> Result<GraphId, DriverError> {
        let none = || DriverError::call("end_recording", "nothing is recorded");
        self.graphs.push(self.recording.take().ok_or_else(none)?);
        Ok(GraphId(self.graphs.len() as u64 - 1))
    }

    unsafe fn replay(&mut self, graph: GraphId) -> Result<(), DriverError> {
        let none = || DriverError::call("replay", "a graph that was not recorded");
        let graph = self.graphs.get(graph.0 as usize).cloned().ok_or_else(none)?;
        for recorded in graph {
            // SAFETY: the contracts of what was recorded hold still (contract of `replay`).
            unsafe {
                match recorded {
                    Recorded::Copy { to, from, bytes } => self.copy(to, from, bytes)?,
                    Recorded::Fill { to, value, bytes } => self.fill(to, value, bytes)?,
                    Recorded::Launch { kernel, grid, block, shared, args } => {
                        let line = Launch::line(kernel, 1, 1, &args);
                        self.launch(&Launch { grid, block, shared, ..line })?;
                    }
                }
            }
        }
        Ok(())
    }

    fn release(&mut self, graph: GraphId) -> Result<(), DriverError> {
        if let Some(graph) = self.graphs.get_mut(graph.0 as usize) {
            graph.clear();
        }
        Ok(())
    }

    unsafe fn mark(&mut self, report: Address) -> Result<QueueMark, DriverError> {
        // SAFETY: `report` is a `FaultReport` in memory of this driver (contract of `mark`).
        let words = unsafe { ptr::read_unaligned(report.0 as *const FaultReport) };
        self.marks.push(words);
        self.busy += self.began.take().map_or(Duration::ZERO, |began| began.elapsed());
        Ok(QueueMark(self.marks.len() as u64))
    }

    fn wait(&mut self, mark: QueueMark) -> Result<Passed, DriverError> {
        let at = usize::try_from(mark.0).ok().and_then(|number| number.checked_sub(1));
        let report = at.and_then(|at| self.marks.get(at)).copied().unwrap_or_default();
        Ok(Passed { report, busy: std::mem::take(&mut self.busy) })
    }

    fn reach(&mut self, _mark: QueueMark) -> Result<(), DriverError> {
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), DriverError> {
        Ok(())
    }

    fn stream(&self) -> u64 {
        0
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        for (address, layout) in self.memory.drain().chain(self.pinned.drain()) {
            // SAFETY: the memory was made with this layout, and the device that could use it is gone.
            unsafe { dealloc(address as *mut u8, layout) };
        }
    }
}
