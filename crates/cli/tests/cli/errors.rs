//! What cannot be done is refused with a message that names the thing.

use crate::program::{bundled, copy_of, forerun, forerun_with_stdin, stderr, without_template};
use forerun_testkit::Golden;

struct Case<'a> {
    words: &'a [&'a str],
    code: i32,
    names: &'a [&'a str],
}

fn check(case: &Case<'_>) {
    let output = forerun_with_stdin(case.words, "x");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(case.code), "{:?}: {said}", case.words);
    assert!(output.stdout.is_empty(), "{:?}", case.words);
    assert!(said.contains("error: "), "{:?}: {said}", case.words);
    for name in case.names {
        assert!(said.contains(name), "{:?} should name `{name}`: {said}", case.words);
    }
}

#[test]
fn models_that_are_not_there_are_named() {
    check(&Case { words: &["run", "no/such/model"], code: 2, names: &["no/such/model"] });
    check(&Case { words: &["run", "no/such/model", "hi"], code: 1, names: &["no/such/model"] });
    check(&Case { words: &["score", "nowhere", "hi"], code: 1, names: &["nowhere"] });
    check(&Case { words: &["inspect", "nowhere"], code: 1, names: &["nowhere"] });
    let quoted = "forerun run \"hi there\"";
    check(&Case { words: &["run", "hi", "there"], code: 2, names: &["not a model", quoted] });
    let file = &["nope/missing.gguf: does not exist"];
    check(&Case { words: &["run", "nope/missing.gguf", "hi"], code: 1, names: file });
}

#[test]
fn an_error_says_a_thing_once_and_gives_no_advice_that_misleads() {
    let folder = tempfile::tempdir().unwrap();
    let [text, config, empty] = ["text.gguf", "bad.toml", "empty.toml"]
        .map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&text, "hello").unwrap();
    std::fs::write(&config, "prot = 1\n").unwrap();
    std::fs::write(&empty, "prot\n").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (words, code, once, never) in [
        (&["run", &text, "hi"][..], 1, "begins with the bytes", "hub"),
        (&["run", &text, "hi"], 1, "text.gguf", "hub"),
        (&["run", "nowhere/m.gguf", "hi"], 1, "nowhere/m.gguf", "pull"),
        (&["serve", "--port", &port], 1, "in use", "loading"),
        (&["serve", "--port", &port], 1, "--port N", "loading"),
        (&["serve", "--config", &config], 2, "did you mean `port`?", "--prot"),
        (&["serve", "--config", &empty], 2, "empty.toml", "--"),
        (
            &["serve", "--host", "no.such.name.invalid"],
            2,
            "no.such.name.invalid",
            "IP address syntax",
        ),
        (&["serve", "--allow-origin", "localhost"], 2, "http://localhost:3000", "tip"),
        (&["run", "hi", "--speculate"], 2, "--speculate", "as a value"),
    ] {
        check(&Case { words, code, names: &[once] });
        let said = stderr(&forerun(words));
        assert_eq!(said.matches(once).count(), 1, "{words:?}: {said}");
        assert!(!said.contains(never), "{words:?}: {said}");
    }
}

#[test]
fn values_out_of_range_are_named() {
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["--temperature", "-1"], 2, &["temperature", "-1"]),
        (&["--temperature", "nan"], 2, &["temperature", "NaN"]),
        (&["--temperature", "warm"], 2, &["--temperature", "warm"]),
        (&["--top-p", "0"], 2, &["top_p", "0"]),
        (&["--min-p", "2"], 2, &["min_p", "2"]),
        (&["--repetition-penalty", "0"], 2, &["repetition_penalty"]),
        (&["--logit-bias", "9999=1"], 2, &["9999", "8192"]),
        (&["--logit-bias", "x"], 2, &["TOKEN=BIAS"]),
        (&["--max-tokens", "0"], 2, &["--max-tokens", "at least 1"]),
        (&["--max-tokens", "-5"], 2, &["'-5' for '--max-tokens", "at least 1"]),
        (&["--seed", "-1"], 2, &["'-1' for '--seed"]),
        (&["--ctx", "0"], 2, &["--ctx"]),
        (&["--prefill-chunk", "0"], 2, &["--prefill-chunk"]),
        (&["--submission-ms", "-1"], 2, &["--submission-ms"]),
        (&["--threads", "0"], 2, &["--threads"]),
        (&["--device", "gpu"], 2, &["--device", "cuda:N"]),
        (&["--device", "cuda", "--threads", "1"], 1, &["--threads", "--device cpu"]),
        (&["--kv", "q8"], 2, &["--kv", "f16"]),
        (&["--draft-vocabulary", "0"], 2, &["--draft-vocabulary", "at least 1"]),
        (&["--draft-vocabulary", "8193"], 1, &["draft vocabulary of 8193", "8192"]),
        (&["--stop", ""], 2, &["--stop"]),
        (&["--speculate"], 2, &["--speculate"]),
        (&["--think", "--no-think"], 2, &["--no-think"]),
        (&["--raw", "--system", "x"], 2, &["--system", "--raw"]),
        (&["--think", "--template-arg", "enable_thinking=1"], 2, &["enable_thinking"]),
        (&["--template-arg", "messages=1"], 1, &["messages"]),
    ];
    for &(options, code, names) in cases {
        check(&Case { words: &[&["run", "Hello"], options].concat(), code, names });
    }
}

