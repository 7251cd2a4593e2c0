//! GEMV kernels for weights whose groups have a scale of their own.

use super::code::{Code, GroupScales, weights};
use super::gemv::{Gemv, GemvKernel, PanelSums, RowBlock, TileRows, advance, initial_sums};
use super::isa::{Int8Isa, unpack};
use super::layout::{AUX_WORDS, CHUNK, PackedLimbs};
use crate::simd::isa::Isa;
use forerun_base::Format;
use std::array::from_fn;
use std::ptr::null;

/// See the module's text. What takes divisions is found here, once.
#[derive(Clone, Copy)]
pub(crate) struct GroupGemv {
    tile: TileRows,
    codes: *const u8,
    scales: GroupScales,
    /// Limb planes of an integer: three, four halves of wide limbs, or one of rounded activations.
    planes: usize,
    unit: usize,
    units: usize,
    /// Bytes of a row in a slab.
    slab: usize,
}

impl GroupGemv {
    /// For packed rows and weights of a format; of no panel and no tile yet.
    pub(crate) fn new(format: Format, packed: PackedLimbs<'_>) -> Self {
        let layout = packed.layout();
        let unit = layout.unit();
        Self {
            tile: TileRows::new(packed),
            codes: null(),
            scales: GroupScales::new(format, [null(); 2], unit),
            planes: layout.planes(packed.tile_rows()),
            unit,
            units: layout.units(),
            slab: layout.slab(),
        }
    }

    /// As [`Gemv::rows`], of integers that have `P` limb planes.
    fn with_planes<S: Int8Isa, C: Code, const R: usize, const P: usize>(
        &self,
        simd: S,
        code: C,
        block: &RowBlock<'_, R>,
    ) {
        // Found once: inside the loops this would take longer than the products.
        let (panel, first, planes) = (*self, block.first, self.plane_offsets::<P>(block.first));
        if self.unit < CHUNK {
            let sums = GroupSums::<C, P, true> { panel, code, first, planes };
            simd.call(GemvKernel { sums, block });
        } else {
            let sums = GroupSums::<C, P, false> { panel, code, first, planes };
            simd.call(GemvKernel { sums, block });
        }
    }

    /// Where each limb plane of row `row` begins in a unit.
    fn plane_offsets<const P: usize>(&self, row: usize) -> [usize; P] {
        // A slab holds one plane or two; divisions would take as long as a short row.
        let two = usize::from(self.slab > self.unit);
        from_fn(|plane| {
            ((plane >> two) * self.tile.tile_rows + row) * self.slab + (plane & two) * self.unit
        })
    }

    /// The aux words of a unit, from row `first` on.
    #[inline(always)]
    fn aux(&self, unit: usize, first: usize) -> *const f32 {
        self.tile.aux.wrapping_add(unit * AUX_WORDS * self.tile.tile_rows + first)
    }
}

impl Gemv for GroupGemv {
    fn set_tile(&mut self, (limbs, aux): (*const u8, *const f32)) {
        (self.tile.limbs, self.tile.aux) = (limbs, aux);
    }

    fn max_rows(&self) -> usize {
        // With two units in a chunk of codes there are twice as many accumulators.
        if self.unit < CHUNK { 2 } else { 4 }
    }

    unsafe fn rows<S: Int8Isa, C: Code, const R: usize>(
        &self,
        simd: S,
        code: C,
        block: &RowBlock<'_, R>,
    ) {
        match self.planes {
            // Only narrow codes meet wide limbs; the kernels of others are not instantiated.
            4 if const { S::WIDE_LIMBS && C::NARROW } => {
                self.with_planes::<S, C, R, 4>(simd, code, block);
            }
            1 => self.with_planes::<S, C, R, 1>(simd, code, block),
            _ => self.with_planes::<S, C, R, 3>(simd, code, block),
        }
    }
}

/// Sums of rows from place `first` on whose integers have `P` limb planes: four where limbs are wide, one where
/// activations are rounded. Units have 16 columns where `HALF_CHUNK`, else a multiple of 32.
#[derive(Clone, Copy)]
struct GroupSums<C, const P: usize, const HALF_CHUNK: bool> {
    panel: GroupGemv,
    code: C,
    first: usize,
    /// See [`GroupGemv::plane_offsets`].
    planes: [usize; P],
}

