//! The way of one answer through a grammar, wherever the work is done.
//!
//! A parser's lexer is a cache that grows with everything it was asked, and llguidance counts its limits by what is
//! in it. So that no outcome depends on what drafts were looked at before, a parser that has used half of what a text
//! may need is dropped and made anew from the text; only what the new one cannot do ends an answer. What a new one
//! needs is never more than what an old one has, so an old one never fails alone, and never goes on alone.

use crate::compiled::Compiled;
use crate::limits::Spent;
use crate::reason::reason;
use crate::way::NextTokens;
use forerun_base::Token;
use llguidance::api::StopReason;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::{CancellationHandle, TokenParser};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use toktrie::{SimpleVob, TokEnv, TokTrie};

/// Tokens that must come which are told at a time.
const FORCED: usize = 64;

/// Ends work that nobody waits for any more.
#[derive(Default)]
pub(crate) struct Cancel {
    asked: AtomicBool,
    parser: Mutex<Option<CancellationHandle>>,
}

impl Cancel {
    pub(crate) fn cancel(&self) {
        self.asked.store(true, Ordering::SeqCst);
        let parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
        parser.iter().for_each(CancellationHandle::cancel);
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    fn watch(&self, handle: CancellationHandle) {
        *self.parser.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        if self.is_asked() {
            self.cancel();
        }
    }
}

/// One answer's parser and the text it has read.
pub(crate) struct GrammarParser {
    start: Arc<Compiled>,
    /// None before the first token, and after an error: a parser that met one stays in it.
    parser: Option<TokenParser>,
    /// Whether there never was one.
    unused: bool,
    tokens: Vec<Token>,
    pub(crate) cancel: Arc<Cancel>,
    /// What the latest place took.
    pub(crate) took: Duration,
}

impl GrammarParser {
    pub(crate) fn new(start: Arc<Compiled>) -> Self {
        let (tokens, cancel) = (Vec::new(), Arc::default());
        Self { start, parser: None, unused: true, tokens, cancel, took: Duration::ZERO }
    }

    /// What the grammar says after some tokens. A place that only a draft leads to may be declined.
    pub(crate) fn learn(&mut self, tokens: &[Token], confirmed: bool) -> Option<NextTokens> {
        let begun = Instant::now();
        let known = catch_unwind(AssertUnwindSafe(|| self.warm(tokens).ok())).ok().flatten();
        let learned = if known.is_some() || !confirmed {
            if known.is_none() {
                self.parser = None;
            }
            known
        } else {
            let anew = catch_unwind(AssertUnwindSafe(|| self.anew(tokens)));
            let learned = anew.unwrap_or_else(|_| Err("its grammar breaks the parser".to_owned()));
            Some(learned.unwrap_or_else(|why| {
                self.parser = None;
                NextTokens { mask: Err(why), done: false, forced: Vec::new() }
            }))
        };
        self.took = begun.elapsed();
        learned
    }

    /// By the parser there is, if it has all it needs.
    fn warm(&mut self, tokens: &[Token]) -> Result<NextTokens, String> {
        if std::mem::take(&mut self.unused) {
            self.parser = Some(self.copy());
        }
        let parser = self.parser.as_mut().ok_or("there is no parser")?;
        let common = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        if common < self.tokens.len() {
            parser.rollback(self.tokens.len() - common).map_err(|why| reason(&why))?;
            // Its latest mask is known by the number of a row, which another row may have now.
            parser.invalidate_bias_cache();
            self.tokens.truncate(common);
        }
        for &token in &tokens[common..] {
            consume(parser, token)?;
            self.tokens.push(token);
        }
        let learned = observe(parser, self.start.row_items)?;
        let most = Spent::limit(parser.parser.get_bytes().len()).half();
        spent(parser).since(self.start.spent).over(most).map_or(Ok(learned), Err)
    }

    /// A parser at the start.
    fn copy(&self) -> TokenParser {
        let mut parser = self.start.parser.deep_clone();
        self.cancel.watch(parser.enable_cancellation());
        parser
    }

    /// By a new parser, whose word is final.
    fn anew(&mut self, tokens: &[Token]) -> Result<NextTokens, String> {
        self.parser = None;
        let mut parser = self.copy();
        for &token in tokens {
            consume(&mut parser, token)?;
        }
        let learned = observe(&mut parser, self.start.row_items)?;
        let most = Spent::limit(parser.parser.get_bytes().len());
        if let Some(why) = spent(&parser).since(self.start.spent).over(most) {
            return Err(why);
        }
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.parser = Some(parser);
        Ok(learned)
    }
}

/// A mask of nothing, which costs nothing; to ask for one sets the lexer's limits anew.
struct Refill(TokEnv);

impl BiasComputer for Refill {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        self.trie().alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.0.tok_trie()
    }
}

/// Takes a token that a mask allowed.
fn consume(parser: &mut TokenParser, token: Token) -> Result<(), String> {
    match parser.consume_token(token) {
        Ok(0) => parser.check_stop().map(|_| ()).map_err(|why| reason(&why)),
        Ok(_) => Err("its grammar takes back what was said".to_owned()),
        Err(why) => Err(reason(&why)),
    }
}

/// What a parser says where it stands.
pub(crate) fn observe(parser: &mut TokenParser, row_items: usize) -> Result<NextTokens, String> {
    if parser.stop_reason() != StopReason::NotStopped {
        let mask = parser.token_env.tok_trie().eos_token_set();
        let done = parser.stop_reason().is_ok();
        return Ok(NextTokens { mask: Ok(mask.as_slice().to_vec()), done, forced: Vec::new() });
    }
    // What must come is found before the lexer's limits are set for a mask; they are to hold for both.
    let refill = Refill(parser.token_env.clone());
    parser.parser.compute_bias(&refill, b" ");
    let mut forced = parser.compute_ff_tokens();
    forced.truncate(FORCED);
    if let Some(why) = parser.parser.get_error() {
        return Err(reason(&why.message()));
    }
    let mask = parser.compute_mask().map_err(|why| reason(&why))?;
    let stats = parser.last_step_stats();
    let items = stats.all_items / stats.rows.max(1);
    if items > row_items {
        return Err(format!(
            "its grammar is too wide or too ambiguous here: a row of its parser has {items} items; at most {row_items} can be"
        ));
    }
    Ok(NextTokens { mask: Ok(mask.as_slice().to_vec()), done: false, forced })
}

/// What a parser's lexer has done so far.
pub(crate) fn spent(parser: &TokenParser) -> Spent {
    let stats = parser.parser.lexer_stats();
    let fuel = stats.total_fuel_spent as u64;
    Spent { fuel, states: stats.num_states, bytes: stats.num_bytes }
}
