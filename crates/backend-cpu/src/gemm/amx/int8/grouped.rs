//! A tile of rows with one panel whose codes must be unpacked for AMX.
//!
//! # Layout
//! Codes are unpacked to `[unit]` tiles of weights: for narrow codes, which meet wide limbs, the lines of `16·c` or
//! `8·c` and then those of `c`, which fit one tile up to 32 columns. Tiles 0 to 3 take sums, 4 and 5 weights, 6 and 7
//! activations.
//!
//! # Shape
//! A software pipeline, limb by limb and unit by unit: while a product is started, the exact sums of the second before
//! it are stored, and those of an earlier one are scaled and added, for all rows at once in registers. So tiles and
//! vectors work at the same time. What vectors load was stored a product ago, in one of four slots of 1 KiB, so no load
//! waits for a store in flight to an address a multiple of 4 KiB away.

use crate::gemm::amx::int8::{PREFETCH_BYTES, unpack_bytes};
use crate::gemm::amx::tile::{Configured, move_tile};
use crate::gemm::int8::code::{Code, GroupScales, weights};
use crate::gemm::int8::isa::VECTORS;
use crate::gemm::int8::layout::{CHUNK, PackLayout};
use crate::simd::avx512::Avx512;
use crate::simd::isa::LANES;
use std::arch::asm;
use std::arch::x86_64::*;

/// Products that are started before the sums of one are stored.
const LAG: usize = 2;
/// Most units of a block.
pub(crate) const UNITS: usize = 4;
/// Bytes of a tile of sums.
pub(crate) const TILE: usize = LANES * 64;
/// f32 of the four slots where sums wait.
pub(crate) const RESULTS: usize = 4 * LANES * LANES;
/// f32 of a block's weights.
pub(crate) const WEIGHTS: usize = UNITS * 64 * LANES * 2 / 4;
/// f32 of a block's scales: one for each limb, and the offset.
pub(crate) const SCALES: usize = UNITS * 4 * LANES;

/// Consecutive units of a panel.
#[derive(Clone, Copy)]
pub(crate) struct UnitRange {
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// Columns of a unit.
    pub(crate) columns: usize,
}

/// Configures AMX tiles for `tile_rows` rows.
///
/// # Safety
/// As for [`Configured::bytes`].
pub(crate) unsafe fn configure(layout: PackLayout, tile_rows: usize) -> Configured {
    // SAFETY: AMX is there, no other `Configured` lives here and `tile_rows ≤ 16` (contract above); a slab is at most
    // 64 bytes, a multiple of four.
    unsafe { Configured::bytes(tile_rows, layout.slab()) }
}

/// Unpacks the codes of a range of units.
///
/// # Safety
/// AVX-512 VNNI and VBMI are there. `codes` is a panel that has the units of `range`, at most [`UNITS`]; `to` is
/// writable for [`WEIGHTS`] f32 and 64-byte aligned.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(crate) unsafe fn unpack<C: Code>(
    code: C,
    (codes, zero_point): (*const u8, u8),
    range: UnitRange,
    to: *mut f32,
) {
    let UnitRange { first, count: units, columns: unit } = range;
    let zero_point = _mm512_set1_epi8(zero_point as i8);
    // Shifts: units have 16, 32 or 64 columns, and a division per vector would cost more than the vector.
    let (lines, shift) = (unit / 4, (unit / 4).ilog2());
    let double = usize::from(C::NARROW);
    // SAFETY: the chunks are the panel's, and lines stay below `WEIGHTS` (contract above).
    unsafe {
        let codes = codes.wrapping_add(first * unit / CHUNK * C::BITS * 64);
        for chunk in 0..(units * unit).div_ceil(CHUNK) {
            let bytes = unpack_bytes(code, codes.add(chunk * C::BITS * 64), PREFETCH_BYTES);
            for i in 0..VECTORS {
                let line = chunk * VECTORS + i;
                // Lines of the units before, twice as many where codes are narrow.
                let before = line >> shift << shift << double;
                let byte = _mm512_sub_epi8(bytes[i], zero_point);
                let to = to.cast::<u8>().add((before + (line & (lines - 1))) * 64);
                if C::NARROW {
                    // The shift is of 16 bits; what it pushes into the next byte is masked.
                    let moved = if C::SHIFT == 3 {
                        _mm512_slli_epi16::<3>(byte)
                    } else {
                        _mm512_slli_epi16::<4>(byte)
                    };
                    let mask = _mm512_set1_epi8(-1 << C::SHIFT);
                    _mm512_store_si512(to.cast(), _mm512_and_si512(moved, mask));
                    _mm512_store_si512(to.add(lines * 64).cast(), byte);
                } else {
                    _mm512_store_si512(to.cast(), byte);
                }
            }
        }
    }
}