impl<C: Code, const R: usize, const P: usize, const HALF_CHUNK: bool> PanelSums<R>
    for GroupSums<C, P, HALF_CHUNK>
{
    #[inline(always)]
    fn set_panel(&mut self, [codes, scales, offsets]: [*const u8; 3]) {
        self.panel.codes = codes;
        self.panel.scales.set_panel([scales, offsets]);
    }

    #[inline(always)]
    unsafe fn sums<S: Int8Isa>(&self, simd: S) -> [<S::F32 as Isa>::F; R] {
        let panel = &self.panel;
        let mut sums = [simd.f32().splat(0.0); R];
        let bytes = P * panel.unit * panel.tile.tile_rows;
        let (chunks, each) = if HALF_CHUNK { (1, 2) } else { (panel.unit / CHUNK, 1) };
        for some in 0..panel.units.div_ceil(each) {
            let unit = some * each;
            let mut x = [panel.tile.limbs.wrapping_add(unit * bytes); P];
            for p in 0..P {
                x[p] = x[p].wrapping_add(self.planes[p]);
            }
            // SAFETY: units below `units` lie in the panel and in the tile, each with `chunks` chunks of codes and `P`
            // planes of `unit` bytes per row; both are readable (contract of `PanelSums::sums`).
            unsafe {
                let mut dots = self.start(simd, unit);
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
                        dots = self.start(simd, unit + 1);
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
}

impl<C: Code, const P: usize, const HALF_CHUNK: bool> GroupSums<C, P, HALF_CHUNK> {
    /// Whether limbs are wide.
    const WIDE: bool = P == 4;
    const SHIFT: u32 = if Self::WIDE { C::SHIFT } else { 0 };

    /// What a unit's exact sums start from. Those of wide limbs are compensated when their halves are joined.
    ///
    /// # Safety
    /// `unit` is one of the tile's, which is readable and has `R` rows from `first` on.
    #[inline(always)]
    unsafe fn start<S: Int8Isa, const R: usize>(&self, simd: S, unit: usize) -> [[S::W; P]; R] {
        if Self::WIDE {
            return [[simd.splat(0); P]; R];
        }
        // SAFETY: the unit has `P` compensation words for each row (contract above).
        unsafe { initial_sums(simd, &self.panel.tile, self.panel.aux(unit, self.first), 0) }
    }

    /// Scales a unit's exact sums and adds them to the rows'.
    ///
    /// # Safety
    /// `unit` is one of the panel's and of the tile's; both are readable, and the tile has `R` rows from `first` on.
    #[inline(always)]
    unsafe fn finish<S: Int8Isa, const R: usize>(
        &self,
        simd: S,
        unit: usize,
        mut dots: [[S::W; P]; R],
        sums: &mut [<S::F32 as Isa>::F; R],
    ) {
        simd.interleave(&mut dots);
        let (panel, floats) = (&self.panel, simd.f32());
        let aux = panel.aux(unit, self.first);
        // SAFETY: the unit is one of the panel's.
        let (scale, offset) = unsafe { panel.scales.of(floats, unit) };
        let count = if Self::WIDE { 2 } else { P };
        let mut factors = [scale; 3];
        for i in 0..count {
            factors[i] = floats.mul(scale, floats.splat(weights(Self::SHIFT)[i]));
        }
        for r in 0..R {
            if P == 1 {
                // SAFETY: the unit has four aux words for each row; the last one is its scale.
                let unit_scale = unsafe { *aux.add((AUX_WORDS - 1) * panel.tile.tile_rows + r) };
                factors[0] = floats.mul(scale, floats.splat(unit_scale));
            }
            for i in 0..count {
                let exact = if Self::WIDE {
                    // SAFETY: the unit has four aux words for each row, of which `joined` reads one.
                    unsafe { self.joined(simd, &dots[r], r, i, aux) }
                } else {
                    dots[r][i]
                };
                sums[r] = floats.fma(simd.to_f32(exact), factors[i], sums[r]);
            }
            if panel.scales.offsets.is_some() {
                // SAFETY: the unit's first aux word for each row is the sum of its integers.
                let sum = floats.splat(unsafe { *aux.add(r) });
                sums[r] = floats.fma(sum, offset, sums[r]);
            }
        }
    }

    /// The exact sums of wide limb `i` of a row, from those of its halves.
    ///
    /// # Safety
    /// `aux` is readable for `2 + i` aux words of `row + 1` rows.
    #[inline(always)]
    unsafe fn joined<S: Int8Isa>(
        &self,
        simd: S,
        dots: &[S::W; P],
        row: usize,
        i: usize,
        aux: *const f32,
    ) -> S::W {
        let high = dots[2 * i];
        let high = if Self::SHIFT == 3 { simd.shl::<3>(high) } else { simd.shl::<4>(high) };
        let both = simd.add(high, dots[2 * i + 1]);
        if !self.panel.tile.compensated {
            return both;
        }
        let word = aux.wrapping_add((1 + i) * self.panel.tile.tile_rows + row).cast::<i32>();
        // SAFETY: aux word `1 + i` of the row exists (contract above).
        simd.add(both, simd.splat(unsafe { *word }))
    }
}
