//! Decodes stored weights to f32, sixteen at a time.
//!
//! # Numerics
//! A weight is `scale · value + offset`, exactly as [`Matrix::decode_row`] gives it: one fused multiply-add where the
//! product is exact in f32 (codes of at most 8 significant bits times an f16 or bf16 scale, or of at most 6 bits times
//! a nested scale of 18), two roundings where it is not. Codes of up to four bits index a table of the group's sixteen
//! weights, made once per group.

use crate::simd::isa::{Isa, LANES};
use forerun_base::{Codes, DType, Format, Matrix, Nesting, ScaleKind, ScaleType};

/// How sixteen stored codes become weights.
pub(crate) trait Decode: Copy + Sync {
    /// Bytes from one step of sixteen columns to the next.
    const STEP_BYTES: usize;
    /// Whether the GEMV kernel is instantiated for this decoder; rare formats save compile time and decode to scratch.
    const FUSED: bool;
    /// State shared by the columns of a group.
    type Group<S: Isa>: Copy;

    /// The state for a group.
    fn group<S: Isa>(self, simd: S, scale: f32, offset: f32) -> Self::Group<S>;

    /// Sixteen weights.
    ///
    /// # Safety
    /// `at` is readable for sixteen codes (`STEP_BYTES`, or [`Decoded`]'s 64 bytes); no more are read.
    unsafe fn weights<S: Isa>(self, simd: S, at: *const u8, group: Self::Group<S>) -> S::F;
}

macro_rules! dense {
    ($name:ident, $bytes:literal, $load:ident, $text:literal) => {
        #[doc = $text]
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Decode for $name {
            const STEP_BYTES: usize = $bytes;
            const FUSED: bool = true;
            type Group<S: Isa> = ();
            #[inline(always)]
            fn group<S: Isa>(self, _simd: S, _scale: f32, _offset: f32) {}
            #[inline(always)]
            unsafe fn weights<S: Isa>(self, simd: S, at: *const u8, (): ()) -> S::F {
                // SAFETY: sixteen stored numbers are readable at `at` (contract of `weights`).
                unsafe { simd.$load(at.cast()) }
            }
        }
    };
}

dense!(DenseF32, 64, load, "Plain f32.");
dense!(DenseF16, 32, load_f16, "f16.");
dense!(DenseBf16, 32, load_bf16, "bfloat16.");

/// One channel of a tile of `N` decoded channels, stored `[step][channel][lane]`.
#[derive(Clone, Copy)]
pub(crate) struct Decoded<const N: usize>;

impl<const N: usize> Decode for Decoded<N> {
    const STEP_BYTES: usize = 64 * N;
    const FUSED: bool = true;
    type Group<S: Isa> = ();
    #[inline(always)]
    fn group<S: Isa>(self, _simd: S, _scale: f32, _offset: f32) {}
    #[inline(always)]
    unsafe fn weights<S: Isa>(self, simd: S, at: *const u8, (): ()) -> S::F {
        // SAFETY: sixteen f32 are readable at `at` (contract of `weights`).
        unsafe { simd.load(at.cast()) }
    }
}

/// Codes of 2, 3 or 4 bits that index `values`. Shorter tables repeat up to sixteen entries, so that the unspecified
/// bits above a code do not matter.
#[derive(Clone, Copy)]
pub(crate) struct Lookup<const BITS: usize> {
    values: [f32; LANES],
    /// Whether `scale · value` is exact in f32, see the module's text.
    exact: bool,
}

impl<const BITS: usize> Decode for Lookup<BITS> {
    const STEP_BYTES: usize = 2 * BITS;
    const FUSED: bool = true;
    type Group<S: Isa> = S::F;
    #[inline(always)]
    fn group<S: Isa>(self, simd: S, scale: f32, offset: f32) -> S::F {
        // SAFETY: the table is sixteen f32.
        let values = unsafe { simd.load(self.values.as_ptr()) };
        let (scale, offset) = (simd.splat(scale), simd.splat(offset));
        if self.exact {
            simd.fma(scale, values, offset)
        } else {
            simd.add(simd.mul(scale, values), offset)
        }
    }
    #[inline(always)]
    unsafe fn weights<S: Isa>(self, simd: S, at: *const u8, table: S::F) -> S::F {
        // SAFETY: `2·BITS` bytes of codes are readable at `at` (contract of `weights`).
        simd.lookup(table, unsafe { simd.codes::<BITS>(at) })
    }
}

