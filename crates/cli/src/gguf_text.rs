//! The text side of a GGUF file, from its metadata.

use crate::model_text::{ModelText, Origin};
use forerun_base::Token;
use forerun_text::{GenerationDefaults, SpecialTokens, TextError, Tokenizer, Vocabulary};
use forerun_weights::gguf::Metadata;

/// Reads tokenizer, template and end tokens. A vocabulary that cannot be used is no error until text is asked
/// for.
pub(crate) fn read(metadata: &Metadata, file: &str) -> ModelText {
    let template = template_of(metadata).map(str::to_owned);
    let origin = |special, problem| Origin::Gguf {
        file: file.to_owned(),
        template: template.clone(),
        special,
        problem,
    };
    match vocabulary_of(metadata).map(|vocabulary| build(&vocabulary)) {
        Some(Ok((tokenizer, special, defaults))) => {
            ModelText::new(origin(special, None), Some(tokenizer), defaults)
        }
        Some(Err(error)) => {
            let problem = Some(error.to_string());
            ModelText::new(origin(none(), problem), None, GenerationDefaults::default())
        }
        None => ModelText::new(origin(none(), None), None, GenerationDefaults::default()),
    }
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
pub(crate) fn vocabulary_of(metadata: &Metadata) -> Option<Vocabulary> {
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
pub(crate) fn template_of(metadata: &Metadata) -> Option<&str> {
    metadata.text("tokenizer.chat_template")
}
