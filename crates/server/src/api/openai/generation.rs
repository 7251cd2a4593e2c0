//! Fields that chat and completions have in common.

use super::super::RequestFields;
use super::tools::AskedFormat;
use crate::chat::{AnswerOptions, CacheOverrides};
use crate::error::ServerError;
use crate::wire::chat::StreamOptions;
use forerun::{Depth, GenerationOptions, SamplingOverrides, Token};
use serde_json::{Map, Value, json};

/// Most stop strings, and the longest.
const STOPS: usize = 16;
const STOP_BYTES: usize = 512;
/// Most of the likeliest tokens that are told.
pub(crate) const TOP_LOGPROBS: usize = 20;
/// Most answers to one prompt.
const CHOICES: usize = 128;

/// The service tiers that ask for nothing special.
pub(super) const SERVICE_TIERS: &[&str] = &["auto", "default"];

/// Fields of SGLang's API with the values that ask for what is done here anyway: its router adds them to
/// requests that it passes on.
const ROUTER_FIELDS: [(&str, bool); 5] = [
    ("no_stop_trim", false),
    ("skip_special_tokens", true),
    ("separate_reasoning", true),
    ("stream_reasoning", true),
    ("return_hidden_states", false),
];

/// Whether and how an answer is streamed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streaming {
    pub(crate) on: bool,
    pub(crate) usage: UsageTold,
}

/// When a stream tells how many tokens there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageTold {
    Never,
    AtEnd,
    /// So far in each chunk, and in all at the end.
    Always,
}

/// Takes everything about the answer. `max` are the names under which its length may be given.
pub(crate) fn take(fields: &mut RequestFields, max: &[&str]) -> Result<AnswerOptions, ServerError> {
    store(fields)?;
    fields.word("service_tier", SERVICE_TIERS)?;
    for (name, neutral) in ROUTER_FIELDS {
        fields.only(name, &[json!(neutral)])?;
    }
    let mut max_tokens = None;
    for name in max {
        if let Some(asked) = fields.take::<u64>(name)? {
            if asked == 0 {
                return Err(ServerError::invalid(name, format!("`{name}` is 0; give at least 1")));
            }
            max_tokens = Some(usize::try_from(asked).unwrap_or(usize::MAX));
        }
    }
    let choices = fields.take("n")?.unwrap_or(1);
    if !(1..=CHOICES).contains(&choices) {
        let message = format!("`n` is {choices}; give 1 to {CHOICES}");
        return Err(ServerError::invalid("n", message));
    }
    let stops = stops(fields)?;
    let include_stop = fields.take("include_stop_str_in_output")?.unwrap_or(false);
    let AskedFormat { source: constraint, lenient } = super::tools::format(fields)?;
    let AnswerOptions { options, cache, .. } = common(fields)?;
    let (stop_tokens, min_tokens) = (stop_tokens(fields)?, min_tokens(fields, max_tokens)?);
    let options =
        GenerationOptions { max_tokens, stops, stop_tokens, min_tokens, constraint, ..options };
    let rest = AnswerOptions::default();
    Ok(AnswerOptions { options, cache, choices, include_stop, lenient, ..rest })
}

/// Takes `store`: nothing is stored, whatever it says.
pub(crate) fn store(fields: &mut RequestFields) -> Result<(), ServerError> {
    match fields.take::<bool>("store")? {
        Some(true) => fields.ignored("store"),
        _ => Ok(()),
    }
}

fn stop_tokens(fields: &mut RequestFields) -> Result<Vec<Token>, ServerError> {
    const NAME: &str = "stop_token_ids";
    let tokens: Vec<Token> = fields.take(NAME)?.unwrap_or_default();
    if tokens.len() > STOPS {
        let message = format!("`{NAME}` has {} tokens; give at most {STOPS}", tokens.len());
        return Err(ServerError::invalid(NAME, message));
    }
    Ok(tokens)
}

fn min_tokens(fields: &mut RequestFields, most: Option<usize>) -> Result<usize, ServerError> {
    let least = fields.take::<usize>("min_tokens")?.unwrap_or(0);
    if let Some(most) = most.filter(|&most| least > most) {
        let message = format!("`min_tokens` is {least} and the longest answer has {most}");
        return Err(ServerError::invalid("min_tokens", message));
    }
    Ok(least)
}

/// Takes what goes by the same name in every API.
pub(crate) fn common(fields: &mut RequestFields) -> Result<AnswerOptions, ServerError> {
    let options = GenerationOptions {
        sampling: sampling(fields)?,
        ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
        drafts: speculation(fields)?,
        priority: fields.take("priority")?.unwrap_or(0),
        ..GenerationOptions::default()
    };
    Ok(AnswerOptions { options, cache: cache(fields)?, ..AnswerOptions::default() })
}

/// Longest `cache_salt`.
const SALT_BYTES: usize = 1024;

/// Takes `cache_prompt`, `prompt_cache_key` and `cache_salt`. A key says that the same beginning will come again, a
/// salt with whom the cache is shared.
fn cache(fields: &mut RequestFields) -> Result<CacheOverrides, ServerError> {
    let on = fields.take("cache_prompt")?.unwrap_or(true);
    let keep = fields.take::<String>("prompt_cache_key")?.is_some();
    fields
        .only("prompt_cache_retention", &[json!("in_memory"), json!("in-memory"), json!("24h")])?;
    let salt: Option<String> = fields.take("cache_salt")?;
    if let Some(salt) = salt.as_ref().filter(|salt| !(1..=SALT_BYTES).contains(&salt.len())) {
        let bytes = salt.len();
        let message = format!("`cache_salt` has {bytes} bytes; give 1 to {SALT_BYTES}");
        return Err(ServerError::invalid("cache_salt", message));
    }
    Ok(CacheOverrides { on, keep, salt })
}

