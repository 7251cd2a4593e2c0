//! What is asked of the engine and what it says.

use crate::{
    CacheReport, CacheUse, Constraint, Depth, Receipt, RejectError, Sampling, TokenLogprobs,
};
use forerun_base::{SeqId, Token};

/// Sees each token as it is decided and returns true to end the answer with it: stop strings,
/// a front end that lost its reader. Called before state and statistics move on.
pub type Watch = Box<dyn FnMut(Token) -> bool + Send>;

/// Refuses a token id outside the vocabulary.
pub fn check_tokens(tokens: &[Token], vocabulary: usize) -> Result<(), RejectError> {
    match tokens.iter().find(|&&token| token as usize >= vocabulary) {
        Some(&token) => Err(RejectError::UnknownToken { token, vocabulary }),
        None => Ok(()),
    }
}

/// A prompt to continue.
pub struct Request {
    /// Token ids, at least one.
    pub prompt: Vec<Token>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Longest answer; the context may end it earlier.
    pub max_tokens: usize,
    /// Tokens that end the answer.
    pub end_tokens: Vec<Token>,
    /// A further say in when to end.
    pub watch: Option<Watch>,
    /// How many drafts its rounds hold.
    pub depth: Depth,
    /// Keep the state when the answer ends, to be continued by [`crate::Engine::resume`].
    pub retain: bool,
    /// Who is read first: lower numbers before higher ones, the first comer among equals.
    pub priority: i32,
    /// A say in which tokens may come; `None`: any may.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Tell the log-probability of each token and of so many of the likeliest ones.
    pub logprobs: Option<usize>,
    /// What it takes from the prefix cache and leaves there.
    pub cache: CacheUse,
}

impl Request {
    /// A greedy request that ends only by length.
    pub fn greedy(prompt: Vec<Token>, max_tokens: usize) -> Self {
        Self {
            prompt,
            sampling: Sampling::default(),
            max_tokens,
            end_tokens: Vec::new(),
            watch: None,
            depth: Depth::Auto,
            retain: false,
            priority: 0,
            constraint: None,
            logprobs: None,
            cache: CacheUse::default(),
        }
    }
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token.
    EndToken,
    /// The constraint is fulfilled and nothing may follow.
    Complete,
    /// The watch said so.
    Watched,
    /// `max_tokens` or the end of the context.
    Length,
    /// Someone cancelled.
    Cancelled,
    /// Its constraint cannot go on: a limit was met, or nothing may follow and the answer is not whole.
    Refused(String),
    /// The engine or its device failed under it.
    Failed(String),
}

impl FinishReason {
    /// Whether there is no answer.
    pub const fn is_failure(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Failed(_))
    }
}

/// What a step decided.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A request got its state; reading its prompt begins.
    Started {
        /// Whose.
        seq: SeqId,
        /// What the prefix cache had of it.
        cached: Box<CacheReport>,
    },
    /// A token of an answer.
    Token {
        /// Whose.
        seq: SeqId,
        /// Which.
        token: Token,
        /// What the model thought of it, where the request asked.
        logprobs: Option<Box<TokenLogprobs>>,
    },
    /// An answer ended.
    Finished {
        /// Whose.
        seq: SeqId,
        /// Why.
        reason: FinishReason,
        /// What speculation did for it.
        receipt: Box<Receipt>,
    },
}
