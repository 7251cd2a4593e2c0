//! Drawn models are models: every shape in every form opens, loads, and is the same from files and without.

use forerun_backend_cpu::tuned;
use forerun_base::{DType, MatrixParts};
use forerun_model::{Blueprint, Model};
use forerun_synth::{Synth, SynthOptions, WeightForm, published, shapes, write_folder};
use forerun_weights::{Checkpoint, TensorSource as _};
use std::path::Path;
use std::sync::Arc;

const FORMS: [WeightForm; 3] = [WeightForm::Bf16, WeightForm::Fp8, WeightForm::FourBit];

fn options(name: &str, form: WeightForm) -> SynthOptions {
    let like = published(name).expect("a published shape");
    // The most that its widths can be divided by.
    let narrow = match name {
        "qwen3.5-9b" => 16,
        "qwen3.6-27b" => 16,
        "qwen3.6-35b-a3b" => 8,
        "qwen3.5-122b-a10b" => 16,
        "gemma4-31b" => 4,
        _ => 11,
    };
    SynthOptions { like, form, layers: Some(6), narrow, vocabulary: Some(512), seed: 3 }
}

fn made(synth: Synth) -> Checkpoint {
    let config = synth.config.clone();
    Checkpoint::made(Path::new("nowhere"), "synth", config, Arc::new(synth)).expect("a checkpoint")
}

#[test]
fn every_shape_in_every_form_is_a_model_with_finite_weights() {
    for shape in shapes() {
        for form in FORMS {
            let options = options(shape.name, form);
            let synth = Synth::new(&options).unwrap();
            let parameters = synth.parameters;
            let blueprint = Blueprint::of(made(synth)).unwrap();
            assert_eq!(blueprint.spec.layers.len(), 6, "{}", options.title());
            let head = shape.name.starts_with("qwen");
            assert_eq!(blueprint.spec.drafter.is_some(), head, "{}", options.title());
            let mut device = tuned(Some(2));
            let model = Model::load(&blueprint, &mut device, &mut |_| {}).unwrap();
            // Frequencies of the rope and fixed norms are no weights of the file.
            let beside = model.parameters.abs_diff(parameters);
            assert!(beside < parameters / 100, "{}: {beside} of {parameters}", options.title());
        }
    }
}

#[test]
fn a_folder_holds_what_is_made_without_one() {
    for form in FORMS {
        for name in ["qwen3.6-35b-a3b", "gemma4-26b-a4b"] {
            let options = options(name, form);
            let synth = Synth::new(&options).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let mut heard = 0;
            let report = write_folder(&synth, folder.path(), &mut |bytes| heard = bytes).unwrap();
            assert_eq!((report.bytes, heard), (synth.bytes(), synth.bytes()));
            let stored = Checkpoint::open(folder.path()).unwrap();
            let tensors = synth.tensors();
            let without = made(synth);
            assert_eq!(stored.config(), without.config());
            assert_eq!(stored.total_bytes() / 1024, without.total_bytes() / 1024 + header(&stored));
            for (name, dtype, shape) in tensors {
                let (a, b) = (stored.tensor(&name).unwrap(), without.tensor(&name).unwrap());
                assert_eq!((a.dtype, &a.shape), (dtype, &shape));
                assert!(a.bytes[..] == b.bytes[..], "{name}");
                let path = name.strip_suffix(".weight").unwrap_or(&name);
                let cols = if dtype == DType::U32 {
                    8 * shape[shape.len() - 1]
                } else {
                    shape[shape.len() - 1]
                };
                if shape.len() < 2
                    || name.contains("scale_inv")
                    || name.ends_with("scales")
                    || name.ends_with("biases")
                {
                    continue;
                }
                let shape = [&shape[..shape.len() - 1], &[cols]].concat();
                let [a, b] = [&stored, &without].map(|c| c.parts(path, &shape).unwrap());
                assert_same_rows(&a, &b, path);
            }
        }
    }
}

/// KiB of the headers of all files.
fn header(stored: &Checkpoint) -> u64 {
    let data: u64 =
        stored.names().map(|name| stored.info(name).expect("a stored tensor").bytes).sum();
    stored.total_bytes() / 1024 - data / 1024
}

fn assert_same_rows(a: &MatrixParts, b: &MatrixParts, what: &str) {
    assert_eq!((a.rows(), a.cols(), a.format()), (b.rows(), b.cols(), b.format()), "{what}");
    for rows in [0..1, a.rows() / 2..a.rows().min(a.rows() / 2 + 3), a.rows() - 1..a.rows()] {
        let (a, b) = (a.block(rows.clone()), b.block(rows));
        assert!(a.codes()[..] == b.codes()[..] && a.scales()[..] == b.scales()[..], "{what}");
        assert!(a.offsets()[..] == b.offsets()[..], "{what}");
    }
}

#[test]
fn published_sizes_are_those_of_the_published_models() {
    for (name, billions) in [
        ("qwen3.5-9b", 9.1..9.4),
        ("qwen3.6-27b", 27.0..27.4),
        ("qwen3.6-35b-a3b", 35.0..35.9),
        ("qwen3.5-122b-a10b", 122.0..125.1),
        ("gemma4-31b", 30.5..30.9),
        ("gemma4-26b-a4b", 25.0..26.0),
    ] {
        let like = published(name).unwrap();
        let form = WeightForm::Bf16;
        let options =
            SynthOptions { like, form, layers: None, narrow: 1, vocabulary: None, seed: 0 };
        let found = Synth::new(&options).unwrap().parameters as f64 / 1e9;
        assert!(billions.contains(&found), "{name}: {found} billion, its MTP head included");
    }
}

#[test]
fn shapes_that_cannot_be_are_refused_by_name() {
    let usual = options("qwen3.5-9b", WeightForm::FourBit);
    for (options, words) in [
        (SynthOptions { layers: Some(0), ..usual }, ["--layers 0", "32"]),
        (SynthOptions { layers: Some(33), ..usual }, ["--layers 33", "32"]),
        (SynthOptions { narrow: 0, ..usual }, ["--narrow 0", "64"]),
        (SynthOptions { narrow: 7, ..usual }, ["--narrow 7", "64"]),
        (SynthOptions { vocabulary: Some(1), ..usual }, ["--vocabulary 1", "248320"]),
    ] {
        let error = Synth::new(&options).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let error = published("qwen9").unwrap_err().to_string();
    assert!(error.contains("qwen9") && error.contains("qwen3.6-27b"), "{error}");
}
