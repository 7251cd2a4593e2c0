//! A few rows with panels whose groups have scales of their own: codes are unpacked in registers and used at once.

use super::code::{Code, GroupScales, weights};
use super::isa::ops::{Int8Isa, Int8Kernel, unpack};
use super::layout::{AUX_WORDS, CHUNK, PackedLimbs};
use crate::gemm::panels::Panels;
use crate::simd::isa::{Isa, LANES};
use forerun_base::Format;
use std::array::from_fn;
use std::ptr::null;

/// What multiplies a few rows with panels.
pub(crate) trait Gemv {
    /// Goes on with the tile of rows whose digits and words begin there.
    fn set_tile(&mut self, rows: (*const u8, *const f32));

    /// Most rows at a time that have registers.
    fn max_rows(&self) -> usize;

    /// Sums of some rows with all channels of some panels.
    ///
    /// # Safety
    /// The fields are as they say, for codes of type `C`, and so are those of `block`.
    unsafe fn rows<S: Int8Isa, C: Code, const R: usize>(
        &self,
        simd: S,
        code: C,
        block: &RowBlock<'_, R>,
    );
}

/// Some rows of a tile and some panels, and where their sums go, times what one is worth in each row.
pub(crate) struct RowBlock<'a, const R: usize> {
    /// The first row's place in the tile.
    pub(crate) first: usize,
    pub(crate) panels: &'a Panels,
    /// Room for sixteen for each panel in each row, which nobody else looks at.
    pub(crate) to: [*mut f32; R],
    pub(crate) row_scales: [f32; R],
    /// Whether they are added to what is there.
    pub(crate) add: bool,
}

impl<const R: usize> RowBlock<'_, R> {
    /// Stores those of a panel.
    ///
    /// # Safety
    /// The fields are as they say.
    #[inline(always)]
    pub(crate) unsafe fn put<I: Isa>(&self, floats: I, panel: usize, sums: [I::F; R]) {
        for r in 0..R {
            let to = self.to[r].wrapping_add(panel * LANES);
            let sum = floats.mul(sums[r], floats.splat(self.row_scales[r]));
            // SAFETY: the caller's promise.
            unsafe {
                let sum = if self.add { floats.add(floats.load(to), sum) } else { sum };
                floats.store(to, sum);
            }
        }
    }

    /// Asks for the lines to which the sums of the next panel go.
    #[inline(always)]
    pub(crate) fn prefetch_next_output<I: Isa>(&self, floats: I, panel: usize) {
        if panel + 1 < self.panels.count {
            for r in 0..R {
                floats.prefetch_write(self.to[r].wrapping_add((panel + 1) * LANES));
            }
        }
    }
}

/// A panel, and where the rows' digits and words begin; both go from unit to unit by `unit_bytes` and 4·`tile_rows`
/// words.
#[derive(Clone, Copy)]
pub(crate) struct GroupGemv {
    codes: *const u8,
    scales: GroupScales,
    /// Whether sums begin with the words of a unit, see [`crate::gemm::int8::layout`].
    compensated: bool,
    /// Bytes of a number: three digits, four halves of long ones, or one.
    planes: usize,
    limbs: *const u8,
    aux: *const f32,
    /// Rows of the tile.
    tile_rows: usize,
    unit: usize,
    units: usize,
    /// Bytes of a row in a slab.
    slab: usize,
}

impl GroupGemv {
    /// For the packed rows and weights of a format; of no panel and no tile yet. What takes divisions is found here,
    /// once.
    pub(crate) fn new(format: Format, packed: PackedLimbs<'_>) -> Self {
        let (layout, tile_rows) = (packed.layout(), packed.tile_rows());
        let unit = layout.unit();
        Self {
            codes: null(),
            scales: GroupScales::new(format, [null(); 2], unit),
            compensated: layout.compensation != 0,
            planes: layout.planes(tile_rows),
            limbs: null(),
            aux: null(),
            tile_rows,
            unit,
            units: layout.units(),
            slab: layout.slab(),
        }
    }
}

impl Gemv for GroupGemv {
    fn set_tile(&mut self, (limbs, aux): (*const u8, *const f32)) {
        (self.limbs, self.aux) = (limbs, aux);
    }

    fn max_rows(&self) -> usize {
        // Two units in each step of the codes leave registers for fewer rows.
        if self.unit < CHUNK { 2 } else { 4 }
    }

    unsafe fn rows<S: Int8Isa, C: Code, const R: usize>(
        &self,
        simd: S,
        code: C,
        block: &RowBlock<'_, R>,
    ) {
        match self.planes {
            // Wider codes have no long digits, and no such code is made for them.
            4 if const { S::WIDE_LIMBS && C::NARROW } => self.by::<S, C, R, 4>(simd, code, block),
            1 => self.by::<S, C, R, 1>(simd, code, block),
            _ => self.by::<S, C, R, 3>(simd, code, block),
        }
    }
}

