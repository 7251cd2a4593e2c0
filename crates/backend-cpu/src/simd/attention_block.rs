//! Attention within one block of keys: widening what is stored, and multiplying.
//!
//! # Math
//! Both products are one: `out[line] = Σ_step from[line][step] · table[step]`. For scores a line is a query, a step an
//! element of its head, and the table holds keys; for values a line is a query's weights, a step a key, and the
//! table holds values.
//!
//! # Layout
//! The cache holds both tables as they are needed, step by step. A few lines multiply what is stored, widening it in
//! registers; for more lines, and for lines that are not whole vectors, it is widened to scratch once.
//!
//! # Numerics
//! Each number of a product is one chain of fused multiply-adds in ascending order of steps. How many lines or
//! columns share registers, and where a number was widened, does not enter a result.

use super::attention_form::{CacheFormat, Floats, KeyCodes, PartScales, ValueCodes};
use super::isa::{Isa, Kernel, LANES};
use crate::BufferStorage;
use crate::gemm::decode::{DenseBf16, DenseF16, DenseF32};
use forerun_backend::op::CacheLayout;
use std::array::from_fn;
use std::ops::Range;

/// How many passes may widen what is stored in registers; with more, widening it to scratch once is cheaper.
const MAX_REGISTER_PASSES: usize = 4;

/// No instruction set multiplies more lines at a time.
pub(crate) const MOST_LINES: usize = 6;

/// How many of `lines` to give [`Table::multiply`] at a time: about equally many each time, since a small last part
/// would read the table for little.
pub(crate) const fn lines_together<S: Isa>(lines: usize) -> usize {
    lines.div_ceil(lines.div_ceil(S::TILE.0))
}

/// One head's part of a block, as it is stored.
#[derive(Clone, Copy)]
pub(crate) struct CachedPart<'a> {
    /// The cache.
    pub(crate) cache: &'a BufferStorage,
    /// Its first element.
    pub(crate) at: usize,
    pub(crate) layout: CacheLayout,
    /// Whether a step of the table is an element of all keys, else a key's value.
    pub(crate) keys: bool,
    /// Cache and element that will be read after this part, to be prefetched.
    pub(crate) next: (&'a BufferStorage, usize),
}

/// First byte of an element, and elements from there on.
fn place(cache: &BufferStorage, at: usize) -> (*const u8, usize) {
    let (base, size, len) = match cache {
        BufferStorage::F32(v) => (v.as_ptr().cast::<u8>(), 4, v.len()),
        BufferStorage::F16(v) | BufferStorage::BF16(v) => (v.as_ptr().cast::<u8>(), 2, v.len()),
        BufferStorage::I8(v) => (v.as_ptr(), 1, v.len()),
        BufferStorage::U32(_) => unreachable!("the desc refused a cache of indices"),
    };
    (base.wrapping_add(at * size), len.saturating_sub(at))
}

impl<'a> CachedPart<'a> {
    /// A table for `lines` lines, which need the steps `used`. If it is widened, it is in `scratch`.
    pub(crate) fn table<S: Isa>(
        self,
        simd: S,
        lines: usize,
        used: Range<usize>,
        scratch: &'a mut [f32],
    ) -> Table<'a> {
        let Self { cache, layout, .. } = self;
        let CacheLayout { block, head_dim, .. } = layout;
        let [steps, columns] = if self.keys { [head_dim, block] } else { [block, head_dim] };
        let (at, len) = place(cache, self.at);
        assert!(block * layout.stored() <= len && used.end <= steps, "a block is inside its cache");
        let next = place(self.next.0, self.next.1).0;
        let kind = match cache {
            BufferStorage::F16(_) => TableKind::F16,
            BufferStorage::BF16(_) => TableKind::Bf16,
            BufferStorage::I8(_) => {
                // Scales lie apart from codes, so the next part's are prefetched here.
                for line in (layout.scales()..block * layout.stored()).step_by(64) {
                    simd.prefetch(next.wrapping_add(line));
                }
                let scales = PartScales { at: at.wrapping_add(layout.scales()), block };
                if self.keys {
                    TableKind::KeyCodes(KeyCodes(scales))
                } else {
                    TableKind::ValueCodes(ValueCodes(scales))
                }
            }
            _ => TableKind::F32,
        };
        let life = std::marker::PhantomData;
        if lines <= MAX_REGISTER_PASSES * S::TILE.0 && columns.is_multiple_of(LANES) {
            return Table { kind, at, wide: columns, steps, next: Some(next), life };
        }
        let wide = columns.next_multiple_of(LANES);
        assert!(steps * wide <= scratch.len(), "a block fits scratch");
        let out = &mut scratch[..steps * wide];
        let to = out.as_ptr().cast();
        match kind {
            TableKind::F32 => {
                simd.call(Widen { form: Floats(DenseF32), at, next, columns, used, out })
            }
            TableKind::F16 => {
                simd.call(Widen { form: Floats(DenseF16), at, next, columns, used, out })
            }
            TableKind::Bf16 => {
                simd.call(Widen { form: Floats(DenseBf16), at, next, columns, used, out });
            }
            TableKind::KeyCodes(form) => simd.call(Widen { form, at, next, columns, used, out }),
            TableKind::ValueCodes(form) => simd.call(Widen { form, at, next, columns, used, out }),
        }
        Table { kind: TableKind::F32, at: to, wide, steps, next: None, life }
    }
}

