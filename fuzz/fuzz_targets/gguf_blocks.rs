//! Any bytes as blocks of every type: the rows decode, and selected columns decode to the same.
//! The first byte sampled the type, the second the columns of a row, the third where to turn them.
#![no_main]

use forerun_weights::gguf::{BlockType, parts};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let [kind, across, turn, bytes @ ..] = bytes else { return };
    let blocks: Vec<BlockType> = BlockType::readable().collect();
    let block = blocks[usize::from(*kind) % blocks.len()];
    let [values, size] = block.block().expect("readable types have a size");
    let (in_row, cols) = (1 + usize::from(*across % 4), values * (1 + usize::from(*across % 4)));
    let rows = bytes.len() / (in_row * size);
    let whole = rows * in_row * size;
    assert_eq!(parts(block, [rows, cols], bytes.to_vec().into()).is_ok(), whole == bytes.len());
    let parts = parts(block, [rows, cols], bytes[..whole].to_vec().into());
    let matrix = parts.expect("rows of whole blocks").whole();
    let middle = usize::from(*turn) * cols / 255;
    let swapped = matrix.select_columns(&[middle..cols, 0..middle]).expect("columns that exist");
    let (mut line, mut other) = (vec![0.0; cols], vec![0.0; cols]);
    for row in 0..rows {
        matrix.decode_row(row, &mut line);
        swapped.decode_row(row, &mut other);
        line.rotate_left(middle);
        assert!(line.iter().zip(&other).all(|(a, b)| a == b || (a.is_nan() && b.is_nan())));
    }
});