impl GroupGemv {
    /// As [`Gemv::rows`], of numbers that have `P` bytes.
    fn by<S: Int8Isa, C: Code, const R: usize, const P: usize>(
        &self,
        simd: S,
        code: C,
        block: &RowBlock<'_, R>,
    ) {
        let panel = *self;
        if self.unit < CHUNK {
            simd.call(GroupKernel::<C, R, P, true> { panel, code, block });
        } else {
            simd.call(GroupKernel::<C, R, P, false> { panel, code, block });
        }
    }

    /// Goes on with the panel whose codes, scales and offsets are there.
    #[inline(always)]
    fn set_panel(&mut self, [codes, scales, offsets]: [*const u8; 3]) {
        self.codes = codes;
        self.scales.set_panel([scales, offsets]);
    }

    /// Where each plane of row `row` begins in a unit.
    fn planes<const P: usize>(&self, row: usize) -> [usize; P] {
        // A slab holds one plane or two; divisions would take as long as a short row.
        let two = usize::from(self.slab > self.unit);
        from_fn(|plane| {
            ((plane >> two) * self.tile_rows + row) * self.slab + (plane & two) * self.unit
        })
    }

    /// The words of a unit's rows from `first` on.
    #[inline(always)]
    fn aux(&self, unit: usize, first: usize) -> *const f32 {
        self.aux.wrapping_add(unit * AUX_WORDS * self.tile_rows + first)
    }
}

/// A block of rows whose numbers have `P` planes: four where digits are long, one where numbers are rounded. Units have
/// 16 columns where `HALF_CHUNK`, else a multiple of 32.
struct GroupKernel<'a, C, const R: usize, const P: usize, const HALF_CHUNK: bool> {
    panel: GroupGemv,
    code: C,
    block: &'a RowBlock<'a, R>,
}

impl<C: Code, const R: usize, const P: usize, const HALF_CHUNK: bool> Int8Kernel
    for GroupKernel<'_, C, R, P, HALF_CHUNK>
{
    #[inline(always)]
    fn run<S: Int8Isa>(mut self, simd: S) {
        let (block, floats) = (self.block, simd.f32());
        // Found once: inside the loops this would take longer than the products.
        let planes = self.panel.planes::<P>(block.first);
        for panel in 0..block.panels.count {
            self.panel.set_panel(block.panels.at(panel));
            block.prefetch_next_output(floats, panel);
            // SAFETY: the fields are as they say.
            unsafe { block.put(floats, panel, self.sums(simd, planes)) };
        }
    }
}

/// Moves all by so many bytes.
#[inline(always)]
pub(crate) fn advance<const P: usize>(x: &mut [*const u8; P], bytes: usize) {
    for x in x {
        *x = x.wrapping_add(bytes);
    }
}

/// Sums that begin with nothing, or where they are `compensated` with words: those of three digits, from `plane` on,
/// follow the first of each row for tiles of `tile_rows` rows.
///
/// # Safety
/// Words are as [`crate::gemm::int8::layout`] says.
#[inline(always)]
pub(crate) unsafe fn initial_sums<S: Int8Isa, const R: usize, const P: usize>(
    simd: S,
    compensated: bool,
    aux: *const f32,
    tile_rows: usize,
    plane: usize,
) -> [[S::W; P]; R] {
    let mut sums = [[simd.splat(0); P]; R];
    if compensated {
        for r in 0..R {
            for p in 0..P {
                let word = aux.wrapping_add((1 + plane + p) * tile_rows + r).cast::<i32>();
                // SAFETY: the caller's promise.
                sums[r][p] = simd.splat(unsafe { *word });
            }
        }
        simd.interleave(&mut sums);
    }
    sums
}

