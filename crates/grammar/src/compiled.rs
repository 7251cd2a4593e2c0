//! A grammar that was compiled: a parser at its start, and what is known of the first place.

use crate::limits::{self, Spent};
use crate::walk::{observe, spent};
use crate::way::NextTokens;
use forerun_base::Token;
use llguidance::TokenParser;
use llguidance::earley::regexvec::LexemeSet;
use llguidance::earley::{CGrammar, CSymIdx};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A grammar at its start. It is copied whole for each answer, so that what one answer makes of it is not seen by
/// another.
pub(crate) struct Compiled {
    pub(crate) parser: TokenParser,
    pub(crate) first: Arc<NextTokens>,
    /// What the lexer had done when the first mask was known.
    pub(crate) spent: Spent,
    /// Items a row of the parser may have.
    pub(crate) row_items: usize,
    /// Whether tokens can be given back.
    pub(crate) rolls_back: bool,
    pub(crate) ends: Arc<[Token]>,
    /// Memory it holds, as far as that can be told.
    pub(crate) bytes: usize,
}

impl Compiled {
    /// Examines the first place of a grammar; an error says why no answer can be had.
    pub(crate) fn new(
        mut parser: TokenParser,
        text: usize,
        ends: Arc<[Token]>,
    ) -> Result<Self, String> {
        let all = parser.parser.grammar().lexer_spec().all_lexemes();
        let lexemes = parser.parser.with_recognizer(|recognizer| {
            let start = recognizer.lexer_mut().start_state(&all);
            recognizer.lexer().possible_lexemes(start).clone()
        });
        let grammar = parser.parser.grammar();
        let symbols = symbols(grammar, &lexemes)
            .ok_or("no answer fits it: some rule can never come to an end")?;
        let rolls_back = grammar.lexer_spec().can_rollback();
        let row_items = limits::row_items(symbols);
        parser.start_without_prompt();
        let learned = observe(&mut parser, row_items)?;
        if learned.mask.as_ref().is_ok_and(|mask| mask.iter().all(|&word| word == 0)) {
            return Err("no answer fits it".to_owned());
        }
        let spent = spent(&parser);
        if let Some(why) = spent.over(Spent::at_start()) {
            return Err(why);
        }
        // A symbol is a name, some flags and its place in the rules.
        let bytes = spent.bytes * limits::OVERHEAD + symbols * 200 + text * 4;
        let first = Arc::new(learned);
        Ok(Self { parser, first, spent, row_items, rolls_back, ends, bytes })
    }
}

/// Symbols in the rules that can be reached, or `None` where the start can derive no text. Of its lexemes those are
/// given that match any text.
fn symbols(grammar: &CGrammar, lexemes: &LexemeSet) -> Option<usize> {
    let (mut open, mut seen) = (vec![grammar.start()], HashSet::from([grammar.start()]));
    // Rules that wait for a symbol, by symbol; a rule is its owner and how many of its symbols are not known to end.
    let mut waits: HashMap<CSymIdx, Vec<usize>> = HashMap::new();
    let (mut rules, mut ended, mut size) = (Vec::new(), Vec::new(), 0);
    while let Some(symbol) = open.pop() {
        let data = grammar.sym_data(symbol);
        let conditional = !data.cond_nullable.is_empty();
        let spelled = data.lexeme.is_some_and(|lexeme| lexemes.contains(lexeme));
        if spelled || data.is_nullable || conditional || data.gen_grammar.is_some() {
            ended.push(symbol);
        }
        for &rule in &data.rules {
            let (parts, ..) = grammar.rule_rhs(rule);
            size += parts.len() + 1;
            for &part in parts {
                waits.entry(part).or_default().push(rules.len());
                if seen.insert(part) {
                    open.push(part);
                }
            }
            rules.push((symbol, parts.len()));
            if parts.is_empty() {
                ended.push(symbol);
            }
        }
    }
    let mut ends = HashSet::new();
    while let Some(symbol) = ended.pop() {
        if ends.insert(symbol) {
            for rule in waits.remove(&symbol).unwrap_or_default() {
                let (owner, left) = &mut rules[rule];
                *left -= 1;
                if *left == 0 {
                    ended.push(*owner);
                }
            }
        }
    }
    ends.contains(&grammar.start()).then_some(size)
}
