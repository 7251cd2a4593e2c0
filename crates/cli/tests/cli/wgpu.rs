//! `--device wgpu` on the software adapter, which must be there: without one these tests fail.

use crate::program::{forerun, golden, json, repository, stderr, stdout};
use crate::serving::Serving;
use serde_json::json as value;

const SOFTWARE: [&str; 2] = ["--device", "wgpu:software"];

#[test]
fn a_story_is_told_as_on_the_processor() {
    let words = ["run", "Once upon a time", "--raw", "--temperature", "0", "--max-tokens", "12"];
    let told = json(&[&words[..], &SOFTWARE].concat());
    let expected = json(&words);
    assert_eq!(told["text"], expected["text"], "{told}");
    assert!(told["device"].as_str().unwrap().contains("vulkan"), "{told}");
}

#[test]
fn software_is_used_only_where_it_is_named() {
    let words = ["run", "A", "--raw", "--max-tokens", "1", "--device"];
    let refused = forerun(&[&words[..], &["wgpu"]].concat());
    assert_eq!(refused.status.code(), Some(1));
    let told = stderr(&refused);
    assert!(told.contains("there is no GPU: wgpu:0 is ") && told.contains("named"), "{told}");
    let auto = forerun(&[&words[..], &["auto"]].concat());
    assert!(auto.status.success(), "{}", stderr(&auto));
    let told = stderr(&auto);
    assert!(told.contains("device: cpu (") && told.contains("no discrete or Apple GPU"), "{told}");
    for other in ["metal", "dx12", "vulkan:9"] {
        let refused = forerun(&[&words[..], &[other]].concat());
        let told = stderr(&refused);
        assert!(told.contains(other) && told.contains("there is no"), "{other}: {told}");
    }
    let threads = forerun(&[&words[..], &["wgpu:software", "--threads", "1"]].concat());
    assert!(stderr(&threads).contains("--threads is of the CPU"), "{}", stderr(&threads));
}

#[test]
fn the_promises_hold_on_the_adapter() {
    // A tiny hybrid: the bundled model takes minutes in software.
    let words = ["verify", &golden("qwen3_5"), "--quick", "--tokens", "6"];
    let report = json(&[&words[..], &SOFTWARE].concat());
    assert_eq!(report["identical"], true, "{report}");
    assert!(report["device"].as_str().unwrap().contains("vulkan"), "{report}");
}

#[test]
fn the_doctor_finds_the_adapter_and_its_results_right() {
    let model = golden("qwen3_5");
    let output = forerun(&[&["doctor", "--quick", "--model", &model][..], &SOFTWARE].concat());
    let page = stdout(&output);
    assert!(output.status.success(), "{page}{}", stderr(&output));
    for words in [
        "software",
        "bindings up to ",
        "conformance: 0 of ",
        "bandwidth: copy ",
        "GEMM",
        "longest ",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(page.contains("healthy: wgpu:software ("), "{page}");
}

#[test]
fn a_server_answers_from_the_adapter() {
    let server = Serving::start(&SOFTWARE);
    let asked = value!({ "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0 });
    let (status, answer) = server.post("/v1/completions", &asked);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["usage"]["completion_tokens"], 8, "{answer}");
    let metrics = server.get("/metrics");
    assert!(metrics.contains("forerun:devices_lost_total 0"), "{metrics}");
    let (status, log) = server.terminate();
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("vulkan"), "{log}");
}

#[test]
fn memory_that_is_not_allowed_is_refused_with_numbers_before_weights_are_read() {
    let model = repository("models/tales-28m");
    let words = ["run", &model, "A", "--raw", "--gpu-memory", "20"];
    let refused = forerun(&[&words[..], &SOFTWARE].concat());
    assert_eq!(refused.status.code(), Some(1));
    let told = stderr(&refused);
    assert!(told.contains("20.0 MiB are free") && told.contains("for weights"), "{told}");
    assert!(told.contains("--gpu-memory"), "{told}");
    let refused = forerun(&[&words[..], &["--device", "cpu"]].concat());
    assert!(stderr(&refused).contains("--gpu-memory is of a GPU"), "{}", stderr(&refused));
}
