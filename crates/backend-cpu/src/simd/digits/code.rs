//! Codes of a panel as bytes: eight vectors of sixteen channels by four columns for every 32 columns.

use super::super::avx512::widen;
use super::super::isa::LANES;
use super::super::tiled::VECTOR;
use forerun_base::{Codes, Format, ScaleKind, ScaleType};
use std::arch::x86_64::*;

/// How far ahead of its use a code is asked for.
pub(super) const AHEAD: usize = 4096;
/// The same where vectors use codes at once: the second-level cache is asked, which can have more requests under way than the first-level one
/// (measured where there are no tiles: four rows 1.45 times as fast).
const FAR_AHEAD: usize = 8192;

/// Vectors of bytes in 32 columns.
pub(super) const VECTORS: usize = 8;

/// How codes are stored. Values say what a kernel may not ask twice.
pub(super) trait Code: Copy {
    /// Bits of a code in each plane.
    const PLANES: [usize; 2];
    /// Bits of a code, which is also how many vectors 32 columns take.
    const BITS: usize = Self::PLANES[0] + Self::PLANES[1];
    /// Whether activations have two digits of twelve bits where there are tiles.
    const NARROW: bool;

    /// The codes of 32 columns; what is `ahead` bytes behind them is asked for, as near as `HINT` says.
    ///
    /// # Safety
    /// The instructions of [`super::Units`]; `BITS` vectors at `from`.
    unsafe fn bytes<const HINT: i32>(self, from: *const u8, ahead: usize) -> [__m512i; VECTORS];

    /// The same for vectors, which use them at once.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn bytes_at_once(self, from: *const u8) -> [__m512i; VECTORS] {
        // SAFETY: the caller's promise.
        unsafe { self.bytes::<_MM_HINT_T1>(from, FAR_AHEAD) }
    }
}

/// Whole numbers, `LOW` bits in the first plane and `HIGH` in the second.
#[derive(Clone, Copy)]
pub(super) struct Number<const LOW: usize, const HIGH: usize>;

impl<const LOW: usize, const HIGH: usize> Code for Number<LOW, HIGH> {
    const PLANES: [usize; 2] = [LOW, HIGH];
    const NARROW: bool = LOW + HIGH <= 4;

    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn bytes<const HINT: i32>(self, from: *const u8, ahead: usize) -> [__m512i; VECTORS] {
        let mut out = [_mm512_setzero_si512(); VECTORS];
        let each = 8 / LOW;
        for i in 0..LOW {
            // SAFETY: vector `i` of the plane; a prefetch may point anywhere.
            let all = unsafe {
                _mm_prefetch::<HINT>(from.wrapping_add(ahead + i * VECTOR).cast());
                _mm512_loadu_si512(from.add(i * VECTOR).cast())
            };
            for field in 0..each {
                out[i * each + field] = field_of::<LOW>(all, field);
            }
        }
        if HIGH > 0 {
            let each = 8 / HIGH.max(1);
            for i in 0..HIGH {
                // SAFETY: vector `i` of the second plane.
                let all = unsafe {
                    let at = from.add((LOW + i) * VECTOR);
                    _mm_prefetch::<HINT>(at.wrapping_add(ahead).cast());
                    _mm512_loadu_si512(at.cast())
                };
                for field in 0..each {
                    let to = &mut out[i * each + field];
                    let above = moved(all, field * HIGH, LOW);
                    let mask = _mm512_set1_epi8((((1_u16 << HIGH) - 1) << LOW) as i8);
                    // The masked bits of what is above, and all that is there.
                    *to = _mm512_ternarylogic_epi32::<0xf8>(*to, above, mask);
                }
            }
        }
        out
    }
}

/// Moves bit `from` of every byte to bit `to`; what else moves may cross bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
fn moved(all: __m512i, from: usize, to: usize) -> __m512i {
    // Places are constants wherever this is used, so one arm is left of it.
    match (to + 8 - from) % 16 {
        1 => _mm512_srli_epi16::<7>(all),
        2 => _mm512_srli_epi16::<6>(all),
        3 => _mm512_srli_epi16::<5>(all),
        4 => _mm512_srli_epi16::<4>(all),
        5 => _mm512_srli_epi16::<3>(all),
        6 => _mm512_srli_epi16::<2>(all),
        7 => _mm512_srli_epi16::<1>(all),
        8 => all,
        9 => _mm512_slli_epi16::<1>(all),
        10 => _mm512_slli_epi16::<2>(all),
        11 => _mm512_slli_epi16::<3>(all),
        12 => _mm512_slli_epi16::<4>(all),
        13 => _mm512_slli_epi16::<5>(all),
        14 => _mm512_slli_epi16::<6>(all),
        15 => _mm512_slli_epi16::<7>(all),
        _ => unreachable!("a byte has eight bits"),
    }
}

