//! The text side of a GGUF file, from its metadata.

use crate::Pooling;
use crate::model_text::{ModelText, Origin};
use forerun_base::Token;
use forerun_text::{GenerationDefaults, SpecialTokens, TextError, Tokenizer, Vocabulary};
use forerun_weights::gguf::Metadata;
use serde_json::{Map, Value, json};

/// Reads tokenizer, template, end tokens and sampling settings. A vocabulary that cannot be used is an error only once
/// a text is to be encoded.
pub(crate) fn read(metadata: &Metadata, file: &str) -> Result<ModelText, TextError> {
    let template = template_of(metadata).map(str::to_owned);
    let origin = |special, problem| Origin::Gguf {
        file: file.to_owned(),
        template: template.clone(),
        special,
        problem,
    };
    let (origin, tokenizer, defaults) =
        match vocabulary_of(metadata).map(|vocabulary| build(&vocabulary)) {
            Some(Ok((tokenizer, special, defaults))) => {
                (origin(special, None), Some(tokenizer), defaults)
            }
            Some(Err(error)) => {
                let problem = Some(error.to_string());
                (origin(none(), problem), None, GenerationDefaults::default())
            }
            None => (origin(none(), None), None, GenerationDefaults::default()),
        };
    let ignored = |key| format!("{file}: `{key}` is not supported and not followed");
    let warnings = unsupported(metadata).map(ignored).collect();
    let settings = sampling_of(metadata);
    let defaults = defaults.with_settings(&format!("{file} general.sampling.*"), settings)?;
    let pooling = pooling_of(metadata);
    Ok(ModelText { origin, tokenizer, defaults, pooling, warnings })
}

/// How the file wants embeddings to be pooled: 1 is the mean, 3 the last token.
fn pooling_of(metadata: &Metadata) -> Pooling {
    let architecture = metadata.text("general.architecture").unwrap_or_default();
    match metadata.number(&format!("{architecture}.pooling_type")) {
        Some(3.0) => Pooling::Last,
        _ => Pooling::Mean,
    }
}

/// How the file wants tokens to be sampled, under the names of `generation_config.json`.
pub fn sampling_of(metadata: &Metadata) -> Map<String, Value> {
    let number = |name: &str| metadata.number(&format!("general.sampling.{name}"));
    // Numbers are f32 in the file; the shortest spelling is what was meant.
    let value = |x: f64| (x as f32).to_string().parse::<f64>().ok().filter(|x| x.is_finite());
    let spelled = |x: f64| value(x).map_or_else(|| json!(x.to_string()), |x| json!(x));
    let mut settings = Map::new();
    if let Some(temperature) = number("temp") {
        settings.insert(
            "temperature".into(),
            spelled(if temperature < 0.0 { 0.0 } else { temperature }),
        );
    }
    if let Some(k) = number("top_k") {
        // 0 and less keep all.
        settings.insert("top_k".into(), json!(k.max(0.0) as u64));
    }
    for name in ["top_p", "min_p"] {
        settings.extend(number(name).map(|share| (name.to_owned(), spelled(share))));
    }
    if !settings.is_empty() {
        settings.insert("do_sample".into(), json!(true));
    }
    // A penalty over the last 0 tokens is none.
    if let Some(penalty) =
        number("penalty_repeat").filter(|_| number("penalty_last_n") != Some(0.0))
    {
        settings.insert("repetition_penalty".into(), spelled(penalty));
    }
    settings
}

/// Samplers that the file switches on and nothing here knows.
fn unsupported(metadata: &Metadata) -> impl Iterator<Item = &'static str> {
    ["general.sampling.mirostat", "general.sampling.xtc_probability"]
        .into_iter()
        .filter(|key| metadata.number(key).is_some_and(|x| x != 0.0))
}

fn none() -> SpecialTokens {
    SpecialTokens::default()
}

fn build(
    vocabulary: &Vocabulary,
) -> Result<(Tokenizer, SpecialTokens, GenerationDefaults), TextError> {
    Ok((
        Tokenizer::from_vocabulary(vocabulary)?,
        vocabulary.special_tokens()?,
        vocabulary.generation_defaults()?,
    ))
}

/// The vocabulary of a file, if it has one.
pub fn vocabulary_of(metadata: &Metadata) -> Option<Vocabulary> {
    let model = metadata.text("tokenizer.ggml.model")?;
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let texts = |name: &str| metadata.texts(&key(name)).map(<[String]>::to_vec).unwrap_or_default();
    let flag = |name: &str| metadata.flag(&key(name));
    // A number that is no token id points nowhere; files use 2^32 − 1 for "none".
    let id = |name: &str| -> Option<Token> {
        metadata
            .count(&key(name))
            .and_then(|id| u32::try_from(id).ok())
            .filter(|&id| id != Token::MAX)
    };
    let numbers = |name: &str| metadata.numbers(&key(name)).unwrap_or_default();
    Some(Vocabulary {
        model: model.to_owned(),
        pre: metadata.text(&key("pre")).map(str::to_owned),
        tokens: texts("tokens"),
        kinds: numbers("token_type").into_iter().map(|kind| kind as i32).collect(),
        scores: numbers("scores").into_iter().map(|score| score as f32).collect(),
        merges: texts("merges"),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        eot: id("eot_token_id"),
        eom: id("eom_token_id"),
        unknown: id("unknown_token_id"),
        padding: id("padding_token_id"),
        separator: id("seperator_token_id"),
        mask: id("mask_token_id"),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
    })
}

/// The chat template of a file.
pub fn template_of(metadata: &Metadata) -> Option<&str> {
    metadata.text("tokenizer.chat_template")
}
