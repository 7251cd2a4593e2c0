//! `forerun inspect`.

use crate::program::{bundled, forerun, json, stdout};
use forerun_testkit::{GOLDENS, Golden};

#[test]
fn packed_weights_count_the_parameters_they_stand_for() {
    let report = json(&["inspect", &bundled()]);
    // The trunk's embedding: 8192 tokens of width 384, stored as 8-bit codes in 32-bit words.
    let parts = report["parts"].as_array().unwrap();
    let embedding = parts.iter().find(|p| p["part"] == "embedding").unwrap();
    assert_eq!(embedding["parameters"], 8192 * 384);
    let total = report["parameters"].as_u64().unwrap();
    assert!((28_100_000..28_300_000).contains(&total), "{total}");
    let stored: u64 = parts.iter().map(|p| p["bytes"].as_u64().unwrap()).sum();
    let formats = report["formats"].as_array().unwrap();
    assert_eq!(stored, formats.iter().map(|f| f["bytes"].as_u64().unwrap()).sum::<u64>());
}

#[test]
fn a_packed_copy_has_as_many_parameters_as_its_original() {
    for (packed, plain) in
        [("mlx_llama_5bit", "llama"), ("mlx_llama_nvfp4", "llama"), ("mlx_qwen3_mxfp8", "qwen3")]
    {
        let embedding = |name: &str| {
            let report = json(&["inspect", &Golden::open(name).checkpoint().display().to_string()]);
            let a = &report["architecture"];
            let expected = a["vocabulary"].as_u64().unwrap() * a["hidden"].as_u64().unwrap();
            let parts = report["parts"].as_array().unwrap();
            let part = parts.iter().find(|p| p["part"] == "embedding").unwrap();
            assert_eq!(part["parameters"], expected, "{name}");
        };
        embedding(packed);
        embedding(plain);
    }
}

#[test]
fn every_golden_can_be_inspected_and_nothing_of_it_is_overlooked() {
    for name in GOLDENS {
        let report = json(&["inspect", &Golden::open(name).checkpoint().display().to_string()]);
        for part in report["parts"].as_array().unwrap() {
            let vision = part["part"] == "other";
            assert!(!vision || name.starts_with("qwen3_5"), "{name}: {part}");
        }
    }
}

#[test]
fn the_mtp_head_is_found_where_it_lies() {
    let report = json(&["inspect", &bundled()]);
    assert_eq!(report["mtp"]["present"], true);
    assert!(report["mtp"]["file"].as_str().unwrap().ends_with("model-mtp.safetensors"));
    let llama = Golden::open("llama").checkpoint().display().to_string();
    assert_eq!(json(&["inspect", &llama])["mtp"]["present"], false);
}

#[test]
fn memory_grows_with_context_and_batch() {
    let memory = |options: &[&str]| {
        let report = json(&[&["inspect", &bundled()], options].concat());
        report["memory"]["total_bytes"].as_u64().unwrap()
    };
    let small = memory(&["--ctx", "1024"]);
    assert!(memory(&["--ctx", "2048"]) > small);
    assert!(memory(&["--ctx", "1024", "--batch", "4"]) > small);
    assert!(memory(&["--ctx", "1024", "--kv", "f32"]) > small);
    assert!(memory(&["--ctx", "1024", "--kv", "i8"]) < small);
}

#[test]
fn people_get_a_page() {
    let page = stdout(&forerun(&["inspect", &bundled()]));
    for words in ["qwen3_5", "9 x gated delta net", "mtp head", "kv cache", "affine 8 bit"] {
        assert!(page.contains(words), "{words}: {page}");
    }
}
