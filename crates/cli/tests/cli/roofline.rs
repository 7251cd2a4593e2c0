//! `forerun bench --roofline` and `--long`. Nothing here asks how fast anything is.

use crate::program::{bundled, forerun, golden, json, stderr, stdout};
use serde_json::Value;

const SMALL: [&str; 7] = ["--roofline", "--read", "40", "--tokens", "8", "--reps", "1"];

fn measured(model: &str) -> Value {
    json(&[&["bench", model], &SMALL[..]].concat())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn phase<'a>(report: &'a Value, name: &str) -> &'a Value {
    list(&report["phases"]).iter().find(|phase| phase["phase"] == name).unwrap()
}

/// The sum of a count over the operations of a phase that have one of these names.
fn sum(phase: &Value, operations: &[&str], what: &str) -> u64 {
    let named = |o: &&Value| operations.contains(&o["operation"].as_str().unwrap());
    list(&phase["operations"]).iter().filter(named).map(|o| number(&o[what])).sum()
}

/// Stored bytes of a part of the model.
fn part(model: &str, name: &str) -> u64 {
    let report = json(&["inspect", model]);
    let part = list(&report["parts"]).iter().find(|part| part["part"] == name);
    number(&part.unwrap()["bytes"])
}

#[test]
fn parts_of_a_phase_add_up_to_the_whole() {
    let report = measured(&golden("qwen3_5"));
    let names: Vec<&str> =
        list(&report["phases"]).iter().map(|p| p["phase"].as_str().unwrap()).collect();
    assert_eq!(names, ["prompt", "decode", "verify"]);
    for phase in list(&report["phases"]) {
        let operations = list(&phase["operations"]);
        let total = |what: &str| operations.iter().map(|o| o[what].as_f64().unwrap()).sum::<f64>();
        assert!((total("share") - 1.0).abs() < 1e-9, "{phase}");
        assert!((total("seconds") - phase["measured_s"].as_f64().unwrap()).abs() < 1e-9);
        let steps = phase["steps"].as_f64().unwrap();
        for what in ["bytes", "weight_bytes", "state_bytes", "flops"] {
            let whole = phase[what].as_f64().unwrap();
            assert!((total(what) / steps - whole).abs() < 1.0, "{what} of {}", phase["phase"]);
        }
        let products = ["linear", "linears", "gated_linear", "experts", "head_sample"];
        for operation in operations {
            let is_product = products.contains(&operation["operation"].as_str().unwrap());
            assert_eq!(operation["format"].is_string(), is_product, "{operation}");
            assert!(number(&operation["calls"]) > 0);
        }
    }
    let widths: Vec<u64> = list(&report["widths"]).iter().map(|w| number(&w["rows"])).collect();
    assert_eq!(widths, [1, 2, 4, 8]);
    assert_eq!(report["widths"][0]["cost"]["median"], 1.0);
    for what in ["read_gb_per_s", "peak_gflop_per_s", "dispatch_us"] {
        assert!(report["machine"][what].as_f64().unwrap() > 0.0, "{what}");
    }
}

#[test]
fn a_step_has_the_rows_it_is_said_to_have() {
    let report = measured(&golden("llama"));
    for (name, steps, rows, width) in
        [("prompt", 1, 40, "17+"), ("decode", 8, 8, "1"), ("verify", 2, 8, "2-4")]
    {
        let phase = phase(&report, name);
        assert_eq!((number(&phase["steps"]), number(&phase["rows"])), (steps, rows), "{name}");
        let gated = list(&phase["operations"]).iter().find(|o| o["operation"] == "gated_linear");
        assert_eq!(gated.unwrap()["rows"], width, "{name}");
    }
}

