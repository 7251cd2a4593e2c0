//! How the codes of a panel are stored, and how their scales are read.

use crate::gemm::decode::scales_at;
use crate::simd::isa::{Isa, LANES};
use forerun_base::{Codes, Format, ScaleKind, ScaleType};

/// How codes are stored, as constants where kernels depend on it and as a value where they need data (a table).
pub(crate) trait Code: Copy {
    /// Bits of a code in each plane.
    const PLANES: [usize; 2];
    /// Bits of a code. 32 columns of sixteen channels take as many vectors.
    const BITS: usize = Self::PLANES[0] + Self::PLANES[1];
    /// See [`wide_limb_shift`].
    const SHIFT: u32;
    /// Whether such codes meet activations of two wide limbs where there is AMX.
    const NARROW: bool = Self::SHIFT > 0;

    /// Whether codes are indices into a table.
    const TABLE: bool = false;

    /// The table: values plus 128, or signed where the instruction set multiplies signed codes.
    #[inline(always)]
    fn table(self, _signed: bool) -> Option<[u8; 16]> {
        None
    }
}

/// Integers, `LOW` bits in the first plane and `HIGH` in the second.
#[derive(Clone, Copy)]
pub(crate) struct UintCode<const LOW: usize, const HIGH: usize>;

impl<const LOW: usize, const HIGH: usize> Code for UintCode<LOW, HIGH> {
    const PLANES: [usize; 2] = [LOW, HIGH];
    const SHIFT: u32 = wide_limb_shift(LOW + HIGH);
}

/// Indices into a table of sixteen values.
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

/// Work that is generic over the code of a format.
pub(crate) trait WithCode {
    /// Runs it.
    fn run<C: Code>(self, code: C);
}

/// Calls `work` with the code of a format that has integer codes.
pub(crate) fn with_code<W: WithCode>(format: Format, work: W) {
    let Format::Grouped { codes, .. } = format else { unreachable!("dense numbers are no codes") };
    match codes {
        Codes::Table { values } => work.run(TableCode(values)),
        Codes::E4m3 => unreachable!("FP8 codes are floats"),
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

/// The zero point of stored codes as a power of two, where there is one: `value = code − 2^n`.
pub(crate) fn zero_point_log2(format: Format) -> Option<u32> {
    match format {
        Format::Grouped { codes: Codes::Int { bits }, .. } => Some(u32::from(bits) - 1),
        Format::Grouped { codes: Codes::Table { .. }, .. } => Some(7),
        _ => None,
    }
}

/// Scales and offsets of a panel, in the layout of [`packed_weight`](crate::gemm::packed_weight): one of each for every
/// group.
#[derive(Clone, Copy)]
pub(crate) struct GroupScales {
    float: ScaleType,
    scales: *const u8,
    /// Where they lie, if the format has offsets.
    pub(crate) offsets: Option<*const u8>,
    /// Units of a group.
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

    /// Goes on with another panel.
    pub(crate) fn set_panel(&mut self, [scales, offsets]: [*const u8; 2]) {
        self.scales = scales;
        self.offsets = self.offsets.map(|_| offsets);
    }

    /// Their type, and where those of a unit begin.
    #[inline(always)]
    fn at(&self, unit: usize) -> (ScaleType, *const u8, Option<*const u8>) {
        // Nearly always one unit; a division would delay every load.
        let group = if self.shared == 1 { unit } else { unit / self.shared };
        let at = |plane: *const u8| plane.wrapping_add(group * LANES * self.float.size());
        (self.float, at(self.scales), self.offsets.map(at))
    }

    /// The scales and offsets of a unit, one lane for each channel.
    ///
    /// # Safety
    /// `unit` is below the panel's number of units, and the planes given to [`GroupScales::new`] or
    /// [`GroupScales::set_panel`] are readable.
    #[inline(always)]
    pub(crate) unsafe fn of<S: Isa>(&self, simd: S, unit: usize) -> (S::F, S::F) {
        let (float, scale, offset) = self.at(unit);
        // SAFETY: the group of a unit of the panel has sixteen scales, and sixteen offsets where the format has some.
        unsafe {
            let scale = scales_at(simd, float, scale);
            match offset {
                Some(offset) => (scale, scales_at(simd, float, offset)),
                None => (scale, simd.splat(0.0)),
            }
        }
    }
}

/// Limbs of an integer, unless they are wide.
pub(crate) const LIMBS: usize = 3;

/// Wide limbs take more than a byte, `a · 2^shift + b`, so that two of them hold what otherwise takes three: their
/// product with a code is `a · (2^shift · code) + b · code`, and both factors must fit a byte. This is how far codes of
/// so many bits can be shifted: four bits, or three, or not at all where too few bits are free.
pub(crate) const fn wide_limb_shift(bits: usize) -> u32 {
    match bits {
        0..=4 => 4,
        5 => 3,
        _ => 0,
    }
}

/// The power of two that each limb stands for, highest first, where wide limbs have bytes `shift` bits apart; 0 stands
/// for limbs of a byte.
pub(crate) const fn weights(shift: u32) -> [f32; 3] {
    if shift > 0 { [(256 << shift) as f32, 1.0, 0.0] } else { [65536.0, 256.0, 1.0] }
}
