//! `/v1/embeddings` and `/v1/rerank`.

use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct EmbeddingList<'a> {
    pub(crate) object: &'static str,
    pub(crate) data: Vec<EmbeddingItem>,
    pub(crate) model: &'a str,
    /// How hidden states became one.
    pub(crate) pooling: &'static str,
    pub(crate) usage: ReadUsage,
}

#[derive(Debug, Serialize)]
pub(crate) struct EmbeddingItem {
    pub(crate) object: &'static str,
    pub(crate) index: usize,
    pub(crate) embedding: EmbeddingForm,
}

/// Numbers, or their bytes (little-endian f32) in base64.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum EmbeddingForm {
    Floats(Vec<f32>),
    Base64(String),
}

/// Tokens of texts that got no answer.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ReadUsage {
    pub(crate) prompt_tokens: usize,
    pub(crate) total_tokens: usize,
}

impl ReadUsage {
    pub(crate) const fn of(tokens: usize) -> Self {
        Self { prompt_tokens: tokens, total_tokens: tokens }
    }
}

/// As Ollama has them; times are in nanoseconds.
#[derive(Debug, Serialize)]
pub(crate) struct OllamaEmbeddings<'a> {
    pub(crate) model: &'a str,
    pub(crate) embeddings: Vec<&'a [f32]>,
    pub(crate) total_duration: u64,
    pub(crate) load_duration: u64,
    pub(crate) prompt_eval_count: usize,
}

#[derive(Debug, Serialize)]
pub(crate) struct OllamaEmbedding<'a> {
    pub(crate) embedding: &'a [f32],
}

#[derive(Debug, Serialize)]
pub(crate) struct Ranking<'a> {
    pub(crate) id: String,
    pub(crate) model: &'a str,
    pub(crate) method: &'static str,
    pub(crate) results: Vec<RankedDocument>,
    pub(crate) usage: ReadUsage,
}

#[derive(Debug, Serialize)]
pub(crate) struct RankedDocument {
    pub(crate) index: usize,
    pub(crate) relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) document: Option<DocumentText>,
}

#[derive(Debug, Serialize)]
pub(crate) struct DocumentText {
    pub(crate) text: String,
}
