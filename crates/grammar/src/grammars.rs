//! The vocabulary of a model, and the grammars made for it.

use crate::cache::Cache;
use crate::gate::{Gate, Mark};
use crate::matcher::GrammarConstraint;
use crate::reason::{reason, reason_of_regex, reason_of_schema};
use crate::vocabulary::Vocabulary;
use crate::{GrammarError, GrammarSource};
use forerun_base::Token;
use forerun_engine::Constraint;
use forerun_text::Tokenizer;
use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use std::sync::Arc;
use toktrie::TokEnv;

/// Grammars nest by recursion while they are compiled; depth is bounded, and this is room for it.
const STACK: usize = 64 << 20;

/// What compiling and each token may cost. A state is one to two kilobytes.
fn limits() -> ParserLimits {
    ParserLimits {
        max_lexer_states: 50_000,
        max_grammar_size: 250_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Makes constraints for one model. One is enough for any number of threads.
pub struct Grammars {
    tokenizer: Tokenizer,
    factory: ParserFactory,
    compiled: Cache,
    /// All tokens but those that end an answer.
    unless_ended: Arc<[u32]>,
}

impl Grammars {
    /// Learns a model's `vocabulary` tokens, spelled by its tokenizer, and which of them end an answer.
    pub fn new(
        tokenizer: &Tokenizer,
        vocabulary: usize,
        end_tokens: &[Token],
    ) -> Result<Self, GrammarError> {
        let known = Vocabulary::new(tokenizer, vocabulary, end_tokens)?;
        let env: TokEnv = Arc::new(known);
        let factory = ParserFactory::new_simple(&env);
        let mut factory = factory.map_err(|why| GrammarError::Vocabulary(reason(&why)))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        let mut unless_ended = vec![u32::MAX; vocabulary.div_ceil(32)];
        for &token in end_tokens {
            unless_ended[token as usize / 32] &= !(1 << (token % 32));
        }
        let (tokenizer, compiled) = (tokenizer.clone(), Cache::default());
        Ok(Self { tokenizer, factory, compiled, unless_ended: unless_ended.into() })
    }

    /// A constraint that keeps an answer to a grammar. Grammars of late are kept, so the same one again costs little.
    pub fn compile(&self, source: &GrammarSource) -> Result<Box<dyn Constraint>, GrammarError> {
        let key = source.key()?;
        let parser = match self.compiled.get(&key) {
            Some(parser) => parser,
            None => {
                let parser = Arc::new(self.parser(source)?);
                self.compiled.put(key, parser.clone());
                parser
            }
        };
        Ok(Box::new(GrammarConstraint::new(parser)))
    }

    fn parser(&self, source: &GrammarSource) -> Result<llguidance::TokenParser, GrammarError> {
        let invalid = |why: String| GrammarError::Invalid { kind: source.kind(), why };
        let grammar = source.grammar()?;
        let made = std::thread::scope(|scope| {
            let work = || self.factory.create_parser(grammar);
            let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
            thread.map(|thread| thread.join())
        });
        match made {
            Ok(Ok(parser)) => parser.map_err(|why| {
                invalid(match source {
                    GrammarSource::JsonSchema(schema) => reason_of_schema(schema, &why),
                    GrammarSource::Regex(_) => reason_of_regex(&why),
                    _ => reason(&why),
                })
            }),
            Ok(Err(_)) => Err(invalid("it breaks the compiler".to_owned())),
            Err(why) => Err(invalid(format!("no thread to compile it: {why}"))),
        }
    }

    /// Anything until reasoning ends with its mark, then `inner`. With a budget the mark must come after so many tokens.
    /// Before an `inner` the answer cannot end while it reasons.
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
        let vocabulary = self.factory.tok_env().tok_trie().vocab_size();
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            let why = format!("`{end_mark}` has token {token}, which the model does not have");
            return Err(GrammarError::Vocabulary(why));
        }
        let tokenizer = self.tokenizer.clone();
        let spelling = Arc::new(move |token| tokenizer.token_bytes(token).unwrap_or_default());
        Ok(Box::new(Gate {
            mark: Mark { tokens, bytes: end_mark.as_bytes().to_vec(), spelling },
            budget,
            unless_ended: inner.is_some().then(|| self.unless_ended.clone()),
            inner,
            before: Vec::new(),
            behind: None,
        }))
    }
}
