use super::*;
use crate::{BytesOwner, Codes, DType, ScaleKind};
use std::sync::Mutex;

const COLS: usize = 40;

fn formats() -> [Format; 3] {
    let codes = Codes::Uint { bits: 4 };
    let grouped = Format::Grouped { codes, group: 16, scale: ScaleKind::F16, offset: true };
    let fp8 =
        Format::Grouped { codes: Codes::E4m3, group: 32, scale: ScaleKind::F32, offset: false };
    [Format::Dense(DType::BF16), grouped, fp8]
}

/// Bytes that differ everywhere and are no NaN in any format.
fn matrix(rows: usize, format: Format) -> Matrix {
    let planes = format.plane_bytes(COLS).map(|each| {
        (0..rows * each).map(|i| (i * 31 + i / 7) as u8 & 0x3b).collect::<Vec<u8>>().into()
    });
    Matrix::new([rows, COLS], format, planes).unwrap()
}

/// The same rows, made one block at a time.
#[derive(Debug)]
struct Lazy(Matrix);

impl RowSource for Lazy {
    fn shape(&self) -> [usize; 2] {
        self.0.shape()
    }
    fn format(&self) -> Format {
        self.0.format
    }
    fn make(&self, rows: Range<usize>) -> Matrix {
        RowSource::make(&self.0, rows)
    }
    fn release(&self, _rows: Range<usize>) {}
}

fn lazy(matrix: &Matrix) -> MatrixParts {
    MatrixParts::made(Arc::new(Lazy(matrix.clone()))).unwrap()
}

fn assert_same(found: &Matrix, expected: &Matrix, what: &str) {
    let parts = |m: &Matrix| [m.codes.to_vec(), m.scales.to_vec(), m.offsets.to_vec()];
    assert_eq!(RowSource::shape(found), RowSource::shape(expected), "{what}");
    assert_eq!(found.format, expected.format, "{what}");
    assert_eq!(parts(found), parts(expected), "{what}");
}

#[test]
fn rows_from_parts_are_the_rows_of_the_concatenated_matrix() {
    for format in formats() {
        let all = matrix(37, format);
        for ranges in [vec![0..37, 0..0], vec![20..37, 0..20], vec![5..6, 6..9, 0..0, 30..37, 1..3]]
        {
            let expected = all.select_rows(&ranges).unwrap();
            for source in [MatrixParts::from(all.clone()), lazy(&all)] {
                let parts = source.select_rows(&ranges).unwrap();
                let what = format!("{} {ranges:?}", format.name());
                assert_same(&parts.whole(), &expected, &what);
                assert_eq!(parts.bytes(), expected.bytes(), "{what}");
                for from in 0..expected.rows {
                    for to in [from, from + 1, expected.rows] {
                        let block = parts.block(from..to);
                        let rows = expected.select_rows(&[from..to, 0..0]).unwrap();
                        assert_same(&block, &rows, &format!("{what}, rows {from}..{to}"));
                    }
                }
            }
        }
    }
}

#[test]
fn a_stack_of_parts_is_the_stack_of_matrices() {
    for format in formats() {
        let all = [matrix(3, format), matrix(0, format), matrix(17, format), matrix(1, format)];
        let parts = [all[0].clone().into(), lazy(&all[1]), lazy(&all[2]), all[3].clone().into()];
        let stacked = MatrixParts::stack(&parts).unwrap();
        assert_same(&stacked.whole(), &Matrix::stack(&all).unwrap(), &format.name());
        let turned = stacked.select_rows(&[18..21, 2..4]).unwrap();
        let expected = Matrix::stack(&all).unwrap().select_rows(&[18..21, 2..4]).unwrap();
        assert_same(&turned.block(0..5), &expected, &format.name());
    }
    let [a, b, _] = formats().map(|format| MatrixParts::from(matrix(2, format)));
    assert!(MatrixParts::stack(&[a, b]).is_none(), "formats differ");
    assert!(MatrixParts::stack(&[]).is_none());
}

