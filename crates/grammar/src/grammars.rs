//! The vocabulary of a model, and the grammars made for it.

use crate::cache::GrammarCache;
use crate::compiled::Compiled;
use crate::gate::{ReasoningEnd, ReasoningGate};
use crate::limits;
use crate::matcher::GrammarConstraint;
use crate::pool::{MaskPool, Semaphore};
use crate::reason::{reason, reason_of_regex, reason_of_schema};
use crate::vocabulary::GrammarVocabulary;
use crate::{GrammarError, GrammarSource};
use forerun_base::Token;
use forerun_engine::Constraint;
use forerun_text::Tokenizer;
use llguidance::ParserFactory;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use toktrie::TokEnv;

/// Grammars nest by recursion while they are compiled; depth is bounded, and this is room for it.
const STACK: usize = 64 << 20;
/// How often whoever waits for a grammar is asked whether they still do.
const LOOK: Duration = Duration::from_millis(20);

/// Makes constraints for one model. One is enough for any number of threads.
pub struct Grammars {
    tokenizer: Tokenizer,
    inner: Arc<CompilerState>,
    /// All tokens but those that end an answer.
    unless_ended: Arc<[u32]>,
}

/// What a thread that compiles needs; it may outlive whoever asked.
struct CompilerState {
    factory: ParserFactory,
    ends: Arc<[Token]>,
    compiled: GrammarCache,
    compilers: Semaphore,
    pool: MaskPool,
}

impl Grammars {
    /// Learns a model's `vocabulary` tokens, spelled by its tokenizer, and which of them end an answer.
    pub fn new(
        tokenizer: &Tokenizer,
        vocabulary: usize,
        end_tokens: &[Token],
    ) -> Result<Self, GrammarError> {
        let known = GrammarVocabulary::new(tokenizer, vocabulary, end_tokens)?;
        let env: TokEnv = Arc::new(known);
        let factory = ParserFactory::new_simple(&env);
        let mut factory = factory.map_err(|why| GrammarError::Vocabulary(reason(&why)))?;
        factory.quiet();
        *factory.limits_mut() = limits::parser();
        let mut unless_ended = vec![u32::MAX; vocabulary.div_ceil(32)];
        for &token in end_tokens {
            unless_ended[token as usize / 32] &= !(1 << (token % 32));
        }
        let inner = CompilerState {
            factory,
            ends: end_tokens.into(),
            compiled: GrammarCache::default(),
            compilers: Semaphore::default(),
            pool: MaskPool::default(),
        };
        Ok(Self {
            tokenizer: tokenizer.clone(),
            inner: Arc::new(inner),
            unless_ended: unless_ended.into(),
        })
    }

    /// A constraint that keeps an answer to a grammar. Grammars of late are kept, so the same one again costs little.
    pub fn compile(&self, source: &GrammarSource) -> Result<Box<dyn Constraint>, GrammarError> {
        self.compile_while(source, &|| true)
    }

    /// The same for as long as somebody wants it.
    pub fn compile_while(
        &self,
        source: &GrammarSource,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        let key = source.key()?;
        let compiled = match self.inner.compiled.get(&key) {
            Some(compiled) => compiled,
            None => self.compile_aside(key, source, wanted)?,
        };
        Ok(Box::new(GrammarConstraint::new(compiled, self.inner.pool.clone())))
    }

    /// Grammars that are kept, and the bytes they hold, as far as that can be told.
    pub fn kept(&self) -> (usize, usize) {
        self.inner.compiled.size()
    }

    /// Compiles on a thread with room to recurse, which is left alone when it takes too long: what it makes is kept
    /// then.
    fn compile_aside(
        &self,
        key: String,
        source: &GrammarSource,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Arc<Compiled>, GrammarError> {
        let (tell, from) = channel();
        let gave_up = Arc::new(AtomicBool::new(false));
        let (inner, kind) = (Arc::clone(&self.inner), source.kind());
        let (source, left) = (source.clone(), Arc::clone(&gave_up));
        let invalid = |why: String| GrammarError::Invalid { kind, why };
        let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK);
        let work = move || {
            let gives_up = || left.load(Ordering::Relaxed);
            let Some(_lane) = inner.compilers.enter(limits::COMPILERS, gives_up) else { return };
            // Somebody may have sent the same one a moment ago.
            let made = match inner.compiled.get(&key) {
                Some(compiled) => Ok(compiled),
                None => inner.compile(key, &source),
            };
            // Nobody may be left to hear it.
            let _ = tell.send(made);
        };
        thread.spawn(work).map_err(|why| invalid(format!("no thread to compile it: {why}")))?;
        let begun = Instant::now();
        loop {
            match from.recv_timeout(LOOK) {
                Ok(made) => return made,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(invalid("it breaks the compiler".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let late = begun.elapsed() > limits::COMPILE_TIME;
            if late || !wanted() {
                gave_up.store(true, Ordering::Relaxed);
                let seconds = limits::COMPILE_TIME.as_secs();
                return Err(match late {
                    true => invalid(format!("it is not compiled after {seconds} seconds")),
                    false => GrammarError::Abandoned { kind },
                });
            }
        }
    }

    /// Anything until reasoning ends with its mark, then `inner`. With a budget the mark must come after so many
    /// tokens. Before an `inner` the answer cannot end while it reasons.
    pub fn after_reasoning(
        &self,
        end_mark: &str,
        budget: Option<usize>,
        inner: Option<Box<dyn Constraint>>,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        if end_mark.is_empty() {
            return Err(GrammarError::EmptyMark);
        }
        let tokens = self.tokenizer.encode(end_mark, false)?;
        let vocabulary = self.inner.factory.tok_env().tok_trie().vocab_size();
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            let why = format!("`{end_mark}` has token {token}, which the model does not have");
            return Err(GrammarError::Vocabulary(why));
        }
        let tokenizer = self.tokenizer.clone();
        let spelling = Arc::new(move |token| tokenizer.token_bytes(token).unwrap_or_default());
        Ok(Box::new(ReasoningGate {
            mark: ReasoningEnd { tokens, bytes: end_mark.as_bytes().to_vec(), spelling },
            budget,
            unless_ended: inner.is_some().then(|| self.unless_ended.clone()),
            inner,
            before: Vec::new(),
            behind: None,
        }))
    }
}

impl CompilerState {
    fn compile(&self, key: String, source: &GrammarSource) -> Result<Arc<Compiled>, GrammarError> {
        let invalid = |why: String| GrammarError::Invalid { kind: source.kind(), why };
        let parser = self.factory.create_parser(source.grammar()?).map_err(|why| {
            invalid(match source {
                GrammarSource::JsonSchema(schema) => reason_of_schema(schema, &why),
                GrammarSource::Regex(_) => reason_of_regex(&why),
                _ => reason(&why),
            })
        })?;
        let compiled = Compiled::new(parser, key.len(), Arc::clone(&self.ends)).map_err(invalid)?;
        let compiled = Arc::new(compiled);
        self.compiled.put(key, Arc::clone(&compiled));
        Ok(compiled)
    }
}
