//! Commands on the model pages and in the guides run as they stand.

use crate::program::{command, forerun, run, stdout};
use forerun_testkit::{GOLDENS, Golden};
use std::path::Path;

#[test]
fn every_command_on_a_model_page_that_names_a_golden_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for name in GOLDENS.into_iter().chain(["gemma4_assistant"]) {
        assert!(Golden::open(name).checkpoint().ends_with(Path::new("target/goldens").join(name)));
    }
    let mut done = 0;
    for entry in std::fs::read_dir(root.join("docs/models")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "md") {
            continue;
        }
        let page = std::fs::read_to_string(&path).unwrap();
        for line in page.lines().filter(|line| line.starts_with("forerun ")) {
            if !line.contains("target/goldens") {
                continue;
            }
            run_line(line, &root, &path);
            done += 1;
        }
    }
    assert!(done >= 10, "only {done} commands found");
}

/// Runs a line of a page in the repository's root.
fn run_line(line: &str, root: &Path, page: &Path) {
    let mut program = command(&[]);
    program.current_dir(root).args(words(line));
    let output = run(program, "");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {line}\n{errors}", page.display());
}

#[test]
fn every_command_of_a_guide_runs_or_has_only_options_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for name in ["mlx_qwen3_5_4bit", "gguf_llama_q8_0"] {
        Golden::open(name).checkpoint();
    }
    let (mut done, mut known) = (0, 0);
    for entry in std::fs::read_dir(root.join("docs/guides")).unwrap() {
        let page = entry.unwrap().path();
        let text = std::fs::read_to_string(&page).unwrap();
        for line in sh_lines(&text) {
            // Alone, or behind `numactl`.
            let Some((before, line)) = line.split_once("forerun ") else { continue };
            if !before.is_empty() && !before.starts_with("numactl ") {
                continue;
            }
            let line = format!("forerun {line}");
            let here = line.contains("target/goldens") || line.contains("models/tales-28m");
            if here && !line.contains("--help") {
                run_line(&line, &root, &page);
                done += 1;
                continue;
            }
            let line = words(&line);
            let help = stdout(&forerun(&[&line[0], "--help"]));
            let options = line.iter().filter_map(|word| word.strip_prefix("--"));
            for option in options.filter(|option| *option != "help") {
                assert!(help.contains(&format!("--{option}")), "{}: {option}", page.display());
            }
            assert!(help.contains("Usage: forerun"), "{}: {}", page.display(), line[0]);
            known += 1;
        }
    }
    assert!(done >= 7 && known >= 10, "{done} commands ran, {known} were checked");
}

/// The lines of a page's blocks of shell.
fn sh_lines(text: &str) -> impl Iterator<Item = &str> {
    let blocks = text.split("```sh\n").skip(1);
    blocks.filter_map(|block| block.split_once("```")).flat_map(|(block, _)| block.lines())
}

/// The words of a command line after the program; quotes keep words together.
fn words(line: &str) -> Vec<String> {
    let pieces = line.split('"').enumerate();
    let words = pieces.flat_map(|(i, piece)| match i % 2 {
        0 => piece.split_whitespace().map(str::to_owned).collect(),
        _ => vec![piece.to_owned()],
    });
    words.skip(1).collect()
}
