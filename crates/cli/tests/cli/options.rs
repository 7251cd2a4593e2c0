//! Every option of every command does what its help says, on the bundled model. What other files test is listed at the
//! end, and an option that nothing tests fails.

use crate::program::{bundled, copy_of, forerun, json, stderr, stdout, token_ids};
use crate::quantizing::{files, golden, quantized};
use crate::serving::{Serving, post};
use serde_json::{Value, json as object};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const PROMPT: [&str; 6] = ["--raw", "Once upon a time", "--max-tokens", "48", "--threads", "1"];

fn run(options: &[&str]) -> Value {
    json(&[&["run"], &PROMPT[..], options].concat())
}

/// Bytes of one part of the memory plan.
fn memory(report: &Value, label: &str) -> u64 {
    let items = report["memory"]["items"].as_array().unwrap();
    items.iter().filter(|item| item["label"] == label).map(|i| i["bytes"].as_u64().unwrap()).sum()
}

#[test]
fn options_of_run_that_change_no_token_change_none() {
    let (model, greedy) = (bundled(), run(&["--temperature", "0"]));
    let ids = json(&["tokenize", &model, "Once upon a time"])["token_ids"].to_string();
    let sampled = ["--temperature", "1", "--seed", "7"];
    for options in [
        &["--temperature", "0", "--mtp", "off"][..],
        &["--temperature", "0", "--mtp", "verified", "--draft", "3", "--ngram", "off"],
        &["--temperature", "0", "--draft", "4", "--draft-vocabulary", "1000"],
        &["--temperature", "0", "--draft-vocabulary", "all"],
        &["--temperature", "0", "--drafter", &model],
        &["--temperature", "0", "--compute", "exact", "--ctx", "77", "--prefill-chunk", "3"],
        &["--temperature", "0", "--submission-ms", "1"],
        &["--temperature", "0", "--submission-ms", "0"],
        // Each filter alone can leave only the most likely token.
        &[&sampled[..], &["--top-k", "1"]].concat(),
        &[&sampled[..], &["--top-p", "0.0001"]].concat(),
        &[&sampled[..], &["--min-p", "1"]].concat(),
    ] {
        assert_eq!(token_ids(&run(options)), token_ids(&greedy), "{options:?}");
    }
    let options = ["--max-tokens", "48", "--temperature", "0", "--raw"];
    for words in [
        &["--model", &model, "--prompt", "Once upon a time"][..],
        &[&model, "--prompt", "Once upon a time"],
    ] {
        let report = json(&[&["run"], words, &options[..]].concat());
        assert_eq!(token_ids(&report), token_ids(&greedy), "{words:?}");
    }
    let report = json(&["run", "--ids", &ids, "--max-tokens", "48", "--temperature", "0"]);
    assert_eq!(token_ids(&report), token_ids(&greedy));
}

#[test]
fn options_of_run_that_change_tokens_change_them() {
    let greedy = token_ids(&run(&["--temperature", "0"]));
    for options in [
        &["--repetition-penalty", "3"][..],
        &["--presence-penalty", "5"],
        &["--frequency-penalty", "5"],
        &["--rope-scale", "8", "--rope-scaling", "linear"],
        &["--logit-bias", "50=100"],
    ] {
        let report = run(&[&["--temperature", "0"], options].concat());
        assert_ne!(token_ids(&report), greedy, "{options:?}");
    }
    let report = run(&["--temperature", "0", "--logit-bias", "50=100", "--logit-bias", "51=-100"]);
    assert!(token_ids(&report).iter().all(|&id| id == 50), "{report}");
}

