//! A config file: the options of `serve` by their names, as if they had been typed before the others.

use crate::args::{self, Cli, Command, ServeArgs};
use crate::exit::usage;
use anyhow::{Context, anyhow, bail};
use clap::error::{ContextKind, ErrorKind};
use std::ffi::OsString;
use std::path::Path;
use toml::{Table, Value};

/// The options with those of the file under them.
pub(super) fn with_file(args: ServeArgs) -> anyhow::Result<ServeArgs> {
    let Some(path) = &args.config else { return Ok(args) };
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    // What was typed follows the name of the command.
    merged(&text, path, std::env::args_os().skip(2)).map_err(usage)
}

fn merged(
    text: &str,
    path: &Path,
    typed: impl Iterator<Item = OsString>,
) -> anyhow::Result<ServeArgs> {
    let name = path.display();
    let table: Table = toml::from_str(text).with_context(|| name.to_string())?;
    let typed: Vec<OsString> = typed.collect();
    let mut words: Vec<OsString> = vec!["forerun".into(), "serve".into()];
    for (key, value) in &table {
        if key == "config" {
            bail!("{name}: a config file cannot name another");
        }
        words.extend(options(key, value).with_context(|| name.to_string())?);
    }
    words.extend(typed);
    match args::parse(words) {
        Ok(Cli { command: Some(Command::Serve(args)) }) => Ok(*args),
        Ok(_) => unreachable!("the words begin with the command"),
        Err(error) => Err(anyhow!("{name}: {}", about_keys(&error))),
    }
}

/// What is wrong, in the words of a file: its keys are options without dashes. The options that were typed had been
/// read before, so that the fault is the file's.
fn about_keys(error: &clap::Error) -> String {
    let key = |kind| error.get(kind).map(|value| value.to_string().replace("--", ""));
    if let (ErrorKind::UnknownArgument, Some(name)) = (error.kind(), key(ContextKind::InvalidArg)) {
        let similar = key(ContextKind::SuggestedArg);
        let similar = similar.map(|other| format!("; did you mean `{other}`?"));
        return format!("there is no option `{name}`{}", similar.unwrap_or_default());
    }
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    first.trim_start_matches("error: ").to_owned()
}

/// A key and its value as words of a command line; a list repeats the option.
fn options(key: &str, value: &Value) -> anyhow::Result<Vec<OsString>> {
    let one = |value: &Value| -> anyhow::Result<OsString> {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(on) => on.to_string(),
            _ => bail!("`{key}` is a {}; give a text, a number, true or false", value.type_str()),
        };
        Ok(format!("--{key}={text}").into())
    };
    match value {
        Value::Array(values) => values.iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, typed: &[&str]) -> Result<ServeArgs, String> {
        merged(text, Path::new("f.toml"), typed.iter().map(OsString::from))
            .map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn what_is_typed_wins_over_the_file_and_the_rest_stays() {
        let file = "port = 8000\nmodel = \"m\"\nctx = 512\nalias = [\"a\", \"b\"]\n";
        let args = read(file, &["--port", "9000", "--log=json"]).unwrap();
        assert_eq!((args.port, args.engine.ctx), (9000, Some(512)));
        assert_eq!(args.alias, ["a", "b"]);
        assert_eq!(args.model.as_deref(), Some(Path::new("m")));
    }

    #[test]
    fn a_switch_is_true_or_false_in_the_file_and_the_typed_one_wins() {
        assert!(read("strict = true", &[]).unwrap().strict);
        assert!(!read("strict = false", &[]).unwrap().strict);
        assert!(!read("strict = true", &["--strict=false"]).unwrap().strict);
        assert!(read("", &["--strict"]).unwrap().strict);
        assert!(!read("", &[]).unwrap().strict);
    }

    #[test]
    fn a_wrong_key_or_value_is_named_with_its_file() {
        for (file, word) in [
            ("prot = 1", "no option `prot`; did you mean `port`?"),
            ("port = 70000", "70000"),
            ("port = [{}]", "table"),
            ("port = true", "true"),
            ("share-cache = 1", "1"),
            ("strict = 1", "strict"),
            ("config = \"g.toml\"", "another"),
            ("port", "f.toml"),
        ] {
            let error = read(file, &[]).unwrap_err();
            assert!(error.contains(word) && error.contains("f.toml"), "{file}: {error}");
        }
    }
}