#[test]
fn sequences_of_a_batch_decode_together() {
    let model = golden("qwen3_5");
    let report = json(&[&["bench", &model, "--batch", "1,6,3"], &SMALL[..]].concat());
    let batches: Vec<_> =
        list(&report["phases"]).iter().filter(|phase| phase["phase"] == "batch").collect();
    let decode = phase(&report, "decode");
    assert_eq!(batches.len(), 2, "one sequence alone is the phase `decode`");
    for (batch, sequences) in batches.into_iter().zip([6, 3]) {
        assert_eq!(number(&batch["sequences"]), sequences);
        assert_eq!(number(&batch["rows"]), sequences * number(&batch["steps"]));
        assert_eq!(batch["context"], decode["context"]);
        // Weights once for all of them, keys and state for each.
        assert_eq!(
            sum(batch, &["gated_linear"], "weight_bytes"),
            sum(decode, &["gated_linear"], "weight_bytes")
        );
        let state = |phase| sum(phase, &["attention", "delta_rule"], "state_bytes");
        assert_eq!(state(batch), sequences * state(decode));
    }
    let words = [&["bench", &model, "--batch", "2"], &SMALL[..]].concat();
    assert!(stdout(&forerun(&words)).contains("decode 2 sequences from position 44"));
}

#[test]
fn a_step_reads_every_matrix_that_is_stored_once() {
    let model = golden("llama");
    let stored = ["attention", "mlp", "head"].map(|name| part(&model, name)).iter().sum::<u64>();
    // Norms before mixers and MLPs are part of the products behind them.
    let stored = stored + 2 * norm_of_each_layer(&model);
    let report = measured(&model);
    for name in ["decode", "verify"] {
        let phase = phase(&report, name);
        let read =
            sum(phase, &["linear", "linears", "gated_linear", "head_sample"], "weight_bytes");
        assert_eq!(read, stored * number(&phase["steps"]), "{name}");
    }
    // Gate and up are two thirds of an MLP, whatever the rows.
    let model = bundled();
    let (mlp, norms) = (part(&model, "mlp"), norm_of_each_layer(&model));
    let report = measured(&model);
    for phase in list(&report["phases"]) {
        let (read, steps) =
            (sum(phase, &["gated_linear"], "weight_bytes"), number(&phase["steps"]));
        assert_eq!(3 * (read - norms * steps), 2 * mlp * steps, "{}", phase["phase"]);
    }
}

