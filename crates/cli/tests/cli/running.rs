//! `forerun run` and `forerun` alone.

use crate::program::{
    bundled, copy_of, forerun, forerun_with_stdin, json, list, stderr, stdout, token_ids,
    without_template,
};
use std::io::Read;
use std::process::{Command, Stdio};

const STORY: &[&str] = &["run", "--raw", "Once upon a time there was", "--max-tokens", "24"];

fn story(options: &[&str]) -> serde_json::Value {
    json(&[STORY, options].concat())
}

#[test]
fn without_a_command_the_bundled_model_tells_a_story() {
    let output = forerun(&[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("Once upon a time there was a little fox"));
    let said = stderr(&output);
    assert!(said.contains("tok/s") && said.contains("forerun run"), "{said}");
}

#[test]
fn a_seed_repeats_a_text_and_another_seed_changes_it() {
    let text = |seed: &str| story(&["--temperature", "1", "--seed", seed])["text"].clone();
    assert_eq!(text("7"), text("7"));
    assert_ne!(text("7"), text("8"));
}

#[test]
fn the_reported_seed_reproduces_a_run_that_was_given_none() {
    let first = story(&["--temperature", "1"]);
    let again = story(&["--temperature", "1", "--seed", &first["seed"].to_string()]);
    assert_eq!(first["token_ids"], again["token_ids"]);
}

#[test]
fn sizes_of_the_engine_change_no_token() {
    let plain = story(&["--seed", "5"]);
    for options in [
        &["--prefill-chunk", "1"][..],
        &["--prefill-chunk", "4"],
        &["--threads", "1"],
        &["--ctx", "64"],
    ] {
        let other = story(&[&["--seed", "5"], options].concat());
        assert_eq!(token_ids(&plain), token_ids(&other), "{options:?}");
    }
}

#[test]
fn json_says_everything_that_was_promised() {
    let report = story(&["--seed", "5", "--temperature", "0.5"]);
    assert_eq!(report["completion_tokens"], 24);
    assert_eq!(report["prompt_tokens"], 6);
    assert_eq!(report["finish_reason"], "length");
    assert_eq!(report["seed"], 5);
    assert_eq!(report["sampling"]["temperature"], 0.5);
    assert!(report["stop_string"].is_null());
    assert!(report["memory"]["total_bytes"].as_u64().unwrap() > 0);
    for key in [
        "load_s",
        "prompt_s",
        "prompt_tokens_per_s",
        "decode_s",
        "decode_tokens_per_s",
        "time_to_first_token_s",
    ] {
        assert!(report["timings"][key].as_f64().unwrap() > 0.0, "{key}");
    }
}

#[test]
fn a_stop_string_cuts_the_text_before_it_and_ends_the_answer() {
    let whole = story(&["--temperature", "0"]);
    let text = whole["text"].as_str().unwrap();
    // A stop string that begins and ends inside words, so inside tokens.
    let stop: String = text.chars().skip(20).take(5).collect();
    let cut = story(&["--temperature", "0", "--stop", &stop, "--stop", "never said"]);
    assert_eq!(cut["text"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
    assert_eq!((&cut["finish_reason"], &cut["stop_string"]), (&"stop".into(), &stop.into()));
    let (all, some) = (token_ids(&whole), token_ids(&cut));
    assert!(some.len() < all.len() && all.starts_with(&some), "{some:?}");
}

#[test]
fn an_end_token_is_counted_but_not_shown_and_can_be_ignored() {
    let words = ["run", "I want to book a table for two tonight.", "--temperature", "0"];
    let answer = json(&words);
    assert_eq!(answer["finish_reason"], "stop");
    assert_eq!(answer["text"], "What time would you like to book?");
    assert_eq!(token_ids(&answer).last(), Some(&2));
    let longer = json(&[&words[..], &["--ignore-eos", "--max-tokens", "20"]].concat());
    assert_eq!(longer["completion_tokens"], 20);
    assert!(token_ids(&longer).starts_with(&token_ids(&answer)));
}

#[test]
fn max_tokens_is_the_longest_answer() {
    let report = json(&["run", "--raw", "Once", "--max-tokens", "3", "--temperature", "0"]);
    assert_eq!(report["completion_tokens"], 3);
}

#[test]
fn the_context_ends_an_answer_before_max_tokens_does() {
    let report = story(&["--ctx", "16", "--temperature", "0"]);
    assert_eq!(report["completion_tokens"], 10);
    assert_eq!(report["finish_reason"], "length");
}

#[test]
fn stdin_is_a_prompt_like_any_other() {
    let options = ["--raw", "--temperature", "0", "--max-tokens", "8"];
    let typed = forerun(&[&["run", "The old woman"], &options[..]].concat());
    let model = bundled();
    for words in [&["run"][..], &["run", &model], &["run", "-"], &["run", &model, "-"]] {
        let piped = forerun_with_stdin(&[words, &options[..]].concat(), "The old woman\n");
        assert_eq!(stdout(&typed), stdout(&piped), "{words:?}");
    }
}

#[test]
fn text_and_ids_of_a_prompt_are_the_same_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ids.json");
    std::fs::write(&file, "[442, 628, 1084]\n").unwrap();
    let at = format!("@{}", file.display());
    let options = ["--temperature", "0", "--max-tokens", "8"];
    let text = json(&[&["run", "--raw", "The old woman"], &options[..]].concat());
    for ids in ["442,628,1084", &at] {
        let report = json(&[&["run", "--ids", ids], &options[..]].concat());
        assert_eq!(report["token_ids"], text["token_ids"], "{ids}");
    }
}

#[test]
fn a_model_without_a_template_continues_the_prompt_as_it_stands() {
    let folder = without_template();
    let model = folder.path().display().to_string();
    let options = ["hello", "--max-tokens", "4"];
    let plain = json(&[&["run", &model], &options[..]].concat());
    let raw = json(&[&["run", &model, "--raw"], &options[..]].concat());
    assert_eq!(plain["token_ids"], raw["token_ids"]);
    assert_eq!(plain["prompt_tokens"], raw["prompt_tokens"]);
}

#[test]
fn a_system_message_and_template_arguments_reach_the_template() {
    let options = ["--temperature", "0", "--max-tokens", "4"];
    let count = |words: &[&str]| {
        json(&[&["run", "Hello"], &options[..], words].concat())["prompt_tokens"].as_u64().unwrap()
    };
    let plain = count(&[]);
    assert!(count(&["--system", "Be brief."]) > plain);
    // This template knows no such variables, and unknown ones are no error in Jinja.
    assert_eq!(count(&["--no-think", "--template-arg", "style=short"]), plain);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_forerun"))
        .args(["run", "--raw", "Once", "--ignore-eos", "--max-tokens", "200"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_answer_and_keeps_what_was_said() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_forerun"))
        .args(["run", "--raw", "Once", "--ignore-eos", "--max-tokens", "3000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(stdout(&output).ends_with('\n'));
    assert!(stderr(&output).contains("cancelled"), "{}", stderr(&output));
}

#[test]
fn a_model_without_a_tokenizer_still_continues_token_ids() {
    let folder = copy_of("qwen3");
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let model = folder.path().display().to_string();
    let report = json(&["run", &model, "--ids", "1,2,3", "--max-tokens", "4"]);
    assert!(report["text"].is_null());
    let shown = stdout(&forerun(&["run", &model, "--ids", "1,2,3", "--max-tokens", "4"]));
    assert_eq!(shown.trim_end(), list(&token_ids(&report)));
    let refused = forerun(&["run", &model, "hello"]);
    assert!(stderr(&refused).contains("tokenizer.json"), "{}", stderr(&refused));
}

#[test]
fn a_file_is_a_model_as_well_as_its_folder() {
    let (folder, file) = (bundled(), format!("{}/model.safetensors", bundled()));
    let ids = |model: &str| {
        token_ids(&json(&[
            "run",
            model,
            "--ids",
            "6751",
            "--temperature",
            "0",
            "--max-tokens",
            "4",
        ]))
    };
    assert_eq!(ids(&folder), ids(&file));
}

#[test]
fn special_tokens_in_a_message_are_text_unless_the_option_says_otherwise() {
    let tokens = |options: &[&str]| {
        let words = ["run", "<|im_end|>", "--max-tokens", "1", "--temperature", "0"];
        json(&[&words[..], options].concat())["prompt_tokens"].as_u64().unwrap()
    };
    let (text, token) = (tokens(&[]), tokens(&["--parse-special"]));
    assert!(text > token, "{text} letters, {token} with one token");
    let raw = json(&["run", "<|im_end|>", "--raw", "--max-tokens", "1", "--ignore-eos"]);
    assert_eq!(raw["prompt_tokens"], 1, "without a template the prompt is taken as it stands");
}

#[test]
fn an_answer_that_is_cut_says_so_and_one_to_a_question_has_the_context() {
    let cut = forerun(&["run", "Hello", "--max-tokens", "2"]);
    assert!(
        stderr(&cut).contains("length: cut here, --max-tokens and --ctx give more"),
        "{}",
        stderr(&cut)
    );
    let tokens = |words: &[&str]| {
        let endless = ["--ignore-eos", "--ctx", "700", "--temperature", "0"];
        json(&[&["run", "Once"], words, &endless[..]].concat())["completion_tokens"]
            .as_u64()
            .unwrap()
    };
    assert!(tokens(&[]) > 600, "what the context leaves");
    assert_eq!(tokens(&["--raw"]), 512, "a text has no end of its own");
}
