//! One generation: the options of a request, and what the engine gets once they are resolved against the model.

use crate::{CancelToken, SamplingOverrides};
use forerun_base::Token;
use forerun_engine::{CacheUse, Constraint, Depth, Sampling};
use forerun_grammar::GrammarSource;
use serde_json::Value;

/// Everything about an answer but its prompt. What is not set comes from the model's files.
///
/// ```
/// use forerun::{GenerationOptions, GrammarSource};
///
/// let options = GenerationOptions::new()
///     .max_tokens(64)
///     .temperature(0.7)
///     .seed(1)
///     .stop("The End")
///     .constraint(GrammarSource::Regex("[A-Z][a-z ]{10,60}".to_owned()));
/// assert_eq!(options.max_tokens, Some(64));
/// ```
#[derive(Clone, Debug, Default)]
pub struct GenerationOptions {
    /// How tokens are sampled.
    pub sampling: SamplingOverrides,
    /// Longest answer in tokens; by default what the model's files say, else what the context leaves.
    pub max_tokens: Option<usize>,
    /// The answer ends before any of these texts.
    pub stops: Vec<String>,
    /// Tokens that end the answer, beside the model's own end tokens.
    pub stop_tokens: Vec<Token>,
    /// Tokens before which no end token may come.
    pub min_tokens: usize,
    /// Go on after the model's end tokens.
    pub ignore_eos: bool,
    /// What the answer must look like.
    pub constraint: Option<GrammarSource>,
    /// Report the log-probability of each token and of so many of the likeliest ones.
    pub logprobs: Option<usize>,
    /// Drafts per round; as the model was opened by default.
    pub drafts: Option<Depth>,
    /// Who is read first: lower numbers before higher ones.
    pub priority: i32,
    /// Leave special tokens that mark reasoning and calls in a chat out of the text. They are part of it by default,
    /// since [`Answer::reasoning`](crate::Answer::reasoning) is found by them.
    pub hide_marks: bool,
    /// Ends the answer from elsewhere.
    pub cancel: Option<CancelToken>,
}

impl GenerationOptions {
    /// Nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the longest answer in tokens.
    #[must_use]
    pub fn max_tokens(mut self, tokens: usize) -> Self {
        self.max_tokens = Some(tokens);
        self
    }

    /// Sets the temperature; 0 samples the most likely token.
    #[must_use]
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.sampling.temperature = Some(temperature);
        self
    }

    /// Sets the seed: same seed, same text.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.sampling.seed = Some(seed);
        self
    }

    /// Adds a stop string.
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.stops.push(text.into());
        self
    }

    /// Sets the grammar of the answer.
    #[must_use]
    pub fn constraint(mut self, source: GrammarSource) -> Self {
        self.constraint = Some(source);
        self
    }

    /// Holds the answer to JSON of a schema.
    #[must_use]
    pub fn json_schema(self, schema: Value) -> Self {
        self.constraint(GrammarSource::JsonSchema(schema))
    }

    /// Reports log-probabilities: of each token, and of so many of the likeliest ones.
    #[must_use]
    pub fn logprobs(mut self, top: usize) -> Self {
        self.logprobs = Some(top);
        self
    }

    /// Sets the number of drafts per round.
    #[must_use]
    pub fn drafts(mut self, depth: Depth) -> Self {
        self.drafts = Some(depth);
        self
    }

    /// Lets `token` end the answer.
    #[must_use]
    pub fn cancel(mut self, token: CancelToken) -> Self {
        self.cancel = Some(token);
        self
    }
}

/// A generation with every option resolved: what one engine request and its transcript are made of.
pub struct Generation {
    /// The whole prompt, also where a retained sequence holds its beginning.
    pub prompt: Vec<Token>,
    /// How tokens are sampled.
    pub sampling: Sampling,
    /// Longest answer.
    pub max_tokens: usize,
    /// Tokens that end the answer.
    pub end_tokens: Vec<Token>,
    /// Texts that end the answer.
    pub stops: Vec<String>,
    /// Drafts per round.
    pub depth: Depth,
    /// Lower runs first.
    pub priority: i32,
    /// What it takes from the prefix cache and leaves there.
    pub cache: CacheUse,
    /// What the answer is held to.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Report log-probabilities.
    pub logprobs: Option<usize>,
    /// Special tokens that are part of the text.
    pub shown: Vec<Token>,
    /// Retain the sequence's state when the answer ends, for a prompt that goes on from it.
    pub retain: bool,
    /// Ends the answer from elsewhere.
    pub cancel: Option<CancelToken>,
}

impl Generation {
    /// A greedy generation that ends only by length.
    pub fn greedy(prompt: Vec<Token>, max_tokens: usize) -> Self {
        Self {
            prompt,
            sampling: Sampling::default(),
            max_tokens,
            end_tokens: Vec::new(),
            stops: Vec::new(),
            depth: Depth::Auto,
            priority: 0,
            cache: CacheUse::default(),
            constraint: None,
            logprobs: None,
            shown: Vec::new(),
            retain: false,
            cancel: None,
        }
    }

    /// Never samples a token.
    pub fn forbid(&mut self, token: Token) {
        /// A bias that nothing outweighs.
        const NEVER: f32 = -1e30;
        self.sampling.logit_bias.retain(|&(biased, _)| biased != token);
        self.sampling.logit_bias.push((token, NEVER));
    }
}