/// Widens the scales of a range of units to f32, times the weight of each limb.
///
/// # Safety
/// AVX-512 F, BW, DQ and VL are there. The units are the panel's, at most [`UNITS`]; `to` is writable for [`SCALES`]
/// f32 and 64-byte aligned.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(crate) unsafe fn widen_scales<C: Code>(scales: GroupScales, range: UnitRange, to: *mut f32) {
    let UnitRange { first, count, .. } = range;
    for unit in 0..count {
        // SAFETY: the unit is the panel's, and its four lines are within `SCALES` (contract above).
        unsafe {
            let (scale, offset) = scales.of(Avx512::new_unchecked(), first + unit);
            let to = to.add(unit * 4 * LANES);
            for i in 0..3 {
                let weight = _mm512_set1_ps(weights(C::SHIFT)[i]);
                _mm512_store_ps(to.add(i * LANES), _mm512_mul_ps(scale, weight));
            }
            _mm512_store_ps(to.add(3 * LANES), offset);
        }
    }
}

/// Chooses the instruction with tile `$number mod 4`. Numbers are constants after inlining, so a single arm remains.
macro_rules! numbered {
    ($number:expr, $name:ident($($rest:tt)*)) => {
        match $number % 4 {
            0 => $name!(0, $($rest)*),
            1 => $name!(1, $($rest)*),
            2 => $name!(2, $($rest)*),
            _ => $name!(3, $($rest)*),
        }
    };
}

macro_rules! load {
    ($tile:literal, $at:expr, $line:expr) => {
        asm!(
            concat!("tileloadd tmm", $tile, ", [{at} + {line}]"),
            at = in(reg) $at, line = in(reg) $line, options(nostack, readonly),
        )
    };
}

macro_rules! zero {
    ($tile:literal,) => {
        asm!(concat!("tilezero tmm", $tile), options(nostack, nomem))
    };
}

/// Stores a tile to its slot among the results.
macro_rules! store {
    ($tile:literal, $results:expr) => {
        move_tile!(store $tile, $results.wrapping_add($tile * TILE))
    };
}

macro_rules! dot {
    ($sums:literal, $x:literal, $weights:literal, $signed:expr) => {
        if $signed {
            dot!(@ "tdpbssd", $sums, $x, $weights)
        } else {
            dot!(@ "tdpbsud", $sums, $x, $weights)
        }
    };
    (@ $dot:literal, $sums:literal, $x:literal, $weights:literal) => {
        asm!(
            concat!($dot, " tmm", $sums, ", tmm", $x, ", tmm", $weights),
            options(nostack, nomem),
        )
    };
}

pub(crate) use {dot, load, numbered, store, zero};

/// Scales the sums of a limb of a unit of `$block` that wait at `$from` and adds them to `$sums`; with the last limb
/// also the offsets.
///
/// A macro, since a call that is not inlined would spill the sums.
macro_rules! add {
    ($block:expr, [$unit:expr, $limb:expr], $limbs:expr, $from:expr, $sums:ident) => {{
        let (from, scales) = ($from, $block.scales.add($unit * 4 * LANES));
        let scale = _mm512_load_ps(scales.add($limb * LANES));
        for r in 0..TILE_ROWS {
            let whole = _mm512_load_si512(from.add(r * 64).cast());
            $sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, $sums[r]);
        }
        if $limb == $limbs - 1 && $block.offsets {
            let offset = _mm512_load_ps(scales.add(3 * LANES));
            let aux = $block.x.1.add($unit * 4 * TILE_ROWS);
            for r in 0..TILE_ROWS {
                let sum = _mm512_set1_ps(*aux.add(r));
                $sums[r] = _mm512_fmadd_ps(sum, offset, $sums[r]);
            }
        }
    }};
}

/// Operands of a tile of rows with one panel over up to [`UNITS`] units: `x` and its aux words, `weights` and `scales`
/// are readable for these units, `sums` is writable for a tile, 64-byte aligned, and used by no other thread.
pub(crate) struct UnitBlock {
    pub(crate) layout: PackLayout,
    /// Rows of the tile: eight or sixteen.
    pub(crate) tile_rows: usize,
    /// Whether unpacked weights are signed.
    pub(crate) signed: bool,
    pub(crate) offsets: bool,
    /// Activations and their aux words, from the first unit on.
    pub(crate) x: (*const u8, *const f32),
    pub(crate) weights: *const u8,
    pub(crate) scales: *const f32,
    pub(crate) units: usize,
    /// `[row][channel]`.
    pub(crate) sums: *mut f32,
    /// Whether sums start at zero rather than at what is stored.
    pub(crate) fresh: bool,
}

/// Blocks in flight: the last units of one are added while the products of the next run.
pub(crate) struct UnitPipeline<const NARROW: bool> {
    results: *mut u8,
    /// The AMX tile that takes the next product; the two before it hold the last ones.
    phase: usize,
    /// The block whose last products are not yet added.
    before: Option<UnitBlock>,
}