/// Bytes of one norm in every layer.
fn norm_of_each_layer(model: &str) -> u64 {
    let config = std::fs::read(format!("{model}/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let text = config.get("text_config").unwrap_or(&config);
    4 * number(&text["num_hidden_layers"]) * number(&text["hidden_size"])
}

#[test]
fn a_decode_reads_its_keys_and_the_experts_it_chose() {
    let model = golden("qwen3_moe");
    let config = std::fs::read(format!("{model}/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let of = |name: &str| number(&config[name]);
    let report = measured(&model);
    let decode = phase(&report, "decode");
    let steps = number(&decode["steps"]);
    let (experts, chosen) = (of("num_experts"), of("num_experts_per_tok"));
    let read = sum(decode, &["experts"], "weight_bytes");
    assert_eq!(experts * read, chosen * part(&model, "experts") * steps);
    let verify = phase(&report, "verify");
    let read = sum(verify, &["experts"], "weight_bytes");
    assert!(read <= part(&model, "experts") * number(&verify["steps"]), "none is read twice");

    // The meter runs in the steps behind those that were timed; keys and values are f16.
    let first = number(&decode["context"]) + steps;
    let keys: u64 = (first..first + steps).map(|position| position + 1).sum();
    let row = 2 * 2 * of("num_key_value_heads") * of("head_dim");
    let read = sum(decode, &["attention"], "state_bytes");
    assert_eq!(read, keys * row * of("num_hidden_layers"));
}

#[test]
fn csv_has_a_line_per_operation_and_width() {
    let model = golden("qwen3_5");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("roofline.csv").display().to_string();
    let report = json(&[&["bench", &model, "--csv", &file], &SMALL[..]].concat());
    let csv = std::fs::read_to_string(&file).unwrap();
    let operations: usize =
        list(&report["phases"]).iter().map(|phase| list(&phase["operations"]).len()).sum();
    assert_eq!(csv.lines().count(), 1 + operations + 4);
    let columns = csv.lines().next().unwrap().split(',').count();
    // The device's name holds a comma, in quotes.
    let fields = |line: &str| line.replace(", ", " ").split(',').count();
    assert!(csv.lines().all(|line| fields(line) == columns), "{csv}");
    let piped = stdout(&forerun(&[&["bench", &model, "--csv", "-"], &SMALL[..]].concat()));
    assert_eq!(piped.lines().next(), csv.lines().next());
}

#[test]
fn people_get_a_table_of_operations() {
    let table = stdout(&forerun(&[&["bench", &bundled()], &SMALL[..]].concat()));
    for words in ["at best, ", "decode from position", "gated_linear u8/64 x1", "bound by"] {
        assert!(table.contains(words), "{words}: {table}");
    }
}

#[test]
fn a_long_prompt_is_read_in_pieces_and_memory_stays_at_its_plan() {
    // Twice as far as the model was made for.
    let report = json(&["bench", &golden("qwen3_5"), "--long", "8192", "--tokens", "4"]);
    let pieces = list(&report["pieces"]);
    assert_eq!(pieces.len(), 8);
    for (i, piece) in (0..).zip(pieces) {
        let (first, end) = (number(&piece["first"]), number(&piece["end"]));
        assert_eq!((first, end), (1024 * i, 1024 * (i + 1)));
    }
    assert_eq!(report["decode"]["context"], 8192);
    let memory = &report["memory"];
    let item = |label: &str| {
        let items = list(&memory["plan"]["items"]);
        number(&items.iter().find(|item| item["label"] == label).unwrap()["bytes"])
    };
    let read = number(&report["decode"]["state_bytes"]);
    let (keys, state) = (item("kv cache"), item("recurrent state"));
    assert!(read > keys * 9 / 10 && read < keys + 3 * state, "{read} bytes of {keys} and {state}");
    if let Some(beyond) = memory["beyond_plan_bytes"].as_u64() {
        // The prompt itself, threads and what the allocator keeps.
        assert!(beyond < 8 << 20, "{beyond} bytes beyond {}", memory["plan"]["total_bytes"]);
    }
}

#[test]
fn a_long_prompt_in_csv_is_a_line_per_piece_and_one_for_the_decode() {
    let words = ["bench", &golden("llama"), "--long", "100", "--tokens", "2", "--csv", "-"];
    let csv = stdout(&forerun(&[&words[..], &["--prefill-chunk", "16"]].concat()));
    let phases: Vec<bool> = csv.lines().skip(1).map(|line| line.contains(",prompt,")).collect();
    // Seven steps of at most 16 tokens make seven pieces.
    assert_eq!(phases, [true, true, true, true, true, true, true, false], "{csv}");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let model = golden("qwen3_5");
    for words in [
        &["--roofline", "--arms", "plain"][..],
        &["--roofline", "--temperature", "1"],
        &["--roofline", "--long", "100"],
        &["--long", "100", "--read", "5"],
        &["--long", "100", "--batch", "2"],
        &["--long", "0"],
    ] {
        let output = forerun(&[&["bench", &model], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
    }
    for (words, complaint) in [
        (&["--roofline", "--read", "5,6"][..], "give --read one length"),
        (&["--roofline", "--read", "100000"], "this model was made for 4096"),
        (&["--roofline", "--ctx", "64"], "give a larger --ctx"),
        (&["--long", "100", "--ctx", "64"], "--long 100 needs 357 positions"),
        (&["--long", "99999999999"], "beyond what a cache can address"),
        (&["--roofline", "--json", "--csv", "-"], "JSON or CSV, not both"),
    ] {
        let output = forerun(&[&["bench", &model], words].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(stderr(&output).contains(complaint), "{words:?}: {}", stderr(&output));
    }
}
