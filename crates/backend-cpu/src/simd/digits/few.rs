//! A few rows with panels whose groups have scales of their own: codes are unpacked in registers and used at once.

use super::super::isa::{Isa, LANES};
use super::super::walk::Panels;
use super::code::{Code, Scales, weights};
use super::pack::{CHUNK, Packed, WORDS};
use super::whole::{Whole, WholeKernel, unpack};
use forerun_base::Format;
use std::array::from_fn;
use std::ptr::null;

/// What multiplies a few rows with panels.
pub(super) trait Few {
    /// Goes on with the tile of rows whose digits and words begin there.
    fn take(&mut self, rows: (*const u8, *const f32));

    /// Most rows at a time that have registers.
    fn most(&self) -> usize;

    /// Sums of some rows with all channels of some panels.
    ///
    /// # Safety
    /// The fields are as they say, for codes of type `C`, and so are those of `block`.
    unsafe fn rows<S: Whole, C: Code, const R: usize>(
        &self,
        simd: S,
        code: C,
        block: &Block<'_, R>,
    );
}

/// Some rows of a tile and some panels, and where their sums go, times what one is worth in each row.
pub(super) struct Block<'a, const R: usize> {
    /// The first row's place in the tile.
    pub(super) first: usize,
    pub(super) panels: &'a Panels,
    /// Room for sixteen for each panel in each row, which nobody else looks at.
    pub(super) to: [*mut f32; R],
    pub(super) worth: [f32; R],
    /// Whether they are added to what is there.
    pub(super) add: bool,
}

impl<const R: usize> Block<'_, R> {
    /// Stores those of a panel.
    ///
    /// # Safety
    /// The fields are as they say.
    #[inline(always)]
    pub(super) unsafe fn put<I: Isa>(&self, floats: I, panel: usize, sums: [I::F; R]) {
        for r in 0..R {
            let to = self.to[r].wrapping_add(panel * LANES);
            let sum = floats.mul(sums[r], floats.splat(self.worth[r]));
            // SAFETY: the caller's promise.
            unsafe {
                let sum = if self.add { floats.add(floats.load(to), sum) } else { sum };
                floats.store(to, sum);
            }
        }
    }

    /// Asks for the lines to which the sums of the next panel go.
    #[inline(always)]
    pub(super) fn expect_after<I: Isa>(&self, floats: I, panel: usize) {
        if panel + 1 < self.panels.count {
            for r in 0..R {
                floats.expect(self.to[r].wrapping_add((panel + 1) * LANES));
            }
        }
    }
}

/// A panel, and where the rows' digits and words begin; both go from unit to unit by `unit_bytes` and 4·`class` words.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    codes: *const u8,
    scales: Scales,
    /// Whether sums begin with the words of a unit, see [`super::pack`].
    lifted: bool,
    /// Bytes of a number: three digits, four halves of long ones, or one.
    planes: usize,
    digits: *const u8,
    words: *const f32,
    /// Rows of the tile.
    class: usize,
    unit: usize,
    units: usize,
    /// Bytes of a row in a slab.
    slab: usize,
}

impl Panel {
    /// For the packed rows and weights of a format; of no panel and no tile yet. What takes divisions is found here, once.
    pub(super) fn new(format: Format, packed: Packed<'_>) -> Self {
        let (recipe, class) = (packed.recipe(), packed.class());
        let unit = recipe.unit();
        Self {
            codes: null(),
            scales: Scales::new(format, [null(); 2], unit),
            lifted: recipe.lift != 0,
            planes: recipe.planes(class),
            digits: null(),
            words: null(),
            class,
            unit,
            units: recipe.units(),
            slab: recipe.slab(),
        }
    }
}

impl Few for Panel {
    fn take(&mut self, (digits, words): (*const u8, *const f32)) {
        (self.digits, self.words) = (digits, words);
    }

    fn most(&self) -> usize {
        // Two units in each step of the codes leave registers for fewer rows.
        if self.unit < CHUNK { 2 } else { 4 }
    }