#[test]
fn columns_are_selected_block_by_block() {
    for format in formats() {
        let all = matrix(11, format);
        for ranges in [vec![16..32, 0..16], vec![3..9, 9..9], vec![]] {
            let parts = lazy(&all).select_columns(&ranges).unwrap();
            let expected = all.select_columns(&ranges).unwrap();
            assert_same(&parts.whole(), &expected, &format!("{} {ranges:?}", format.name()));
        }
        assert!(lazy(&all).select_columns(&[30..41, 0..1]).is_none());
    }
}

#[test]
fn a_stored_matrix_and_a_range_of_it_are_not_copied() {
    let all = matrix(9, Format::Dense(DType::BF16));
    let parts = MatrixParts::from(all.clone());
    assert!(std::ptr::eq(parts.whole().codes.as_ptr(), all.codes.as_ptr()));
    let some = parts.select_rows(&[2..4, 4..7]).unwrap();
    assert!(std::ptr::eq(some.whole().codes.as_ptr(), all.codes[2 * 2 * COLS..].as_ptr()));
}

#[test]
fn large_matrices_are_built_by_several_threads_in_the_order_of_rows() {
    let format = formats()[1];
    let all = matrix(60_001, format);
    let ranges = [59_999..60_001, 7..60_000, 0..5];
    let parts = lazy(&all).select_rows(&ranges).unwrap();
    assert_same(&parts.whole(), &all.select_rows(&ranges).unwrap(), "large");
}

#[test]
fn the_watch_names_what_a_search_of_the_whole_finds() {
    for format in formats() {
        let mut planes = format.plane_bytes(COLS).map(|each| vec![0; 30 * each]);
        let dense = matches!(format, Format::Dense(_));
        let spoiled = if dense { &mut planes[0] } else { &mut planes[1] };
        let row = spoiled.len() / 30;
        for at in [11, 23] {
            spoiled[at * row..][..4].fill(0xff);
        }
        if let Some(offset) = planes[2].get_mut(..2) {
            offset.fill(0xff);
        }
        let all = Matrix::new([30, COLS], format, planes.map(Bytes::from)).unwrap();
        let expected = all.first_not_finite();
        assert_eq!(expected, Some((if dense { "values" } else { "scales" }, 11)));
        let mut parts = lazy(&all);
        let watch = parts.watch();
        assert_eq!(watch.found(), None);
        // Later rows first, as threads may take them.
        [20..30, 10..20, 0..10].into_iter().for_each(|rows| drop(parts.block(rows)));
        assert_eq!(watch.found(), expected, "{}", format.name());
        let mut stored = MatrixParts::from(all);
        let watch = stored.watch();
        stored.whole();
        assert_eq!(watch.found(), expected, "{}", format.name());
    }
}

#[test]
fn released_rows_reach_the_owner_of_their_bytes() {
    struct Owner(Vec<u8>, Arc<Mutex<Vec<Range<usize>>>>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl BytesOwner for Owner {
        fn release(&self, part: Range<usize>) {
            self.1.lock().unwrap().push(part);
        }
    }
    let heard = Arc::new(Mutex::new(Vec::new()));
    let bytes = Bytes::owned_by(Owner(vec![0; 100 + 10 * 2 * COLS], heard.clone()));
    let bytes = bytes.slice(100..100 + 10 * 2 * COLS).unwrap();
    let parts = MatrixParts::from(Matrix::dense(10, COLS, DType::BF16, bytes).unwrap());
    let parts = parts.select_rows(&[8..10, 1..4]).unwrap();
    parts.release(1..4);
    let row = |row: usize| 100 + row * 2 * COLS;
    assert_eq!(*heard.lock().unwrap(), [row(9)..row(10), row(1)..row(3)]);
    assert_eq!(parts.block(0..1).codes.len(), 2 * COLS, "still there");
}
