//! The options of a chat's answers, which `/set` changes by the names they have on the command line.

use super::command::nearest;
use crate::args::{ReasoningView, SamplingArgs, at_least_one};
use anyhow::{anyhow, bail};
use clap::{Parser, ValueEnum};
use forerun::{GenerationOptions, PromptKind, Reasoning, TextProcessor};
use serde_json::{Map, Value};

/// What can be set, in the order it is shown in.
const NAMES: [&str; 13] = [
    "temperature",
    "top-k",
    "top-p",
    "min-p",
    "repetition-penalty",
    "presence-penalty",
    "frequency-penalty",
    "logit-bias",
    "seed",
    "max-tokens",
    "stop",
    "think",
    "reasoning",
];

/// The word that undoes a setting.
const DEFAULT: &str = "default";

/// Values as the command line reads them.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Typed {
    #[command(flatten)]
    sampling: SamplingArgs,
    #[arg(long, value_parser = at_least_one)]
    max_tokens: Option<usize>,
    #[arg(long)]
    stop: Vec<String>,
    #[arg(long)]
    think: Option<Switch>,
    #[arg(long)]
    reasoning: Option<ReasoningView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// How the answers of a chat are made and shown.
#[derive(Clone, Debug)]
pub(super) struct ChatSettings {
    pub(super) options: GenerationOptions,
    pub(super) reasoning: Reasoning,
    pub(super) view: Option<ReasoningView>,
}

impl ChatSettings {
    /// Sets an option by its name; `start` has the values that `default` goes back to.
    pub(super) fn set(
        &mut self,
        name: &str,
        value: &str,
        start: &Self,
        processor: &TextProcessor,
    ) -> anyhow::Result<()> {
        let name = known(name)?;
        let mut changed = self.clone();
        if value == DEFAULT {
            changed.take(name, start);
        } else {
            let words = values(name, value).map(|value| format!("--{name}={value}"));
            let typed =
                Typed::try_parse_from(words).map_err(|error| anyhow!(first_line(&error)))?;
            changed.take(name, &typed.settings());
        }
        let sampling = changed.options.sampling.resolve(processor.defaults(), PromptKind::Chat);
        sampling.check(processor.vocabulary())?;
        *self = changed;
        Ok(())
    }

    /// One option, as another has it.
    fn take(&mut self, name: &str, from: &Self) {
        let (own, other) = (&mut self.options.sampling, &from.options.sampling);
        match name {
            "temperature" => own.temperature = other.temperature,
            "top-k" => own.top_k = other.top_k,
            "top-p" => own.top_p = other.top_p,
            "min-p" => own.min_p = other.min_p,
            "repetition-penalty" => own.repetition_penalty = other.repetition_penalty,
            "presence-penalty" => own.presence_penalty = other.presence_penalty,
            "frequency-penalty" => own.frequency_penalty = other.frequency_penalty,
            "logit-bias" => own.logit_bias.clone_from(&other.logit_bias),
            "seed" => own.seed = other.seed,
            "max-tokens" => self.options.max_tokens = from.options.max_tokens,
            "stop" => self.options.stops.clone_from(&from.options.stops),
            "think" => self.reasoning.enabled = from.reasoning.enabled,
            "reasoning" => self.view = from.view,
            _ => unreachable!("`known` knows these names"),
        }
    }

    /// What is set, by name, in a form that [`Self::set`] takes.
    pub(super) fn values(&self) -> Map<String, Value> {
        let sampling = &self.options.sampling;
        // An f32 as a person would write it.
        let number = |value: Option<f32>| {
            value.map(|value| value.to_string().parse().map_or(Value::Null, |n: f64| n.into()))
        };
        let bias = sampling.logit_bias.iter().map(|(token, bias)| format!("{token}={bias}"));
        let bias: Vec<String> = bias.collect();
        let view = self.view.and_then(|view| view.to_possible_value());
        let stops = &self.options.stops;
        let value = |name: &str| match name {
            "temperature" => number(sampling.temperature),
            "top-k" => sampling.top_k.map(Value::from),
            "top-p" => number(sampling.top_p),
            "min-p" => number(sampling.min_p),
            "repetition-penalty" => number(sampling.repetition_penalty),
            "presence-penalty" => number(sampling.presence_penalty),
            "frequency-penalty" => number(sampling.frequency_penalty),
            "logit-bias" => (!bias.is_empty()).then(|| bias.join(" ").into()),
            "seed" => sampling.seed.map(Value::from),
            "max-tokens" => self.options.max_tokens.map(Value::from),
            "stop" => (!stops.is_empty()).then(|| stops.clone().into()),
            "think" => self.reasoning.enabled.map(|on| if on { "on" } else { "off" }.into()),
            "reasoning" => view.as_ref().map(|view| view.get_name().into()),
            _ => unreachable!("a name of the list"),
        };
        let set = NAMES.iter().filter_map(|&name| Some((name.to_owned(), value(name)?)));
        set.collect()
    }