impl<const NARROW: bool> UnitPipeline<NARROW> {
    const LIMBS: usize = if NARROW { 2 } else { 3 };
    /// Units whose sums wait when a block ends, and their products. At least one product more than [`LAG`], so that a
    /// store is a product old when its sums are loaded.
    const LATE: usize = if NARROW { 2 } else { 1 };
    const WAITING: usize = Self::LATE * Self::LIMBS;

    /// `results` is writable for [`RESULTS`] f32, 64-byte aligned, as long as the pipeline is used.
    pub(crate) fn new(results: *mut f32) -> Self {
        Self { results: results.cast(), phase: 0, before: None }
    }

    /// Adds a block's products to its sums, eventually: call [`UnitPipeline::finish`] before reading them.
    ///
    /// # Safety
    /// AMX, AVX-512 VNNI and VBMI are there, and tiles are configured for the block's rows and layout. The fields of
    /// the block are as documented: `weights` until this returns, the others until another block was pushed or the
    /// pipeline is finished.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn push(&mut self, block: UnitBlock) {
        // SAFETY: tiles are configured for the block's rows, and its operands are as documented until another block was
        // pushed (contract above); the constant is the block's number of rows.
        unsafe {
            match block.tile_rows {
                16 => self.rows::<16>(block),
                _ => self.rows::<8>(block),
            }
        }
    }

    /// As above, for blocks of `TILE_ROWS` rows.
    ///
    /// # Safety
    /// As for [`UnitPipeline::push`].
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn rows<const TILE_ROWS: usize>(&mut self, block: UnitBlock) {
        // SAFETY: this function's contract; the block before is kept alive by the contract of its own push.
        unsafe {
            // A block with too few products to add another's sums during them.
            let alone = block.units < Self::LATE;
            if alone {
                self.drain::<TILE_ROWS>();
            }
            let before = self.before.as_ref();
            match self.phase {
                0 => block.products::<0, TILE_ROWS, NARROW>(self.results, before),
                1 => block.products::<1, TILE_ROWS, NARROW>(self.results, before),
                2 => block.products::<2, TILE_ROWS, NARROW>(self.results, before),
                _ => block.products::<3, TILE_ROWS, NARROW>(self.results, before),
            }
            self.phase = (self.phase + block.units * Self::LIMBS) % 4;
            self.before = Some(block);
            if alone {
                self.drain::<TILE_ROWS>();
            }
        }
    }

    /// Adds everything that still waits.
    ///
    /// # Safety
    /// As for [`UnitPipeline::push`].
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn finish(&mut self) {
        // SAFETY: the operands of the block that waits are still as documented (contract of `push`); the constant is
        // its number of rows.
        unsafe {
            match self.before.as_ref().map(|block| block.tile_rows) {
                Some(16) => self.drain::<16>(),
                Some(_) => self.drain::<8>(),
                None => {}
            }
        }
    }

    /// As above, for blocks of `TILE_ROWS` rows.
    ///
    /// # Safety
    /// As for [`UnitPipeline::push`].
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn drain<const TILE_ROWS: usize>(&mut self) {
        let Some(block) = self.before.take() else { return };
        let late = Self::LATE.min(block.units);
        // SAFETY: tiles hold the last two products, and results the ones before; the block's operands are still alive
        // (contract of `push`).
        unsafe {
            for i in 0..LAG {
                numbered!(self.phase + 4 - LAG + i, store(self.results));
            }
            let mut sums = block.sums::<TILE_ROWS>(late == block.units);
            for t in 0..late * Self::LIMBS {
                let (unit, limb) = (block.units - late + t / Self::LIMBS, t % Self::LIMBS);
                let place = (self.phase + 8 - late * Self::LIMBS + t) % 4;
                add!(block, [unit, limb], Self::LIMBS, self.results.add(place * TILE), sums);
            }
            block.keep(&sums);
        }
    }
}