    unsafe fn rows<S: Whole, C: Code, const R: usize>(
        &self,
        simd: S,
        code: C,
        block: &Block<'_, R>,
    ) {
        match self.planes {
            // Wider codes have no long digits, and no such code is made for them.
            4 if const { S::LONG && C::NARROW } => self.by::<S, C, R, 4>(simd, code, block),
            1 => self.by::<S, C, R, 1>(simd, code, block),
            _ => self.by::<S, C, R, 3>(simd, code, block),
        }
    }
}

impl Panel {
    /// As [`Few::rows`], of numbers that have `P` bytes.
    fn by<S: Whole, C: Code, const R: usize, const P: usize>(
        &self,
        simd: S,
        code: C,
        block: &Block<'_, R>,
    ) {
        let panel = *self;
        if self.unit < CHUNK {
            simd.call(Rows::<C, R, P, true> { panel, code, block });
        } else {
            simd.call(Rows::<C, R, P, false> { panel, code, block });
        }
    }

    /// Goes on with the panel whose codes, scales and offsets are there.
    #[inline(always)]
    fn turn_to(&mut self, [codes, scales, offsets]: [*const u8; 3]) {
        self.codes = codes;
        self.scales.turn_to([scales, offsets]);
    }

    /// Where each plane of row `row` begins in a unit.
    fn planes<const P: usize>(&self, row: usize) -> [usize; P] {
        // A slab holds one plane or two; divisions would take as long as a short row.
        let two = usize::from(self.slab > self.unit);
        from_fn(|plane| ((plane >> two) * self.class + row) * self.slab + (plane & two) * self.unit)
    }

    /// The words of a unit's rows from `first` on.
    #[inline(always)]
    fn words(&self, unit: usize, first: usize) -> *const f32 {
        self.words.wrapping_add(unit * WORDS * self.class + first)
    }
}

/// A block of rows whose numbers have `P` planes: four where digits are long, one where numbers are rounded. Units have 16 columns where `HALF`, else a multiple
/// of 32.
struct Rows<'a, C, const R: usize, const P: usize, const HALF: bool> {
    panel: Panel,
    code: C,
    block: &'a Block<'a, R>,
}

impl<C: Code, const R: usize, const P: usize, const HALF: bool> WholeKernel
    for Rows<'_, C, R, P, HALF>
{
    #[inline(always)]
    fn run<S: Whole>(mut self, simd: S) {
        let (block, floats) = (self.block, simd.floats());
        // Found once: inside the loops this would take longer than the products.
        let planes = self.panel.planes::<P>(block.first);
        for panel in 0..block.panels.count {
            self.panel.turn_to(block.panels.at(panel));
            block.expect_after(floats, panel);
            // SAFETY: the fields are as they say.
            unsafe { block.put(floats, panel, self.sums(simd, planes)) };
        }
    }
}

/// Moves all by so many bytes.
#[inline(always)]
pub(super) fn advance<const P: usize>(x: &mut [*const u8; P], bytes: usize) {
    for x in x {
        *x = x.wrapping_add(bytes);
    }
}

/// Sums that begin with nothing, or where they are `lifted` with words: those of three digits, from `plane` on, follow the first of each
/// row for tiles of `class` rows.
///
/// # Safety
/// Words are as [`super::pack`] says.
#[inline(always)]
pub(super) unsafe fn begun<S: Whole, const R: usize, const P: usize>(
    simd: S,
    lifted: bool,
    words: *const f32,
    [class, plane]: [usize; 2],
) -> [[S::W; P]; R] {
    let mut sums = [[simd.splat(0); P]; R];
    if lifted {
        for r in 0..R {
            for p in 0..P {
                let word = words.wrapping_add((1 + plane + p) * class + r).cast::<i32>();
                // SAFETY: the caller's promise.
                sums[r][p] = simd.splat(unsafe { *word });
            }
        }
        simd.weave(&mut sums);
    }
    sums
}

