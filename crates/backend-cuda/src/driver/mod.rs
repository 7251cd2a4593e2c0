//! What the device needs of a GPU, as one object-safe trait with two implementations.
//!
//! Everything is queued on one stream, in order. Addresses are device memory; kernels take one struct by
//! value, which the host writes as [`Args`].

mod args;
mod cache;
#[cfg(feature = "emulated")]
mod emulated;
mod gpu;
mod nvrtc;

pub use args::{Args, Argument};
#[cfg(feature = "emulated")]
pub use emulated::Emulated;
pub use gpu::Gpu;
pub use nvrtc::compile;

use std::fmt;
use std::time::Duration;

/// Most bytes of a piece of memory through which weights reach the device.
pub const STAGE: usize = forerun_backend::STAGING / 2;

/// Device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(pub u64);

impl Address {
    /// No memory.
    pub const NULL: Self = Self(0);

    /// So many bytes further on.
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// Pinned memory of the host, which the queue copies to and from while the host goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostAddress(pub u64);

impl HostAddress {
    /// So many bytes further on.
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// Kernels that were compiled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModuleId(pub(crate) usize);

/// One kernel of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelId(pub(crate) usize);

/// A point in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueMark(pub u64);

/// Work that was recorded, to be run any number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphId(pub(crate) u64);

/// What [`Driver::wait`] tells of the work up to a mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// The first bad index.
    pub report: FaultReport,
    /// How long the device itself was at it, from each [`Driver::begin`] to its mark.
    pub busy: Duration,
}

/// The words in which kernels record the first bad index: where it was found, the index, its limit; zero without one.
pub type FaultReport = [u32; 4];

/// CUDA C++ without headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSource {
    /// Names it in errors.
    pub name: &'static str,
    /// The text, in parts that follow each other; the first is [`crate::PRELUDE`].
    pub parts: &'static [&'static str],
    /// Numbers that the text is compiled with, as macros; those without a name are none.
    pub defines: [(&'static str, i64); KernelSource::MOST_DEFINES],
}

impl KernelSource {
    /// Most macros of a text.
    pub const MOST_DEFINES: usize = 8;

    /// A text without numbers of its own.
    pub const fn new(name: &'static str, parts: &'static [&'static str]) -> Self {
        Self { name, parts, defines: [("", 0); Self::MOST_DEFINES] }
    }

    /// Tells texts apart by their name and macros, quickly.
    pub fn tag(&self) -> u64 {
        // FNV-1a.
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let mut hash = self.name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
        for (name, value) in self.defines.iter().take_while(|(name, _)| !name.is_empty()) {
            hash = name.bytes().chain(value.to_le_bytes()).fold(hash, step);
        }
        hash
    }

    /// The same text with a macro set.
    ///
    /// # Panics
    /// When there are too many.
    pub const fn with(mut self, name: &'static str, value: i64) -> Self {
        let mut at = 0;
        while !self.defines[at].0.is_empty() {
            at += 1;
        }
        self.defines[at] = (name, value);
        self
    }

    /// The whole text; each part counts its own lines.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.defines.iter().filter(|(name, _)| !name.is_empty()) {
            text += &format!("#define {name} {value}\n");
        }
        let last = self.parts.len().saturating_sub(1);
        for (i, part) in self.parts.iter().enumerate() {
            let file = if i == last { format!("{}.cu", self.name) } else { format!("part-{i}") };
            text += &format!("#line 1 \"{file}\"\n{part}\n");
        }
        text
    }
}

/// A kernel's run. From sm_90 on a kernel may start before the one queued before it has ended (programmatic dependent
/// launch): each calls `wait_for_previous` before it reads that kernel's results, see `prelude.cuh`.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: KernelId,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The kernel's struct.
    pub args: &'a Args,
}

impl<'a> Launch<'a> {
    /// Blocks of threads in one dimension, nothing else.
    pub const fn line(kernel: KernelId, blocks: u32, threads: u32, args: &'a Args) -> Self {
        Self { kernel, grid: [blocks, 1, 1], block: [threads, 1, 1], shared: 0, args }
    }
}

