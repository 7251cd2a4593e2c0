//! Commands on the model pages run as they stand.

use crate::program::{command, run};
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
            let mut program = command(&[]);
            program.current_dir(&root).args(words(line));
            let output = run(program, "");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {line}\n{errors}", path.display());
            done += 1;
        }
    }
    assert!(done >= 10, "only {done} commands found");
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
