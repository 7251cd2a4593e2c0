//! What an answer is held to, as the options say.

use crate::args::{FormArgs, RunArgs};
use crate::load::Source;
use anyhow::{Context, anyhow, bail};
use forerun_engine::Constraint;
use forerun_grammar::{GrammarSource, Grammars};
use forerun_text::{ChatTemplate, Dialect, Opening};
use serde_json::Value;
use std::io::Read;
use std::path::Path;

/// A grammar for the answers of one model.
pub(super) struct Form {
    /// The option that asked for it.
    option: &'static str,
    source: GrammarSource,
    grammars: Grammars,
    /// How the model marks reasoning, where a template may begin it.
    dialect: Option<Dialect>,
    no_think: bool,
}

impl Form {
    /// What the options ask for. Whatever is wrong with it is said here, before weights are read.
    pub(super) fn from_args(
        args: &RunArgs,
        model: &Source,
        template: Option<&ChatTemplate>,
    ) -> anyhow::Result<Option<Self>> {
        let Some((option, source)) = asked(&args.form)? else { return Ok(None) };
        let tokenizer =
            model.text.tokenizer.as_ref().ok_or_else(|| {
                anyhow!("{option} needs text, and this model has no tokenizer.json")
            })?;
        let vocabulary = model.blueprint.spec.vocabulary;
        let ends = model.text.end_tokens(template);
        let form = Self {
            option,
            source,
            grammars: Grammars::new(tokenizer, vocabulary, &ends).context(option)?,
            dialect: template.map(|template| Dialect::of(template, tokenizer)),
            no_think: args.no_think,
        };
        form.constraint(None)?;
        Ok(Some(form))
    }

    /// The constraint of one answer. `rendered` is its prompt as the template wrote it, which may have begun reasoning.
    pub(super) fn constraint(&self, rendered: Option<&str>) -> anyhow::Result<Box<dyn Constraint>> {
        let inner = self.grammars.compile(&self.source).context(self.option)?;
        let (Some(dialect), Some(rendered)) = (&self.dialect, rendered) else { return Ok(inner) };
        match (dialect.opening(rendered), dialect.reasoning_end()) {
            (Opening::Open, Some(end)) => {
                // Reasoning that a template begins though it was told not to ends at once.
                let budget = self.no_think.then_some(0);
                self.grammars.after_reasoning(end, budget, Some(inner)).context(self.option)
            }
            _ => Ok(inner),
        }
    }
}

/// The grammar among the options, and which of them it is.
fn asked(args: &FormArgs) -> anyhow::Result<Option<(&'static str, GrammarSource)>> {
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
