//! What is run: a model, an engine over it, and requests that come, go and are interrupted. Plain data, so that a
//! failing trace can be cut down, printed and given again.

use forerun_base::Token;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Trace {
    pub(crate) model: ModelChoice,
    pub(crate) engine: EngineChoice,
    pub(crate) actions: Vec<Action>,
    /// Plants a fault, to see that the tester finds it: a sampled request that does not run alone gets another seed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) planted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModelChoice {
    /// `models/tales-28m`.
    Bundled,
    /// A checkpoint of `testkit/goldens`.
    Golden(String),
    /// Random weights.
    Tiny { family: String, seed: u64, layers: usize },
}

/// Sizes and switches of the engine that serves all requests. The one that answers a request alone has its context and
/// its type of cache, and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct EngineChoice {
    pub(crate) context: usize,
    pub(crate) sequences: usize,
    pub(crate) chunk: usize,
    /// `f32`, `f16`, `bf16` or `i8`.
    pub(crate) kv: String,
    /// Most drafts of a round; 0 is speculation off.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) drafts: usize,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) optimistic: bool,
    /// Draft with the model's head.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) head: bool,
    /// Draft from the text.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) ngram: bool,
    /// Tokens the head chooses from; 0 leaves it to the engine.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) draft_vocabulary: usize,
    /// KiB of the prefix cache; 0 is off.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) cache: u64,
    /// Tokens between its restore points; 0 leaves it to the engine.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) interval: usize,
    /// KiB of its folder; 0 is none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) disk: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) calibrate: bool,
    /// Milliseconds of a step; 0 is no limit.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) budget: u64,
    /// So little work a submission that every operation is cut.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) cut: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) threads: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    /// A request comes.
    Ask { id: usize, ask: Box<Ask> },
    /// So many steps.
    Step(usize),
    /// A client hangs up.
    Cancel(usize),
    /// The engine is dropped with all it holds, and another one starts with the same folder.
    Restart,
}

/// A request. What is left out does nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Ask {
    pub(crate) prompt: Vec<Token>,
    pub(crate) max_tokens: usize,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) temperature: f32,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) top_k: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) top_p: Option<f32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) min_p: f32,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) repetition: Option<f32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) presence: f32,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) frequency: f32,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) bias: Vec<(Token, f32)>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) seed: u64,
    /// Whether end tokens end it.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) ends: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) stops: Vec<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) form: Option<GrammarForm>,
    /// Drafts of a round; `None` leaves it to the engine.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) depth: Option<usize>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) priority: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) logprobs: Option<usize>,
    /// Whether it keeps out of the prefix cache.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) uncached: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) marks: Vec<u32>,
}

/// A grammar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GrammarForm {
    Json(Value),
    Regex(String),
    Choice(Vec<String>),
    Lark(String),
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