#[test]
fn token_ids_that_are_none_are_named() {
    let model = bundled();
    let cases: &[(&str, &[&str])] = &[
        ("1,two,3", &["item 2", "two"]),
        ("", &["no token ids"]),
        ("1,8192", &["8192", "vocabulary"]),
        ("@no-such-file", &["no-such-file"]),
    ];
    for &(ids, names) in cases {
        for command in ["run", "score"] {
            check(&Case { words: &[command, &model, "--ids", ids], code: 1, names });
        }
    }
    let both = ["run", &model, "hello", "--ids", "1"];
    check(&Case { words: &both, code: 2, names: &["--ids"] });
}

#[test]
fn text_that_does_not_fit_is_refused_with_both_numbers() {
    let model = bundled();
    let ids = vec!["5"; 100].join(",");
    let words = ["run", &model, "--ids", &ids, "--ctx", "64"];
    check(&Case { words: &words, code: 1, names: &["100", "64", "--ctx"] });
    let words = ["score", &model, "--ids", &ids, "--ctx", "64"];
    check(&Case { words: &words, code: 1, names: &["100", "64", "--ctx"] });
    let ids = vec!["5"; 5000].join(",");
    check(&Case { words: &["score", &model, "--ids", &ids], code: 1, names: &["5000", "4096"] });
}

#[test]
fn a_context_beyond_the_model_is_allowed_with_a_warning() {
    let output = forerun(&["run", "--raw", "Once", "--ctx", "5000", "--max-tokens", "1"]);
    assert!(output.status.success());
    let said = stderr(&output);
    assert!(said.contains("warning") && said.contains("4096"), "{said}");
}

#[test]
fn an_empty_prompt_is_refused() {
    for words in [&["run"][..], &["run", ""], &["run", "-"]] {
        let output = forerun(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(stderr(&output).contains("empty"), "{}", stderr(&output));
    }
}

#[test]
fn options_for_a_template_the_model_lacks_are_refused() {
    let folder = without_template();
    let model = folder.path().display().to_string();
    let words = ["run", &model, "hello", "--system", "Be brief."];
    check(&Case { words: &words, code: 1, names: &["chat template", "--system"] });
}

#[test]
fn a_hostile_config_is_an_error_and_not_a_crash() {
    let original = Golden::open("qwen3_5");
    let config = std::fs::read_to_string(original.checkpoint().join("config.json")).unwrap();
    let cases: &[(&str, &str, &str)] = &[
        ("\"model_type\": \"qwen3_5\"", "\"model_type\": \"gpt9\"", "gpt9"),
        ("\"num_hidden_layers\"", "\"num_hidden_layers_\"", "num_hidden_layers"),
        ("\"hidden_size\": ", "\"hidden_size\": 9", "shape"),
        ("{", "[", "config.json"),
    ];
    for &(from, to, names) in cases {
        let folder = copy_of("qwen3_5");
        let hostile = config.replacen(from, to, 1);
        assert_ne!(hostile, config, "{from}");
        std::fs::write(folder.path().join("config.json"), hostile).unwrap();
        let model = folder.path().display().to_string();
        check(&Case { words: &["run", &model, "hello"], code: 1, names: &[names] });
    }
}

#[test]
fn logits_that_cannot_be_written_name_the_file() {
    let model = bundled();
    let words = ["score", &model, "hello there", "--logits", "/no/such/folder/l.safetensors"];
    check(&Case { words: &words, code: 1, names: &["/no/such/folder/l.safetensors"] });
}

#[test]
fn a_prompt_that_cannot_fit_is_refused_by_its_bytes() {
    let text = "word ".repeat(3 << 20);
    let start = std::time::Instant::now();
    for words in [&["run", "--raw"][..], &["run"], &["score", &bundled(), "-"]] {
        let output = forerun_with_stdin(words, &text);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains("prompt is too long: at least"), "{words:?}: {said}");
    }
    assert!(start.elapsed() < std::time::Duration::from_secs(30), "{:?}", start.elapsed());
}

#[cfg(unix)]
#[test]
fn a_fifo_in_place_of_a_file_is_refused_instead_of_waited_for() {
    let fifo = |path: &std::path::Path| {
        let _ = std::fs::remove_file(path);
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
        path.display().to_string()
    };
    let folder = tempfile::tempdir().unwrap();
    let text = fifo(&folder.path().join("text"));
    let at = format!("@{text}");
    for words in [
        &["score", &bundled(), "--file", &text][..],
        &["tokenize", &bundled(), "--file", &text],
        &["run", "hi", "--json-schema", &text],
        &["run", "hi", "--grammar", &text],
        &["run", "--ids", &at],
    ] {
        check(&Case { words, code: 1, names: &["not a regular file"] });
    }
    // Those that are looked for first are not found, as no regular file of the name is there.
    for (name, said) in [
        ("config.json", "no config.json"),
        ("tokenizer.json", "not a regular file"),
        ("model.safetensors", "no weights"),
    ] {
        let model = copy_of("qwen3");
        fifo(&model.path().join(name));
        let path = model.path().display().to_string();
        check(&Case { words: &["run", &path, "hi"], code: 1, names: &[said, name] });
    }
}