/// Bytes of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Not allocated.
    pub free: u64,
    /// All there are.
    pub total: u64,
}

/// The device behind a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Name, for the user.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: [u32; 2],
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a block can have.
    pub shared_per_block: u32,
}

impl Properties {
    /// The architecture to compile for, as NVRTC names it.
    pub fn arch(&self) -> String {
        let [major, minor] = self.capability;
        // Instructions of sm_90a exist on that architecture alone.
        format!("sm_{major}{minor}{}", if major == 9 { "a" } else { "" })
    }
}

/// Why a call of the driver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// A library that is not there.
    #[error("{library} is not there: {hint}")]
    Missing {
        /// The library.
        library: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// There is no such device.
    #[error("no CUDA device {index}: {count} found")]
    NoDevice {
        /// Requested.
        index: usize,
        /// Found.
        count: usize,
    },
    /// Out of device memory.
    #[error("no device memory for {bytes} bytes; {free} are free")]
    Memory {
        /// Requested.
        bytes: u64,
        /// Free.
        free: u64,
    },
    /// A kernel's text was refused.
    #[error("kernels `{name}` do not compile for {arch}: {log}")]
    Compile {
        /// The family.
        name: String,
        /// For which architecture.
        arch: String,
        /// The compiler's messages.
        log: String,
    },
    /// A call failed.
    #[error("{call}: {why}")]
    Call {
        /// The call.
        call: String,
        /// The driver's message.
        why: String,
    },
}

impl DriverError {
    pub(crate) fn call(call: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::Call { call: call.to_string(), why: why.to_string() }
    }
}

/// A GPU, or its emulation. Copies and kernels are queued on one stream and run in order.
///
/// *Memory of this driver* is what [`Driver::alloc`] returned and [`Driver::free`] has not been called for; *pinned
/// memory of this driver* the same of [`Driver::alloc_host`] and [`Driver::free_host`].
pub trait Driver: Send {
    /// The device.
    fn properties(&self) -> &Properties;

    /// Bytes of device memory now.
    fn memory(&self) -> Result<MemoryInfo, DriverError>;

    /// Makes `bytes` of memory, aligned to 256 bytes; never none.
    fn alloc(&mut self, bytes: u64) -> Result<Address, DriverError>;

    /// Gives memory back, once the queue no longer uses it.
    ///
    /// # Safety
    /// `address` is the beginning of memory of this driver, and nothing queued later refers to it.
    unsafe fn free(&mut self, address: Address) -> Result<(), DriverError>;

    /// Queues a copy to the device; `from` may be reused on return.
    ///
    /// # Safety
    /// The `from.len()` bytes at `to` are memory of this driver.
    unsafe fn copy_in(&mut self, to: Address, from: &[u8]) -> Result<(), DriverError>;

    /// Pinned memory of the host to fill for [`Driver::copy_staged`]: `bytes` of them, at most [`STAGE`]. Two pieces
    /// take turns; waits until the copy that had this one is over.
    fn stage(&mut self, bytes: usize) -> Result<&mut [u8], DriverError>;

    /// Queues a copy of the first bytes of the piece that was taken last, which nobody writes to before the next
    /// [`Driver::stage`].
    ///
    /// # Safety
    /// The `bytes` bytes at `to` are memory of this driver.
    unsafe fn copy_staged(&mut self, to: Address, bytes: usize) -> Result<(), DriverError>;

    /// Copies to the host, and waits for it.
    ///
    /// # Safety
    /// The `to.len()` bytes at `from` are memory of this driver.
    unsafe fn copy_out(&mut self, from: Address, to: &mut [u8]) -> Result<(), DriverError>;

    /// Queues a copy within the device.
    ///
    /// # Safety
    /// The `bytes` bytes at `to` and those at `from` are memory of this driver and do not overlap.
    unsafe fn copy(&mut self, to: Address, from: Address, bytes: u64) -> Result<(), DriverError>;

