//! `/api/embed` and its older form, `/api/embeddings`.

use crate::api::openai::embeddings::{check_dimensions, embed as embedded};
use crate::api::{JsonBody, RequestFields, json};
use crate::app::App;
use crate::error::ServerError;
use crate::models::ModelUse;
use crate::wire::embeddings::{OllamaEmbedding, OllamaEmbeddings};
use axum::extract::State;
use axum::response::Response;
use forerun::{Embedding, PromptInput};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) async fn embed(
    State(app): State<Arc<App>>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    let fields = &mut body.fields;
    let name: String = fields.need("model")?;
    let texts: Vec<String> = match fields.need("input")? {
        Value::String(text) => vec![text],
        list => crate::api::fields::read("input", list)?,
    };
    let dimensions: Option<usize> = fields.take("dimensions")?;
    let (model, embeddings, times) = read(&app, &name, fields, texts).await?;
    check_dimensions(&model, dimensions)?;
    Ok(json(&OllamaEmbeddings {
        model: &name,
        embeddings: embeddings.iter().map(|embedding| &embedding.vector[..]).collect(),
        total_duration: times.0.as_nanos() as u64,
        load_duration: times.1.as_nanos() as u64,
        prompt_eval_count: embeddings.iter().map(|embedding| embedding.tokens).sum(),
    }))
}

pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    let fields = &mut body.fields;
    let name: String = fields.need("model")?;
    let text: String = fields.need("prompt")?;
    let (_, embeddings, _) = read(&app, &name, fields, vec![text]).await?;
    let embedding = embeddings.first().map_or(&[][..], |embedding| &embedding.vector);
    Ok(json(&OllamaEmbedding { embedding }))
}

/// Texts as vectors, how long that took, and how much of it was loading.
async fn read(
    app: &App,
    name: &str,
    fields: &mut RequestFields,
    texts: Vec<String>,
) -> Result<(ModelUse, Vec<Embedding>, (Duration, Duration)), ServerError> {
    let began = Instant::now();
    let entry = super::find(app, Some(name.to_owned()))?;
    let stay = super::options::keep_alive(fields)?;
    if fields.take::<bool>("truncate")? == Some(true) {
        fields.ignored("truncate")?;
    }
    // Of options, none says anything of a text that gets no answer.
    fields.take::<Map<String, Value>>("options")?;
    fields.finish()?;
    let model = app.ready(&entry).await?;
    let loading = began.elapsed();
    model.stay(stay.unwrap_or(app.settings.unload_after));
    let inputs = texts.into_iter().map(PromptInput::Text).collect();
    let embeddings = embedded(&model, inputs, model.pooling).await?;
    fields.ignored.add_to_notes();
    Ok((model, embeddings, (began.elapsed(), loading)))
}
