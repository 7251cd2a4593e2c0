//! Checkpoints under other names, with rows and columns in another order.

use crate::formats::{assert_same, decode};
use crate::written::{assert_says, f32s, gguf, single};
use forerun_base::{Codes, Format, Matrix};
use forerun_testkit::tiny::GgufFile;
use forerun_weights::{Checkpoint, Renamed, Translation, WeightsError};
use serde_json::json;
use std::ops::Range;

fn translate(checkpoint: Checkpoint, tensors: &[Renamed]) -> Result<Checkpoint, WeightsError> {
    let config = json!({"model_type": "x"});
    checkpoint.translated(Translation { config, tensors: tensors.to_vec() })
}

fn renamed(name: &str, stored: &str) -> Renamed {
    Renamed { name: name.into(), stored: stored.into(), ..Renamed::default() }
}

fn one(range: Range<usize>) -> Vec<Range<usize>> {
    vec![range]
}

/// Bytes that differ from their neighbours and hold no scale that is not a number.
fn blocks(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i as u8).wrapping_mul(73) & 0x3f).collect()
}

fn sample() -> GgufFile {
    let counting: Vec<f32> = (0..24u8).map(f32::from).collect();
    GgufFile::default()
        .f32s("norm", &[4], &[0.0, 1.0, 2.0, 3.0])
        .f32s("conv", &[4, 3], &counting[..12])
        .f32s("experts", &[2, 3, 4], &counting)
        .tensor("q8", 8, &[6, 64], &blocks(6 * 68))
        .tensor("q8_stack", 8, &[2, 3, 64], &blocks(6 * 68))
        .tensor("q8_flat", 8, &[64], &blocks(68))
        .tensor("q4_k", 12, &[2, 512], &blocks(4 * 144))
}

#[test]
fn names_and_config_are_those_of_the_translation() {
    let (_folder, checkpoint) = gguf(&sample());
    let tensors = [renamed("a.weight", "q8"), renamed("b.weight", "q8"), renamed("norm", "norm")];
    let translated = translate(checkpoint, &tensors).unwrap();
    assert_eq!(translated.config()["model_type"], "x");
    assert!(translated.names().eq(["a.weight", "b.weight", "norm"]));
    assert!(translated.has_matrix("a") && !translated.contains("q8"));
    assert!(translated.untranslated().eq(["conv", "experts", "q4_k", "q8_flat", "q8_stack"]));
    assert!(translated.file_of("b.weight").is_some() && translated.file_of("q8").is_none());
    let [a, b] = ["a", "b"].map(|path| decode(&translated.matrix(path, [6, 64]).unwrap()));
    assert_same(&a, &b, "one tensor under two names");
    assert_says(translated.tensor("q8"), &["`q8`"], "hidden");
    assert_says(translated.tensor("a.weight"), &["`a.weight` from `q8`", "Q8_0"], "both names");
    assert!(translated.gguf().is_some());
}

#[test]
fn a_second_translation_replaces_the_first() {
    let (_folder, checkpoint) = gguf(&sample());
    let rows = vec![2..4, 0..2];
    let first = translate(checkpoint, &[Renamed { rows, ..renamed("norm", "norm") }]).unwrap();
    let second = translate(first, &[renamed("again", "norm")]).unwrap();
    assert_eq!(second.values("again", &[4]).unwrap(), [0.0, 1.0, 2.0, 3.0]);
    assert!(!second.contains("norm"));
}

