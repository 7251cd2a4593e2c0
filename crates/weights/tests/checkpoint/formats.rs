//! Stored formats decode to the numbers the reference libraries decode them to.

use crate::written::{self, WrittenTensor, assert_says, f32s, raw, single};
use forerun_base::{Matrix, e4m3_to_f32};
use forerun_weights::Checkpoint;

/// Packed tensors and the values mlx decodes them to: `{mode}.g{group}.b{bits}.{part}`.
const MLX_VECTORS: &[u8] = include_bytes!("data/mlx_vectors.safetensors");

pub(crate) fn decode(matrix: &Matrix) -> Vec<f32> {
    let mut out = vec![0.0; matrix.rows() * matrix.cols()];
    for (row, line) in out.chunks_exact_mut(matrix.cols()).enumerate() {
        matrix.decode_row(row, line);
    }
    out
}

/// Same bits; the sign of a zero does not count, because an offset of +0 is added.
pub(crate) fn assert_same(found: &[f32], expected: &[f32], case: &str) {
    assert_eq!(found.len(), expected.len(), "{case}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(a.to_bits() == b.to_bits() || (*a == 0.0 && *b == 0.0), "{case}[{i}]: {a} {b}");
    }
}

#[test]
fn mlx_vectors_decode_bit_for_bit() {
    let (_folder, vectors) =
        written::checkpoint(&[("config.json", b"{}"), ("model.safetensors", MLX_VECTORS)]);
    let vectors = vectors.unwrap();
    let cases: Vec<&str> = vectors.names().filter_map(|n| n.strip_suffix(".values")).collect();
    assert_eq!(cases.len(), 3 * 6 + 3);
    for case in cases {
        let parts: Vec<&str> = case.split('.').collect();
        let (mode, group, bits) = (parts[0], &parts[1][1..], &parts[2][1..]);
        let stored: Vec<WrittenTensor> =
            [("packed", "weight"), ("scales", "scales"), ("biases", "biases")]
                .into_iter()
                .filter_map(|(from, to)| {
                    vectors.tensor(&format!("{case}.{from}")).ok().zip(Some(to))
                })
                .flat_map(|(tensor, to)| {
                    let dtype = match tensor.dtype.size() {
                        1 => "U8",
                        _ if to == "weight" => "U32",
                        _ => "F32",
                    };
                    let stack = [&[tensor.shape[0], 1], &tensor.shape[1..]].concat();
                    [
                        raw(&format!("m.{to}"), dtype, &tensor.shape, &tensor.bytes),
                        raw(&format!("stack.{to}"), dtype, &stack, &tensor.bytes),
                    ]
                })
                .collect();
        let config = format!(
            r#"{{"quantization": {{"mode": "{mode}", "group_size": {group}, "bits": {bits}}}}}"#
        );
        let (_folder, checkpoint) = single(&config, &stored);
        let expected = vectors.values(&format!("{case}.values"), &[3, 384]).unwrap();
        assert_same(&decode(&checkpoint.matrix("m", [3, 384]).unwrap()), &expected, case);
        assert_same(&decode(&checkpoint.stacked("stack", [3, 1, 384]).unwrap()), &expected, case);
    }
}

#[test]
fn a_global_scale_multiplies_the_tensor_or_each_expert() {
    // Code 2 is 1.0 and scale byte 0x38 is 1.0, so the factor itself comes out.
    let codes = raw("m.weight", "U32", &[2, 1, 2], &[0x22; 16]);
    let scales = raw("m.scales", "U8", &[2, 1, 1], &[0x38; 2]);
    let cases: [(&[usize], &[f32], [f32; 2]); 3] = [
        (&[], &[3.7], [3.7, 3.7]),
        (&[2], &[3.7, 0.1], [3.7, 0.1]),
        (&[2, 1, 1], &[3.7, 0.1], [3.7, 0.1]),
    ];
    for (shape, global, expected) in cases {
        let global = f32s("m.global_scale", shape, global);
        let (_folder, checkpoint) = single("{}", &[codes.clone(), scales.clone(), global]);
        let found = decode(&checkpoint.stacked("m", [2, 1, 16]).unwrap());
        assert_same(&found, &[[expected[0]; 16], [expected[1]; 16]].concat(), "global scale");
    }
}

/// An FP8 weight of every code that is a number, over and over.
fn fp8_weight(name: &str, shape: &[usize]) -> WrittenTensor {
    let codes = (0..=254u8).filter(|code| code & 0x7f != 0x7f).cycle();
    let bytes: Vec<u8> = codes.take(shape.iter().product()).collect();
    raw(name, "F8_E4M3", shape, &bytes)
}

fn fp8_values(stored: &WrittenTensor, scale: impl Fn(usize) -> f32) -> Vec<f32> {
    stored.bytes().iter().enumerate().map(|(i, &c)| e4m3_to_f32(c) * scale(i)).collect()
}

