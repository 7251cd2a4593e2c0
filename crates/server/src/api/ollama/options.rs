//! `options`, `format`, `think` and `keep_alive`.

use super::time::stay;
use crate::api::RequestFields;
use crate::api::openai::{check_stops, effort};
use crate::chat::{AnswerOptions, ReasoningRequest};
use crate::error::ServerError;
use forerun::{GenerationOptions, SamplingOverrides};
use forerun_grammar::GrammarSource;
use serde_json::{Value, json};
use std::time::Duration;

/// How a model is loaded, which is decided before any request.
const LOADING: [&str; 13] = [
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "num_keep",
    "use_mmap",
    "use_mlock",
    "vocab_only",
    "low_vram",
    "f16_kv",
    "numa",
    "logits_all",
];

/// Samplers that are not there, with the values that turn them off.
const OFF: [(&str, f64); 3] = [("mirostat", 0.0), ("tfs_z", 1.0), ("typical_p", 1.0)];

/// Takes `options` and `format`.
pub(super) fn take(fields: &mut RequestFields) -> Result<AnswerOptions, ServerError> {
    let constraint = format(fields)?;
    let mut options = GenerationOptions { constraint, ..GenerationOptions::default() };
    let Some(mut given) = fields.inside("options")? else {
        return Ok(AnswerOptions { options, lenient: true, ..AnswerOptions::default() });
    };
    for name in LOADING {
        if given.take::<Value>(name)?.is_some() {
            given.ignored(name)?;
        }
    }
    for (name, off) in OFF {
        if given.take::<f64>(name)?.is_some_and(|value| value != off) {
            let why = "this sampler is not there";
            return Err(ServerError::unsupported(&format!("options.{name}"), why));
        }
    }
    // They tune what is off.
    for name in ["mirostat_tau", "mirostat_eta"] {
        given.take::<f64>(name)?;
    }
    given.only("penalize_newline", &[json!(true)])?;
    // Below zero there is no limit but the context.
    let length: Option<i64> = given.take("num_predict")?;
    options.max_tokens = match length {
        Some(0) => {
            let message = "`options.num_predict` is 0; give at least 1, or -1 for no limit";
            return Err(ServerError::invalid("options.num_predict", message));
        }
        length => length.and_then(|length| usize::try_from(length).ok()),
    };
    options.stops = match given.take("stop")? {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop],
        Some(list) => crate::api::fields::read("options.stop", list)?,
    };
    check_stops("options.stop", &options.stops)?;
    options.sampling = SamplingOverrides {
        temperature: given.take("temperature")?,
        top_k: given.take::<i64>("top_k")?.map(|k| u32::try_from(k).unwrap_or(0)),
        top_p: given.take("top_p")?,
        min_p: given.take("min_p")?,
        repetition_penalty: given.take("repeat_penalty")?,
        presence_penalty: given.take("presence_penalty")?,
        frequency_penalty: given.take("frequency_penalty")?,
        seed: given.take::<i64>("seed")?.map(i64::cast_unsigned),
        logit_bias: Vec::new(),
    };
    penalised(&mut given, options.sampling.repetition_penalty)?;
    given.finish()?;
    Ok(AnswerOptions { options, lenient: true, ..AnswerOptions::default() })
}

/// Penalties see the whole context, so a shorter reach is only as good where there is none.
fn penalised(given: &mut RequestFields, penalty: Option<f32>) -> Result<(), ServerError> {
    match given.take::<i64>("repeat_last_n")? {
        None | Some(-1) => Ok(()),
        Some(_) if penalty.is_none_or(|penalty| penalty == 1.0) => Ok(()),
        Some(_) => {
            let why = "penalties see the whole context; give -1, or no `repeat_penalty`";
            Err(ServerError::unsupported("options.repeat_last_n", why))
        }
    }
}

fn format(fields: &mut RequestFields) -> Result<Option<GrammarSource>, ServerError> {
    match fields.take::<Value>("format")? {
        None => Ok(None),
        Some(Value::String(word)) if word.is_empty() => Ok(None),
        Some(Value::String(word)) if word == "json" => Ok(Some(GrammarSource::JsonObject)),
        Some(schema @ Value::Object(_)) => Ok(Some(GrammarSource::JsonSchema(schema))),
        Some(_) => Err(ServerError::invalid("format", "`format` is \"json\" or a JSON schema")),
    }
}

/// Takes `think`: yes, no or how hard.
pub(super) fn think(fields: &mut RequestFields) -> Result<ReasoningRequest, ServerError> {
    const NAME: &str = "think";
    match fields.take::<Value>(NAME)? {
        None => Ok(ReasoningRequest::default()),
        Some(Value::Bool(enabled)) => Ok(ReasoningRequest {
            field: NAME,
            enabled: Some(enabled),
            ..ReasoningRequest::default()
        }),
        Some(Value::String(word)) => effort(NAME, Some(word)),
        Some(_) => Err(ServerError::invalid(NAME, "`think` is true, false, low, medium or high")),
    }
}

/// Takes `keep_alive`; the outer option is whether it was given.
pub(super) fn keep_alive(
    fields: &mut RequestFields,
) -> Result<Option<Option<Duration>>, ServerError> {
    fields.take::<Value>("keep_alive")?.as_ref().map(stay).transpose()
}
