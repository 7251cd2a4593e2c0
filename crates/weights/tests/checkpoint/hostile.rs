//! Damaged and malicious files: always an error that names the culprit, never a panic.

use crate::written::{assert_says, checkpoint, f32s, raw, safetensors, with_header};
use forerun_weights::safetensors::parse_header;
use forerun_weights::{Checkpoint, WeightsError, config, parse_index};
use std::path::{Component, Path};
use tempfile::TempDir;

const CONFIG: (&str, &[u8]) = ("config.json", b"{}");

fn open(file: &[u8]) -> (TempDir, Result<Checkpoint, WeightsError>) {
    checkpoint(&[CONFIG, ("model.safetensors", file)])
}

fn small_file() -> Vec<u8> {
    safetensors(
        "mlx",
        &[
            raw("m.weight", "U32", &[2, 4], &[7; 32]),
            raw("m.scales", "BF16", &[2, 1], &[1; 4]),
            raw("m.biases", "BF16", &[2, 1], &[2; 4]),
            f32s("norm.weight", &[3], &[1.0, 2.0, 3.0]),
        ],
    )
}

#[test]
fn a_file_cut_anywhere_is_refused_by_name() {
    let file = small_file();
    for length in 0..file.len() {
        let (_folder, opened) = open(&file[..length]);
        assert_says(opened, &["model.safetensors"], &format!("cut to {length}"));
    }
    open(&file).1.unwrap();
}

#[test]
fn a_header_length_that_lies_is_refused() {
    let file = small_file();
    for claim in [0, 1, file.len() as u64 - 7, 100_000_001, 1 << 60, u64::MAX] {
        let mut lying = file.clone();
        lying[..8].copy_from_slice(&claim.to_le_bytes());
        assert_says(open(&lying).1, &["model.safetensors", "header"], &claim.to_string());
    }
}

#[test]
fn a_header_over_the_cap_is_refused_before_it_is_read() {
    let head = 100_000_001u64.to_le_bytes();
    let error = parse_header(&head, u64::MAX).unwrap_err().to_string();
    assert!(error.contains("100000001"), "{error}");
}