#[test]
fn fp8_blocks_scale_their_own_rows_and_columns_also_at_the_edges() {
    let [rows, cols] = [130, 150];
    let weight = fp8_weight("m.weight", &[rows, cols]);
    let scales = [1.7, -0.3, 0.011, 5.5];
    let block = |i: usize| scales[(i / cols / 128) * 2 + i % cols / 128];
    let config =
        r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}"#;
    let (_folder, checkpoint) =
        single(config, &[weight.clone(), f32s("m.weight_scale_inv", &[2, 2], &scales)]);
    let found = decode(&checkpoint.matrix("m", [rows, cols]).unwrap());
    assert_same(&found, &fp8_values(&weight, block), "blocks");
}

#[test]
fn fp8_blocks_of_a_stack_belong_to_their_expert() {
    let weight = fp8_weight("experts.up", &[2, 3, 32]);
    let scales = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    let block = |i: usize| scales[(i / 96) * 4 + (i / 32 % 3 / 2) * 2 + i % 32 / 16];
    let config =
        r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 16]}}"#;
    let (_folder, checkpoint) =
        single(config, &[weight.clone(), f32s("experts.up_scale_inv", &[2, 2, 2], &scales)]);
    let found = decode(&checkpoint.stacked("experts.up", [2, 3, 32]).unwrap());
    assert_same(&found, &fp8_values(&weight, block), "stack");
}

#[test]
fn fp8_scales_per_tensor_and_per_row_reach_every_column() {
    let weight = fp8_weight("m.weight", &[3, 21]);
    let cases: [(&[usize], &[f32]); 5] = [
        (&[], &[0.7]),
        (&[1], &[0.7]),
        (&[1, 1], &[0.7]),
        (&[3, 1], &[0.7, 1.3, 9.1]),
        (&[3], &[0.7, 1.3, 9.1]),
    ];
    for (shape, scales) in cases {
        for suffix in ["weight_scale", "weight_scale_inv"] {
            let scale = f32s(&format!("m.{suffix}"), shape, scales);
            let (_folder, checkpoint) = single("{}", &[weight.clone(), scale]);
            let found = decode(&checkpoint.matrix("m", [3, 21]).unwrap());
            let expected = fp8_values(&weight, |i| scales[i / 21 % scales.len()]);
            assert_same(&found, &expected, suffix);
        }
    }
}

#[test]
fn dense_weights_keep_their_bytes_where_they_lie() {
    let bytes: Vec<u8> = (0..48).collect();
    for (dtype, cols) in [("F32", 6), ("F16", 12), ("BF16", 12)] {
        let (_folder, checkpoint) = single("{}", &[raw("m.weight", dtype, &[2, cols], &bytes)]);
        let stored = checkpoint.tensor("m.weight").unwrap();
        let matrix = checkpoint.matrix("m", [2, cols]).unwrap();
        assert_eq!(matrix.codes().as_ptr(), stored.bytes.as_ptr(), "{dtype}");
    }
}

#[test]
fn fused_experts_without_a_weight_suffix_stack_into_a_tall_matrix() {
    let values: Vec<f32> = (0..24u8).map(f32::from).collect();
    let (_folder, checkpoint) = single("{}", &[f32s("experts.gate_up_proj", &[2, 3, 4], &values)]);
    assert!(checkpoint.has_matrix("experts.gate_up_proj"));
    let matrix = checkpoint.stacked("experts.gate_up_proj", [2, 3, 4]).unwrap();
    assert_eq!((matrix.rows(), matrix.cols()), (6, 4));
    assert_same(&decode(&matrix), &values, "stack");
}

#[test]
fn values_widen_floats_and_refuse_the_rest() {
    let tensors = [
        raw("f16", "F16", &[2], &[0x00, 0x3c, 0x00, 0xc0]),
        raw("bf16", "BF16", &[1, 2, 1], &[0x80, 0x3f, 0x00, 0xc0]),
        raw("f64", "F64", &[1], &[0; 8]),
    ];
    let (_folder, checkpoint) = single("{}", &tensors);
    assert_eq!(checkpoint.values("f16", &[2]).unwrap(), [1.0, -2.0]);
    assert_eq!(checkpoint.values("bf16", &[1, 2, 1]).unwrap(), [1.0, -2.0]);
    assert_says(checkpoint.values("f64", &[1]), &["`f64`", "F64", "F32"], "f64");
    assert_says(checkpoint.values("f16", &[1, 2]), &["`f16`", "[2]", "[1, 2]"], "shape");
}