    /// Queues setting bytes to `value`.
    ///
    /// # Safety
    /// The `bytes` bytes at `to` are memory of this driver.
    unsafe fn fill(&mut self, to: Address, value: u8, bytes: u64) -> Result<(), DriverError>;

    /// Makes `bytes` of pinned memory on the host; never none.
    fn alloc_host(&mut self, bytes: usize) -> Result<HostAddress, DriverError>;

    /// Gives pinned memory back, once the queue no longer uses it.
    ///
    /// # Safety
    /// `at` is the beginning of pinned memory of this driver, and nothing queued later refers to it.
    unsafe fn free_host(&mut self, at: HostAddress) -> Result<(), DriverError>;

    /// Queues a copy to pinned memory.
    ///
    /// # Safety
    /// The `bytes` bytes at `from` are memory of this driver, those at `to` pinned memory of it, which nobody
    /// reads before the queue has passed the copy.
    unsafe fn queue_to_host(
        &mut self,
        to: HostAddress,
        from: Address,
        bytes: u64,
    ) -> Result<(), DriverError>;

    /// Queues a copy from pinned memory.
    ///
    /// # Safety
    /// The `bytes` bytes at `to` are memory of this driver, those at `from` pinned memory of it, which only
    /// the queue writes to until it has passed the copy.
    unsafe fn queue_from_host(
        &mut self,
        to: Address,
        from: HostAddress,
        bytes: u64,
    ) -> Result<(), DriverError>;

    /// Reads pinned memory.
    ///
    /// # Safety
    /// The `to.len()` bytes at `from` are pinned memory of this driver, and the queue has passed everything
    /// that writes to them.
    unsafe fn read_host(&self, from: HostAddress, to: &mut [u8]);

    /// Compiles a source, or finds it compiled.
    fn load(&mut self, source: &KernelSource) -> Result<ModuleId, DriverError>;

    /// A kernel by its name.
    fn kernel(&mut self, module: ModuleId, name: &str) -> Result<KernelId, DriverError>;

    /// Queues a kernel.
    ///
    /// # Safety
    /// `launch.args` has the fields of the kernel's parameter struct in their order, and everything that the kernel
    /// reads and writes through their addresses, for this grid, is memory of this driver.
    unsafe fn launch(&mut self, launch: &Launch<'_>) -> Result<(), DriverError>;

    /// Notes that the work of the next mark begins here, unless it has begun.
    fn begin(&mut self) -> Result<(), DriverError>;

    /// Records what is queued from now on instead of running it. Only launches, copies within the device and fills may
    /// follow, of kernels that have run before.
    fn begin_recording(&mut self) -> Result<(), DriverError>;

    /// Ends the recording, and makes it ready to run.
    fn end_recording(&mut self) -> Result<GraphId, DriverError>;

    /// Queues what was recorded, with the same arguments.
    ///
    /// # Safety
    /// The contracts of what was recorded hold still: in particular its memory was not freed.
    unsafe fn replay(&mut self, graph: GraphId) -> Result<(), DriverError>;

    /// Forgets a recording; one that is queued still runs.
    fn release(&mut self, graph: GraphId) -> Result<(), DriverError>;

    /// Marks the end of the queue, and has the words at `report` brought to the host by then.
    ///
    /// # Safety
    /// `report` is a [`FaultReport`] in memory of this driver.
    unsafe fn mark(&mut self, report: Address) -> Result<QueueMark, DriverError>;

    /// Waits until a mark is passed; what is known of the work up to there since the last wait.
    fn wait(&mut self, mark: QueueMark) -> Result<Passed, DriverError>;

    /// Waits until a mark is passed, and leaves its report to `wait`.
    fn reach(&mut self, mark: QueueMark) -> Result<(), DriverError>;

    /// Waits until the queue is empty.
    fn synchronize(&mut self) -> Result<(), DriverError>;

    /// The stream, for libraries that queue work of their own; 0 where there is none.
    fn stream(&self) -> u64;
}
