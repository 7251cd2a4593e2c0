//! The execution context of tuned operations: instruction set, threads and their scratch.

use super::Scratch;
use super::isa::Task;
use super::partition::Partition;
use super::portable::Portable;
use super::prologue::WithPrologue;
use crate::cores::Cores;
use crate::gemm::amx::Amx;
use crate::gemm::int8::Int8Gemm;
use crate::gemm::packed_rows::{InputRows, PackedRowsCache};
use crate::gemm::packed_weight::PackRowsTask;
use crate::gemm::product::GemmInput;
use crate::pool::Pool;
use crate::weight::Weight;

#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};

/// An instruction set by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say all there is to say")]
pub enum Level {
    Amx,
    Vnni,
    AvxVnni,
    Avx512,
    Avx2,
    I8mm,
    Dotprod,
    Neon,
    Portable,
}

impl Level {
    /// All, best first.
    pub const ALL: [Self; 9] = [
        Self::Amx,
        Self::Vnni,
        Self::AvxVnni,
        Self::Avx512,
        Self::Avx2,
        Self::I8mm,
        Self::Dotprod,
        Self::Neon,
        Self::Portable,
    ];

    /// Whether this processor has it.
    pub fn available(self) -> bool {
        AnyIsa::new(self).is_some()
    }

    /// A short name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx",
            Self::Vnni => "avx512-vnni",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::I8mm => "i8mm",
            Self::Dotprod => "dotprod",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }
}

/// An instruction set of this processor.
#[derive(Clone, Copy, Debug)]
enum AnyIsa {
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    Portable(Portable),
}

impl AnyIsa {
    fn new(level: Level) -> Option<Self> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Amx | Level::Vnni => {
                Int8Gemm::detect(level).and_then(|_| Self::new(Level::Avx512))
            }
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => Int8Gemm::detect(level).and_then(|_| Self::new(Level::Avx2)),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Avx512::detect().map(Self::Avx512),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Avx2::detect().map(Self::Avx2),
            #[cfg(target_arch = "aarch64")]
            Level::I8mm | Level::Dotprod => {
                Int8Gemm::detect(level).and_then(|_| Self::new(Level::Neon))
            }
            #[cfg(target_arch = "aarch64")]
            Level::Neon => Neon::detect().map(Self::Neon),
            Level::Portable => Some(Self::Portable(Portable)),
            // Of another architecture.
            _ => None,
        }
    }

    fn run<T: Task>(self, task: &T, index: usize, scratch: &mut Scratch) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => task.run(simd, index, scratch),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) => task.run(simd, index, scratch),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(simd) => task.run(simd, index, scratch),
            Self::Portable(simd) => task.run(simd, index, scratch),
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct ExecCtx {
    level: Level,
    isa: AnyIsa,
    /// The proof of AMX, where the level has it.
    amx: Option<Amx>,
    /// The proof of int8 products, where the level has them.
    int8: Option<Int8Gemm>,
    pool: Pool,
    scratch: Vec<Scratch>,
    /// The packed rows of the last product.
    packed_rows: PackedRowsCache,
}

impl ExecCtx {
    /// On `threads` threads, or as many as suit the machine; `None` if the processor does not have `level`.
    pub(crate) fn new(level: Level, threads: Option<usize>) -> Option<Self> {
        let isa = AnyIsa::new(level)?;
        let Cores { count, affinity } = Cores::of_machine();
        let threads = threads.unwrap_or(*count);
        // More threads than the chosen cores use the whole machine, unpinned.
        let pool = Pool::new(threads, if threads <= *count { affinity } else { &[] });
        let scratch = (0..pool.threads()).map(|_| Scratch::default()).collect();
        Some(Self {
            level,
            isa,
            amx: if level == Level::Amx { Amx::detect() } else { None },
            int8: Int8Gemm::detect(level),
            pool,
            scratch,
            packed_rows: PackedRowsCache::default(),
        })
    }

    /// Rounds activations to int8 where weights have integer codes; `None` without int8 products, and with AMX.
    pub(crate) fn rounding(self) -> Option<Self> {
        let int8 = self.int8?.rounding()?;
        Some(Self { int8: Some(int8), ..self })
    }

    /// Whether activations are rounded to int8.
    pub(crate) fn rounds(&self) -> bool {
        self.int8.is_some_and(Int8Gemm::rounds)
    }

    /// The proof of AMX, where the level has it.
    pub(crate) fn amx(&self) -> Option<Amx> {
        self.amx
    }

    /// The proof of int8 products, where the level has them.
    pub(crate) fn int8_gemm(&self) -> Option<Int8Gemm> {
        self.int8
    }

    /// Calls `work` with rows in the layout that `weights` need, and with the tasks that have to run before they are
    /// read.
    pub(crate) fn with_rows(
        &mut self,
        weights: &[&Weight],
        rows: InputRows<'_>,
        work: impl FnOnce(&mut Self, GemmInput<'_>, Option<PackRowsTask<'_>>),
    ) {
        let mut packed_rows = std::mem::take(&mut self.packed_rows);
        let (input, first) = packed_rows.input(self, weights, rows);
        work(self, input, first);
        self.packed_rows = packed_rows;
    }

    /// Runs `tasks` tasks on all threads, after the tasks of `first`.
    pub(crate) fn run_with_prologue<T: Task>(
        &mut self,
        first: Option<PackRowsTask<'_>>,
        tasks: usize,
        task: &T,
    ) {
        match first {
            // A single task would keep the other threads waiting.
            Some(first) if first.tasks() == 1 => {
                self.run_inline(1, &first);
                self.run(tasks, task);
            }
            Some(first) => self.run(tasks, &WithPrologue::new(first.tasks(), &first, task)),
            None => self.run(tasks, task),
        }
    }

    pub(crate) fn level(&self) -> Level {
        self.level
    }

    pub(crate) fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Reserves scratch on every thread, so that the assignment of tasks does not decide who allocates.
    pub(crate) fn reserve(&mut self, floats: usize, words: usize) {
        self.scratch.iter_mut().for_each(|s| s.reserve(floats, words));
    }

    /// Runs `tasks` tasks on all threads.
    pub(crate) fn run<T: Task>(&mut self, tasks: usize, task: &T) {
        let isa = self.isa;
        self.pool.each(tasks, &mut self.scratch, &|index, scratch| {
            isa.run(task, index, scratch);
        });
    }

    /// Runs `tasks` tasks on all threads if `parallel`, else on the calling thread.
    pub(crate) fn run_if<T: Task>(&mut self, parallel: bool, tasks: usize, task: &T) {
        if parallel { self.run(tasks, task) } else { self.run_inline(tasks, task) }
    }

    /// Runs `tasks` tasks on the calling thread: for work smaller than waking others.
    pub(crate) fn run_inline<T: Task>(&mut self, tasks: usize, task: &T) {
        (0..tasks).for_each(|index| self.isa.run(task, index, &mut self.scratch[0]));
    }

    /// How many parts of about equal size `len` elements are partitioned into: enough for every thread to have
    /// `per_thread`, but none smaller than `smallest`.
    pub(crate) fn parts(&self, len: usize, smallest: usize, per_thread: usize) -> usize {
        let most = if self.threads() == 1 { 1 } else { self.threads() * per_thread };
        (len / smallest.max(1)).clamp(1, most).min(len.max(1))
    }
}

/// Part `index` of `0..len` partitioned into `parts`, at multiples of `grain`.
pub(crate) fn part_of(
    len: usize,
    parts: usize,
    grain: usize,
    index: usize,
) -> std::ops::Range<usize> {
    Partition::equal(len, grain, parts).part(index)
}