/// Codes of 5, 6 or 8 bits with zero point `zero`, a power of two or nothing.
///
/// `scale · (code − zero)` is computed as `scale · code − scale · zero`: the last product only changes the exponent, so
/// the fused operation rounds once, as the definition does. Signed codes have no offset, so they are always `EXACT`.
#[derive(Clone, Copy)]
pub(crate) struct Uint<const BITS: usize, const EXACT: bool> {
    zero: f32,
}

/// FP8 e4m3 codes.
#[derive(Clone, Copy)]
pub(crate) struct E4m3<const EXACT: bool>;

/// `scale · value + offset`, see the module's text.
#[inline(always)]
fn scaled<S: Isa, const EXACT: bool>(simd: S, value: S::F, [scale, offset]: [S::F; 2]) -> S::F {
    if EXACT { simd.fma(scale, value, offset) } else { simd.add(simd.mul(scale, value), offset) }
}

impl<const BITS: usize, const EXACT: bool> Decode for Uint<BITS, EXACT> {
    const STEP_BYTES: usize = 2 * BITS;
    const FUSED: bool = EXACT;
    type Group<S: Isa> = [S::F; 2];
    #[inline(always)]
    fn group<S: Isa>(self, simd: S, scale: f32, offset: f32) -> [S::F; 2] {
        [simd.splat(scale), simd.splat(offset - scale * self.zero)]
    }
    #[inline(always)]
    unsafe fn weights<S: Isa>(self, simd: S, at: *const u8, group: [S::F; 2]) -> S::F {
        // SAFETY: `2·BITS` bytes of codes are readable at `at` (contract of `weights`).
        scaled::<S, EXACT>(simd, unsafe { simd.numbers::<BITS>(at) }, group)
    }
}

impl<const EXACT: bool> Decode for E4m3<EXACT> {
    const STEP_BYTES: usize = 16;
    const FUSED: bool = EXACT;
    type Group<S: Isa> = [S::F; 2];
    #[inline(always)]
    fn group<S: Isa>(self, simd: S, scale: f32, offset: f32) -> [S::F; 2] {
        [simd.splat(scale), simd.splat(offset)]
    }
    #[inline(always)]
    unsafe fn weights<S: Isa>(self, simd: S, at: *const u8, group: [S::F; 2]) -> S::F {
        // SAFETY: sixteen bytes of codes are readable at `at` (contract of `weights`).
        scaled::<S, EXACT>(simd, unsafe { simd.load_e4m3(at) }, group)
    }
}

/// Work that is generic over the decoder of a format.
pub(crate) trait WithDecode {
    /// Runs it.
    fn run<D: Decode>(self, decode: D);
}

/// Calls `work` with the decoder of `format`.
pub(crate) fn with_decode(format: Format, work: impl WithDecode) {
    let (codes, exact) = match format {
        Format::Dense(DType::F16) => return work.run(DenseF16),
        Format::Dense(DType::BF16) => return work.run(DenseBf16),
        Format::Dense(_) => return work.run(DenseF32),
        Format::Grouped { codes, scale, offset, .. } => {
            let exact = match scale {
                ScaleKind::Float(float) => float != ScaleType::F32,
                ScaleKind::Nested => codes.bits() <= 6,
            };
            // Without an offset the only rounding is the product's, fused or not.
            (codes, exact || !offset)
        }
    };
    // The zero point, and the values of all codes of up to four bits.
    let zero = match codes {
        Codes::Int { bits } => 1 << (bits - 1),
        _ => 0,
    };
    let values = match codes {
        Codes::Table { values } => values.map(f32::from),
        _ => std::array::from_fn(|i| ((i & ((1 << codes.bits().min(4)) - 1)) as i32 - zero) as f32),
    };
    let zero = zero as f32;
    match (codes, codes.bits(), exact) {
        (Codes::E4m3, _, true) => work.run(E4m3::<true>),
        (Codes::E4m3, _, false) => work.run(E4m3::<false>),
        (_, 2, _) => work.run(Lookup::<2> { values, exact }),
        (_, 3, _) => work.run(Lookup::<3> { values, exact }),
        (_, 4, _) => work.run(Lookup::<4> { values, exact }),
        (_, 5, true) => work.run(Uint::<5, true> { zero }),
        (_, 5, false) => work.run(Uint::<5, false> { zero }),
        (_, 6, true) => work.run(Uint::<6, true> { zero }),
        (_, 6, false) => work.run(Uint::<6, false> { zero }),
        (_, _, true) => work.run(Uint::<8, true> { zero }),
        (_, _, false) => work.run(Uint::<8, false> { zero }),
    }
}