#[test]
fn options_of_run_size_memory_and_drafts() {
    let usual = run(&[]);
    assert_eq!(memory(&run(&["--kv", "f32"]), "kv cache"), 2 * memory(&usual, "kv cache"));
    assert_eq!(memory(&run(&["--kv", "bf16"]), "kv cache"), memory(&usual, "kv cache"));
    assert!(memory(&run(&["--kv", "i8"]), "kv cache") < memory(&usual, "kv cache"));
    // Twice as far is twice the context where none is given.
    assert_eq!(memory(&run(&["--rope-scale", "2"]), "kv cache"), 2 * memory(&usual, "kv cache"));
    let off = run(&["--draft", "0"]);
    assert_eq!((memory(&off, "draft log"), &off["speculation"]["off"]), (0, &"turned off".into()));
    let head = run(&["--draft", "3", "--ngram", "off"]);
    assert!(head["speculation"]["drafted"].as_u64() > Some(0), "{head}");
    let none = run(&["--mtp", "off", "--ngram", "off"]);
    assert_eq!(none["speculation"]["off"], "turned off");
    let loud = forerun(&["run", "Hello", "--compute", "int8", "--max-tokens", "2", "--json"]);
    let told = stdout(&loud) + &stderr(&loud);
    assert!(told.contains("int8"), "done in eight bits, or refused by name: {told}");
}

#[test]
fn thinking_is_a_variable_of_the_template() {
    let folder = copy_of("qwen3_5");
    let file = folder.path().join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    config["chat_template"] =
        "{{ messages[0].content }}{% if enable_thinking %} think{% endif %}".into();
    std::fs::write(&file, config.to_string()).unwrap();
    let model = folder.path().display().to_string();
    let length = |options: &[&str]| {
        let words = [&["run", &model, "hi", "--max-tokens", "1"], options].concat();
        json(&words)["prompt_tokens"].as_u64().unwrap()
    };
    assert!(length(&["--think"]) > length(&["--no-think"]));
    assert_eq!(length(&["--think"]), length(&["--template-arg", "enable_thinking=true"]));
}

#[test]
fn options_of_score_size_it_and_change_numbers_only_where_they_say() {
    let (model, text) = (bundled(), "Once upon a time there was a king.");
    let score = |options: &[&str]| {
        json(&[&["score", &model, "--text", text], options].concat())["logprobs"].clone()
    };
    let usual = score(&[]);
    for options in [
        &["--ctx", "64", "--threads", "2", "--prefill-chunk", "3"][..],
        &["--submission-ms", "1"],
        &["--submission-ms", "0"],
        &["--compute", "exact", "--drafter", &model, "--threads", "1"],
    ] {
        assert_eq!(score(options), usual, "{options:?}");
    }
    for options in [
        &["--kv", "i8"][..],
        &["--rope-scale", "4"],
        &["--rope-scale", "4", "--rope-scaling", "linear"],
    ] {
        assert_ne!(score(options), usual, "{options:?}");
    }
}

#[test]
fn options_of_inspect_size_the_plan() {
    let model = bundled();
    let plan = |options: &[&str]| json(&[&["inspect", &model, "--ctx", "512"], options].concat());
    let usual = plan(&[]);
    let (log, total) = (memory(&usual, "draft log"), usual["memory"]["total_bytes"].as_u64());
    assert!(log > 0);
    assert!(memory(&plan(&["--draft", "2"]), "draft log") < log);
    for options in
        [&["--mtp", "optimistic"][..], &["--draft", "0"], &["--mtp", "off", "--ngram", "off"]]
    {
        assert_eq!(memory(&plan(options), "draft log"), 0, "{options:?}");
    }
    assert!(plan(&["--prefill-chunk", "16"])["memory"]["total_bytes"].as_u64() < total);
    for options in
        [&["--draft-vocabulary", "100"][..], &["--rope-scale", "2"], &["--drafter", &model]]
    {
        assert_eq!(plan(options)["memory"]["total_bytes"].as_u64(), total, "{options:?}");
    }
}

/// So many MiB as `--memory` takes them.
fn mebibytes(count: u64) -> String {
    format!("{count}MiB")
}

