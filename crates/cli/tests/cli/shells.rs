//! `forerun completions` and `forerun man`.

use crate::program::{forerun, stderr, stdout};
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn every_shell_gets_completions_of_every_command() {
    for (shell, mark) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef forerun"),
        ("fish", "complete -c forerun"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let output = forerun(&["completions", shell]);
        let script = stdout(&output);
        assert!(output.status.success() && script.contains(mark), "{shell}: {}", stderr(&output));
        for word in ["serve", "quantize", "tokenize", "reasoning", "no-history"] {
            assert!(script.contains(word), "{shell} knows {word}");
        }
    }
    let wrong = forerun(&["completions", "csh"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("fish"), "{}", stderr(&wrong));
}

#[test]
fn bash_completes_a_command_and_the_values_of_an_option() {
    let script = stdout(&forerun(&["completions", "bash"]));
    let asked = |words: &str, at: usize| {
        let mut bash = Command::new("bash")
            .args(["--norc", "--noprofile"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let question = format!(
            "{script}\nCOMP_WORDS=({words}) COMP_CWORD={at}\n\
             _forerun forerun \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{at}-1]}}\"\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
        );
        bash.stdin.take().unwrap().write_all(question.as_bytes()).unwrap();
        String::from_utf8(bash.wait_with_output().unwrap().stdout).unwrap()
    };
    assert_eq!(asked("forerun qu", 1).trim(), "quantize");
    assert_eq!(asked("forerun run --reasoning f", 3).trim(), "fold");
}

#[test]
fn the_manual_has_a_page_for_each_command_with_every_option() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("share/man/man1");
    let output = forerun(&["man", &pages.display().to_string()]);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", stderr(&output));
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("forerun.1").contains(".TH"));
    let run = page("forerun-run.1").replace('\\', "");
    let help = stdout(&forerun(&["run", "--help"]));
    let mut seen = 0;
    for line in help.lines().map(str::trim_start).filter(|line| line.starts_with("--")) {
        let option = line.split([' ', '=', '[']).next().unwrap();
        assert!(run.contains(option), "{option}");
        seen += 1;
    }
    assert!(seen > 30, "{help}");
    let commands = stdout(&forerun(&["--help"]));
    let (_, commands) = commands.split_once("Commands:").unwrap();
    let names = commands.lines().skip(1).take_while(|line| !line.is_empty());
    for name in names.filter_map(|line| line.split_whitespace().next()).filter(|n| *n != "help") {
        assert!(page(&format!("forerun-{name}.1")).contains(".TH"), "{name}");
    }
}
