//! Which model and which prompt were meant.

use crate::args::RunArgs;
use crate::exit::usage;
use crate::given::{self, is_model, looks_like_path};
use crate::{bundled, ids, stdin, terminal};
use anyhow::{anyhow, bail};
use forerun_base::Token;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// What `run` works on.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) model: PathBuf,
    pub(super) prompt: Prompt,
}

/// What is to be answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Text(String),
    Ids(Vec<Token>),
    /// Nothing yet: ask the person at the terminal.
    Chat,
}

impl Input {
    /// From what [`sort_out`] found.
    pub(super) fn new(
        args: &RunArgs,
        model: Option<PathBuf>,
        text: Option<String>,
    ) -> anyhow::Result<Self> {
        let prompt = match (&args.ids, text) {
            (Some(ids), None) => Prompt::Ids(ids::read(ids)?),
            (Some(_), Some(_)) => return Err(usage(anyhow!("give a prompt or --ids, not both"))),
            (None, Some(text)) if text == "-" => Prompt::Text(stdin::read()?),
            (None, Some(text)) => Prompt::Text(text),
            (None, None) if io::stdin().is_terminal() => Prompt::Chat,
            (None, None) => Prompt::Text(stdin::read()?),
        };
        if prompt == Prompt::Text(String::new()) {
            bail!("the prompt is empty");
        }
        let model = match model {
            Some(model) => model,
            None => bundled_for(args)?,
        };
        Ok(Self { model, prompt })
    }
}

/// The bundled model. A prompt that may have been meant for another one is told who answers it.
fn bundled_for(args: &RunArgs) -> anyhow::Result<PathBuf> {
    let path = bundled::find()?;
    if let (Some(word), None, false) = (&args.first, &args.second, args.json) {
        let name = path.file_name().unwrap_or_default().display();
        let hint = if given::like_a_model(word) {
            format!("; to ask a model called {word}, give its folder, its file or OWNER/NAME")
        } else {
            String::new()
        };
        terminal::aside(&format!("{name}, the bundled model, answers{hint}"));
    }
    Ok(path)
}

/// The model and the prompt text among options and positional arguments.
pub(super) fn sort_out(args: &RunArgs) -> anyhow::Result<(Option<PathBuf>, Option<String>)> {
    let option = args.prompt.clone();
    let only_one_prompt = |positional: Option<String>| match (positional, option.clone()) {
        (Some(_), Some(_)) => bail!("give the prompt as PROMPT or as --prompt, not both"),
        (positional, option) => Ok(positional.or(option)),
    };
    match (args.model.clone(), args.first.clone(), args.second.clone()) {
        (Some(_), Some(_), Some(_)) => bail!("give the model as MODEL or as --model, not both"),
        (Some(model), prompt, None) => Ok((Some(model), only_one_prompt(prompt)?)),
        (None, Some(model), Some(prompt)) => {
            if !is_model(Path::new(&model)) && !looks_like_path(&model) {
                bail!(
                    "`{model}` is not a model; a prompt of several words goes in quotes:\n  \
                     forerun run \"{model} {prompt}\""
                );
            }
            Ok((Some(model.into()), only_one_prompt(Some(prompt))?))
        }
        // The prompt is given elsewhere, so this one is the model.
        (None, Some(model), None) if option.is_some() || args.ids.is_some() => {
            Ok((Some(model.into()), option))
        }
        (None, Some(word), None) if is_model(Path::new(&word)) => Ok((Some(word.into()), None)),
        (None, Some(word), None) if looks_like_path(&word) => {
            bail!("{word} does not exist; give a model folder or file, or a prompt with --prompt")
        }
        (None, word, _) => Ok((None, only_one_prompt(word)?)),
        (Some(_), None, Some(_)) => unreachable!("positional arguments are filled in order"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Command};
    use std::ffi::OsString;

    fn sorted(words: &[&str]) -> Result<(Option<PathBuf>, Option<String>), String> {
        let words = ["forerun", "run"].iter().chain(words);
        let Some(Command::Run(args)) = args::parse(words.map(OsString::from)).unwrap().command
        else {
            panic!("not a run")
        };
        sort_out(&args).map_err(|e| e.to_string())
    }

    #[test]
    fn one_word_is_the_model_if_it_exists_or_names_one_of_the_hub() {
        let here = env!("CARGO_MANIFEST_DIR");
        assert_eq!(sorted(&[here]), Ok((Some(here.into()), None)));
        assert_eq!(sorted(&["Hello"]), Ok((None, Some("Hello".into()))));
        assert_eq!(sorted(&["and/or what?"]), Ok((None, Some("and/or what?".into()))));
        assert_eq!(sorted(&["owner/name:Q4"]), Ok((Some("owner/name:Q4".into()), None)));
        assert!(sorted(&["no/such/folder"]).unwrap_err().contains("no/such/folder"));
        assert!(sorted(&["m.gguf"]).unwrap_err().contains("m.gguf"));
    }

    #[test]
    fn options_settle_what_a_word_means() {
        let hello = || Some("Hello".to_owned());
        assert_eq!(sorted(&["o/m", "Hello"]), Ok((Some("o/m".into()), hello())));
        assert!(sorted(&["hi", "there"]).unwrap_err().contains("forerun run \"hi there\""));
        assert_eq!(sorted(&["-5"]), Ok((None, Some("-5".into()))));
        assert_eq!(sorted(&["--model", "m", "Hello"]), Ok((Some("m".into()), hello())));
        assert_eq!(sorted(&["m", "--prompt", "Hello"]), Ok((Some("m".into()), hello())));
        assert_eq!(sorted(&["m", "--ids", "1"]), Ok((Some("m".into()), None)));
        assert_eq!(sorted(&[]), Ok((None, None)));
    }

    #[test]
    fn saying_a_thing_twice_is_an_error() {
        assert!(sorted(&["--model", "m", "a", "b"]).is_err());
        assert!(sorted(&["m", "a", "--prompt", "b"]).is_err());
        assert!(sorted(&["--model", "m", "a", "--prompt", "b"]).is_err());
    }
}