    /// What a file says; whatever it leaves out is as it was at the start.
    pub(super) fn load(
        &mut self,
        values: &Map<String, Value>,
        start: &Self,
        processor: &TextProcessor,
    ) -> anyhow::Result<()> {
        let mut loaded = start.clone();
        for (name, value) in values {
            match value {
                Value::Array(texts) if name == "stop" => {
                    let texts = texts.iter().filter_map(Value::as_str).map(str::to_owned);
                    loaded.options.stops = texts.collect();
                }
                Value::String(text) => loaded.set(name, text, start, processor)?,
                Value::Number(number) => {
                    loaded.set(name, &number.to_string(), start, processor)?;
                }
                _ => bail!("the setting `{name}` is neither a text nor a number"),
            }
        }
        *self = loaded;
        Ok(())
    }

    /// All options with their values, a line each; those that were not set as they come from the model.
    pub(super) fn table(&self, processor: &TextProcessor, kind: PromptKind) -> String {
        let set = self.values();
        let sampling = self.options.sampling.resolve(processor.defaults(), kind);
        let usual = |name: &str| match name {
            "temperature" => sampling.temperature.to_string(),
            "top-k" => sampling.top_k.to_string(),
            "top-p" => sampling.top_p.to_string(),
            "min-p" => sampling.min_p.to_string(),
            "repetition-penalty" => sampling.repetition_penalty.to_string(),
            "presence-penalty" => sampling.presence_penalty.to_string(),
            "frequency-penalty" => sampling.frequency_penalty.to_string(),
            "max-tokens" => "what the context leaves".to_owned(),
            "think" => "as the model's template has it".to_owned(),
            "reasoning" => "show".to_owned(),
            _ => "none".to_owned(),
        };
        let line = |&name: &&str| match set.get(name) {
            Some(Value::String(text)) => format!("{name:<20} {text}"),
            Some(Value::Number(number)) if number.is_f64() => {
                format!("{name:<20} {}", number.as_f64().unwrap_or_default())
            }
            Some(value) => format!("{name:<20} {value}"),
            None => format!("{name:<20} {} (default)", usual(name)),
        };
        let lines: Vec<String> = NAMES.iter().map(line).collect();
        lines.join("\n")
    }
}

impl Typed {
    fn settings(self) -> ChatSettings {
        let options = GenerationOptions {
            sampling: self.sampling.overrides(),
            max_tokens: self.max_tokens,
            stops: self.stop,
            ..GenerationOptions::default()
        };
        let enabled = self.think.map(|switch| switch == Switch::On);
        ChatSettings {
            options,
            reasoning: Reasoning { enabled, budget: None },
            view: self.reasoning,
        }
    }
}

/// The values of an option: biases are several, and a stop string is one with its spaces.
fn values<'a>(name: &str, value: &'a str) -> impl Iterator<Item = &'a str> {
    let biases = name == "logit-bias";
    let words = value.split_whitespace().filter(move |_| biases);
    words.chain((!biases).then_some(value))
}

/// A name as the list has it.
fn known(name: &str) -> anyhow::Result<&'static str> {
    let name = name.trim_start_matches('-').replace('_', "-");
    if let Some(known) = NAMES.iter().find(|known| **known == name) {
        return Ok(known);
    }
    match nearest(&name, &NAMES) {
        Some(near) => bail!("there is no option `{name}`; did you mean `{near}`?"),
        None => bail!("there is no option `{name}`; /set lists them"),
    }
}

/// What is wrong with a value, without the words of a command line around it.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    first.trim_start_matches("error: ").replace("--", "")
}
