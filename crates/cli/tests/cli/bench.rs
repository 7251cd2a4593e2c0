//! `forerun bench`. Nothing here asks how fast anything is.

use crate::program::{forerun, golden, json, stderr, stdout};
use serde_json::Value;

const SMALL: [&str; 6] = ["--tokens", "6", "--reps", "1", "--read", "20"];

fn tiny() -> String {
    golden("qwen3_5")
}

fn arms(cell: &Value) -> Vec<&Value> {
    cell["arms"].as_array().unwrap().iter().collect()
}

#[test]
fn every_arm_is_measured_against_plain_in_every_cell() {
    let model = tiny();
    let sizes = ["--contexts", "0,70", "--batch", "1,2", "--arms", "plain,2,mtp:1,ngram,auto"];
    let report = json(&[&["bench", &model], &SMALL[..], &sizes].concat());
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 6 * 2 * 2, "five openings and one prompt of random tokens");
    for cell in cells {
        let arms = arms(cell);
        assert_eq!(arms.len(), 5);
        assert_eq!(arms[0]["gain"]["median"], 1.0);
        assert!(arms.iter().all(|arm| arm["gain"]["median"].as_f64().unwrap() > 0.0));
        let answers = cell["token_ids"].as_array().unwrap();
        assert_eq!(answers.len() as u64, cell["batch"].as_u64().unwrap());
        assert!(answers.iter().all(|answer| answer.as_array().unwrap().len() == 6));
        assert!(arms[1]["drafted"].as_u64().unwrap() > 0, "a fixed depth always drafts");
    }
    assert_eq!(report["worst"].as_array().unwrap().len(), 4);
    assert_eq!(report["reading"][0]["tokens"], 20);
    assert_eq!(report["measurements"].as_array().unwrap().len(), 24 * 5 + 1);
}

#[test]
fn sampling_is_seeded_and_each_member_of_a_batch_goes_its_own_way() {
    let model = tiny();
    let how = ["--ids", "1,2,3", "--temperature", "1", "--batch", "2", "--arms", "plain,2"];
    let first = json(&[&["bench", &model], &SMALL[..], &how].concat());
    let again = json(&[&["bench", &model], &SMALL[..], &how].concat());
    let answers = &first["cells"][0]["token_ids"];
    assert_eq!(answers, &again["cells"][0]["token_ids"]);
    assert_ne!(answers[0], answers[1]);
}

#[test]
fn there_is_no_gain_without_its_baseline() {
    let model = tiny();
    let words = [&["bench", &model, "--ids", "1,2,3", "--arms", "1,auto"], &SMALL[..]].concat();
    let report = json(&words);
    assert!(arms(&report["cells"][0]).iter().all(|arm| arm["gain"].is_null()));
    assert_eq!(report["worst"], serde_json::json!([]));
    let table = stdout(&forerun(&words));
    assert!(!table.contains('×') && table.contains("a gain needs its baseline"), "{table}");
    let refused = forerun(&[&words[..], &["--min-gain", "0.97"]].concat());
    assert_eq!(refused.status.code(), Some(1));
    let complaint = stderr(&refused);
    assert!(complaint.contains("a gain needs its baseline: add plain to --arms"), "{complaint}");
}

#[test]
fn a_gain_that_is_asked_for_is_required() {
    let model = tiny();
    let words = [&["bench", &model, "--ids", "1,2,3", "--arms", "plain,auto"], &SMALL[..]].concat();
    let met = forerun(&[&words[..], &["--min-gain", "0"]].concat());
    assert!(met.status.success(), "{}", stderr(&met));
    assert!(stdout(&met).contains("auto vs plain: worst prompt"), "{}", stdout(&met));
    let missed = forerun(&[&words[..], &["--min-gain", "1000"]].concat());
    assert_eq!(missed.status.code(), Some(1));
    assert!(stderr(&missed).contains("--min-gain asks for 1000"), "{}", stderr(&missed));
}

#[test]
fn csv_has_a_line_per_measurement_on_stdout_or_in_a_file() {
    let model = tiny();
    let words =
        ["bench", &model, "--ids", "1,2", "--ids", "3", "--arms", "plain,1", "--tokens", "4"];
    let words = [&words[..], &["--reps", "2", "--read", "9"]].concat();
    let piped = stdout(&forerun(&[&words[..], &["--csv", "-"]].concat()));
    let header = "version,device,model,prompt,prompt_tokens,context,batch,arm,rep,decode_tok_s,\
                  prompt_tok_s,ttft_ms,tokens_per_round,accepted,drafted,acceptance";
    assert_eq!(piped.lines().next(), Some(header));
    assert_eq!(piped.lines().count(), 1 + 2 + 2 * 2 * 2, "header, readings, prompts x arms x reps");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("speed.csv").display().to_string();
    let report = json(&[&words[..], &["--csv", &file]].concat());
    let lines = std::fs::read_to_string(&file).unwrap().lines().count();
    assert_eq!(lines, 1 + report["measurements"].as_array().unwrap().len());
}