/// Groups of a row, rounded up to whole vectors.
pub(crate) fn padded_groups(format: Format, cols: usize) -> usize {
    format.row_groups(cols).max(1).next_multiple_of(LANES)
}

/// Scales and offsets of one matrix row, widened to f32. Both outputs have room for [`padded_groups`], of which those
/// past the row's groups are unspecified. A dense matrix has one group with scale 1 and offset 0.
#[inline(always)]
pub(crate) fn widen_scales<S: Isa>(simd: S, matrix: &Matrix, row: usize, out: [&mut [f32]; 2]) {
    let [scales, offsets] = out;
    let Format::Grouped { group, scale, offset, .. } = matrix.format() else {
        (scales[0], offsets[0]) = (1.0, 0.0);
        return;
    };
    let format = matrix.format();
    let wide = |plane: &[u8], out: &mut [f32]| match scale {
        ScaleKind::Float(float) => {
            widen(simd, float, plane, row * format.row_groups(matrix.cols()), out);
        }
        ScaleKind::Nested => {
            let bytes = format.row_scale_bytes(matrix.cols());
            widen_nested(&plane[row * bytes..][..bytes], Nesting::new(group), out);
        }
    };
    wide(matrix.scales(), scales);
    if offset {
        wide(matrix.offsets(), offsets);
    } else {
        offsets.fill(0.0);
    }
}

/// The nested scales of a K-quant's row: `d · s`, exact in f32.
#[inline(always)]
fn widen_nested(row: &[u8], nesting: Nesting, out: &mut [f32]) {
    let groups = nesting.groups();
    let turns = row.chunks_exact(ScaleType::F16.size() + groups);
    for (block, out) in turns.zip(out.chunks_exact_mut(groups)) {
        let d = ScaleType::F16.get(block, 0);
        for (out, &s) in out.iter_mut().zip(&block[ScaleType::F16.size()..]) {
            *out = d * f32::from(s as i8);
        }
    }
}

/// Widens whole vectors of scales from number `first` of a plane on, zeros past its end.
#[inline(always)]
fn widen<S: Isa>(simd: S, from: ScaleType, plane: &[u8], first: usize, out: &mut [f32]) {
    let step = LANES * from.size();
    for (i, out) in out.chunks_exact_mut(LANES).enumerate() {
        let bytes = &plane[(first * from.size() + i * step).min(plane.len())..];
        let mut copy = [0_u8; 64];
        let at = if bytes.len() >= step {
            bytes.as_ptr()
        } else {
            copy[..bytes.len()].copy_from_slice(bytes);
            copy.as_ptr()
        };
        // SAFETY: sixteen numbers lie at `at`, in the plane or in the copy; `out` is sixteen f32.
        unsafe {
            simd.store(out.as_mut_ptr(), scales_at(simd, from, at));
        }
    }
}

/// Sixteen scales or offsets.
///
/// # Safety
/// `at` is readable for sixteen numbers of the type.
#[inline(always)]
pub(crate) unsafe fn scales_at<S: Isa>(simd: S, float: ScaleType, at: *const u8) -> S::F {
    // SAFETY: sixteen numbers of the type are readable at `at` (contract above).
    unsafe {
        match float {
            ScaleType::F32 => simd.load(at.cast()),
            ScaleType::F16 => simd.load_f16(at),
            ScaleType::BF16 => simd.load_bf16(at),
        }
    }
}
