//! Instruction set, threads and their scratch: what every tuned operation runs on.

use super::Scratch;
use super::after::After;
use super::amx::Amx;
use super::digits::Units;
use super::isa::Task;
use super::packing::{Packing, Rows};
use super::pieces::Pieces;
use super::portable::Portable;
use super::product::Input;
use super::tiled::PackTask;
use crate::cores::Cores;
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
        Token::new(self).is_some()
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

/// An instruction set that is there.
#[derive(Clone, Copy, Debug)]
enum Token {
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    Portable(Portable),
}

impl Token {
    fn new(level: Level) -> Option<Self> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Amx | Level::Vnni => Units::detect(level).and_then(|_| Self::new(Level::Avx512)),
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => Units::detect(level).and_then(|_| Self::new(Level::Avx2)),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Avx512::detect().map(Self::Avx512),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Avx2::detect().map(Self::Avx2),
            #[cfg(target_arch = "aarch64")]
            Level::I8mm | Level::Dotprod => {
                Units::detect(level).and_then(|_| Self::new(Level::Neon))
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
pub(crate) struct Crew {
    level: Level,
    token: Token,
    /// The proof of tiles, where the level has them.
    amx: Option<Amx>,
    /// The proof of products of bytes, where the level has them.
    units: Option<Units>,
    pool: Pool,
    scratch: Vec<Scratch>,
    /// The rows of the last product.
    packing: Packing,
}

impl Crew {
    /// On `threads` threads, or as many as the machine has for us; `None` when the processor does not have `level`.
    pub(crate) fn new(level: Level, threads: Option<usize>) -> Option<Self> {
        let token = Token::new(level)?;
        let Cores { count, home } = Cores::of_machine();
        let threads = threads.unwrap_or(*count);
        // Who asks for more wants all of the machine.
        let pool = Pool::new(threads, if threads <= *count { home } else { &[] });
        let scratch = (0..pool.threads()).map(|_| Scratch::default()).collect();
        Some(Self {
            level,
            token,
            amx: if level == Level::Amx { Amx::detect() } else { None },
            units: Units::detect(level),
            pool,
            scratch,
            packing: Packing::default(),
        })
    }

    /// Rounds activations to one byte where weights have codes; `None` where they are not multiplied as bytes, or by tiles.
    pub(crate) fn rounding(self) -> Option<Self> {
        let units = self.units?.rounding()?;
        Some(Self { units: Some(units), ..self })
    }

    /// Whether activations are rounded so.
    pub(crate) fn rounds(&self) -> bool {
        self.units.is_some_and(Units::rounds)
    }

    /// The proof of tiles, where the level has them.
    pub(crate) fn amx(&self) -> Option<Amx> {
        self.amx
    }

    /// The proof of dot products of bytes, where the level has them.
    pub(crate) fn units(&self) -> Option<Units> {
        self.units
    }

    /// Does `work` with rows as `weights` want them, and with what its job has to do first.
    pub(super) fn with_rows(
        &mut self,
        weights: &[&Weight],
        rows: Rows<'_>,
        work: impl FnOnce(&mut Self, Input<'_>, Option<PackTask<'_>>),
    ) {
        let mut packing = std::mem::take(&mut self.packing);
        let (input, first) = packing.input(self, weights, rows);
        work(self, input, first);
        self.packing = packing;
    }

    /// Runs `tasks` tasks on all threads, after `first`.
    pub(super) fn run_after<T: Task>(
        &mut self,
        first: Option<PackTask<'_>>,
        tasks: usize,
        task: &T,
    ) {
        match first {
            // Others could only look on.
            Some(first) if first.tasks() == 1 => {
                self.run_here(1, &first);
                self.run(tasks, task);
            }
            Some(first) => self.run(tasks, &After::new(first.tasks(), &first, task)),
            None => self.run(tasks, task),
        }
    }

    pub(crate) fn level(&self) -> Level {
        self.level
    }

    pub(crate) fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Makes sure of scratch on every thread, so that who gets a task does not decide who allocates.
    pub(crate) fn reserve(&mut self, floats: usize, words: usize) {
        self.scratch.iter_mut().for_each(|s| s.reserve(floats, words));
    }

    /// Runs `tasks` tasks on all threads.
    pub(crate) fn run<T: Task>(&mut self, tasks: usize, task: &T) {
        let token = self.token;
        self.pool.each(tasks, &mut self.scratch, &|index, scratch| {
            token.run(task, index, scratch);
        });
    }

    /// Runs `tasks` tasks on all threads where waking them is `worth` it, else here.
    pub(crate) fn run_where<T: Task>(&mut self, worth: bool, tasks: usize, task: &T) {
        if worth { self.run(tasks, task) } else { self.run_here(tasks, task) }
    }

    /// Runs `tasks` tasks on the calling thread: for work smaller than waking others.
    pub(crate) fn run_here<T: Task>(&mut self, tasks: usize, task: &T) {
        (0..tasks).for_each(|index| self.token.run(task, index, &mut self.scratch[0]));
    }

    /// How many pieces of about equal size `units` of work are cut into: enough for every thread to
    /// have `per_thread`, but none smaller than `smallest`.
    pub(crate) fn pieces(&self, units: usize, smallest: usize, per_thread: usize) -> usize {
        let most = if self.threads() == 1 { 1 } else { self.threads() * per_thread };
        (units / smallest.max(1)).clamp(1, most).min(units.max(1))
    }
}

/// Part `index` of `0..units` cut into `pieces`, at multiples of `grain`.
pub(super) fn piece(
    units: usize,
    pieces: usize,
    grain: usize,
    index: usize,
) -> std::ops::Range<usize> {
    Pieces::equal(units, grain, pieces).part(index)
}
