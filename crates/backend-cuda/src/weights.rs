//! Weights in the canonical layout, and small ones as f32 beside it.

use crate::driver::{Address, Args};
use crate::memory::bytes_of;
use crate::queue::Queue;
use forerun_backend::{BackendError, WeightId, WeightInfo};
use forerun_base::{Codes, DType, Format, Matrix, ScaleKind, ScaleType};

/// Elements up to which a weight of few columns is kept as f32 too: norms, taps of convolutions, gates.
const SMALL: usize = 1 << 20;
/// Columns up to which a weight of several rows is one of those.
const NARROW: usize = 16;

/// A weight in device memory.
#[derive(Clone, Copy, Debug)]
struct Kept {
    info: WeightInfo,
    planes: [Address; 3],
    /// All elements as f32.
    decoded: Option<Address>,
}

/// All weights of the device.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    kept: Vec<Kept>,
}

impl Weights {
    pub(crate) fn info(&self, id: WeightId) -> Option<WeightInfo> {
        self.kept.get(id.0 as usize).map(|kept| kept.info)
    }

    pub(crate) fn upload(
        &mut self,
        queue: &mut Queue,
        label: &str,
        matrix: &Matrix,
    ) -> Result<WeightId, BackendError> {
        let (rows, cols, format) = (matrix.rows(), matrix.cols(), matrix.format());
        let mut planes = [Address::NULL; 3];
        let sources = [matrix.codes(), matrix.scales(), matrix.offsets()];
        for (address, plane) in planes.iter_mut().zip(sources) {
            if !plane.is_empty() {
                *address = put(queue, label, plane)?;
            }
        }
        let small = (rows == 1 || cols <= NARROW) && rows.saturating_mul(cols) <= SMALL;
        let decoded = match format {
            Format::Dense(DType::F32) => Some(planes[0]),
            _ if small => Some(put(queue, label, bytes_of(&decode(matrix)))?),
            _ => None,
        };
        let info = WeightInfo { rows, cols, format, bytes: matrix.bytes() };
        self.kept.push(Kept { info, planes, decoded });
        Ok(WeightId(self.kept.len() as u32 - 1))
    }

    /// A small weight's elements as f32, row by row.
    pub(crate) fn small(&self, op: &'static str, id: WeightId) -> Result<Address, BackendError> {
        let what =
            "a weight that is kept as f32 has one row, or at most 16 columns and 2^20 elements";
        self.kept[id.0 as usize].decoded.ok_or(BackendError::Parameter { op, what })
    }

    /// The fields of `Weight` in `canonical.cuh`.
    pub(crate) fn fields(&self, args: Args, id: WeightId) -> Args {
        let Kept { info, planes, .. } = self.kept[id.0 as usize];
        let (form, bits, table) = form(info.format);
        let (group, scale) = match info.format {
            Format::Dense(_) => (1, 0),
            Format::Grouped { group, scale, .. } => (group, scale_form(scale)),
        };
        let args = planes.into_iter().fold(args, Args::with);
        args.with(info.format.row_bytes(info.cols) as u64)
            .with(info.format.row_scale_bytes(info.cols) as u64)
            .with(table[0])
            .with(table[1])
            .size(info.rows)
            .size(info.cols)
            .with(form)
            .with(bits)
            .size(group)
            .with(scale)
    }
}

fn put(queue: &mut Queue, label: &str, bytes: &[u8]) -> Result<Address, BackendError> {
    let address = queue.alloc(label, bytes.len() as u64)?;
    // SAFETY: the memory was just made with this size.
    unsafe { queue.driver_mut().copy_in(address, bytes) }?;
    Ok(address)
}

fn decode(matrix: &Matrix) -> Vec<f32> {
    let mut all = vec![0.0; matrix.rows() * matrix.cols()];
    for (row, line) in all.chunks_exact_mut(matrix.cols().max(1)).enumerate() {
        matrix.decode_row(row, line);
    }
    all
}

/// How `canonical.cuh` numbers forms of codes, their bits, and the table of those that have one.
fn form(format: Format) -> (u32, u32, [u64; 2]) {
    match format {
        Format::Dense(DType::F16) => (1, 16, [0; 2]),
        Format::Dense(DType::BF16) => (2, 16, [0; 2]),
        Format::Dense(_) => (0, 32, [0; 2]),
        Format::Grouped { codes, .. } => match codes {
            Codes::Uint { bits } => (3, u32::from(bits), [0; 2]),
            Codes::Int { bits } => (4, u32::from(bits), [0; 2]),
            Codes::Table { values } => {
                let half =
                    |at: usize| u64::from_le_bytes(std::array::from_fn(|i| values[at + i] as u8));
                (5, 4, [half(0), half(8)])
            }
            Codes::E4m3 => (6, 8, [0; 2]),
        },
    }
}

/// How `canonical.cuh` numbers forms of scales.
fn scale_form(scale: ScaleKind) -> u32 {
    match scale {
        ScaleKind::Float(ScaleType::F32) => 0,
        ScaleKind::Float(ScaleType::F16) => 1,
        ScaleKind::Float(ScaleType::BF16) => 2,
        ScaleKind::Nested => 3,
    }
}