/// Widens stored numbers to f32 in whole vectors, zeros past the columns. Only [`CachedPart::table`] makes one, which
/// checks that the steps exist and that they fit `out`.
struct Widen<'a, F> {
    form: F,
    at: *const u8,
    next: *const u8,
    columns: usize,
    /// The steps to widen.
    used: Range<usize>,
    out: &'a mut [f32],
}

impl<F: CacheFormat> Kernel for Widen<'_, F> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { form, columns, out, .. } = self;
        let size = F::BYTES / LANES;
        let (whole, wide) = (columns / LANES * LANES, columns.next_multiple_of(LANES));
        for step in self.used {
            let from = self.at.wrapping_add(step * columns * size);
            let next = self.next.wrapping_add(step * columns * size);
            let to = out[step * wide..(step + 1) * wide].as_mut_ptr();
            for line in (0..columns * size).step_by(64) {
                simd.prefetch(next.wrapping_add(line));
            }
            // SAFETY: the step exists and `to` has room for it in whole vectors (checked by `table`); a partial vector
            // is widened from a copy.
            unsafe {
                for at in (0..whole).step_by(LANES) {
                    let scales = form.scales(simd, step, at, LANES);
                    let numbers = form.numbers(simd, from.wrapping_add(at * size), &scales, step);
                    simd.store(to.wrapping_add(at), numbers);
                }
                if whole < columns {
                    let mut copy = [0_u8; 64];
                    let (from, bytes) = (from.wrapping_add(whole * size), (columns - whole) * size);
                    std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), bytes);
                    let scales = form.scales(simd, step, whole, columns - whole);
                    let numbers = form.numbers(simd, copy.as_ptr(), &scales, step);
                    simd.store(to.wrapping_add(whole), numbers);
                }
            }
        }
    }
}

/// How the numbers of a table are stored.
#[derive(Clone, Copy)]
enum TableKind {
    F32,
    F16,
    Bf16,
    KeyCodes(KeyCodes),
    ValueCodes(ValueCodes),
}

/// `steps` lines of `wide` numbers, whole vectors. Made by [`CachedPart::table`] alone.
pub(crate) struct Table<'a> {
    kind: TableKind,
    at: *const u8,
    wide: usize,
    steps: usize,
    /// What to prefetch while this table is read for the first time.
    next: Option<*const u8>,
    life: std::marker::PhantomData<&'a f32>,
}

/// One line of a product.
#[derive(Clone, Copy)]
pub(crate) struct RowIo {
    /// One number per step.
    pub(crate) from: *const f32,
    /// One number per column.
    pub(crate) to: *mut f32,
}

impl RowIo {
    /// A placeholder that is never read.
    pub(crate) const NONE: Self = Self { from: std::ptr::null(), to: std::ptr::null_mut() };
}

/// What happens to the sums.
#[derive(Clone, Copy)]
pub(crate) enum Sums {
    /// They start at zero and are stored times this.
    Scaled(f32),
    /// They start at what is there.
    Added,
}

impl Table<'_> {
    /// Multiplies `lines`, no more than [`lines_together`], with the given steps and columns; columns are rounded
    /// outwards to whole vectors. Without steps, nothing is done.
    ///
    /// # Safety
    /// For every line, `from` is readable for `steps.end` f32, and `to` readable and writable for the rounded columns;
    /// no other thread accesses `to`, and no two lines share it.
    pub(crate) unsafe fn multiply<S: Isa>(
        &mut self,
        simd: S,
        lines: &[RowIo],
        [steps, columns]: [Range<usize>; 2],
        sums: Sums,
    ) {
        if steps.is_empty() {
            return;
        }
        assert!(steps.end <= self.steps && columns.end <= self.wide, "a table has what is used");
        let columns = columns.start / LANES * LANES..columns.end.next_multiple_of(LANES);
        let job = ProductJob { at: self.at, wide: self.wide, next: self.next.take(), steps, sums };
        // SAFETY: lines are as the contract above demands; the table is borrowed, and has these steps and columns
        // (asserted).
        unsafe {
            match self.kind {
                TableKind::F32 => job.lines(simd, Floats(DenseF32), lines, columns),
                TableKind::F16 => job.lines(simd, Floats(DenseF16), lines, columns),
                TableKind::Bf16 => job.lines(simd, Floats(DenseBf16), lines, columns),
                TableKind::KeyCodes(form) => job.lines(simd, form, lines, columns),
                TableKind::ValueCodes(form) => job.lines(simd, form, lines, columns),
            }
        }
    }
}

