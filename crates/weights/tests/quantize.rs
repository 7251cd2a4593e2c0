//! Encoders against MLX and against their own decoders.
//!
//! `fixtures/mlx_quantize.safetensors` holds rows of numbers (ordinary, constant, zero, with one
//! outlier, tiny, huge, halfway between codes) and what `mx.quantize` makes of them, for every
//! mode and float type: `TYPE.x` and `TYPE.MODE.BITS.GROUP.{codes,scales,biases}`.
#![cfg(test)]

use forerun_base::{Bytes, Codes, DType, Format, Matrix, ScaleKind, ScaleType};
use forerun_weights::config::{QuantMode, Scheme};
use forerun_weights::quantize::{EncodedPlanes, Encoder};
use forerun_weights::safetensors::{SafetensorsHeader, parse_header};

const FIXTURE: &[u8] = include_bytes!("fixtures/mlx_quantize.safetensors");

fn fixture() -> SafetensorsHeader {
    parse_header(FIXTURE, FIXTURE.len() as u64).unwrap()
}

fn data(header: &SafetensorsHeader, name: &str) -> Vec<u8> {
    FIXTURE[header.tensors[name].range.clone()].to_vec()
}

const FLOATS: [(&str, DType, ScaleType); 3] = [
    ("f32", DType::F32, ScaleType::F32),
    ("bf16", DType::BF16, ScaleType::BF16),
    ("f16", DType::F16, ScaleType::F16),
];

fn numbers(header: &SafetensorsHeader, float: &str, dtype: DType) -> Matrix {
    let name = format!("{float}.x");
    let shape = &header.tensors[&name].shape;
    Matrix::dense(shape[0], shape[1], dtype, data(header, &name).into()).unwrap()
}

fn affine(bits: usize, group: usize) -> Scheme {
    Scheme { mode: QuantMode::Affine, bits, group }
}

fn schemes() -> Vec<Scheme> {
    let floats = [(QuantMode::Mxfp4, 4, 32), (QuantMode::Mxfp8, 8, 32), (QuantMode::Nvfp4, 4, 16)];
    let floats = floats.map(|(mode, bits, group)| Scheme { mode, bits, group });
    let pairs = [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|g| (bits, g)));
    pairs.map(|(bits, group)| affine(bits, group)).chain(floats).collect()
}

#[test]
fn codes_scales_and_biases_are_those_of_mlx() {
    let header = fixture();
    let mut compared = 0;
    for (float, dtype, scale) in FLOATS {
        let matrix = numbers(&header, float, dtype);
        for scheme in schemes() {
            let key = format!("{float}.{}.{}.{}", scheme.mode, scheme.bits, scheme.group);
            if !header.tensors.contains_key(&format!("{key}.codes")) {
                continue;
            }
            let encoder = Encoder::new(scheme, scale).unwrap();
            let found = encoder.encode(&matrix, 0..matrix.rows(), 1).unwrap();
            let planes = [("codes", found.codes), ("scales", found.scales)];
            for (plane, found) in planes {
                let expected = data(&header, &format!("{key}.{plane}"));
                let first = expected.iter().zip(&found).position(|(a, b)| a != b);
                assert_eq!((first, expected.len()), (None, found.len()), "{key}.{plane}");
            }
            if encoder.has_biases() {
                assert_eq!(found.biases, data(&header, &format!("{key}.biases")), "{key}.biases");
            }
            compared += 1;
        }
    }
    assert_eq!(compared, (18 + 3) + 2 * (6 + 3), "every stored comparison was made");
}

#[test]
fn threads_and_chunks_do_not_change_a_bit() {
    let header = fixture();
    let matrix = numbers(&header, "bf16", DType::BF16);
    for scheme in schemes() {
        let encoder = Encoder::new(scheme, ScaleType::BF16).unwrap();
        let whole = encoder.encode(&matrix, 0..matrix.rows(), 1).unwrap();
        for threads in [2, 3, 100] {
            assert_eq!(encoder.encode(&matrix, 0..matrix.rows(), threads).unwrap(), whole);
        }
        let mut joined = EncodedPlanes::default();
        for row in 0..matrix.rows() {
            let part = encoder.encode(&matrix, row..row + 1, 2).unwrap();
            joined.codes.extend(part.codes);
            joined.scales.extend(part.scales);
            joined.biases.extend(part.biases);
        }
        assert_eq!(joined, whole, "{scheme}");
    }
}

/// The numbers that affine planes with f32 scales stand for.
fn decoded(scheme: Scheme, rows: usize, cols: usize, planes: &EncodedPlanes) -> Matrix {
    let format = Format::Grouped {
        codes: Codes::Uint { bits: scheme.bits as u8 },
        group: scheme.group,
        scale: ScaleKind::F32,
        offset: true,
    };
    let parts = [&planes.codes, &planes.scales, &planes.biases];
    Matrix::new([rows, cols], format, parts.map(|p| Bytes::from(p.clone()))).unwrap()
}

fn row(matrix: &Matrix, row: usize) -> Vec<f32> {
    let mut out = vec![0.0; matrix.cols()];
    matrix.decode_row(row, &mut out);
    out
}