/// Takes `stream` and `stream_options`.
pub(crate) fn streaming(fields: &mut RequestFields) -> Result<Streaming, ServerError> {
    let on = fields.take("stream")?.unwrap_or(false);
    let options: Option<StreamOptions> = fields.take("stream_options")?;
    let (given, options) = (options.is_some(), options.unwrap_or_default());
    if given && !on {
        let message = "`stream_options` needs `stream: true`";
        return Err(ServerError::invalid("stream_options", message));
    }
    if options.include_obfuscation == Some(true) {
        fields.ignored("stream_options.include_obfuscation")?;
    }
    let continuous = options.continuous_usage_stats.unwrap_or(false);
    let usage = match (options.include_usage.unwrap_or(false), continuous) {
        (true, true) => UsageTold::Always,
        (true, false) => UsageTold::AtEnd,
        (false, _) => UsageTold::Never,
    };
    Ok(Streaming { on, usage })
}

fn sampling(fields: &mut RequestFields) -> Result<SamplingOverrides, ServerError> {
    Ok(SamplingOverrides {
        temperature: fields.take("temperature")?,
        top_k: top_k(fields)?,
        top_p: fields.take("top_p")?,
        min_p: fields.take("min_p")?,
        repetition_penalty: repetition_penalty(fields)?,
        presence_penalty: fields.take("presence_penalty")?,
        frequency_penalty: fields.take("frequency_penalty")?,
        logit_bias: logit_bias(fields)?,
        // Negative seeds are as good as any.
        seed: fields.take::<i64>("seed")?.map(i64::cast_unsigned),
    })
}

/// Other servers call it `repeat_penalty`.
fn repetition_penalty(fields: &mut RequestFields) -> Result<Option<f32>, ServerError> {
    let (ours, theirs) = (fields.take("repetition_penalty")?, fields.take("repeat_penalty")?);
    match (ours, theirs) {
        (Some(ours), Some(theirs)) if ours != theirs => {
            let message = "`repetition_penalty` and `repeat_penalty` contradict each other";
            Err(ServerError::invalid("repeat_penalty", message))
        }
        (ours, theirs) => Ok(ours.or(theirs)),
    }
}

/// Others say -1 for "all".
fn top_k(fields: &mut RequestFields) -> Result<Option<u32>, ServerError> {
    let Some(k) = fields.take::<i64>("top_k")? else { return Ok(None) };
    match u32::try_from(k) {
        Ok(k) => Ok(Some(k)),
        Err(_) if k == -1 => Ok(Some(0)),
        Err(_) => {
            let message = format!("`top_k` is {k}; give 0 or more, where 0 keeps all tokens");
            Err(ServerError::invalid("top_k", message))
        }
    }
}

/// Most tokens with a bias: each answer has a list of its own.
const BIASES: usize = 16_384;

fn logit_bias(fields: &mut RequestFields) -> Result<Vec<(Token, f32)>, ServerError> {
    let given: Map<String, Value> = fields.take("logit_bias")?.unwrap_or_default();
    if given.len() > BIASES {
        let message = format!("`logit_bias` has {} tokens; give at most {BIASES}", given.len());
        return Err(ServerError::invalid("logit_bias", message));
    }
    let entry = |(token, bias): (String, Value)| {
        let bad = |what: &str| ServerError::invalid("logit_bias", format!("`logit_bias`: {what}"));
        let id = token
            .parse()
            .map_err(|_| bad(&format!("{:?} is no token id", crate::app::shortened(&token))))?;
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        Ok((id, bias.ok_or_else(|| bad("give a number from -100 to 100 for each token"))? as f32))
    };
    given.into_iter().map(entry).collect()
}

fn stops(fields: &mut RequestFields) -> Result<Vec<String>, ServerError> {
    let stops: Vec<String> = match fields.take("stop")? {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop],
        Some(list) => super::super::fields::read("stop", list)?,
    };
    check_stops("stop", &stops)?;
    Ok(stops)
}

/// Refuses stop strings that are too many, too long or empty.
pub(crate) fn check_stops(name: &str, stops: &[String]) -> Result<(), ServerError> {
    let bad = |message: String| Err(ServerError::invalid(name, message));
    if stops.len() > STOPS {
        return bad(format!("`{name}` has {} strings; give at most {STOPS}", stops.len()));
    }
    match stops.iter().find(|stop| stop.is_empty() || stop.len() > STOP_BYTES) {
        Some(stop) => {
            let bytes = stop.len();
            bad(format!("a string of `{name}` has {bytes} bytes; give 1 to {STOP_BYTES}"))
        }
        None => Ok(()),
    }
}

/// `"off"`, `"auto"` or a number of drafts.
fn speculation(fields: &mut RequestFields) -> Result<Option<Depth>, ServerError> {
    let most = Depth::MOST;
    match fields.take::<Value>("speculation")? {
        None => Ok(None),
        Some(Value::String(word)) if word == "off" => Ok(Some(Depth::Fixed(0))),
        Some(Value::String(word)) if word == "auto" => Ok(Some(Depth::Auto)),
        Some(value) => {
            let depth = value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n <= most);
            let bad = || {
                let value = crate::app::shortened(&value.to_string());
                let message =
                    format!("`speculation` is {value}; give \"off\", \"auto\" or 0 to {most}");
                ServerError::invalid("speculation", message)
            };
            Ok(Some(Depth::Fixed(depth.ok_or_else(bad)?)))
        }
    }
}
