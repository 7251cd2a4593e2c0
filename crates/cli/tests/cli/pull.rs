//! `forerun pull` against a hub on this machine, and running what it fetched by name.

use crate::program::{command, run, stderr, stdout};
use forerun_testkit::Golden;
use forerun_testkit::hub_server::{HubRepo, HubServer, ServerFault};
use forerun_weights::is_mtp_tensor;
use forerun_weights::safetensors::parse_header;
use serde_json::Value;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

/// A hub, and a home with an empty cache.
struct HubAndHome {
    server: HubServer,
    home: tempfile::TempDir,
}

/// A repository with the files of a golden.
fn repo(name: &str, golden: &str) -> HubRepo {
    let mut repo = HubRepo::new(name).small("README.md", "# Text");
    for entry in std::fs::read_dir(Golden::open(golden).checkpoint()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with("golden.") {
            let large = name.ends_with(".safetensors");
            repo.files.push((name, std::fs::read(path).unwrap(), large));
        }
    }
    repo
}

impl HubAndHome {
    fn new(repos: Vec<HubRepo>) -> Self {
        Self { server: HubServer::start(repos), home: tempfile::tempdir().unwrap() }
    }

    fn command(&self, words: &[&str]) -> std::process::Command {
        let mut command = command(words);
        for name in ["HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "SSL_CERT_FILE"] {
            command.env_remove(name);
        }
        for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
            command.env_remove(name);
        }
        command.env("HF_HOME", self.home.path()).env("HF_ENDPOINT", self.server.endpoint());
        command
    }

    fn forerun(&self, words: &[&str]) -> Output {
        run(self.command(words), "")
    }

    fn done(&self, words: &[&str]) -> String {
        let output = self.forerun(words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        stdout(&output)
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.done(&[words, &["--json"]].concat())).unwrap()
    }

    fn refused(&self, words: &[&str], code: i32) -> String {
        let output = run(self.command(words), "a prompt");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{words:?}");
        stderr(&output)
    }
}

#[test]
fn what_was_pulled_runs_by_its_name_and_by_the_path_it_prints() {
    let place = HubAndHome::new(vec![repo("o/llama", "llama")]);
    let path = place.done(&["pull", "o/llama"]);
    let answer = |model: &str| {
        let words = ["run", model, "--ids", "1,2,3", "--temperature", "0", "--max-tokens", "4"];
        place.json(&words)["token_ids"].clone()
    };
    let original = Golden::open("llama").checkpoint().display().to_string();
    assert_eq!(answer("o/llama"), answer(&original));
    assert_eq!(answer(path.trim_end()), answer(&original));
    place.done(&["inspect", "o/llama"]);
}

#[test]
fn json_says_what_came_and_a_second_pull_brings_nothing() {
    let place = HubAndHome::new(vec![repo("o/qwen", "qwen3_5")]);
    let report = place.json(&["pull", "o/qwen"]);
    assert_eq!((&report["repo"], &report["revision"]), (&"o/qwen".into(), &"main".into()));
    assert_eq!(report["commit"], "0123456789".repeat(4));
    assert_eq!(report["bytes"], report["downloaded_bytes"]);
    assert_eq!(report["mtp"]["state"], "present");
    assert!(Path::new(report["path"].as_str().unwrap()).join("config.json").is_file());
    let names: Vec<&str> =
        report["files"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"tokenizer.json") && !names.contains(&"README.md"), "{names:?}");
    let again = place.json(&["pull", "o/qwen"]);
    assert_eq!(again["downloaded_bytes"], 0);
    let offline = place.json(&["pull", "o/qwen", "--offline"]);
    assert_eq!(offline["path"], report["path"]);
}

#[test]
fn a_revision_is_fetched_by_its_name_and_one_that_is_not_there_is_named() {
    let place = HubAndHome::new(vec![repo("o/llama", "llama")]);
    let commit = "0123456789".repeat(4);
    let report = place.json(&["pull", "o/llama", "--revision", &commit]);
    assert_eq!((&report["revision"], &report["commit"]), (&commit.clone().into(), &commit.into()));
    let said = place.refused(&["pull", "o/llama", "--revision", "nowhere"], 1);
    assert!(said.contains("nowhere"), "{said}");
}

#[test]
fn a_dry_run_lists_and_leaves_the_disk_alone() {
    let place = HubAndHome::new(vec![repo("o/llama", "llama")]);
    let page = place.done(&["pull", "o/llama", "--dry-run"]);
    assert!(page.contains("model.safetensors") && page.contains("to fetch"), "{page}");
    assert!(!place.home.path().join("hub").exists());
}

