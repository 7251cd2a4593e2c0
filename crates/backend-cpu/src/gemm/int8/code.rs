//! How codes of a panel are stored, and what their scales are.

use crate::gemm::decode::scales_at;
use crate::simd::isa::{Isa, LANES};
use forerun_base::{Codes, Format, ScaleKind, ScaleType};

/// How codes are stored. Values say what a kernel may not ask twice.
pub(crate) trait Code: Copy {
    /// Bits of a code in each plane.
    const PLANES: [usize; 2];
    /// Bits of a code, which is also how many vectors 32 columns take.
    const BITS: usize = Self::PLANES[0] + Self::PLANES[1];
    /// See [`shift`].
    const SHIFT: u32;
    /// Whether activations have two long digits where there are tiles.
    const NARROW: bool = Self::SHIFT > 0;

    /// Whether codes stand for entries of a table.
    const TABLE: bool = false;

    /// What codes stand for where that is not themselves: plus 128, unless bytes may have a sign.
    #[inline(always)]
    fn table(self, _signed: bool) -> Option<[u8; 16]> {
        None
    }
}

/// Whole numbers, `LOW` bits in the first plane and `HIGH` in the second.
#[derive(Clone, Copy)]
pub(crate) struct UintCode<const LOW: usize, const HIGH: usize>;

impl<const LOW: usize, const HIGH: usize> Code for UintCode<LOW, HIGH> {
    const PLANES: [usize; 2] = [LOW, HIGH];
    const SHIFT: u32 = shift(LOW + HIGH);
}

/// Entries of a table of sixteen.
#[derive(Clone, Copy)]
pub(crate) struct TableCode([i8; 16]);

impl Code for TableCode {
    const PLANES: [usize; 2] = [4, 0];
    const SHIFT: u32 = 0;
    const TABLE: bool = true;

    #[inline(always)]
    fn table(self, signed: bool) -> Option<[u8; 16]> {
        let mut table = [0; 16];
        for i in 0..16 {
            table[i] = self.0[i] as u8 ^ if signed { 0 } else { 0x80 };
        }
        Some(table)
    }
}

/// Something to be done with the code of a format.
pub(crate) trait WithCode {
    /// Does it.
    fn run<C: Code>(self, code: C);
}

/// Finds the code of a format that has one here.
pub(crate) fn with_code<W: WithCode>(format: Format, work: W) {
    let Format::Grouped { codes, .. } = format else { unreachable!("dense numbers are no codes") };
    match codes {
        Codes::Table { values } => work.run(TableCode(values)),
        Codes::E4m3 => unreachable!("floats are no whole numbers"),
        Codes::Uint { bits } | Codes::Int { bits } => match bits {
            2 => work.run(UintCode::<2, 0>),
            3 => work.run(UintCode::<2, 1>),
            4 => work.run(UintCode::<4, 0>),
            5 => work.run(UintCode::<4, 1>),
            6 => work.run(UintCode::<4, 2>),
            _ => work.run(UintCode::<8, 0>),
        },
    }
}

/// What every stored code has too much: as a power of two, where codes have a sign.
pub(crate) fn zero_point_log2(format: Format) -> Option<u32> {
    match format {
        Format::Grouped { codes: Codes::Int { bits }, .. } => Some(u32::from(bits) - 1),
        Format::Grouped { codes: Codes::Table { .. }, .. } => Some(7),
        _ => None,
    }
}

/// Scales and offsets of a panel, in the layout of [`crate::gemm::packed_weight`].
#[derive(Clone, Copy)]
pub(crate) struct GroupScales {
    float: ScaleType,
    scales: *const u8,
    /// Where the format has offsets.
    pub(crate) offsets: Option<*const u8>,
    /// Units that share them.
    shared: usize,
}

impl GroupScales {
    /// Scales and offsets at `planes`, for units of `unit` columns.
    pub(crate) fn new(format: Format, [scales, offsets]: [*const u8; 2], unit: usize) -> Self {
        let Format::Grouped { group, scale, offset, .. } = format else {
            unreachable!("dense numbers have no scales")
        };
        let ScaleKind::Float(float) = scale else { unreachable!("nested scales are whole") };
        Self { float, scales, offsets: offset.then_some(offsets), shared: group / unit }
    }

    /// Those at other planes.
    pub(crate) fn set_panel(&mut self, [scales, offsets]: [*const u8; 2]) {
        self.scales = scales;
        self.offsets = self.offsets.map(|_| offsets);
    }

    /// Their type, and where those of a unit are.
    #[inline(always)]
    fn at(&self, unit: usize) -> (ScaleType, *const u8, Option<*const u8>) {
        // Nearly always one, and a division would come before every load.
        let group = if self.shared == 1 { unit } else { unit / self.shared };
        let at = |plane: *const u8| plane.wrapping_add(group * LANES * self.float.size());
        (self.float, at(self.scales), self.offsets.map(at))
    }

    /// The scale and the offset of a unit.
    ///
    /// # Safety
    /// The unit is one of the panel's.
    #[inline(always)]
    pub(crate) unsafe fn of<S: Isa>(&self, simd: S, unit: usize) -> (S::F, S::F) {
        let (float, scale, offset) = self.at(unit);
        // SAFETY: the caller's promise.
        unsafe {
            let scale = scales_at(simd, float, scale);
            match offset {
                Some(offset) => (scale, scales_at(simd, float, offset)),
                None => (scale, simd.splat(0.0)),
            }
        }
    }
}

/// Digits of a number, where codes are not narrow.
pub(crate) const LIMBS: usize = 3;

/// How far codes of so many bits can move up inside a byte to meet long digits: by four bits or three; none where too
/// few are left.
///
/// A digit is then `a · 2^shift + b`, the product with a code `a · (2^shift · code) + b · code`.
pub(crate) const fn shift(bits: usize) -> u32 {
    match bits {
        0..=4 => 4,
        5 => 3,
        _ => 0,
    }
}

/// What each digit is worth, highest first, where long ones have bytes `shift` bits apart; 0 stands for digits of a
/// byte.
pub(crate) const fn weights(shift: u32) -> [f32; 3] {
    if shift > 0 { [(256 << shift) as f32, 1.0, 0.0] } else { [65536.0, 256.0, 1.0] }
}
