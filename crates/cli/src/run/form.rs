//! What an answer is held to, as the options say.

use crate::args::{FormArgs, RunArgs};
use anyhow::{Context, bail};
use forerun::{Error, GrammarSource, RenderedChat, TextProcessor};
use forerun_engine::Constraint;
use serde_json::Value;
use std::io::Read;
use std::path::Path;

/// The constraint of the answers.
pub(super) struct Form {
    /// The option that sets it.
    option: &'static str,
    pub(super) source: GrammarSource,
}

impl Form {
    /// What the options say. Whatever is wrong with it is an error here, before weights are read.
    pub(super) fn from_args(
        args: &RunArgs,
        processor: &TextProcessor,
    ) -> anyhow::Result<Option<Self>> {
        let Some((option, source)) = grammar(&args.form)? else { return Ok(None) };
        if let Err(Error::NoTokenizer(_)) = processor.tokenizer() {
            bail!("{option} needs text, and this model has no tokenizer.json");
        }
        let form = Self { option, source };
        constraint(Some(&form), processor, None)?;
        Ok(Some(form))
    }
}

/// What one answer is held to. `chat` is its prompt as the template wrote it, which may have begun reasoning.
pub(super) fn constraint(
    form: Option<&Form>,
    processor: &TextProcessor,
    chat: Option<&RenderedChat>,
) -> anyhow::Result<Option<Box<dyn Constraint>>> {
    let made = processor.constraint(chat, form.map(|form| &form.source), &|| true);
    match form {
        Some(form) => made.context(form.option),
        None => Ok(made?),
    }
}

/// The grammar among the options, and which of them it is.
fn grammar(args: &FormArgs) -> anyhow::Result<Option<(&'static str, GrammarSource)>> {
    Ok(if let Some(schema) = &args.json_schema {
        Some(("--json-schema", GrammarSource::JsonSchema(json_schema(schema)?)))
    } else if let Some(expression) = &args.regex {
        Some(("--regex", GrammarSource::Regex(expression.clone())))
    } else if let Some(file) = &args.grammar {
        Some(("--grammar", GrammarSource::Lark(read("--grammar", file)?)))
    } else if !args.choice.is_empty() {
        Some(("--choice", GrammarSource::Choice(args.choice.clone())))
    } else {
        None
    })
}

/// A schema that is given itself or lies in a file.
fn json_schema(given: &str) -> anyhow::Result<Value> {
    const OPTION: &str = "--json-schema";
    if given.trim_start().starts_with('{') {
        return serde_json::from_str(given).context(OPTION);
    }
    let text = read(OPTION, Path::new(given))?;
    serde_json::from_str(&text).with_context(|| format!("{OPTION} {given}"))
}

/// The text of a file, no longer than a grammar may be.
fn read(option: &str, path: &Path) -> anyhow::Result<String> {
    let named = || format!("{option} {}", path.display());
    let most = GrammarSource::MAX_BYTES;
    let mut bytes = Vec::new();
    let file = forerun_base::open_regular(path).with_context(named)?;
    file.take(most as u64 + 1).read_to_end(&mut bytes).with_context(named)?;
    if bytes.len() > most {
        bail!("{} has more than {most} bytes, the most that are read", named());
    }
    String::from_utf8(bytes).with_context(named)
}
