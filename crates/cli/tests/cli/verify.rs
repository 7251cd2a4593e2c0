//! `forerun verify` on models that keep the promises.

use crate::program::{bundled, forerun, json, stderr, stdout};
use forerun_testkit::Golden;
use serde_json::Value;

fn golden(name: &str) -> String {
    Golden::open(name).checkpoint().display().to_string()
}

fn verdicts(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let arms = report["arms"].as_array().unwrap();
    arms.iter().map(|arm| (text(&arm["arm"]), text(&arm["verdict"]))).collect()
}

#[test]
fn a_head_that_drafts_few_tokens_passes_every_arm() {
    let model = golden("qwen3_5");
    let words = ["verify", &model, "--quick", "--tokens", "12", "--draft-vocabulary", "16"];
    let report = json(&words);
    assert_eq!(report["identical"], true, "{report}");
    let arms = report["arms"].as_array().unwrap();
    assert!(arms.iter().any(|arm| arm["drafted"].as_u64() > Some(0)), "{report}");
}

#[test]
fn a_model_with_an_mtp_head_passes_every_arm() {
    let report = json(&["verify", &golden("qwen3_5"), "--tokens", "16"]);
    assert_eq!(report["identical"], true, "{report}");
    let verdicts = verdicts(&report);
    assert!(verdicts.iter().all(|(_, verdict)| verdict == "same"), "{verdicts:?}");
    let has = |name: &str| verdicts.iter().any(|(arm, _)| arm == name);
    (1..=8).for_each(|depth| assert!(has(&format!("MTP depth {depth}")), "{verdicts:?}"));
    for arm in ["plain again", "plain, chunk 1", "scored, chunk 3", "n-gram depth 8", "MTP auto"] {
        assert!(has(arm), "{arm}: {verdicts:?}");
    }
    for arm in report["arms"].as_array().unwrap() {
        assert!(arm["logits_rows"].as_u64().unwrap() > 40, "{arm}");
        assert!(arm["difference"].is_null(), "{arm}");
        // Drafts that are never right or never wrong would prove half of it.
        if arm["arm"].as_str().unwrap().starts_with("MTP depth") {
            let (right, made) = (arm["accepted"].as_u64(), arm["drafted"].as_u64());
            assert!(right > Some(0) && right < made, "{arm}");
        }
    }
    let requests = report["requests"].as_array().unwrap();
    let early = requests.iter().filter(|r| r["completion_tokens"].as_u64() < Some(16));
    assert!(early.count() >= 4, "{requests:?}");
}

#[test]
fn without_an_mtp_head_its_arms_are_listed_as_not_applicable() {
    let report = json(&["verify", &golden("llama"), "--tokens", "16", "--seed", "5"]);
    assert_eq!(report["identical"], true, "{report}");
    for (arm, verdict) in verdicts(&report) {
        let expected = if arm.starts_with("MTP") { "not applicable" } else { "same" };
        assert_eq!(verdict, expected, "{arm}");
    }
    let n_gram = |arm: &&Value| arm["arm"] == "n-gram depth 8";
    let found = report["arms"].as_array().unwrap().iter().find(n_gram).unwrap();
    assert!(found["accepted"].as_u64() > Some(0), "{found}");
}

#[test]
fn the_bundled_model_is_verified_where_none_is_named() {
    for kv in ["f32", "i8"] {
        let report = json(&["verify", "--quick", "--tokens", "4", "--kv", kv]);
        assert_eq!(report["identical"], true, "{report}");
        assert_eq!(report["model"].as_str().unwrap(), bundled());
        assert_eq!(report["settings"]["kv"], kv);
        assert!(report["device"].as_str().unwrap().contains("cpu"));
    }
}

#[test]
fn people_get_a_table() {
    let output = forerun(&["verify", &golden("llama"), "--quick", "--tokens", "3"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = stdout(&output);
    for words in
        ["drafts accepted", "MTP depth 1", "not applicable: no MTP head", "arms identical: "]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(stderr(&output).contains("llama on cpu"));
}

#[test]
fn an_answer_of_one_token_is_enough_and_one_beyond_the_model_is_refused() {
    let report = json(&["verify", &golden("llama"), "--quick", "--tokens", "1"]);
    assert_eq!(report["identical"], true, "{report}");
    let output = forerun(&["verify", "--tokens", "4096"]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("--tokens 4096") && said.contains("made for 4096"), "{said}");
}

/// Rounded activations are other numbers, and batch-invariant all the same. A processor that cannot gain by them says
/// so.
#[test]
fn activations_of_eight_bits_pass_every_arm_or_are_refused_by_name() {
    let words = ["verify", &bundled(), "--quick", "--tokens", "8", "--compute", "int8", "--json"];
    let output = forerun(&words);
    if !output.status.success() {
        let said = stderr(&output);
        assert!(said.contains("--compute int8") && said.contains("leave the option out"), "{said}");
        return;
    }
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["identical"], true, "{report}");
    assert!(report["device"].as_str().unwrap().contains("int8"), "{report}");
}

#[test]
fn random_weights_in_a_published_shape_pass_every_arm_without_a_file() {
    let shape = ["--dtype", "fp8", "--layers", "4", "--narrow", "16", "--vocabulary", "8192"];
    let how = ["--quick", "--tokens", "6"];
    let report = json(&[&["verify", "synth:qwen3.5-9b"], &shape[..], &how].concat());
    assert_eq!(report["identical"], true, "{report}");
    assert!(report["model"].as_str().unwrap().starts_with("synth:qwen3.5-9b"), "{report}");
    let refused = forerun(&["verify", "--narrow", "2"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("give synth:NAME"), "{}", stderr(&refused));
}