#[test]
fn rows_of_plain_tensors_are_elements_rows_or_rows_of_each_stack() {
    let (_folder, checkpoint) = gguf(&sample());
    let tensors = [
        Renamed { rows: vec![2..4, 0..1], ..renamed("norm", "norm") },
        Renamed { rows: vec![3..4, 1..3], shape: Some(vec![3, 1, 3]), ..renamed("conv", "conv") },
        Renamed { rows: vec![2..3, 0..1], columns: vec![3..4, 0..2], ..renamed("e", "experts") },
        Renamed { shape: Some(vec![1, 4]), ..renamed("row.weight", "norm") },
        Renamed { rows: one(1..3), ..renamed("window", "conv") },
    ];
    let translated = translate(checkpoint.clone(), &tensors).unwrap();
    assert_eq!(translated.values("norm", &[3]).unwrap(), [2.0, 3.0, 0.0]);
    let conv = [9.0, 10.0, 11.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    assert_eq!(translated.values("conv", &[3, 1, 3]).unwrap(), conv);
    let experts = [11.0, 8.0, 9.0, 3.0, 0.0, 1.0, 23.0, 20.0, 21.0, 15.0, 12.0, 13.0];
    assert_eq!(translated.values("e", &[2, 2, 3]).unwrap(), experts);
    assert_same(&decode(&translated.stacked("e", [2, 2, 3]).unwrap()), &experts, "stack");
    let info = translated.info("e").unwrap();
    assert_eq!((info.shape, info.bytes), (vec![2, 2, 3], 48));
    assert_same(&decode(&translated.matrix("row", [1, 4]).unwrap()), &[0.0, 1.0, 2.0, 3.0], "row");
    let window = translated.tensor("window").unwrap().bytes;
    let whole = checkpoint.tensor("conv").unwrap().bytes;
    assert_eq!(window.as_ptr(), whole[12..].as_ptr(), "one run of rows is not copied");
}

fn select(values: &[f32], cols: usize, rows: &[usize], columns: &[Range<usize>]) -> Vec<f32> {
    let row = |&row: &usize| columns.iter().flat_map(move |c| &values[row * cols..][c.clone()]);
    rows.iter().flat_map(row).copied().collect()
}

#[test]
fn rows_and_columns_of_blocks_keep_their_values() {
    let (_folder, checkpoint) = gguf(&sample());
    let whole = |name: &str, shape: &[usize]| checkpoint.values(name, shape).unwrap();
    let (q8, flat) = (whole("q8", &[6, 64]), whole("q8_flat", &[64]));
    let all = one(0..64);
    let swapped = [32..64, 0..32];
    let tensors = [
        Renamed { rows: vec![4..6, 0..1], ..renamed("rows.weight", "q8") },
        Renamed { rows: vec![2..3, 0..1], ..renamed("stack.weight", "q8_stack") },
        Renamed { columns: swapped.to_vec(), ..renamed("swapped.weight", "q8_stack") },
        Renamed { rows: vec![60..64, 3..4], ..renamed("flat", "q8_flat") },
        Renamed { shape: Some(vec![24, 16]), ..renamed("narrow.weight", "q8") },
        Renamed { shape: Some(vec![2, 3, 64]), ..renamed("deep.weight", "q8") },
    ];
    let translated = translate(checkpoint.clone(), &tensors).unwrap();
    let matrix = |path: &str, shape| translated.matrix(path, shape).unwrap();
    let stacked = |path: &str, shape| translated.stacked(path, shape).unwrap();
    let expect = |found: &Matrix, rows: &[usize], columns: &[Range<usize>], case: &str| {
        assert_same(&decode(found), &select(&q8, 64, rows, columns), case);
    };
    expect(&matrix("rows", [3, 64]), &[4, 5, 0], &all, "rows");
    expect(&stacked("stack", [2, 2, 64]), &[2, 0, 5, 3], &all, "rows of each stack");
    expect(&stacked("swapped", [2, 3, 64]), &[0, 1, 2, 3, 4, 5], &swapped, "columns");
    assert_same(&decode(&matrix("narrow", [24, 16])), &q8, "other columns");
    assert_same(&decode(&stacked("deep", [2, 3, 64])), &q8, "more axes");
    let some = [&flat[60..64], &flat[3..4]].concat();
    assert_same(&translated.values("flat", &[5]).unwrap(), &some, "elements");
    let info = translated.info("rows.weight").unwrap();
    assert_eq!(
        (info.storage.to_string(), info.shape, info.bytes),
        ("Q8_0".into(), vec![3, 64], 204)
    );
    assert_eq!(matrix("rows", [3, 64]).format().name(), "i8/32");
    assert_eq!(stacked("deep", [2, 3, 64]).format().name(), "i8/32");
}

#[test]
fn columns_of_blocks_stay_packed_while_groups_allow() {
    let (_folder, checkpoint) = gguf(&sample());
    let values = checkpoint.values("q4_k", &[2, 512]).unwrap();
    let cases: [(&[Range<usize>], Option<usize>); 4] = [
        (&[256..512, 0..256], Some(32)),
        (&[32..64, 480..512], Some(32)),
        (&[16..48, 0..16], Some(16)),
        (&[8..16, 0..8], None),
    ];
    for (columns, expected) in cases {
        let tensor = Renamed { columns: columns.to_vec(), ..renamed("m.weight", "q4_k") };
        let translated = translate(checkpoint.clone(), &[tensor]).unwrap();
        let cols = columns.iter().map(Range::len).sum();
        let matrix = translated.matrix("m", [2, cols]).unwrap();
        let case = format!("{columns:?}");
        assert_same(&decode(&matrix), &select(&values, 512, &[0, 1], columns), &case);
        let found = match matrix.format() {
            Format::Grouped { codes: Codes::Uint { bits: 4 }, group, .. } => Some(group),
            _ => None,
        };
        assert_eq!(found, expected, "{case}");
    }
}

#[test]
fn safetensors_can_be_translated_too() {
    let (_folder, checkpoint) = single("{}", &[f32s("w", &[2, 2], &[1.0, 2.0, 3.0, 4.0])]);
    let tensor = Renamed { rows: vec![1..2, 0..1], ..renamed("m.weight", "w") };
    let translated = translate(checkpoint, &[tensor]).unwrap();
    assert_same(&decode(&translated.matrix("m", [2, 2]).unwrap()), &[3.0, 4.0, 1.0, 2.0], "rows");
}

#[test]
fn translations_that_do_not_fit_are_refused_by_name() {
    let (_folder, checkpoint) = gguf(&sample());
    let backwards = Range { start: 2, end: 1 };
    let cases: [(Renamed, &[&str]); 9] = [
        (renamed("x", "absent"), &["`absent`"]),
        (Renamed { rows: one(0..7), ..renamed("x", "q8") }, &["`x` from `q8`", "rows 0..7", "6"]),
        (Renamed { rows: vec![backwards], ..renamed("x", "q8") }, &["`q8`", "rows 2..1"]),
        (Renamed { columns: one(60..65), ..renamed("x", "q8") }, &["columns 60..65", "64"]),
        (Renamed { rows: one(3..5), ..renamed("x", "norm") }, &["elements 3..5", "4"]),
        (Renamed { columns: one(0..1), ..renamed("x", "norm") }, &["`norm`", "[4]"]),
        (Renamed { shape: Some(vec![5]), ..renamed("x", "norm") }, &["[4]", "[5]"]),
        (
            Renamed { shape: Some(vec![4]), rows: one(0..2), ..renamed("x", "norm") },
            &["[2]", "[4]"],
        ),
        (
            Renamed { shape: Some(vec![usize::MAX, 2]), ..renamed("x", "norm") },
            &["cannot be reshaped"],
        ),
    ];
    for (tensor, words) in cases {
        assert_says(translate(checkpoint.clone(), &[tensor]), words, words[0]);
    }
    let twice = [renamed("x", "norm"), renamed("x", "conv")];
    assert_says(translate(checkpoint.clone(), &twice), &["`x`", "twice"], "twice");
    let packed = Translation { config: json!({"quantization": 7}), tensors: Vec::new() };
    assert_says(checkpoint.translated(packed), &["quantization"], "config");
}
