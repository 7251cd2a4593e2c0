//! Blocks of ggml decode to the numbers ggml decodes them to.

use crate::formats::{assert_same, decode};
use crate::written::{self, assert_says, gguf};
use forerun_base::{DType, f16_to_f32};
use forerun_testkit::tiny::GgufFile;
use forerun_weights::gguf::BlockType;
use forerun_weights::{Checkpoint, Storage};
use tempfile::TempDir;

/// Blocks and the values ggml decodes them to: `{type}.packed`, `{type}.values`.
const GGML_VECTORS: &[u8] = include_bytes!("data/ggml_vectors.safetensors");

const SHAPE: [usize; 2] = [3, 512];

fn vectors() -> (TempDir, Checkpoint) {
    let (folder, vectors) =
        written::checkpoint(&[("config.json", b"{}"), ("model.safetensors", GGML_VECTORS)]);
    (folder, vectors.expect("a good checkpoint"))
}

/// Blocks and values of one type.
fn vector(block: BlockType) -> (Vec<u8>, Vec<f32>) {
    let (_folder, vectors) = vectors();
    let packed = vectors.tensor(&format!("{block}.packed")).expect("blocks");
    let values = vectors.values(&format!("{block}.values"), &SHAPE).expect("values");
    (packed.bytes.to_vec(), values)
}

fn block_type(id: u32) -> BlockType {
    match Storage::from_ggml(id) {
        Storage::Block(block) => block,
        plain => panic!("{plain} is not packed"),
    }
}

#[test]
fn ggml_vectors_decode_bit_for_bit() {
    let (_folder, vectors) = vectors();
    let mut named: Vec<&str> = vectors.names().filter_map(|n| n.strip_suffix(".packed")).collect();
    let mut readable: Vec<String> = BlockType::readable().map(|b| b.to_string()).collect();
    named.sort_unstable();
    readable.sort_unstable();
    assert_eq!(named, readable);
    for block in BlockType::readable() {
        let (packed, values) = vector(block);
        let file = GgufFile::default()
            .tensor("m.weight", block.id(), &[3, 512], &packed)
            .tensor("stack.weight", block.id(), &[3, 1, 512], &packed)
            .tensor("flat", block.id(), &[1536], &packed);
        let (_folder, checkpoint) = gguf(&file);
        let case = block.to_string();
        assert_same(&decode(&checkpoint.matrix("m", SHAPE).unwrap()), &values, &case);
        assert_same(&decode(&checkpoint.stacked("stack", [3, 1, 512]).unwrap()), &values, &case);
        assert_same(&checkpoint.values("m.weight", &SHAPE).unwrap(), &values, &case);
        assert_same(&checkpoint.values("flat", &[1536]).unwrap(), &values, &case);
        let info = checkpoint.info("m.weight").unwrap();
        assert_eq!((info.storage.to_string(), info.shape), (case, SHAPE.to_vec()));
        assert_eq!(info.bytes, packed.len() as u64);
    }
}

/// Large tensors are repacked by several threads; blocks must land where they belong.
#[test]
fn large_tensors_repack_like_small_ones() {
    const ROWS: usize = 9001;
    for block in BlockType::readable() {
        let (packed, values) = vector(block);
        let bytes: Vec<u8> = packed.iter().copied().cycle().take(packed.len() / 3 * ROWS).collect();
        assert!(bytes.len() > 1 << 20);
        let parts = forerun_weights::gguf::parts(block, [ROWS, 512], bytes.into()).unwrap();
        let matrix = parts.whole();
        let mut row = [0.0; 512];
        for number in 0..ROWS {
            matrix.decode_row(number, &mut row);
            let first = number % 3 * 512;
            assert_same(&row, &values[first..first + 512], &format!("{block} row {number}"));
        }
    }
}

#[test]
fn plain_types_are_windows_into_the_file() {
    let bytes: Vec<u8> = (0..64).collect();
    for (id, dtype, cols) in [(0, DType::F32, 8), (1, DType::F16, 16), (30, DType::BF16, 16)] {
        let file = GgufFile::default().tensor("m.weight", id, &[2, cols as u64], &bytes);
        let (_folder, checkpoint) = gguf(&file);
        let tensor = checkpoint.tensor("m.weight").unwrap();
        assert_eq!(
            (tensor.dtype, &tensor.shape[..], &*tensor.bytes),
            (dtype, &[2, cols][..], &bytes[..])
        );
        let matrix = checkpoint.matrix("m", [2, cols]).unwrap();
        assert_eq!(matrix.codes().as_ptr(), tensor.bytes.as_ptr(), "{dtype}");
        assert_same(
            &checkpoint.values("m.weight", &[2, cols]).unwrap(),
            &decode(&matrix),
            "values",
        );
    }
    let halves: Vec<f32> =
        bytes.chunks(2).map(|b| f16_to_f32(u16::from_le_bytes([b[0], b[1]]))).collect();
    let (_folder, checkpoint) = gguf(&GgufFile::default().tensor("h", 1, &[32], &bytes));
    assert_same(&checkpoint.values("h", &[32]).unwrap(), &halves, "halves");
}

#[test]
fn types_that_cannot_be_decoded_are_refused_when_asked_for_not_before() {
    let file = GgufFile::default()
        .tensor("codebook.weight", 16, &[2, 256], &[0; 132])
        .tensor("future.weight", 999, &[2, 100], &[])
        .f32s("good.weight", &[1, 2], &[1.0, 2.0]);
    let (_folder, checkpoint) = gguf(&file);
    assert_eq!(checkpoint.values("good.weight", &[1, 2]).unwrap(), [1.0, 2.0]);
    let words = ["`codebook.weight`", "IQ2_XXS", "Q4_K"];
    assert_says(checkpoint.matrix("codebook", [2, 256]), &words, "matrix");
    assert_says(checkpoint.values("codebook.weight", &[2, 256]), &words, "values");
    let words = ["`future.weight`", "ggml type 999"];
    assert_says(checkpoint.matrix("future", [2, 100]), &words, "unknown");
    assert_says(checkpoint.tensor("future.weight"), &words, "unknown");
    assert_eq!(checkpoint.info("codebook.weight").unwrap().bytes, 132);
    assert_eq!(checkpoint.info("future.weight").unwrap().bytes, 0);
}

#[test]
fn blocks_are_no_plain_tensor_and_shapes_must_agree() {
    let q8_0 = block_type(8);
    let (packed, _) = vector(q8_0);
    let (_folder, checkpoint) =
        gguf(&GgufFile::default().tensor("m.weight", 8, &[3, 512], &packed));
    assert_says(checkpoint.tensor("m.weight"), &["`m.weight`", "Q8_0", "matrix"], "tensor");
    assert_says(checkpoint.matrix("m", [512, 3]), &["[3, 512]", "[512, 3]"], "transposed");
    assert_says(checkpoint.values("m.weight", &[1536]), &["[3, 512]", "[1536]"], "flat");
}

#[test]
fn blocks_that_do_not_fill_their_shape_are_refused() {
    for block in BlockType::readable() {
        let [values, bytes] = block.block().unwrap();
        let matrix =
            |shape, count| forerun_weights::gguf::parts(block, shape, vec![0; count].into());
        assert!(matrix([2, values], 2 * bytes).is_ok(), "{block}");
        for (shape, count) in [
            ([2, values], 2 * bytes - 1),
            ([2, values], 0),
            ([2, values / 2], bytes),
            ([usize::MAX, values], bytes),
            ([usize::MAX, values * 2], 2 * bytes),
        ] {
            assert!(matrix(shape, count).is_err(), "{block} {shape:?} from {count} bytes");
        }
    }
}