#[test]
fn a_name_that_is_not_in_the_cache_says_how_to_get_it() {
    let place = HubAndHome::new(vec![]);
    for words in [
        &["run", "o/llama", "--offline"][..],
        &["run", "o/llama", "hi", "--offline"],
        &["serve", "o/llama", "--offline"],
        &["inspect", "o/llama"],
        &["score", "o/llama", "hi"],
        &["tokenize", "o/llama", "hi"],
    ] {
        let said = place.refused(words, 1);
        assert!(said.contains("forerun pull o/llama"), "{said}");
    }
    let mut command = place.command(&["run", "o/llama", "hi"]);
    command.env("HF_HUB_OFFLINE", "1");
    assert!(stderr(&run(command, "")).contains("forerun pull o/llama"));
    assert!(place.server.seen().is_empty(), "these leave the network alone");
}

const ANSWER: [&str; 6] = ["--ids", "1,2,3", "--temperature", "0", "--max-tokens", "4"];

#[test]
fn a_model_that_is_not_here_is_fetched_by_the_command_that_runs_it() {
    let place = HubAndHome::new(vec![repo("o/llama", "llama")]);
    let words = [&["run", "o/llama", "--json"], &ANSWER[..]].concat();
    let output = place.forerun(&words);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("o/llama: fetching"), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let original = Golden::open("llama").checkpoint().display().to_string();
    assert_eq!(
        report["token_ids"],
        place.json(&[&["run", &original], &ANSWER[..]].concat())["token_ids"]
    );
    place.server.forget();
    assert_eq!(place.done(&words).lines().count(), 1);
    assert!(place.server.seen().is_empty(), "the second time it is here");
    let said = place.refused(&["run", "o/nothing", "hi"], 1);
    assert!(said.contains("o/nothing"), "{said}");
    // Of several files the one that is named; without a name they are listed.
    let several = HubRepo::new("o/gguf").large("m-Q4_K_M.gguf", "x").large("m-Q8_0.gguf", "y");
    let place = HubAndHome::new(vec![several]);
    assert!(place.refused(&["run", "o/gguf", "hi"], 1).contains("o/gguf:m-Q4_K_M.gguf"));
    let said = place.refused(&["run", "o/gguf:Q8_0", "hi"], 1);
    assert!(said.contains("fetching 1 file") && said.contains("m-Q8_0.gguf"), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn somebody_at_a_terminal_is_asked_before_a_model_is_fetched() {
    let place = HubAndHome::new(vec![repo("o/llama", "llama")]);
    let program = env!("CARGO_BIN_EXE_forerun");
    let line = format!("{program} run o/llama {}", ANSWER.join(" "));
    let ask = |answer: &str| {
        let mut command = place.command(&[]);
        let kept: Vec<_> = command
            .get_envs()
            .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
            .collect();
        command = std::process::Command::new("script");
        command.args(["-qec", &line, "/dev/null"]);
        for (name, value) in kept {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let output = run(command, answer);
        (output.status.success(), stdout(&output))
    };
    let (done, said) = ask("n\n");
    assert!(done && said.contains("o/llama is not here; fetch it ("), "{said}");
    assert!(!place.home.path().join("hub/models--o--llama/snapshots").exists(), "{said}");
    let (done, said) = ask("\n");
    assert!(done && said.contains("first token"), "{said}");
}

#[test]
fn what_is_in_the_cache_is_listed_and_removed() {
    let gguf = HubRepo::new("o/gguf")
        .large("m-Q4_K_M.gguf", vec![1; 2048])
        .large("m-Q8_0.gguf", vec![2; 4096]);
    let place = HubAndHome::new(vec![repo("o/llama", "llama"), gguf]);
    assert_eq!(place.json(&["list"])["models"], serde_json::json!([]));
    for model in ["o/llama", "o/gguf:Q4_K_M", "o/gguf:Q8_0"] {
        place.done(&["pull", model]);
    }
    place.server.forget();
    let names = || -> Vec<String> {
        let report = place.json(&["list"]);
        let models = report["models"].as_array().unwrap();
        assert_eq!(
            models.iter().map(|model| model["bytes"].as_u64().unwrap()).sum::<u64>(),
            report["bytes"].as_u64().unwrap()
        );
        models.iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(), ["o/gguf", "o/llama"]);
    let page = place.done(&["list"]);
    assert!(page.contains("o/gguf:m-Q4_K_M.gguf\n") && page.contains("o/llama\n"), "{page}");
    assert_eq!(page, place.done(&["ls"]));
    assert!(place.refused(&["rm", "o/llama"], 2).contains("--yes"));
    let output = place.forerun(&["rm", "o/gguf:q4_k_m", "--yes"]);
    assert!(stderr(&output).contains("removed o/gguf:q4_k_m, 2.0 KiB"), "{}", stderr(&output));
    assert_eq!(place.json(&["list"])["models"][0]["gguf"], serde_json::json!(["m-Q8_0.gguf"]));
    place.done(&["rm", "o/llama", "o/gguf", "--yes"]);
    assert!(names().is_empty());
    assert!(place.refused(&["rm", "o/llama", "--yes"], 1).contains("not in the cache"));
    assert!(place.server.seen().is_empty(), "neither uses the network");
}

#[test]
fn short_names_stand_for_models_and_a_name_that_is_none_says_who_answers() {
    let place = HubAndHome::new(vec![]);
    for (name, model) in [
        ("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"),
        ("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("llama3.2-1b:Q8_0", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0"),
    ] {
        for words in
            [&["run", name, "--offline"][..], &["run", name, "hi", "--offline"], &["inspect", name]]
        {
            let said = place.refused(words, 1);
            assert!(said.contains(&format!("forerun pull {model}")), "{words:?}: {said}");
        }
    }
    let output = place.forerun(&["run", "llama9", "--max-tokens", "1"]);
    assert!(output.status.success());
    let said = stderr(&output);
    assert!(
        said.contains("tales-28m, the bundled model, answers; to ask a model called llama9"),
        "{said}"
    );
    let said = stderr(&place.forerun(&["run", "Hello", "--max-tokens", "1"]));
    assert!(said.contains("tales-28m, the bundled model, answers\n"), "{said}");
}

#[test]
fn several_ggufs_are_listed_with_sizes_and_a_command() {
    let repo = HubRepo::new("o/gguf")
        .large("m-Q4_K_M.gguf", vec![1; 2048])
        .large("m-Q8_0.gguf", vec![2; 4096]);
    let place = HubAndHome::new(vec![repo]);
    let said = place.refused(&["pull", "o/gguf"], 1);
    for words in ["2.0 KiB  m-Q4_K_M.gguf", "4.0 KiB", "forerun pull o/gguf:m-Q4_K_M.gguf"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let path = place.done(&["pull", "o/gguf:q8_0"]);
    assert!(path.trim_end().ends_with("m-Q8_0.gguf"), "{path}");
}

#[test]
fn a_lost_mtp_head_is_reported_and_fetched_from_the_original() {
    let mut copy = repo("o/copy", "qwen3_5");
    copy.base_model = serde_json::json!(["o/original"]);
    let shard = copy.files.iter_mut().find(|(name, ..)| name == "model.safetensors").unwrap();
    shard.1 = some_of(&shard.1, |name| !is_mtp_tensor(name));
    let place = HubAndHome::new(vec![copy, repo("o/original", "qwen3_5")]);
    let output = place.forerun(&["pull", "o/copy"]);
    let said = stderr(&output);
    assert!(said.contains("forerun pull o/copy --mtp-from o/original"), "{said}");
    let page = place.done(&["inspect", "o/copy"]);
    assert!(page.contains("forerun pull o/copy --mtp-from"), "{page}");
    let report = place.json(&["pull", "o/copy", "--mtp-from", "o/original"]);
    assert_eq!(report["mtp"]["state"], "present");
    assert!(report["mtp"]["file"].as_str().unwrap().ends_with("model-mtp.safetensors"));
    assert_eq!(place.json(&["inspect", "o/copy"])["mtp"]["present"], true);
    let again = place.json(&["pull", "o/copy", "--mtp-from", "o/original"]);
    assert_eq!(again["downloaded_bytes"], 0);
}

#[test]
fn a_head_alone_is_fetched_and_drafts_for_a_file_that_lost_it() {
    // An original in two shards, of which one holds the head.
    let mut original = repo("o/original", "qwen3_5");
    let whole = original.files.iter().position(|(name, ..)| name == "model.safetensors").unwrap();
    let (_, whole, _) = original.files.swap_remove(whole);
    let shards = [("trunk.safetensors", false), ("head.safetensors", true)];
    let mut index = serde_json::Map::new();
    for (file, head) in shards {
        let bytes = some_of(&whole, |name| is_mtp_tensor(name) == head);
        let header = parse_header(&bytes, bytes.len() as u64).unwrap();
        index.extend(header.tensors.into_keys().map(|name| (name, file.into())));
        original = original.large(file, bytes);
    }
    let index = serde_json::json!({ "weight_map": index }).to_string();
    let place = HubAndHome::new(vec![original.small("model.safetensors.index.json", index)]);

    let copy = place.home.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    let config = Golden::open("qwen3_5").checkpoint().join("config.json");
    std::fs::copy(config, copy.join("config.json")).unwrap();
    let trunk = some_of(&whole, |name| !is_mtp_tensor(name));
    std::fs::write(copy.join("model.safetensors"), trunk).unwrap();
    let answer = |drafter: &[&str]| {
        let prompt = ["--ids", "1,2,3", "--temperature", "0", "--max-tokens", "12", "--ignore-eos"];
        let depth = ["--draft", "2", "--ngram", "off"];
        let words = [&["run", copy.to_str().unwrap()][..], &prompt, &depth, drafter].concat();
        place.json(&words)
    };

    let said =
        place.refused(&["run", "o/original", "--drafter", "o/original", "hi", "--offline"], 1);
    assert!(said.contains("forerun pull o/original"), "{said}");
    let output = place.forerun(&["pull", "o/original", "--mtp-only"]);
    assert!(stderr(&output).contains("--drafter o/original"), "{}", stderr(&output));
    let folder = stdout(&output);
    assert!(!Path::new(folder.trim_end()).join("trunk.safetensors").exists());
    let (alone, whole) = (answer(&[]), Golden::open("qwen3_5").checkpoint().display().to_string());
    let expected = answer(&["--drafter", &whole]);
    assert!(expected["speculation"]["drafted"].as_u64().unwrap() > 0, "{expected}");
    for drafter in ["o/original", folder.trim_end()] {
        let drafted = answer(&["--drafter", drafter]);
        assert_eq!(drafted["token_ids"], alone["token_ids"]);
        assert_eq!(drafted["speculation"], expected["speculation"]);
    }
}

/// A safetensors file with some of its tensors.
fn some_of(file: &[u8], wanted: impl Fn(&str) -> bool) -> Vec<u8> {
    use forerun_testkit::tiny::{StoredTensor, safetensors};
    let header = parse_header(file, file.len() as u64).unwrap();
    let some = header.tensors.into_iter().filter(|(name, _)| wanted(name));
    let stored = some.map(|(name, info)| StoredTensor {
        name,
        dtype: info.dtype,
        shape: info.shape,
        bytes: file[info.range].to_vec(),
    });
    safetensors(&stored.collect::<Vec<_>>())
}

#[test]
fn wrong_usage_is_refused_by_name() {
    let place = HubAndHome::new(vec![]);
    assert!(place.refused(&["pull", "nonsense"], 2).contains("nonsense"));
    assert!(place.refused(&["pull", "a/../b"], 2).contains("a/../b"));
    assert!(place.refused(&["pull", "a/b", "--token", "x"], 2).contains("--token"));
    assert!(
        place.refused(&["pull", "a/b", "--mtp-only", "--mtp-from", "c/d"], 2).contains("--mtp")
    );
    assert!(place.refused(&["pull", "a/b:Q4", "--mtp-only"], 1).contains(":FILE"));
    assert!(place.refused(&["pull", "a/b"], 1).contains("a/b"));
    assert!(place.refused(&["pull", "a/b", "--offline"], 1).contains("not in the cache"));
}

#[test]
fn a_gated_model_says_what_to_do_and_the_token_opens_it() {
    let place = HubAndHome::new(vec![repo("o/llama", "llama")]);
    place.server.require_token("hf_secret");
    let said = place.refused(&["pull", "o/llama"], 1);
    assert!(said.contains("HF_TOKEN") && said.contains("terms"), "{said}");
    let mut command = place.command(&["pull", "o/llama"]);
    command.env("HF_TOKEN", "hf_secret");
    let output = run(command, "");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stderr(&output).contains("hf_secret") && !stdout(&output).contains("hf_secret"));
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_the_partial_file_and_the_next_pull_goes_on() {
    let repo = HubRepo::new("o/gguf").large("m.gguf", vec![7; 400_000]);
    let place = HubAndHome::new(vec![repo]);
    let sha = forerun_testkit::hub_server::sha256(&vec![7; 400_000]);
    place.server.fail(&sha, [ServerFault::Drip(10_000, Duration::from_millis(100))]);
    let child = place
        .command(&["pull", "o/gguf"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let blobs = place.home.path().join("hub/models--o--gguf/blobs");
    let partial = blobs.join(format!("{sha}.incomplete"));
    let began = Instant::now();
    while std::fs::metadata(&partial).map_or(0, |about| about.len()) == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing came");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(stderr(&output).contains("run the command again"), "{}", stderr(&output));
    assert!(partial.is_file());
    place.server.forget();
    place.done(&["pull", "o/gguf"]);
    assert!(place.server.seen().iter().any(|seen| seen.headers.contains_key("range")));
}
