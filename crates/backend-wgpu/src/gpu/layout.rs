//! How a weight lies in device memory: panels of 16 channels in pieces that can be bound. See `kernels/weight.wgsl`.
//!
//! Nothing here needs a device, so launches can be counted without one.

use forerun_backend::WeightInfo;
use forerun_base::{Codes, DType, Format, SUPERBLOCK, ScaleKind, ScaleType};

/// Bits of [`WeightLayout::style`]: see `kernels/weight.wgsl`.
const SCALE_AT: usize = 8;
const OFFSET: usize = 1024;
const GROUP_AT: usize = 12;

/// A constant of a kernel's text.
pub(crate) type Constant = (&'static str, u32);

/// Channels of a panel.
pub(crate) const PANEL: usize = 16;
/// Columns that rows of codes are padded to.
const UNIT: usize = 32;

/// Some channels of a weight, in a buffer that can be bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightPiece {
    pub(crate) first: usize,
    pub(crate) channels: usize,
    /// Where the planes of scales and of offsets begin, in words.
    pub(crate) scales_at: usize,
    pub(crate) offsets_at: usize,
    /// All of them.
    pub(crate) words: usize,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct WeightLayout {
    pub(crate) info: WeightInfo,
    /// The codes, as constants of the kernels' text.
    pub(crate) constants: Vec<Constant>,
    /// Scales and groups, as the word that kernels are told.
    pub(crate) style: usize,
    /// Words of a channel in the plane of codes, and in that of scales.
    pub(crate) code_words: usize,
    pub(crate) scale_words: usize,
    pub(crate) pieces: Vec<WeightPiece>,
}

impl WeightLayout {
    /// The layout of a weight where a binding has at most `most` bytes.
    pub(crate) fn of(info: WeightInfo, most: u64) -> Self {
        let WeightInfo { rows, cols, format, .. } = info;
        let (codes, bits) = code_constants(format);
        let (odd_group, style) = style(format);
        let constants = codes.into_iter().chain(odd_group).collect();
        let code_words = cols.div_ceil(UNIT) * bits;
        let scale_words = scale_words(format, cols);
        let has_offset = matches!(format, Format::Grouped { offset: true, .. });
        let planes = 1 + usize::from(has_offset);
        let panel_words = PANEL * (code_words + planes * scale_words);
        let most = usize::try_from(most / 4).unwrap_or(usize::MAX);
        let panels = (most / panel_words.max(1)).max(1);
        let piece = |first: usize| {
            let channels = (rows - first).min(panels.saturating_mul(PANEL));
            let height = channels.div_ceil(PANEL);
            let scales_at = height * PANEL * code_words;
            let offsets_at = scales_at + height * PANEL * scale_words;
            WeightPiece { first, channels, scales_at, offsets_at, words: height * panel_words }
        };
        let pieces = (0..rows).step_by(panels.saturating_mul(PANEL)).map(piece).collect();
        Self { info, constants, style, code_words, scale_words, pieces }
    }

    /// Whether one kernel can have this weight beside another: both are of one format, and each is in one piece.
    pub(crate) fn joins(&self, other: &Self) -> bool {
        let whole = self.pieces.len() == 1 && other.pieces.len() == 1;
        whole && self.constants == other.constants && self.style == other.style
    }

    /// What a kernel is told of a piece's planes.
    pub(crate) fn planes(&self, piece: &WeightPiece) -> [usize; 4] {
        [self.code_words, self.scale_words, piece.scales_at, piece.offsets_at]
    }
}

/// A format's codes as constants of the kernels' text, and the bits of a code.
fn code_constants(format: Format) -> (Vec<Constant>, usize) {
    let (kind, bits) = match format {
        Format::Dense(DType::F16) => (5, 16),
        Format::Dense(DType::BF16) => (6, 16),
        Format::Dense(_) => (4, 32),
        Format::Grouped { codes, .. } => {
            let kind = match codes {
                Codes::Uint { .. } => 0,
                Codes::Int { .. } => 1,
                Codes::Table { .. } => 2,
                Codes::E4m3 => 3,
            };
            (kind, codes.bits())
        }
    };
    let mut constants = vec![("CODES", kind), ("BITS", bits as u32)];
    if let Format::Grouped { codes: Codes::Table { values }, .. } = format {
        let (words, _) = values.as_chunks::<4>();
        let names = ["TABLE0", "TABLE1", "TABLE2", "TABLE3"];
        let word = |bytes: &[i8; 4]| u32::from_le_bytes(bytes.map(|byte| byte as u8));
        constants.extend(names.into_iter().zip(words.iter().map(word)));
    }
    (constants, bits)
}

/// A format's scales and groups as the word that kernels are told; a constant where shifts do not find a group.
fn style(format: Format) -> (Option<Constant>, usize) {
    let Format::Grouped { group, scale, offset, .. } = format else { return (None, 0) };
    let kind = match scale {
        ScaleKind::Float(ScaleType::F32) => 0,
        ScaleKind::Float(ScaleType::F16) => 1,
        ScaleKind::Float(ScaleType::BF16) => 2,
        ScaleKind::Nested => 3,
    };
    let style = kind << SCALE_AT | if offset { OFFSET } else { 0 };
    match group.is_power_of_two() && group.ilog2() < 16 {
        true => (None, style | (group.ilog2() as usize) << GROUP_AT),
        false => (Some(("ODD_GROUP", group as u32)), style),
    }
}

/// Words of a channel in a plane of scales.
fn scale_words(format: Format, cols: usize) -> usize {
    let Format::Grouped { group, scale, .. } = format else { return 0 };
    let groups = format.row_groups(cols);
    match scale {
        ScaleKind::Float(ScaleType::F32) => groups,
        ScaleKind::Float(_) => groups.div_ceil(2),
        ScaleKind::Nested => {
            let blocks = cols / SUPERBLOCK;
            blocks.div_ceil(2) + (blocks * (SUPERBLOCK / group)).div_ceil(4)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_of_the_same_codes_share_constants_and_are_told_apart_by_their_style() {
        let of = |group, scale, offset| {
            let format = Format::Grouped { codes: Codes::Uint { bits: 4 }, group, scale, offset };
            WeightLayout::of(WeightInfo { rows: 16, cols: 256, format, bytes: 0 }, u64::MAX)
        };
        let (f32, f16) = (of(32, ScaleKind::F32, false), of(64, ScaleKind::F16, true));
        assert_eq!(f32.constants, f16.constants);
        assert!(f32.style != f16.style && !f32.joins(&f16) && f32.joins(&f32));
        let odd = of(48, ScaleKind::F32, false);
        assert!(odd.constants.contains(&("ODD_GROUP", 48)), "{:?}", odd.constants);
    }
}
