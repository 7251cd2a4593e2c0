//! The MTP head of an original for a copy without one, by ranges.

use crate::setup::{Setup, ask, content};
use forerun_base::DType;
use forerun_hub::{DownloadPlan, Grafted, HubError, Unwatched};
use forerun_testkit::hub_server::{HubRepo, ServerFault, sha256};
use forerun_testkit::tiny::{StoredTensor, safetensors};
use forerun_weights::Checkpoint;

fn tensor(name: &str, elements: usize, seed: u32) -> StoredTensor {
    StoredTensor {
        name: name.into(),
        dtype: DType::BF16,
        shape: vec![elements],
        bytes: content(2 * elements, seed),
    }
}

fn config(hidden: usize) -> String {
    format!(r#"{{"model_type": "qwen3_5", "text_config": {{"hidden_size": {hidden}}}}}"#)
}

fn trunk() -> StoredTensor {
    tensor("model.embed_tokens.weight", 100_000, 1)
}

/// The head: two neighbours, one behind a stranger, one in another file.
fn head() -> [StoredTensor; 4] {
    [
        tensor("mtp.fc.weight", 500, 2),
        tensor("mtp.norm.weight", 7, 3),
        tensor("mtp.layers.0.a", 40, 4),
        tensor("mtp.layers.0.b", 1, 5),
    ]
}

fn repos(hidden: usize) -> Vec<HubRepo> {
    let [fc, norm, a, b] = head();
    let stranger = tensor("model.norm.weight", 9, 6);
    let one = safetensors(&[trunk()]);
    let two = safetensors(&[fc, norm, stranger, a]);
    let three = safetensors(&[b]);
    let names = ["1.safetensors", "2.safetensors", "3.safetensors"];
    let index = format!(
        r#"{{"weight_map": {{"model.embed_tokens.weight": "{0}", "mtp.fc.weight": "{1}",
            "mtp.norm.weight": "{1}", "model.norm.weight": "{1}", "mtp.layers.0.a": "{1}",
            "mtp.layers.0.b": "{2}"}}}}"#,
        names[0], names[1], names[2]
    );
    let original = HubRepo::new("o/original")
        .small("config.json", config(hidden))
        .small("model.safetensors.index.json", index)
        .large(names[0], one)
        .large(names[1], two)
        .large(names[2], three);
    let copy = HubRepo::new("o/copy")
        .small("config.json", config(16))
        .large("model.safetensors", safetensors(&[trunk()]));
    vec![original, copy]
}

fn graft(setup: &Setup) -> (DownloadPlan, Result<Grafted, HubError>) {
    let (plan, _) = setup.pull("o/copy").unwrap();
    setup.server.forget();
    let original = "o/original".parse().unwrap();
    let grafted = setup.hub().graft_mtp(&plan, &original, &mut Unwatched);
    (plan, grafted)
}

fn check_head(plan: &DownloadPlan) {
    let checkpoint = Checkpoint::open(&plan.path()).unwrap();
    assert_eq!(checkpoint.names().count(), 5);
    for tensor in head() {
        let found = checkpoint.tensor(&tensor.name).unwrap();
        assert_eq!(&found.bytes[..], tensor.bytes, "{}", tensor.name);
        assert!(checkpoint.file_of(&tensor.name).unwrap().is_sidecar());
    }
}

#[test]
fn only_the_bytes_of_the_head_come() {
    let setup = Setup::new(repos(16));
    let (plan, grafted) = graft(&setup);
    assert_eq!(grafted.unwrap().tensors, 4);
    check_head(&plan);
    let seen = setup.server.seen();
    let asked: Vec<_> = seen.iter().filter(|s| s.content_network).collect();
    assert!(asked.iter().all(|s| s.headers.contains_key("range")), "{asked:?}");
    // Two requests for each of two headers; two neighbours, one, and one.
    assert_eq!(asked.len(), 7);
    assert!(!seen.iter().any(|s| s.target.contains("1.safetensors")));
}

#[test]
fn a_broken_range_goes_on_where_it_broke() {
    let setup = Setup::new(repos(16));
    let sha = sha256(&repos(16)[0].files[3].1);
    setup.server.fail(
        &sha,
        [ServerFault::CutAfter(3), ServerFault::Status(503), ServerFault::CutAfter(100)],
    );
    let (plan, grafted) = graft(&setup);
    grafted.unwrap();
    check_head(&plan);
}

#[test]
fn servers_without_ranges_and_strange_originals_are_refused() {
    let setup = Setup::new(repos(16));
    let two = sha256(&repos(16)[0].files[3].1);
    setup.server.fail(&two, [ServerFault::IgnoreRange]);
    let (plan, grafted) = graft(&setup);
    assert!(grafted.unwrap_err().to_string().contains("no ranges"));
    assert!(!plan.path().join("model-mtp.safetensors").exists());

    let (_, grafted) = graft(&Setup::new(repos(32)));
    let error = grafted.unwrap_err().to_string();
    assert!(error.contains("hidden_size is 32 there and 16 here"), "{error}");

    let mut headless = repos(16);
    let index = r#"{"weight_map": {"model.embed_tokens.weight": "1.safetensors"}}"#;
    headless[0].files[1].1 = index.into();
    let (_, grafted) = graft(&Setup::new(headless));
    assert!(grafted.unwrap_err().to_string().contains("no `mtp.*` tensors"));
}

#[test]
fn a_header_that_lies_about_its_length_is_refused() {
    let mut hostile = repos(16);
    hostile[0].files[3].1[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let (_, grafted) = graft(&Setup::new(hostile));
    let error = grafted.unwrap_err().to_string();
    assert!(error.contains("2.safetensors") && error.contains(&u64::MAX.to_string()), "{error}");
}

#[test]
fn a_gguf_model_takes_no_sidecar() {
    let mut repos = repos(16);
    repos.push(HubRepo::new("o/gguf").large("m.gguf", content(10, 1)));
    let setup = Setup::new(repos);
    let (plan, _) = setup.pull("o/gguf").unwrap();
    let original = "o/original".parse().unwrap();
    let error = setup.hub().graft_mtp(&plan, &original, &mut Unwatched).unwrap_err();
    for words in ["not a safetensors model", "--mtp-only", "--drafter"] {
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(setup.offline().plan(&ask("o/gguf"), &mut Unwatched).is_ok());
}