/// A table as a product needs it.
struct ProductJob {
    at: *const u8,
    wide: usize,
    next: Option<*const u8>,
    steps: Range<usize>,
    sums: Sums,
}

impl ProductJob {
    /// # Safety
    /// As for [`Table::multiply`], with the table in this format and whole vectors of columns.
    unsafe fn lines<S: Isa, F: CacheFormat>(
        &self,
        simd: S,
        form: F,
        lines: &[RowIo],
        columns: Range<usize>,
    ) {
        // SAFETY: the table and the lines are readable and writable as `multiply` demands (contract above); the
        // constant is the number of lines.
        unsafe {
            match lines.len() {
                1 => self.columns::<S, F, 1>(simd, form, lines, columns),
                2 => self.columns::<S, F, 2>(simd, form, lines, columns),
                3 => self.columns::<S, F, 3>(simd, form, lines, columns),
                4 if S::TILE.0 > 3 => self.columns::<S, F, 4>(simd, form, lines, columns),
                5 if S::TILE.0 > 3 => self.columns::<S, F, 5>(simd, form, lines, columns),
                6 if S::TILE.0 > 3 => self.columns::<S, F, 6>(simd, form, lines, columns),
                _ => unreachable!("`lines_together` gives no more than a tile has"),
            }
        }
    }

    /// # Safety
    /// As for [`ProductJob::lines`], of `M` lines.
    unsafe fn columns<S: Isa, F: CacheFormat, const M: usize>(
        &self,
        simd: S,
        form: F,
        lines: &[RowIo],
        columns: Range<usize>,
    ) {
        let lines: [RowIo; M] = from_fn(|m| lines[m]);
        let (job, mut first) = (self, columns.start);
        while first < columns.end {
            first += match (columns.end - first) / LANES {
                4.. if S::TILE.1 == 4 => {
                    simd.call(TableProduct::<F, M, 4> { form, job, lines, first })
                }
                2.. => simd.call(TableProduct::<F, M, 2> { form, job, lines, first }),
                _ => simd.call(TableProduct::<F, M, 1> { form, job, lines, first }),
            };
        }
    }
}

/// `N` vectors of columns of `M` lines, from column `first` on; only [`ProductJob::columns`] makes one. Returns the
/// number of columns done.
struct TableProduct<'a, F, const M: usize, const N: usize> {
    form: F,
    job: &'a ProductJob,
    lines: [RowIo; M],
    first: usize,
}

impl<F: CacheFormat, const M: usize, const N: usize> Kernel for TableProduct<'_, F, M, N> {
    type Out = usize;
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) -> usize {
        let Self { form, job, lines, first } = self;
        let size = F::BYTES / LANES;
        let skipped = (job.steps.start * job.wide + first) * size;
        let mut at = job.at.wrapping_add(skipped);
        let mut next = job.next.map(|next| next.wrapping_add(skipped));
        let mut acc = [[simd.splat(0.0); N]; M];
        // SAFETY: lines and table are as `Table::multiply` demands, and `first + 16·N` is at most `wide`.
        unsafe {
            if matches!(job.sums, Sums::Added) {
                for m in 0..M {
                    for n in 0..N {
                        acc[m][n] = simd.load(lines[m].to.add(first + n * LANES));
                    }
                }
            }
            let mut scales = [form.scales(simd, job.steps.start, first, LANES); N];
            for step in job.steps.clone() {
                if step == job.steps.start || form.begins(step) {
                    for n in 0..N {
                        scales[n] = form.scales(simd, step, first + n * LANES, LANES);
                    }
                }
                let mut b = [simd.splat(0.0); N];
                for n in 0..N {
                    b[n] = form.numbers(simd, at.add(n * F::BYTES), &scales[n], step);
                }
                if let Some(next) = &mut next {
                    for line in 0..(N * F::BYTES).div_ceil(64) {
                        simd.prefetch(next.wrapping_add(line * 64));
                    }
                    *next = next.wrapping_add(job.wide * size);
                }
                for m in 0..M {
                    let a = simd.splat(*lines[m].from.add(step));
                    for n in 0..N {
                        acc[m][n] = simd.fma(a, b[n], acc[m][n]);
                    }
                }
                at = at.wrapping_add(job.wide * size);
            }
            for m in 0..M {
                for n in 0..N {
                    let to = lines[m].to.add(first + n * LANES);
                    match job.sums {
                        Sums::Scaled(scale) => {
                            simd.store(to, simd.mul(acc[m][n], simd.splat(scale)));
                        }
                        Sums::Added => simd.store(to, acc[m][n]),
                    }
                }
            }
        }
        N * LANES
    }
}
