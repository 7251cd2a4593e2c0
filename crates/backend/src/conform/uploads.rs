//! A weight that is handed over in parts is the weight that it is as a whole.

use super::matrices::{format_name, random_matrix};
use super::{ConformReport, Rng, all_formats, fitting_columns};
use crate::op::{Embed, Linear};
use crate::{
    Backend, BackendError, BufferRole, BufferSpec, HostData, HostDataMut, View, WeightId,
    submit_and_wait,
};
use forerun_base::{DType, Format, Matrix, MatrixParts, RowSource};
use std::ops::Range;
use std::sync::Arc;

/// Rows of the matrix that parts are taken from: not a multiple of any panel.
const ROWS: usize = 83;
/// Rows of activations.
const BATCH: usize = 2;

pub(super) fn check(candidate: &mut dyn Backend) -> ConformReport {
    let mut report = ConformReport::default();
    for format in all_formats() {
        report.note(&format_name(format), "uploads", in_parts(candidate, format));
    }
    report
}

/// Rows that are made when they are asked for.
#[derive(Debug)]
struct MadeUpload(Matrix);

impl RowSource for MadeUpload {
    fn shape(&self) -> [usize; 2] {
        RowSource::shape(&self.0)
    }

    fn format(&self) -> Format {
        self.0.format()
    }

    fn make(&self, rows: Range<usize>) -> Matrix {
        RowSource::make(&self.0, rows)
    }

    fn release(&self, _rows: Range<usize>) {}
}

fn in_parts(candidate: &mut dyn Backend, format: Format) -> Result<Option<String>, BackendError> {
    let protocol = |why: String| BackendError::Protocol(why);
    let mut rng = Rng::named(&format_name(format));
    let cols = fitting_columns(format, 104);
    let matrix = random_matrix(&mut rng, [ROWS, cols], format);
    let matrix = matrix.map_err(|why| protocol(why.to_string()))?;
    let stored = MatrixParts::from(matrix.clone());
    let made = MatrixParts::made(Arc::new(MadeUpload(matrix.clone())));
    let made = made.map_err(|why| protocol(why.to_string()))?;
    let x = rng.values(BATCH * cols);
    // In one part, turned around, and in pieces shorter and longer than a panel.
    let cuts: [&[Range<usize>]; 3] =
        [&[0..ROWS, 0..0], &[40..ROWS, 0..40], &[7..8, 9..26, 0..7, 60..ROWS, 26..59]];
    for ranges in cuts {
        let select = |parts: &MatrixParts| parts.select_rows(ranges);
        let both = [&stored, &made].map(select).into_iter().collect::<Option<Vec<_>>>();
        let parts = both.as_deref().and_then(MatrixParts::stack);
        let parts = parts.ok_or_else(|| protocol(format!("there are no rows {ranges:?}")))?;
        let whole = candidate.upload("whole", parts.whole())?;
        let pieces = candidate.upload_parts("parts", &parts)?;
        let expected = numbers(candidate, whole, &x)?;
        let found = numbers(candidate, pieces, &x)?;
        if let Some(at) = (0..found.len()).find(|&i| found[i] != expected[i]) {
            return Ok(Some(format!("rows {ranges:?} in parts: number {at} differs")));
        }
    }
    Ok(None)
}

/// The bits of every decoded row and of a product.
fn numbers(
    candidate: &mut dyn Backend,
    weight: WeightId,
    x: &[f32],
) -> Result<Vec<u32>, BackendError> {
    let info = candidate.weight(weight);
    let info = info.ok_or_else(|| BackendError::Protocol("the weight is not there".into()))?;
    let mut buffer = |label, dtype, len| {
        let spec = BufferSpec { label, dtype, len, role: BufferRole::Scratch };
        candidate.alloc(spec).map(|buffer| View::head(buffer, len))
    };
    let ids = buffer("ids", DType::U32, info.rows)?;
    let input = buffer("x", DType::F32, x.len())?;
    let decoded = buffer("decoded", DType::F32, info.rows * info.cols)?;
    let product = buffer("product", DType::F32, BATCH * info.rows)?;
    let all: Vec<u32> = (0..info.rows as u32).collect();
    candidate.write(ids, HostData::U32(&all))?;
    candidate.write(input, HostData::F32(x))?;
    candidate.embed(Embed { ids, table: weight, scale: 1.0, out: decoded })?;
    candidate.linear(Linear::set(input, weight, product))?;
    submit_and_wait(candidate)?;
    let mut numbers = vec![0.0; decoded.len + product.len];
    let (first, second) = numbers.split_at_mut(decoded.len);
    candidate.read(decoded, HostDataMut::F32(first))?;
    candidate.read(product, HostDataMut::F32(second))?;
    Ok(numbers.into_iter().map(f32::to_bits).collect())
}
