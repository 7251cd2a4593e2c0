//! Reasoning apart from the answer, and what is said while a long prompt is read.

use crate::chatting::{at_terminal, talk};
use crate::program::{bundled, forerun, forerun_with_stdin, json, stderr, stdout};
use std::path::Path;

/// The bundled model with a template that knows the marks of reasoning.
fn thinking_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(bundled()).unwrap() {
        let path = entry.unwrap().path();
        let copy = folder.path().join(path.file_name().unwrap());
        if path.ends_with("chat_template.jinja") {
            let template = std::fs::read_to_string(&path).unwrap();
            std::fs::write(&copy, template + "{# </think> #}").unwrap();
        } else {
            std::os::unix::fs::symlink(&path, &copy).unwrap();
        }
    }
    folder
}

/// Options that make it reason, which it does not by itself, and then say one of two words.
const REASONED: [&str; 4] =
    ["--temperature", "0", "--regex", "<think>[a-z ]{8,20}</think>(yes|no)"];

#[test]
fn in_a_pipe_the_answer_is_alone_unless_reasoning_is_asked_for() {
    let folder = thinking_model();
    let model = folder.path().display().to_string();
    let words = [&["run", &model, "Was it good?"], &REASONED[..]].concat();
    let report = json(&words);
    let (text, reasoning) =
        (report["text"].as_str().unwrap(), report["reasoning"].as_str().unwrap());
    assert!(["yes", "no"].contains(&text) && !reasoning.is_empty(), "{report}");
    let piped = |options: &[&str]| forerun(&[&words[..], options].concat());
    assert_eq!(stdout(&piped(&[])), format!("{text}\n"));
    assert_eq!(stdout(&piped(&["--reasoning", "hide"])), format!("{text}\n"));
    let shown = stdout(&piped(&["--reasoning", "show"]));
    assert_eq!(shown, format!("<think>\n{reasoning}\n</think>\n\n{text}\n"));
    let folded = piped(&["--reasoning", "fold"]);
    assert_eq!(stdout(&folded), format!("{text}\n"));
    assert!(stderr(&folded).contains("reasoned for"), "{}", stderr(&folded));
    let cut = piped(&["--max-tokens", "14"]);
    assert_eq!(stdout(&cut), "\n");
    assert!(stderr(&cut).contains("while the model was reasoning"), "{}", stderr(&cut));
}

#[test]
fn at_a_terminal_reasoning_is_dimmed_and_a_chat_can_fold_it() {
    let folder = thinking_model();
    let [.., expression] = REASONED;
    let model = folder.path().display();
    let words = format!("{model} --no-history --temperature 0 --regex '{expression}'");
    let lines = ["Was it good?", "/set reasoning fold", "Was it good?", "/bye"];
    let shown = talk(Path::new("/nonexistent"), &words, &lines);
    assert_eq!(shown.matches("reasoned for").count(), 1, "{shown}");
    let (_, first) = shown.split_once("\x1b[2m").unwrap();
    assert!(
        first.contains("\x1b[0m\r\n\r\nyes\r\n") || first.contains("\x1b[0m\r\n\r\nno\r\n"),
        "{shown}"
    );
}

#[test]
fn a_long_prompt_shows_that_it_is_read_at_a_terminal_and_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt").display().to_string();
    let text = "The old king had a daughter. ".repeat(200);
    std::fs::write(&file, &text).unwrap();
    let options = "run --raw --temperature 0 --max-tokens 2 --prefill-chunk 128";
    let shown = at_terminal(&format!("{options} - < {file}"), "", "");
    assert!(shown.contains("reading the prompt: ") && shown.contains(" s left"), "{shown}");
    let json = at_terminal(&format!("{options} --json - < {file}"), "", "");
    assert!(!json.contains("reading"), "{json}");
    let words: Vec<&str> = options.split(' ').collect();
    let piped = forerun_with_stdin(&words, &text);
    assert!(piped.status.success() && !stderr(&piped).contains("reading"), "{}", stderr(&piped));
}

#[test]
fn ctrl_c_while_a_prompt_is_read_says_how_far_it_came_and_invents_no_rate() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt").display().to_string();
    std::fs::write(&file, "The old king had a daughter. ".repeat(450)).unwrap();
    let words = format!("run --raw --max-tokens 2 --prefill-chunk 16 --threads 1 - < {file}");
    let shown = at_terminal(&words, " s left", "\x03");
    let (_, last) = shown.split_once("prompt given up after ").unwrap_or_else(|| panic!("{shown}"));
    let read: usize = last.split(' ').next().unwrap().parse().unwrap();
    assert!((16..3500).contains(&read), "{shown}");
    assert!(last.contains("cancelled") && !last.contains("tok/s"), "{shown}");
}