#[test]
fn affine_is_off_by_half_a_step_inside_the_range_of_its_codes() {
    let header = fixture();
    let matrix = numbers(&header, "f32", DType::F32);
    let (rows, cols) = (matrix.rows(), matrix.cols());
    for scheme in schemes().into_iter().filter(|s| s.mode == QuantMode::Affine) {
        let encoder = Encoder::new(scheme, ScaleType::F32).unwrap();
        let planes = encoder.encode(&matrix, 0..rows, 1).unwrap();
        let decoded = decoded(scheme, rows, cols, &planes);
        let most = ((1 << scheme.bits) - 1) as f32;
        for r in 0..rows {
            let (before, after) = (row(&matrix, r), row(&decoded, r));
            for (c, (before, after)) in before.iter().zip(&after).enumerate() {
                let group = r * cols / scheme.group + c / scheme.group;
                let scale = ScaleType::F32.get(&planes.scales, group);
                let bias = ScaleType::F32.get(&planes.biases, group);
                let ends = (bias, bias + most * scale);
                let (low, high) = (ends.0.min(ends.1), ends.0.max(ends.1));
                let outside = (before - before.clamp(low, high)).abs();
                // Past the last code the error is the distance to it, at most one step.
                assert!(outside <= scale.abs(), "{scheme}, row {r}, column {c}");
                let allowed = if outside > 0.0 { outside } else { 0.5 * scale.abs() };
                let rounding = 1e-6 * bias.abs().max(before.abs());
                let error = (before - after).abs();
                assert!(error <= allowed + rounding, "{scheme}, row {r}, column {c}: {error}");
            }
        }
    }
}

#[test]
fn encoding_what_was_decoded_changes_nothing_where_all_codes_are_in_use() {
    // Codes 0 and 2^bits − 1 occur, and zero is an integral number of steps from the bias.
    for bits in [2usize, 3, 4, 5, 6, 8] {
        for (group, sign) in [(32, 1.0f32), (64, -1.0), (128, 1.0)] {
            let scheme = affine(bits, group);
            let most = (1u32 << bits) - 1;
            let zero = (most / 2 + 1) as f32;
            let values: Vec<f32> = (0..2 * group as u32)
                .map(|i| (i * 7) % (most + 1))
                .enumerate()
                .map(|(i, code)| match i % group {
                    0 => 0.0,
                    1 => most as f32,
                    _ => code as f32,
                })
                .map(|code| sign * 0.0625 * (code - zero))
                .collect();
            let matrix = Matrix::from_f32(1, 2 * group, &values).unwrap();
            let encoder = Encoder::new(scheme, ScaleType::F32).unwrap();
            let first = encoder.encode(&matrix, 0..1, 1).unwrap();
            let again = decoded(scheme, 1, 2 * group, &first);
            assert_eq!(row(&again, 0), values, "{scheme}");
            assert_eq!(encoder.encode(&again, 0..1, 1).unwrap(), first, "{scheme}");
        }
    }
}

#[test]
fn numbers_without_a_code_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = vec![0.5; 256];
        values[200] = bad;
        let matrix = Matrix::from_f32(2, 128, &values).unwrap();
        for scheme in schemes() {
            let encoder = Encoder::new(scheme, ScaleType::F32).unwrap();
            assert!(encoder.encode(&matrix, 0..1, 1).is_ok(), "{scheme}");
            assert!(encoder.encode(&matrix, 0..2, 2).is_err(), "{scheme}: {bad}");
        }
    }
}

#[test]
fn magnitudes_beyond_the_scales_stop_at_the_last_one() {
    // Where MLX wraps around to a scale that is not a number, or loses the codes.
    let encode = |mode, bits, group, value: f32| {
        let matrix = Matrix::from_f32(1, 32, &[value; 32]).unwrap();
        let encoder = Encoder::new(Scheme { mode, bits, group }, ScaleType::F32).unwrap();
        encoder.encode(&matrix, 0..1, 1).unwrap()
    };
    assert_eq!(encode(QuantMode::Mxfp4, 4, 32, 1e-40).scales, [0]);
    assert_eq!(encode(QuantMode::Mxfp8, 8, 32, 1e-40).scales, [0]);
    let large = encode(QuantMode::Nvfp4, 4, 16, 3e38);
    assert_eq!((large.scales[0], large.codes[0]), (0x7e, 0x77));
}

#[test]
fn only_schemes_of_mlx_have_an_encoder_and_only_whole_groups_are_encoded() {
    assert!(Encoder::new(affine(7, 64), ScaleType::F32).is_none());
    assert!(Encoder::new(affine(4, 16), ScaleType::F32).is_none());
    let mixed = Scheme { mode: QuantMode::Mxfp4, bits: 4, group: 64 };
    assert!(Encoder::new(mixed, ScaleType::F32).is_none());
    let encoder = Encoder::new(affine(3, 64), ScaleType::BF16).unwrap();
    assert_eq!(encoder.row_bytes(96), None);
    assert_eq!(encoder.row_bytes(128), Some([48, 4, 4]));
}
