//! `forerun doctor`. Nothing here asks how fast anything is.

use crate::program::{forerun, json, stderr, stdout};
use forerun_testkit::Golden;

const QUICK: [&str; 6] = ["doctor", "--quick", "--device", "cpu", "--threads", "1"];

#[test]
fn a_healthy_processor_is_reported_whole_as_json() {
    let model = Golden::open("qwen3_5").checkpoint().display().to_string();
    let report = json(&[&QUICK[..], &["--model", &model]].concat());
    assert_eq!((&report["healthy"], &report["quick"]), (&true.into(), &true.into()), "{report}");
    assert!(report["host"]["memory"]["total_bytes"].as_u64() > Some(1 << 28), "{report}");
    let devices = report["devices"].as_array().unwrap();
    assert_eq!((&devices[0]["name"], &devices[0]["state"]), (&"cpu".into(), &"processor".into()));
    assert!(devices[0]["kernels"].as_array().unwrap().contains(&"portable".into()), "{report}");
    let others = &devices[1..];
    assert!(others.iter().any(|d| d["name"].as_str().unwrap().starts_with("cuda")), "{report}");
    for device in others.iter().filter(|device| device["state"] == "unavailable") {
        assert!(device["why"].as_str().unwrap().len() > 10, "{device}");
    }
    let [device] = &report["examined"].as_array().unwrap()[..] else { panic!("one: {report}") };
    assert!(device["description"].as_str().unwrap().contains("1 thread"), "{device}");
    assert_eq!(device["conformance"]["failed"], 0);
    for operation in device["conformance"]["operations"].as_array().unwrap() {
        let [worst, allowed] = ["worst_error", "allowed_error"].map(|k| operation[k].as_f64());
        assert!(worst.unwrap() <= allowed.unwrap(), "{operation}");
    }
    assert!(device["rates"]["bandwidth"]["copy_gb_per_s"].as_f64() > Some(0.0), "{device}");
    let products = device["rates"]["products"].as_array().unwrap();
    let formats: Vec<&str> = products.iter().map(|p| p["format"].as_str().unwrap()).collect();
    assert!(
        ["bf16", "q8_0", "q4_k", "mlx 4 bit"].iter().all(|f| formats.contains(f)),
        "{formats:?}"
    );
    let run = &device["small_run"];
    assert_eq!(run["model"], model.as_str());
    assert!(run["longest_submission_ms"].as_f64() > Some(0.0), "{run}");
}

#[test]
fn people_get_a_page_for_a_bug_report_and_scripts_no_progress() {
    let output = forerun(&["doctor", "--quick", "--device", "auto"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = stdout(&output);
    for words in
        ["machine", "memory", "devices", "conformance: 0 of ", "GEMV", "submissions: ", "healthy: "]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(page.lines().all(|line| line.len() < 200 && !line.contains('\u{1b}')), "{page}");
    assert_eq!(stderr(&output), "");
}

#[test]
fn what_is_wrong_is_shown_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    let model = folder.path().display().to_string();
    let output = forerun(&[&QUICK[..], &["--model", &model]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("PROBLEM: small run: "), "{}", stdout(&output));
    assert!(stdout(&output).contains("NOT HEALTHY: cpu"), "{}", stdout(&output));
    assert!(stderr(&output).contains("cpu: small run: "), "{}", stderr(&output));
}

#[test]
fn a_device_or_model_that_is_not_there_is_named() {
    for words in [&["--device", "cuda:4096"][..], &["--model", "no/such/model"]] {
        let output = forerun(&[&["doctor", "--quick"], words].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(stderr(&output).contains(words[1]), "{}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
    assert_eq!(forerun(&["doctor", "--device", "abacus"]).status.code(), Some(2));
}