impl<C: Code, const R: usize, const P: usize, const HALF: bool> Rows<'_, C, R, P, HALF> {
    /// Whether digits are long.
    const LONG: bool = P == 4;
    const SHIFT: u32 = if Self::LONG { C::SHIFT } else { 0 };

    /// The rows' sums with a panel; their planes begin there in a unit.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    unsafe fn sums<S: Whole>(&self, simd: S, planes: [usize; P]) -> [<S::Floats as Isa>::F; R] {
        let panel = &self.panel;
        let mut sums = [simd.floats().splat(0.0); R];
        let bytes = P * panel.unit * panel.class;
        let (chunks, each) = if HALF { (1, 2) } else { (panel.unit / CHUNK, 1) };
        for some in 0..panel.units.div_ceil(each) {
            let unit = some * each;
            let mut x = [panel.digits.wrapping_add(unit * bytes); P];
            for p in 0..P {
                x[p] = x[p].wrapping_add(planes[p]);
            }
            // SAFETY: the caller's promise.
            unsafe {
                let mut dots = self.begun(simd, unit);
                for chunk in some * chunks..(some + 1) * chunks {
                    let codes = unpack(simd, self.code, panel.codes.add(chunk * C::BITS * 64));
                    if !HALF {
                        simd.dots::<C, R, P, 8>(&mut dots, &codes, &x, panel.slab);
                        advance(&mut x, CHUNK);
                        continue;
                    }
                    let [a, b, c, d, e, f, g, h] = codes;
                    simd.dots::<C, R, P, 4>(&mut dots, &[a, b, c, d], &x, panel.slab);
                    if unit + 1 < panel.units {
                        self.finish(simd, unit, dots, &mut sums);
                        dots = self.begun(simd, unit + 1);
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
    /// As for [`Few::rows`].
    #[inline(always)]
    unsafe fn begun<S: Whole>(&self, simd: S, unit: usize) -> [[S::W; P]; R] {
        let (words, class) = (self.panel.words(unit, self.block.first), self.panel.class);
        // SAFETY: the caller's promise.
        unsafe { begun(simd, !Self::LONG && self.panel.lifted, words, [class, 0]) }
    }

    /// Adds a unit's exact sums to the rows'.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    unsafe fn finish<S: Whole>(
        &self,
        simd: S,
        unit: usize,
        mut dots: [[S::W; P]; R],
        sums: &mut [<S::Floats as Isa>::F; R],
    ) {
        simd.weave(&mut dots);
        let (panel, floats) = (&self.panel, simd.floats());
        let words = panel.words(unit, self.block.first);
        // SAFETY: the caller's promise.
        let (scale, offset) = unsafe { panel.scales.of(floats, unit) };
        let count = if Self::LONG { 2 } else { P };
        let mut factors = [scale; 3];
        for i in 0..count {
            factors[i] = floats.mul(scale, floats.splat(weights(Self::SHIFT)[i]));
        }
        for r in 0..R {
            if P == 1 {
                // SAFETY: the caller's promise.
                let worth = floats.splat(unsafe { *words.add((WORDS - 1) * panel.class + r) });
                factors[0] = floats.mul(scale, worth);
            }
            for i in 0..count {
                let whole = if Self::LONG {
                    // SAFETY: the caller's promise.
                    unsafe { self.joined(simd, &dots[r], [r, i], words) }
                } else {
                    dots[r][i]
                };
                sums[r] = floats.fma(simd.float(whole), factors[i], sums[r]);
            }
            if panel.scales.offsets.is_some() {
                // SAFETY: the caller's promise.
                let sum = floats.splat(unsafe { *words.add(r) });
                sums[r] = floats.fma(sum, offset, sums[r]);
            }
        }
    }

    /// The sums of long digit `i` of a row.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    unsafe fn joined<S: Whole>(
        &self,
        simd: S,
        dots: &[S::W; P],
        [row, i]: [usize; 2],
        words: *const f32,
    ) -> S::W {
        let first = dots[2 * i];
        let first = if Self::SHIFT == 3 { simd.up::<3>(first) } else { simd.up::<4>(first) };
        let both = simd.add(first, dots[2 * i + 1]);
        if !self.panel.lifted {
            return both;
        }
        let word = words.wrapping_add((1 + i) * self.panel.class + row).cast::<i32>();
        // SAFETY: the caller's promise.
        simd.add(both, simd.splat(unsafe { *word }))
    }
}