#[test]
fn weights_that_cannot_be_read_exactly_are_refused_by_name() {
    let packed = |scale_dtype, scales: &[u8]| {
        vec![
            raw("m.weight", "U32", &[1, 4], &[0; 16]),
            raw("m.scales", scale_dtype, &[1, 1], scales),
        ]
    };
    let float = |name: &str, dtype, bytes: &[u8]| raw(name, dtype, &[1, 1], bytes);
    let fp8 = raw("m.weight", "F8_E4M3", &[1, 32], &[0; 32]);
    let nan = raw("m.weight", "F8_E4M3", &[1, 32], &[0x7f; 32]);
    let with = |mut tensors: Vec<WrittenTensor>, more| {
        tensors.push(more);
        tensors
    };
    let cases: Vec<(Vec<WrittenTensor>, &[&str])> = vec![
        (vec![raw("m.weight", "F64", &[1, 32], &[0; 256])], &["`m.weight`", "F64"]),
        (vec![raw("m.weight", "F8_E5M2", &[1, 32], &[0; 32])], &["`m.weight`", "F8E5M2"]),
        (vec![raw("m.weight", "U32", &[1, 4], &[0; 16])], &["`m.weight`", "`m.scales`"]),
        (vec![fp8.clone()], &["`m.weight`", "`m.weight_scale_inv`", "`m.weight_scale`"]),
        (vec![fp8.clone(), f32s("m.weight_scale", &[7], &[0.0; 7])], &["`m.weight_scale`", "[7]"]),
        (vec![nan, f32s("m.weight_scale", &[], &[1.0])], &["`m.weight`", "not numbers"]),
        (packed("F32", &[0; 4]), &["`m.biases`"]),
        (
            with(packed("F32", &[0; 4]), float("m.biases", "BF16", &[0; 2])),
            &["`m.biases`", "BF16", "F32"],
        ),
        (
            with(packed("F32", &[0; 4]), f32s("m.biases", &[1, 2], &[0.0; 2])),
            &["`m.biases`", "[1, 2]", "[1, 1]"],
        ),
        (packed("U8", &[255]), &["`m.scales`", "not numbers"]),
        (with(packed("U8", &[1]), float("m.biases", "U8", &[0])), &["`m.weight`", "`m.biases`"]),
        (
            with(packed("U8", &[1]), f32s("m.global_scale", &[], &[1.0])),
            &["`m.weight`", "`m.global_scale`"],
        ),
        (vec![fp8, raw("m.scales", "F32", &[1, 1], &[0; 4])], &["`m.weight`", "F8E4M3", "U32"]),
    ];
    for (tensors, words) in cases {
        let (_folder, checkpoint) = single("{}", &tensors);
        assert_says(checkpoint.matrix("m", [1, 32]), words, words[0]);
    }
}

fn affine_4_64() -> [WrittenTensor; 3] {
    [
        raw("m.weight", "U32", &[1, 16], &[0; 64]),
        raw("m.scales", "BF16", &[1, 2], &[0; 4]),
        raw("m.biases", "BF16", &[1, 2], &[0; 4]),
    ]
}

fn with_quantization(text: &str) -> (tempfile::TempDir, Checkpoint) {
    single(&format!(r#"{{"quantization": {text}}}"#), &affine_4_64())
}

#[test]
fn config_and_shapes_must_agree() {
    let cases: [(&str, &[&str]); 4] = [
        (r#"{"bits": 8, "group_size": 64}"#, &["8 bits", "4 bits"]),
        (r#"{"bits": 4, "group_size": 32}"#, &["groups of 32", "groups of 64"]),
        (r#"{"bits": 4, "m": {"mode": "mxfp4"}}"#, &["mxfp4", "affine"]),
        (r#"{"bits": 4, "m": false}"#, &["`m` is not quantised"]),
    ];
    for (text, words) in cases {
        let (_folder, checkpoint) = with_quantization(text);
        let found = checkpoint.matrix("m", [1, 128]);
        assert_says(found, &[words, &["model.safetensors", "`m.weight`"]].concat(), text);
    }
    let (_folder, checkpoint) = with_quantization(r#"{"bits": 8, "m": {"bits": 4}}"#);
    assert_eq!(checkpoint.matrix("m", [1, 128]).unwrap().format().name(), "u4/64");
}

#[test]
fn a_shape_the_codes_cannot_fill_is_refused() {
    let (_folder, checkpoint) = with_quantization(r#"{"bits": 4}"#);
    let cases: [([usize; 2], &[&str]); 5] = [
        ([2, 128], &["`m.weight`", "[1, 16]", "[2]"]),
        ([1, 100], &["`m.weight`", "16 words", "100 columns"]),
        ([1, 0], &["`m.weight`", "0 columns"]),
        ([1, 64], &["`m.weight`", "8 bits", "4 bits"]),
        ([1, 512], &["`m.weight`", "1 bits"]),
    ];
    for (shape, words) in cases {
        assert_says(checkpoint.matrix("m", shape), words, &format!("{shape:?}"));
    }
    assert_says(checkpoint.stacked("m", [1, 1, 128]), &["`m.weight`", "[1, 16]"], "stack");
}
