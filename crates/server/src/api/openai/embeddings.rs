//! `/v1/embeddings`: texts as vectors.

use super::completions::inputs;
use crate::api::{JsonBody, RequestFields, json};
use crate::app::App;
use crate::error::ServerError;
use crate::models::ModelUse;
use crate::wire::embeddings::{EmbeddingForm, EmbeddingItem, EmbeddingList, ReadUsage};
use axum::extract::State;
use axum::http::HeaderValue;
use axum::response::Response;
use forerun::{Embedding, Pooling, PromptInput};
use std::sync::Arc;

/// The header that says how hidden states became one.
const POOLING: &str = "x-forerun-pooling";

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    let fields = &mut body.fields;
    let entry = app.find(fields.take("model")?)?;
    let inputs = inputs(fields, "input")?;
    let base64 = in_base64(fields)?;
    let pooling = pooling(fields)?;
    let dimensions: Option<usize> = fields.take("dimensions")?;
    fields.finish()?;
    let ignored = fields.ignored.clone();
    let model = app.ready(&entry).await?;
    check_dimensions(&model, dimensions)?;
    drop(body);
    let pooling = pooling.unwrap_or(model.pooling);
    let embeddings = embed(&model, inputs, pooling).await?;
    let tokens = embeddings.iter().map(|embedding| embedding.tokens).sum();
    let item = |(index, embedding): (usize, Embedding)| EmbeddingItem {
        object: "embedding",
        index,
        embedding: if base64 {
            let bytes: Vec<u8> = embedding.vector.iter().flat_map(|v| v.to_le_bytes()).collect();
            EmbeddingForm::Base64(encode_base64(&bytes))
        } else {
            EmbeddingForm::Floats(embedding.vector)
        },
    };
    let mut response = json(&EmbeddingList {
        object: "list",
        data: embeddings.into_iter().enumerate().map(item).collect(),
        model: &model.name,
        pooling: pooling.word(),
        usage: ReadUsage::of(tokens),
    });
    response.headers_mut().insert(POOLING, HeaderValue::from_static(pooling.word()));
    ignored.add_to_notes();
    Ok(response)
}

/// Texts as vectors, one after the other: they share a place on the device.
pub(crate) async fn embed(
    model: &ModelUse,
    inputs: Vec<PromptInput>,
    pooling: Pooling,
) -> Result<Vec<Embedding>, ServerError> {
    let mut place = model.place()?;
    let mut embeddings = Vec::with_capacity(inputs.len());
    for tokens in model.encode(inputs).await? {
        let (embedding, back) = model.embed(tokens, pooling, place).await?;
        embeddings.push(embedding);
        place = back;
    }
    Ok(embeddings)
}

fn in_base64(fields: &mut RequestFields) -> Result<bool, ServerError> {
    const NAME: &str = "encoding_format";
    match fields.take::<String>(NAME)?.as_deref() {
        None | Some("float") => Ok(false),
        Some("base64") => Ok(true),
        Some(_) => Err(ServerError::unsupported(NAME, "give float or base64")),
    }
}

fn pooling(fields: &mut RequestFields) -> Result<Option<Pooling>, ServerError> {
    const NAME: &str = "pooling";
    match fields.take::<String>(NAME)?.as_deref() {
        None => Ok(None),
        Some("mean") => Ok(Some(Pooling::Mean)),
        Some("last") => Ok(Some(Pooling::Last)),
        Some(_) => Err(ServerError::unsupported(NAME, "give mean or last")),
    }
}

/// A vector cannot be cut: only models that were trained for it keep their sense.
pub(crate) fn check_dimensions(model: &ModelUse, asked: Option<usize>) -> Result<(), ServerError> {
    let width = model.facts.hidden;
    match asked.filter(|&asked| asked != width) {
        None => Ok(()),
        Some(asked) => {
            let message = format!(
                "`dimensions` is {asked}; embeddings of this model have {width}, and no others"
            );
            Err(ServerError::invalid("dimensions", message))
        }
    }
}

/// RFC 4648, with padding.
pub(crate) fn encode_base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte));
        let word = word << (8 * (3 - group.len()));
        for at in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::encode_base64;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encode_base64(bytes.as_bytes()), text);
        }
        assert_eq!(encode_base64(&[255, 239, 254]), "/+/+");
    }
}