#[test]
fn a_context_that_was_not_typed_fits_into_memory_and_one_that_was_is_refused_with_the_longest() {
    let model = bundled();
    let inspect =
        |options: &[&str]| json(&[&["inspect", &model], options].concat())["memory"].clone();
    let planned = inspect(&["--ctx", "2048"])["total_bytes"].as_u64().unwrap();
    // What kernels allocate themselves has 256 MiB.
    let room = mebibytes((planned >> 20) + 257);
    let plan = inspect(&["--memory", &room]);
    let chosen = plan["context"].as_u64().unwrap();
    assert!((1536..4096).contains(&chosen), "{plan}");
    assert_eq!((&plan["fits"], &plan["longest_context"]), (&true.into(), &chosen.into()));
    let tight = inspect(&["--memory", &room, "--ctx", "4096"]);
    assert_eq!((&tight["fits"], &tight["longest_context"]), (&false.into(), &chosen.into()));
    assert!(inspect(&["--memory", "any"])["fits"].is_null());

    let short = ["--max-tokens", "2", "--memory", &room];
    let output = forerun(&[&["run", "Hello", "--json"], &short[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("context {chosen} of 4096")), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let whole = run(&["--memory", "any"]);
    assert!(memory(&report, "kv cache") < memory(&whole, "kv cache"), "{report}");

    for words in [
        &["run", "Hello", "--ctx", "4096"][..],
        &["serve", "--port", "0", "--ctx", "4096", "--max-sequences", "1", "--cache", "0"],
    ] {
        let output = forerun(&[words, &["--memory", &room]].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        for told in ["are needed and", "MiB are free", "longest context that fits is", "--ctx "] {
            assert!(said.contains(told), "{words:?}: no {told} in {said}");
        }
    }
    let scored = forerun(&["score", &model, "Hello", "--memory", "0.1GiB"]);
    assert_eq!(scored.status.code(), Some(1));
    assert!(stderr(&scored).contains("102.4 MiB are free"), "{}", stderr(&scored));
    let none = forerun(&["run", "Hello", "--memory", "0.1GiB"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(stderr(&none).contains("no context is short enough"), "{}", stderr(&none));
    let wrong = forerun(&["run", "Hello", "--memory", "12"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("12GiB"), "{}", stderr(&wrong));
}

#[test]
fn the_prefix_cache_takes_an_eighth_of_short_memory() {
    let server = Serving::start(&["--memory", "800MiB"]);
    let limit = "forerun:prefix_cache_limit_bytes{tier=\"memory\"} 104857600";
    let metrics = server.get("/metrics");
    assert!(metrics.contains(limit), "{metrics}");
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn options_of_bench_reach_every_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    std::fs::write(&file, "The old woman said").unwrap();
    let (file, model) = (file.display().to_string(), bundled());
    let words = [
        "bench",
        &model,
        "--prompt",
        "Once",
        "--file",
        &file,
        "--tokens",
        "4",
        "--reps",
        "1",
        "--read",
        "9",
        "--arms",
        "plain,2",
        "--temperature",
        "1",
        "--top-k",
        "20",
        "--top-p",
        "0.9",
        "--min-p",
        "0.01",
        "--repetition-penalty",
        "1.1",
        "--presence-penalty",
        "0.2",
        "--frequency-penalty",
        "0.1",
        "--logit-bias",
        "5=1",
        "--seed",
        "3",
        "--kv",
        "f32",
        "--threads",
        "1",
        "--compute",
        "exact",
        "--draft-vocabulary",
        "1000",
        "--prefill-chunk",
        "32",
        "--ctx",
        "512",
        "--rope-scale",
        "2",
        "--rope-scaling",
        "linear",
        "--drafter",
        &model,
    ];
    let report = json(&words);
    let sampling = &report["sampling"];
    for (name, value) in [
        ("temperature", 1.0),
        ("top_k", 20.0),
        ("top_p", 0.9),
        ("min_p", 0.01),
        ("repetition_penalty", 1.1),
        ("presence_penalty", 0.2),
        ("frequency_penalty", 0.1),
    ] {
        assert!((sampling[name].as_f64().unwrap() - value).abs() < 1e-6, "{name}: {sampling}");
    }
    assert_eq!(sampling["logit_bias"], object!([[5, 1.0]]));
    assert_eq!((&report["seed"], &report["kv"]), (&object!(3), &object!("F32")));
    assert!(report["device"].as_str().unwrap().contains("1 thread"), "{report}");
    assert_eq!(report["cells"].as_array().unwrap().len(), 2, "one per prompt");
}

#[test]
fn options_of_verify_are_verified_with() {
    let model = bundled();
    let report = json(&[
        "verify",
        &model,
        "--quick",
        "--tokens",
        "3",
        "--seed",
        "2",
        "--threads",
        "1",
        "--compute",
        "exact",
        "--rope-scale",
        "2",
        "--rope-scaling",
        "linear",
        "--drafter",
        &model,
    ]);
    assert_eq!(report["identical"], true, "{report}");
    assert!(report["device"].as_str().unwrap().contains("1 thread"), "{report}");
}

#[test]
fn tokenize_leaves_out_what_the_model_adds_and_lists_ids_alone() {
    let folder = copy_of("qwen3_5");
    let file = folder.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let first = object!({"SpecialToken": {"id": "first", "type_id": 0}});
    let text = |id: &str| object!({"Sequence": {"id": id, "type_id": 0}});
    tokenizer["post_processor"] = object!({
        "type": "TemplateProcessing", "single": [first, text("A")], "pair": [text("A"), text("B")],
        "special_tokens": {"first": {"id": "first", "ids": [7], "tokens": ["("]}}
    });
    std::fs::write(&file, tokenizer.to_string()).unwrap();
    let model = folder.path().display().to_string();
    let with = token_ids(&json(&["tokenize", &model, "Hello"]));
    let without = token_ids(&json(&["tokenize", &model, "Hello", "--no-special"]));
    assert_eq!(with, [&[7], &without[..]].concat());
    let listed = stdout(&forerun(&["tokenize", &model, "Hello", "--ids-only"]));
    let ids: Vec<u32> = listed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(ids, with);
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "Hello").unwrap();
    let file = text.display().to_string();
    assert_eq!(token_ids(&json(&["tokenize", &model, "--file", &file])), with);
}

/// Options that size the engine and change numbers, for both commands that answer.
const ENGINE: [&str; 12] = [
    "--kv",
    "f32",
    "--prefill-chunk",
    "64",
    "--threads",
    "1",
    "--compute",
    "exact",
    "--rope-scale",
    "2",
    "--rope-scaling",
    "linear",
];
const DRAFTS: [&str; 8] =
    ["--draft", "2", "--mtp", "verified", "--ngram", "off", "--draft-vocabulary", "1000"];

#[test]
fn a_server_takes_every_option_of_the_engine_and_keeps_its_cache_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache").display().to_string();
    let model = bundled();
    let own = ["--alias", "twin", "--host", "127.0.0.1", "--cache", "16", "--cache-dir", &cache];
    let more = ["--cache-disk", "8", "--max-body", "1", "--drafter", &model];
    let options = [&own[..], &more, &ENGINE, &DRAFTS].concat();
    let server = Serving::start(&[&options[..], &["--log-level", "error"]].concat());
    let prompt = "Once upon a time there was a king who had a daughter. ".repeat(8);
    let body = object!({"model": "twin", "prompt": prompt, "max_tokens": 24, "temperature": 0});
    let (status, answer) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    let words = ["run", "--raw", &prompt, "--max-tokens", "24", "--temperature", "0"];
    let typed = json(&[&words[..], &ENGINE, &DRAFTS, &["--drafter", &model]].concat());
    assert_eq!(answer["choices"][0]["text"], typed["text"]);
    // Refused by its length, perhaps before all of it is sent.
    let large = object!({"prompt": "x".repeat(2 << 20)}).to_string();
    let status = post(&server.address, "/v1/completions", "", large.as_bytes());
    assert!([413, 0].contains(&status), "{status}");
    assert!(server.get("/v1/models").contains("\"twin\""));
    let (status, log) = server.terminate();
    assert_eq!(status, Some(0), "{log}");
    assert!(!log.contains("INFO"), "{log}");
    let files = std::fs::read_dir(&cache).unwrap().count();
    assert!(files > 0, "nothing was kept on disk");
    let server = Serving::start(&[&options[..], &["--log-level", "debug"]].concat());
    let (status, again) = server.post("/v1/completions", &body);
    assert_eq!((status, &again["choices"]), (200, &answer["choices"]));
    let cached = &again["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64() > Some(0), "read from disk: {again}");
    let (_, log) = server.terminate();
    assert!(log.contains("disk cache") && log.contains("INFO"), "{log}");
}

#[test]
fn every_command_that_runs_a_model_takes_the_device_by_name() {
    let report = run(&["--device", "cpu"]);
    assert!(report["device"].as_str().is_none_or(|device| device.contains("cpu")), "{report}");
    let scored = json(&["score", &bundled(), "Once upon a time", "--device", "cpu"]);
    assert!(scored["perplexity"].is_number(), "{scored}");
    for command in ["run", "serve", "score", "verify", "bench", "quantize", "doctor"] {
        let output = forerun(&[command, "--device", "abacus"]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert!(stderr(&output).contains("cuda:N"), "{command}: {}", stderr(&output));
    }
    let limited = forerun(&["run", "A", "--device", "cpu", "--gpu-memory", "512"]);
    assert!(stderr(&limited).contains("--gpu-memory"), "{}", stderr(&limited));
}

#[test]
fn a_server_takes_what_bounds_and_opens_it() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "secret\n").unwrap();
    let keys = keys.display().to_string();
    let options = ["--admin-key-file", &keys, "--allow-host", "name.example", "--share-cache"];
    let reach = ["--host", "localhost", "--allow-origin", "http://box:3000"];
    let server = Serving::start(&[&options[..], &reach, &["--strict", "--parse-special"]].concat());
    assert!(server.address.starts_with("127.0.0.1:"), "{}", server.address);
    let marked = server.get_with("/v1/models", "origin: http://box:3000\r\n");
    assert!(marked.contains("access-control-allow-origin: http://box:3000"), "{marked}");
    let (status, answer) = server
        .post("/v1/completions", &object!({"prompt": "Once", "max_tokens": 2, "user": "somebody"}));
    assert_eq!(status, 400, "strict refuses what would be ignored: {answer}");
    let (status, answer) =
        server.post("/v1/completions", &object!({"prompt": "Once", "max_tokens": 2}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn a_server_bounds_who_waits_who_connects_and_how_long_it_drains() {
    let bounds = ["--ctx", "4096", "--queue", "0", "--drain", "1", "--max-connections", "3"];
    let server = Serving::start(&[&bounds[..], &["--draft", "0", "--threads", "1"]].concat());
    let body = object!({"prompt": "Once", "max_tokens": 4000, "ignore_eos": true, "stream": true,
        "temperature": 0})
    .to_string();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    stream.read_exact(&mut [0; 256]).unwrap();
    let (status, refused) = server.post("/v1/completions", &object!({"prompt": "Once"}));
    assert!([429, 503].contains(&status), "one answers and none may wait: {refused}");
    // More connections than there may be: silent ones give way to one that asks.
    let idle: Vec<TcpStream> =
        (0..3).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(300));
    let mut late = TcpStream::connect(&server.address).unwrap();
    late.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    write!(late, "GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    let _ = late.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let closed = |mut stream: &TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        matches!(stream.read(&mut [0; 64]), Ok(0))
    };
    assert!(idle.iter().any(closed), "a silent connection was closed");
    drop((idle, late));
    let asked = Instant::now();
    let (status, log) = server.terminate();
    assert_eq!(status, Some(0), "{log}");
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
}

#[test]
fn quantize_writes_the_same_bytes_with_any_number_of_threads() {
    let [one, three] = ["1", "3"].map(|threads| {
        let (_folder, target, _) =
            quantized(&golden("qwen3_5"), &["--bits", "4", "--group", "32", "--threads", threads]);
        files(&target)
    });
    assert!(one.len() > 3 && one == three);
}

/// Files that test options, with their text.
const FILES: [(&str, &str); 19] = [
    ("options", include_str!("options.rs")),
    ("running", include_str!("running.rs")),
    ("chatting", include_str!("chatting.rs")),
    ("reasoning", include_str!("reasoning.rs")),
    ("forms", include_str!("forms.rs")),
    ("formats", include_str!("formats.rs")),
    ("serving", include_str!("serving.rs")),
    ("optimistic", include_str!("optimistic.rs")),
    ("scoring", include_str!("scoring.rs")),
    ("golden", include_str!("golden.rs")),
    ("inspecting", include_str!("inspecting.rs")),
    ("bench", include_str!("bench.rs")),
    ("roofline", include_str!("roofline.rs")),
    ("verify", include_str!("verify.rs")),
    ("quantizing", include_str!("quantizing.rs")),
    ("synth", include_str!("synth.rs")),
    ("doctor", include_str!("doctor.rs")),
    ("pull", include_str!("pull.rs")),
    ("program", include_str!("program.rs")),
];

/// Which files use each command's options on a model.
const TESTED: [(&str, &[&str]); 13] = [
    ("run", &["options", "running", "chatting", "reasoning", "forms", "program", "pull"]),
    ("serve", &["options", "serving", "pull"]),
    ("score", &["options", "scoring", "golden", "program"]),
    ("inspect", &["options", "inspecting", "program"]),
    ("bench", &["options", "bench", "roofline", "program"]),
    ("verify", &["options", "verify", "program"]),
    ("quantize", &["options", "quantizing", "program"]),
    ("synth", &["synth", "program"]),
    ("doctor", &["doctor", "program"]),
    ("pull", &["pull", "program"]),
    ("list", &["pull"]),
    ("rm", &["pull"]),
    ("tokenize", &["options", "formats", "program"]),
];

/// Commands that take none; `shells` and `--help` test them.
const WITHOUT_OPTIONS: [&str; 3] = ["completions", "man", "help"];

#[test]
fn every_option_in_the_help_of_a_command_is_used_by_a_test_of_it() {
    let commands = stdout(&forerun(&["--help"]));
    let (_, listed) = commands.split_once("Commands:").unwrap();
    let listed = listed.lines().skip(1).take_while(|line| !line.is_empty());
    let names: Vec<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    let known = TESTED.iter().map(|(command, _)| *command).chain(WITHOUT_OPTIONS);
    assert_eq!(names.len(), known.clone().count(), "{names:?}");
    for (command, files) in TESTED {
        assert!(names.contains(&command), "{command}");
        let help = stdout(&forerun(&[command, "--help"]));
        let options = help.lines().filter_map(|line| {
            let line = line.trim_start();
            let line = line.strip_prefix("-h, ").unwrap_or(line);
            line.starts_with("--").then(|| line.split([' ', '=', '[']).next().unwrap())
        });
        let mut seen = 0;
        for option in options.filter(|&option| option != "--help") {
            let quoted = format!("\"{option}\"");
            let text = |name: &&str| FILES.iter().find(|(file, _)| file == name).unwrap().1;
            assert!(files.iter().any(|file| text(file).contains(&quoted)), "{command} {option}");
            seen += 1;
        }
        assert!(seen > 0, "{command}: {help}");
    }
}
