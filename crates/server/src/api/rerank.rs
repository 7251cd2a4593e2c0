//! `/v1/rerank`: documents in the order of how well they fit a query.
//!
//! No family here has a head for ranking. Cosines between embeddings of a model that was made to write text are
//! something else, so a client has to ask for them by name.

use super::openai::embeddings::embed;
use super::{JsonBody, json};
use crate::app::App;
use crate::error::ServerError;
use crate::ids;
use crate::wire::embeddings::{DocumentText, RankedDocument, Ranking, ReadUsage};
use axum::extract::State;
use axum::response::Response;
use forerun::PromptInput;
use serde::Deserialize;
use std::sync::Arc;

/// Most documents of a request.
const DOCUMENTS: usize = 1000;
/// What has to be asked for.
const METHOD: &str = "embedding_cosine";

#[derive(Deserialize)]
#[serde(untagged)]
enum Document {
    Text(String),
    Object(TextDocument),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextDocument {
    text: String,
}

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    let fields = &mut body.fields;
    let entry = app.find(fields.take("model")?)?;
    let query: String = fields.need("query")?;
    let documents: Vec<Document> = fields.need("documents")?;
    let top: Option<usize> = fields.take("top_n")?;
    let repeat = fields.take("return_documents")?.unwrap_or(false);
    let method: Option<String> = fields.take("method")?;
    fields.finish()?;
    if method.as_deref() != Some(METHOD) {
        let message = "this model has no head for ranking, so there are no relevance scores; \
                       give `method`: \"embedding_cosine\" to rank by the cosine of embeddings, which is weaker";
        return Err(ServerError::invalid("method", message));
    }
    if documents.is_empty() || documents.len() > DOCUMENTS {
        let message = format!("`documents` has {}; give 1 to {DOCUMENTS}", documents.len());
        return Err(ServerError::invalid("documents", message));
    }
    let texts = documents.into_iter().map(|document| match document {
        Document::Text(text) | Document::Object(TextDocument { text }) => text,
    });
    let texts: Vec<String> = texts.collect();
    let model = app.ready(&entry).await?;
    drop(body);
    let inputs = std::iter::once(&query).chain(&texts).cloned().map(PromptInput::Text).collect();
    let embeddings = embed(&model, inputs, model.pooling).await?;
    let tokens = embeddings.iter().map(|embedding| embedding.tokens).sum();
    let (query, documents) = embeddings.split_first().expect("a query was embedded");
    let scored = documents.iter().zip(texts).enumerate();
    let mut results: Vec<RankedDocument> = scored
        .map(|(index, (embedding, text))| RankedDocument {
            index,
            relevance_score: query.cosine(embedding),
            document: repeat.then_some(DocumentText { text }),
        })
        .collect();
    results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
    results.truncate(top.unwrap_or(usize::MAX));
    let (id, usage) = (ids::fresh("rerank-"), ReadUsage::of(tokens));
    Ok(json(&Ranking { id, model: &model.name, method: METHOD, results, usage }))
}