impl UnitBlock {
    /// Product `T`: limb `T mod LIMBS` of unit `T / LIMBS`, in tile `T + PHASE`.
    ///
    /// A load waits for the product that still reads its tile, so consecutive products use different tiles.
    ///
    /// # Safety
    /// As for [`UnitPipeline::push`].
    #[inline(always)]
    unsafe fn product<
        const T: usize,
        const PHASE: usize,
        const TILE_ROWS: usize,
        const NARROW: bool,
    >(
        &self,
    ) {
        let limbs = const { UnitPipeline::<NARROW>::LIMBS };
        let (i, limb) = (T / limbs, T % limbs);
        let (slab, columns) = (self.layout.slab(), self.layout.unit());
        let x = self.x.0.wrapping_add(i * self.layout.unit_bytes(TILE_ROWS));
        let bytes = columns / 4 * 64;
        let w = self.weights.wrapping_add(i * if NARROW { 2 * bytes } else { bytes });
        // SAFETY: the loads are of this unit's activations and weights (contract above); tiles are configured.
        unsafe {
            if NARROW && columns > CHUNK {
                // Both halves of a wide limb have a slab of their own.
                if limb == 0 {
                    load!(4, w, 64_usize);
                    load!(5, w.wrapping_add(bytes), 64_usize);
                }
                load!(6, x.wrapping_add(2 * limb * TILE_ROWS * slab), slab);
                numbered!(T + PHASE, zero());
                numbered!(T + PHASE, dot(6, 4, self.signed));
                load!(7, x.wrapping_add((2 * limb + 1) * TILE_ROWS * slab), slab);
                numbered!(T + PHASE, dot(7, 5, self.signed));
                return;
            }
            let odd = i % 2 == 1;
            if limb == 0 {
                if odd { load!(5, w, 64_usize) } else { load!(4, w, 64_usize) }
            }
            let x = x.wrapping_add(limb * TILE_ROWS * slab);
            if T % 2 == 1 {
                load!(7, x, slab)
            } else {
                load!(6, x, slab)
            }
            numbered!(T + PHASE, zero());
            match (odd, T % 2) {
                (false, 0) => numbered!(T + PHASE, dot(6, 4, self.signed)),
                (false, _) => numbered!(T + PHASE, dot(7, 4, self.signed)),
                (true, 0) => numbered!(T + PHASE, dot(6, 5, self.signed)),
                (true, _) => numbered!(T + PHASE, dot(7, 5, self.signed)),
            }
        }
    }

    /// All products of the block, and the sums of all but its last units; first those of the block before that still
    /// wait.
    ///
    /// # Safety
    /// As for [`UnitPipeline::push`].
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn products<const PHASE: usize, const TILE_ROWS: usize, const NARROW: bool>(
        &self,
        results: *mut u8,
        before: Option<&Self>,
    ) {
        let (limbs, waiting) =
            const { (UnitPipeline::<NARROW>::LIMBS, UnitPipeline::<NARROW>::WAITING) };
        let all = self.units * limbs;
        // SAFETY: this function's contract; slots of `results` are stored two products before they are read.
        unsafe {
            let late =
                before.map_or(0, |before| before.units - const { UnitPipeline::<NARROW>::LATE });
            let mut sums = match before {
                Some(before) => before.sums::<TILE_ROWS>(late == 0),
                None => [_mm512_setzero_ps(); TILE_ROWS],
            };
            macro_rules! each {
                ($($t:literal),*) => {$(
                    if $t < all {
                        self.product::<$t, PHASE, TILE_ROWS, NARROW>();
                        if $t >= LAG || before.is_some() {
                            numbered!($t + PHASE + 4 - LAG, store(results));
                        }
                        let from = results.add(($t + PHASE + 8 - waiting) % 4 * TILE);
                        if $t < waiting {
                            if let Some(before) = before {
                                add!(before, [late + $t / limbs, $t % limbs], limbs, from, sums);
                            }
                        } else {
                            if $t == waiting {
                                if let Some(before) = before {
                                    before.keep(&sums);
                                }
                                sums = self.sums::<TILE_ROWS>(true);
                            }
                            let t = $t - waiting;
                            add!(self, [t / limbs, t % limbs], limbs, from, sums);
                        }
                    }
                )*};
            }
            each!(0, 1, 2, 3, 4, 5, 6, 7);
            if !NARROW {
                each!(8, 9, 10, 11);
            }
            if all > waiting {
                self.keep(&sums);
            } else if let Some(before) = before {
                before.keep(&sums);
            }
        }
    }

    /// The rows' sums so far; `first` if nothing of this block was added to them yet.
    ///
    /// # Safety
    /// As for [`UnitPipeline::push`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn sums<const TILE_ROWS: usize>(&self, first: bool) -> [__m512; TILE_ROWS] {
        let mut sums = [_mm512_setzero_ps(); TILE_ROWS];
        if !(first && self.fresh) {
            for r in 0..TILE_ROWS {
                // SAFETY: `sums` has a vector for each row (contract above).
                sums[r] = unsafe { _mm512_load_ps(self.sums.add(r * LANES)) };
            }
        }
        sums
    }

    /// Stores the rows' sums.
    ///
    /// # Safety
    /// As for [`UnitPipeline::push`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn keep<const TILE_ROWS: usize>(&self, sums: &[__m512; TILE_ROWS]) {
        for r in 0..TILE_ROWS {
            // SAFETY: `sums` has a vector for each row (contract above).
            unsafe { _mm512_store_ps(self.sums.add(r * LANES), sums[r]) };
        }
    }
}