#[test]
fn entries_that_contradict_the_file_are_refused_with_tensor_and_numbers() {
    let entry = |body: &str| {
        format!(
            r#"{{"good": {{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}, "bad": {{{body}}}}}"#
        )
    };
    let cases: [(&str, &[&str]); 17] = [
        (r#""dtype":"U8","shape":[4],"data_offsets":[2,6]"#, &["`good`", "2", "ends at 4"]),
        (r#""dtype":"U8","shape":[4],"data_offsets":[0,4]"#, &["inside"]),
        (r#""dtype":"U8","shape":[3],"data_offsets":[5,8]"#, &["hole", "expected 4"]),
        (r#""dtype":"U8","shape":[5],"data_offsets":[4,9]"#, &["[4, 9]", "8 data bytes"]),
        (r#""dtype":"U8","shape":[4],"data_offsets":[8,4]"#, &["[8, 4]"]),
        (r#""dtype":"U8","shape":[0],"data_offsets":[9,9]"#, &["[9, 9]"]),
        (r#""dtype":"F32","shape":[2],"data_offsets":[4,8]"#, &["F32", "8 bytes", "hold 4"]),
        (
            r#""dtype":"F32","shape":[1152921504606846976,1152921504606846976],"data_offsets":[4,8]"#,
            &["1152921504606846976", "overflows"],
        ),
        (r#""dtype":"F32","shape":[4611686018427387905],"data_offsets":[4,8]"#, &["overflows"]),
        (r#""dtype":"Q4","shape":[4],"data_offsets":[4,8]"#, &["unknown dtype", "`Q4`"]),
        (r#""dtype":"U8","shape":[-4],"data_offsets":[4,8]"#, &["-4"]),
        (r#""dtype":"U8","shape":[4],"data_offsets":[-4,8]"#, &["-4"]),
        (r#""dtype":"U8","shape":[4.0],"data_offsets":[4,8]"#, &["4.0"]),
        (r#""dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[4,8]"#, &["at most 8"]),
        (r#""dtype":"U8","shape":[4],"data_offsets":[4,8,9]"#, &["tensor"]),
        (r#""dtype":"U8","shape":[4]"#, &["data_offsets"]),
        (r#""dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[4,8]"#, &["dtype"]),
    ];
    for (body, words) in cases {
        let (_folder, opened) = open(&with_header(&entry(body), &[0; 8]));
        assert_says(opened, &[words, &["model.safetensors", "`bad`"]].concat(), body);
    }
    let good = entry(r#""dtype":"U8","shape":[2,2],"data_offsets":[4,8]"#);
    open(&with_header(&good, &[0; 8])).1.unwrap();
    let (_folder, opened) = open(&with_header(&good, &[0; 9]));
    assert_says(opened, &["model.safetensors", "byte 8", "9 data bytes"], "trailing");
}

#[test]
fn headers_that_are_not_a_map_of_tensors_are_refused() {
    let deep = format!(r#"{{"a": {}"#, "[".repeat(100_000));
    let ignored = format!(r#"{{"a": {{"x": {}1{}}}}}"#, "[".repeat(5000), "]".repeat(5000));
    let entry = r#"{"dtype":"U8","shape":[],"data_offsets":[0,1]}"#;
    let cases = [
        ("[]".to_string(), "object of tensors"),
        ("null".into(), "object of tensors"),
        ("{\"a\": \u{fffd}".into(), "`a`"),
        (deep, "`a`"),
        (ignored, "`a`"),
        (format!(r#"{{"twin": {entry}, "twin": {entry}}}"#), "`twin` appears twice"),
        (format!(r#"{{"": {entry}}}"#), "empty name"),
        (r#"{"__metadata__": {"a": 1}}"#.into(), "`__metadata__`"),
        (r#"{"__metadata__": {"a": "1", "a": "2"}}"#.into(), "`a` appears twice"),
        (r#"{"__metadata__": {}, "__metadata__": {}}"#.into(), "`__metadata__` appears twice"),
    ];
    for (header, words) in cases {
        let (_folder, opened) = open(&with_header(&header, &[0]));
        assert_says(opened, &["model.safetensors", words], &header[..header.len().min(60)]);
    }
    let (_folder, opened) = open(&with_header("{\"\u{0}", b"\xff\xfe"));
    assert_says(opened, &["model.safetensors"], "control character");
}

#[test]
fn broken_side_files_are_named() {
    let file = safetensors("pt", &[]);
    let good: (&str, &[u8]) = ("model.safetensors", &file);
    let deep = "[".repeat(100_000);
    for text in ["", "{", "[]", "{\"a\": 1e999}", &deep] {
        let (_folder, opened) = checkpoint(&[("config.json", text.as_bytes()), good]);
        assert_says(opened, &["config.json"], &text[..text.len().min(20)]);
        let index = ("model.safetensors.index.json", text.as_bytes());
        assert_says(checkpoint(&[CONFIG, good, index]).1, &["index.json"], "index");
    }
    let twice = br#"{"weight_map": {"a": "model.safetensors", "a": "b.safetensors"}}"#;
    let index = ("model.safetensors.index.json", &twice[..]);
    assert_says(checkpoint(&[CONFIG, good, index]).1, &["index.json", "`a`", "twice"], "twin");
    let manifest: (&str, &[u8]) = ("mtp/manifest.json", b"{");
    assert_says(checkpoint(&[CONFIG, good, manifest]).1, &["manifest.json"], "manifest");
    let foreign = br#"{"quantization_config": {"quant_method": "awq"}}"#;
    let (_folder, opened) = checkpoint(&[("config.json", foreign), good]);
    assert_says(opened, &["config.json", "`awq`"], "awq");
}

#[test]
fn misshapen_planes_are_refused_with_file_and_tensor() {
    let weight = raw("m.weight", "U32", &[2, 4], &[0; 32]);
    let biases = raw("m.biases", "BF16", &[2, 1], &[0; 4]);
    let cases = [
        raw("m.scales", "BF16", &[1, 2], &[0; 4]),
        raw("m.scales", "BF16", &[2], &[0; 4]),
        raw("m.scales", "BF16", &[2, 0], &[]),
        raw("m.scales", "BF16", &[2, 3], &[0; 12]),
        raw("m.scales", "BF16", &[], &[0; 2]),
        raw("m.scales", "I32", &[2, 1], &[0; 8]),
    ];
    for scales in cases {
        let file = safetensors("mlx", &[weight.clone(), scales, biases.clone()]);
        let opened = open(&file).1.unwrap();
        assert_says(opened.matrix("m", [2, 32]), &["model.safetensors", "`m."], "scales");
    }
}

/// xorshift64: the same mutations on every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }

    /// Overwrites, removes or repeats a few bytes.
    fn mutate(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        for _ in 0..=self.next(4) {
            let at = self.next(out.len());
            match self.next(4) {
                0 => out[at] = self.next(256) as u8,
                1 => out[at] = b"0123456789-[]{}\",:eE."[self.next(21)],
                2 => drop(out.remove(at)),
                _ => out.insert(at, out[self.next(bytes.len()).min(out.len() - 1)]),
            }
        }
        out
    }
}

#[test]
fn mutated_files_never_panic_and_never_describe_bytes_outside() {
    let file = small_file();
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let bytes = noise.mutate(&file);
        let Ok(header) = parse_header(&bytes, bytes.len() as u64) else { continue };
        accepted += 1;
        for (name, info) in &header.tensors {
            let held = bytes.get(info.range.clone()).map(<[u8]>::len);
            let needed = info.shape.iter().product::<usize>() * info.dtype.size();
            assert_eq!(held, Some(needed), "{name}");
        }
    }
    assert!(accepted > 100, "only {accepted} mutations were accepted; the test is too blunt");
}

#[test]
fn mutated_configs_and_indexes_never_panic() {
    let configs = br#"{"quantization": {"group_size": 64, "bits": 4, "mode": "affine", "a.b":
        {"bits": 8}, "c": false}, "quantization_config": {"quant_method": "fp8",
        "weight_block_size": [128, 128]}, "x": [NaN, -Infinity, "\"\\"]}"#;
    let index = br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "x/y"}}"#;
    let mut noise = Noise(0x2545_f491_4f6c_dd1d);
    for _ in 0..5_000 {
        if let Ok(config) = config::parse(&noise.mutate(configs)) {
            config.declared("a.b");
        }
        if let Ok(map) = parse_index(&noise.mutate(index)) {
            let inside = |file: &String| {
                Path::new(file).components().all(|part| matches!(part, Component::Normal(_)))
            };
            assert!(map.values().all(inside), "{map:?}");
        }
    }
}