impl<C: Code, const R: usize, const P: usize, const HALF_CHUNK: bool>
    GroupKernel<'_, C, R, P, HALF_CHUNK>
{
    /// Whether digits are long.
    const WIDE_LIMBS: bool = P == 4;
    const SHIFT: u32 = if Self::WIDE_LIMBS { C::SHIFT } else { 0 };

    /// The rows' sums with a panel; their planes begin there in a unit.
    ///
    /// # Safety
    /// As for [`Gemv::rows`].
    #[inline(always)]
    unsafe fn sums<S: Int8Isa>(&self, simd: S, planes: [usize; P]) -> [<S::F32 as Isa>::F; R] {
        let panel = &self.panel;
        let mut sums = [simd.f32().splat(0.0); R];
        let bytes = P * panel.unit * panel.tile_rows;
        let (chunks, each) = if HALF_CHUNK { (1, 2) } else { (panel.unit / CHUNK, 1) };
        for some in 0..panel.units.div_ceil(each) {
            let unit = some * each;
            let mut x = [panel.limbs.wrapping_add(unit * bytes); P];
            for p in 0..P {
                x[p] = x[p].wrapping_add(planes[p]);
            }
            // SAFETY: the caller's promise.
            unsafe {
                let mut dots = self.initial_sums(simd, unit);
                for chunk in some * chunks..(some + 1) * chunks {
                    let codes = unpack(simd, self.code, panel.codes.add(chunk * C::BITS * 64));
                    if !HALF_CHUNK {
                        simd.dots::<C, R, P, 8>(&mut dots, &codes, &x, panel.slab);
                        advance(&mut x, CHUNK);
                        continue;
                    }
                    let [a, b, c, d, e, f, g, h] = codes;
                    simd.dots::<C, R, P, 4>(&mut dots, &[a, b, c, d], &x, panel.slab);
                    if unit + 1 < panel.units {
                        self.finish(simd, unit, dots, &mut sums);
                        dots = self.initial_sums(simd, unit + 1);
                        advance(&mut x, bytes);
                        simd.dots::<C, R, P, 4>(&mut dots, &[e, f, g, h], &x, panel.slab);
                    }
                }
                let last = panel.units.min(unit + each) - 1;
                self.finish(simd, last, dots, &mut sums);
            }
        }
        sums
    }

    /// What a unit's sums begin with.
    ///
    /// # Safety
    /// As for [`Gemv::rows`].
    #[inline(always)]
    unsafe fn initial_sums<S: Int8Isa>(&self, simd: S, unit: usize) -> [[S::W; P]; R] {
        let (aux, tile_rows) = (self.panel.aux(unit, self.block.first), self.panel.tile_rows);
        // SAFETY: the caller's promise.
        unsafe {
            initial_sums(simd, !Self::WIDE_LIMBS && self.panel.compensated, aux, tile_rows, 0)
        }
    }

    /// Adds a unit's exact sums to the rows'.
    ///
    /// # Safety
    /// As for [`Gemv::rows`].
    #[inline(always)]
    unsafe fn finish<S: Int8Isa>(
        &self,
        simd: S,
        unit: usize,
        mut dots: [[S::W; P]; R],
        sums: &mut [<S::F32 as Isa>::F; R],
    ) {
        simd.interleave(&mut dots);
        let (panel, floats) = (&self.panel, simd.f32());
        let aux = panel.aux(unit, self.block.first);
        // SAFETY: the caller's promise.
        let (scale, offset) = unsafe { panel.scales.of(floats, unit) };
        let count = if Self::WIDE_LIMBS { 2 } else { P };
        let mut factors = [scale; 3];
        for i in 0..count {
            factors[i] = floats.mul(scale, floats.splat(weights(Self::SHIFT)[i]));
        }
        for r in 0..R {
            if P == 1 {
                // SAFETY: the caller's promise.
                let row_scales =
                    floats.splat(unsafe { *aux.add((AUX_WORDS - 1) * panel.tile_rows + r) });
                factors[0] = floats.mul(scale, row_scales);
            }
            for i in 0..count {
                let whole = if Self::WIDE_LIMBS {
                    // SAFETY: the caller's promise.
                    unsafe { self.joined(simd, &dots[r], r, i, aux) }
                } else {
                    dots[r][i]
                };
                sums[r] = floats.fma(simd.to_f32(whole), factors[i], sums[r]);
            }
            if panel.scales.offsets.is_some() {
                // SAFETY: the caller's promise.
                let sum = floats.splat(unsafe { *aux.add(r) });
                sums[r] = floats.fma(sum, offset, sums[r]);
            }
        }
    }

    /// The sums of long digit `i` of a row.
    ///
    /// # Safety
    /// As for [`Gemv::rows`].
    #[inline(always)]
    unsafe fn joined<S: Int8Isa>(
        &self,
        simd: S,
        dots: &[S::W; P],
        row: usize,
        i: usize,
        aux: *const f32,
    ) -> S::W {
        let first = dots[2 * i];
        let first = if Self::SHIFT == 3 { simd.shl::<3>(first) } else { simd.shl::<4>(first) };
        let both = simd.add(first, dots[2 * i + 1]);
        if !self.panel.compensated {
            return both;
        }
        let word = aux.wrapping_add((1 + i) * self.panel.tile_rows + row).cast::<i32>();
        // SAFETY: the caller's promise.
        simd.add(both, simd.splat(unsafe { *word }))
    }
}