/// Bits `field·BITS..` of every byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
fn field_of<const BITS: usize>(all: __m512i, field: usize) -> __m512i {
    if BITS == 8 {
        return all;
    }
    _mm512_and_si512(
        moved(all, field * BITS, 0),
        _mm512_set1_epi8((1_u8 << (BITS % 8)).wrapping_sub(1) as i8),
    )
}

/// Entries of a table of sixteen, plus 128.
#[derive(Clone, Copy)]
pub(super) struct Looked(pub(super) [u8; 16]);

impl Code for Looked {
    const PLANES: [usize; 2] = [4, 0];
    const NARROW: bool = false;

    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn bytes<const HINT: i32>(self, from: *const u8, ahead: usize) -> [__m512i; VECTORS] {
        // SAFETY: the caller's promise; sixteen bytes of a table.
        let (codes, table) = unsafe {
            let table = _mm_loadu_si128(self.0.as_ptr().cast());
            (Number::<4, 0>.bytes::<HINT>(from, ahead), _mm512_broadcast_i32x4(table))
        };
        let mut out = [table; VECTORS];
        for i in 0..VECTORS {
            out[i] = _mm512_shuffle_epi8(table, codes[i]);
        }
        out
    }
}

/// Something to be done with the code of a format.
pub(super) trait WithCode {
    /// Does it.
    fn run<C: Code>(self, code: C);
}

/// Finds the code of a format that has one here.
pub(super) fn with_code<W: WithCode>(format: Format, work: W) {
    let Format::Grouped { codes, .. } = format else { unreachable!("dense numbers are no codes") };
    match codes {
        Codes::Table { values } => work.run(Looked(values.map(|v| (v as u8) ^ 0x80))),
        Codes::E4m3 => unreachable!("floats are no whole numbers"),
        Codes::Uint { bits } | Codes::Int { bits } => match bits {
            2 => work.run(Number::<2, 0>),
            3 => work.run(Number::<2, 1>),
            4 => work.run(Number::<4, 0>),
            5 => work.run(Number::<4, 1>),
            6 => work.run(Number::<4, 2>),
            _ => work.run(Number::<8, 0>),
        },
    }
}

/// What every stored code has too much: as a power of two, where codes have a sign.
pub(super) fn excess(format: Format) -> Option<u32> {
    match format {
        Format::Grouped { codes: Codes::Int { bits }, .. } => Some(u32::from(bits) - 1),
        Format::Grouped { codes: Codes::Table { .. }, .. } => Some(7),
        _ => None,
    }
}

/// Scales and offsets of a panel, in the layout of [`super::super::tiled`].
#[derive(Clone, Copy)]
pub(super) struct Scales {
    float: ScaleType,
    scales: *const u8,
    /// Where the format has offsets.
    pub(super) offsets: Option<*const u8>,
    /// Units that share them.
    shared: usize,
}

impl Scales {
    /// Scales and offsets at `planes`, for units of `unit` columns.
    pub(super) fn new(format: Format, [scales, offsets]: [*const u8; 2], unit: usize) -> Self {
        let Format::Grouped { group, scale, offset, .. } = format else {
            unreachable!("dense numbers have no scales")
        };
        let ScaleKind::Float(float) = scale else { unreachable!("nested scales are whole") };
        Self { float, scales, offsets: offset.then_some(offsets), shared: group / unit }
    }

    /// Their type, and where those of a unit are.
    #[inline(always)]
    pub(super) fn at(&self, unit: usize) -> (ScaleType, *const u8, Option<*const u8>) {
        // Nearly always one, and a division would come before every load.
        let group = if self.shared == 1 { unit } else { unit / self.shared };
        let at = |plane: *const u8| plane.wrapping_add(group * LANES * self.float.size());
        (self.float, at(self.scales), self.offsets.map(at))
    }

    /// The scale and the offset of a unit.
    ///
    /// # Safety
    /// The instructions of [`super::Units`]; the unit is one of the panel's.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn of(&self, unit: usize) -> (__m512, __m512) {
        let (float, scale, offset) = self.at(unit);
        // SAFETY: the caller's promise.
        unsafe {
            let of = |at: *const u8| widen(float, at);
            (of(scale), offset.map_or(_mm512_setzero_ps(), of))
        }
    }
}

/// Digits of a number, where codes are not narrow.
pub(super) const DIGITS: usize = 3;

/// What each digit is worth, highest first.
pub(super) const fn weights(narrow: bool) -> [f32; 3] {
    if narrow { [4096.0, 1.0, 0.0] } else { [65536.0, 256.0, 1.0] }
}