#[test]
fn what_cannot_be_measured_is_refused_before_weights_are_read() {
    let (model, headless) = (tiny(), golden("qwen3"));
    let cases = [
        (&model, &["--arms", "auto,auto"][..], "--arms names auto twice"),
        (&headless, &["--arms", "mtp:2"], "arm mtp:2: the model has no MTP head"),
        (&model, &["--contexts", "100000"], "give smaller --contexts"),
        (&model, &["--ctx", "64", "--contexts", "64"], "give a larger --ctx"),
        (&model, &["--ids", "400"], "400"),
        (&model, &["--json", "--csv", "-"], "JSON or CSV, not both"),
    ];
    for (model, words, complaint) in cases {
        let output = forerun(&[&["bench", model], words].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(stderr(&output).contains(complaint), "{words:?}: {}", stderr(&output));
    }
    assert_eq!(forerun(&["bench", &model, "--arms", "0"]).status.code(), Some(2));
}

#[test]
fn a_model_without_a_head_is_measured_with_drafts_from_the_text() {
    let model = golden("qwen3");
    let report = json(&[&["bench", &model, "--ids", "1,2,1,2,1,2"], &SMALL[..]].concat());
    assert_eq!(report["arms"], serde_json::json!(["plain", "ngram:4", "auto"]));
}

#[test]
fn a_chart_is_drawn_while_measuring_or_from_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let report =
        forerun(&[&["bench", &tiny(), "--json", "--svg", &at("a.svg")], &SMALL[..]].concat());
    let text = stdout(&report);
    std::fs::write(at("report.json"), &text).unwrap();
    let again = forerun(&["bench", "--from", &at("report.json"), "--svg", &at("b.svg")]);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    let (measured, drawn) = ["a.svg", "b.svg"].map(|name| std::fs::read(at(name)).unwrap()).into();
    assert_eq!(measured, drawn);
    let report: Value = serde_json::from_str(&text).unwrap();
    let bars =
        report["cells"].as_array().unwrap().iter().map(|cell| arms(cell).len()).sum::<usize>();
    let found = String::from_utf8(measured).unwrap().matches("class=\"bar\"").count();
    assert!(bars > 1 && found == bars, "{found} of {bars} bars");
    std::fs::write(at("other.json"), "{}").unwrap();
    let other = forerun(&["bench", "--from", &at("other.json"), "--svg", &at("c.svg")]);
    assert_eq!(other.status.code(), Some(1));
    assert!(stderr(&other).contains("neither `cells`"), "{}", stderr(&other));
    let alone = forerun(&["bench", "--from", &at("report.json")]);
    assert_eq!(alone.status.code(), Some(2), "{}", stderr(&alone));
}

/// Random weights that are drawn in a moment.
const DRAWN: [&str; 9] = [
    "synth:qwen3.5-9b",
    "--dtype",
    "4bit",
    "--layers",
    "4",
    "--narrow",
    "16",
    "--vocabulary",
    "8192",
];

#[test]
fn a_script_takes_drafts_in_place_of_the_model_and_every_output_says_so() {
    let how = ["--ids", "5,6,7", "--tokens", "33", "--reps", "1", "--read", "9"];
    let words = [&["bench"], &DRAWN[..], &how, &["--arms", "plain,3"]].concat();
    let scripted = |rates: &str| json(&[&words[..], &["--accept", rates]].concat());
    let all = scripted("1,1,1");
    assert_eq!(all["acceptance"], "scripted");
    assert_eq!(all["scripted_acceptance"], serde_json::json!([1.0, 1.0, 1.0]));
    let [plain, three] = [0, 1].map(|arm| &all["cells"][0]["arms"][arm]);
    assert_eq!(plain["tokens_per_round"], 1.0);
    // The last round of an answer may be cut.
    assert!(three["tokens_per_round"].as_f64().unwrap() > 3.5, "{three}");
    let none = scripted("0");
    assert_eq!(none["cells"][0]["arms"][1]["accepted"], 0);
    let some = scripted("1,0.5");
    let by_position = &some["cells"][0]["arms"][1]["acceptance_by_position"];
    assert_eq!((&by_position[0], &by_position[2]), (&1.0.into(), &0.0.into()), "{some}");
    let second = by_position[1].as_f64().unwrap();
    assert!(second > 0.1 && second < 0.9, "{second}");
    // Without a script a model of random weights judges its drafts itself.
    let measured = json(&words);
    assert_eq!(
        (&measured["acceptance"], &measured["scripted_acceptance"]),
        (&"measured".into(), &Value::Null)
    );
    let table = stdout(&forerun(&[&words[..], &["--accept", "0.9,0.5"]].concat()));
    assert!(
        table.contains("scripted acceptance 0.9, 0.5") && table.contains("random 4bit weights"),
        "{table}"
    );
    assert!(!table.contains("the same tokens"), "{table}");
    let csv = stdout(&forerun(&[&words[..], &["--accept", "0.9", "--csv", "-"]].concat()));
    assert!(csv.lines().skip(1).all(|line| line.ends_with(",scripted")), "{csv}");
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("speed.svg").display().to_string();
    json(&[&words[..], &["--accept", "0.9", "--svg", &chart]].concat());
    let chart = std::fs::read_to_string(&chart).unwrap();
    assert!(chart.contains("scripted acceptance"), "{chart}");
}

#[test]
fn a_script_is_for_benchmarks_alone_and_must_be_shares() {
    for command in ["run", "serve", "score", "verify"] {
        let refused = forerun(&[command, "--accept", "0.9"]);
        assert_eq!(refused.status.code(), Some(2), "{command}: {}", stderr(&refused));
    }
    for (options, code, word) in [
        (&["--accept", "0.5,0.6"][..], 1, "none larger than the one before it"),
        (&["--accept", "1.5"], 1, "shares from 0 to 1"),
        (&["--accept", "0.5", "--roofline"], 2, "cannot be used with"),
        (&["--dtype", "fp8"], 1, "--dtype is about random weights: give synth:NAME"),
        (&["synth:qwen"], 1, "qwen3.6-27b"),
        (&["synth:qwen3.5-9b", "--layers", "99"], 1, "--layers 99"),
    ] {
        let refused = forerun(&[&["bench"], options].concat());
        assert_eq!(refused.status.code(), Some(code), "{options:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(word), "{options:?}: {}", stderr(&refused));
    }
}
