//! What a grammar may cost. Every limit that decides an outcome counts work or bytes, never time, so that the same
//! request ends the same way on every machine; time is a last guard while a grammar is compiled.

use llguidance::api::ParserLimits;
use std::time::Duration;

/// States of the lexer that one mask and the text before it may need. A state is one to two kilobytes.
pub(crate) const STATES: usize = 40_000;
/// Further states for each byte of the text, most of which need none.
const STATES_PER_BYTE: usize = 4;
/// Work on expressions that one mask and the text before it may need: some hundred thousand are done in ten
/// milliseconds.
pub(crate) const FUEL: u64 = 1_500_000;
/// Further work for each byte of the text.
const FUEL_PER_BYTE: u64 = 200;
/// Bytes of the lexer's tables, as it counts them itself: a fifth to an eighth of what they take.
pub(crate) const TABLE_BYTES: usize = 6 << 20;
const TABLE_BYTES_PER_BYTE: usize = 1024;
/// What the lexer takes for each byte that it counts.
pub(crate) const OVERHEAD: usize = 8;

/// Where the lexer stops in the middle of a mask. It is past every limit above, which are checked after the mask.
const HARD_STATES: usize = 60_000;
const HARD_FUEL: u64 = 4_000_000;

/// Items of a row of the parser: some for any grammar, two for each symbol of a large one. More is the mark of an
/// ambiguous grammar, whose rows grow with the text.
pub(crate) const ROW_ITEMS: usize = 300;
const MOST_ROW_ITEMS: usize = 2000;

/// Largest `multipleOf`, in units of its last digit: the lexer has a state for each remainder.
pub(crate) const MULTIPLE: f64 = 20_000.0;

/// Grammars that are kept, and their bytes.
pub(crate) const KEPT: usize = 64;
pub(crate) const KEPT_BYTES: usize = 64 << 20;

/// Grammars that are compiled at a time.
pub(crate) const COMPILERS: usize = 2;
/// When a grammar is given up while it is compiled, or waits to be.
pub(crate) const COMPILE_TIME: Duration = Duration::from_secs(10);

/// What a draft's mask is waited for. One that comes later is kept for the row that needs it.
pub(crate) const PATIENCE: Duration = Duration::from_millis(4);
/// A mask that takes longer goes to the slow lane.
pub(crate) const SLOW: Duration = Duration::from_millis(10);
/// Slow masks that are computed at a time.
pub(crate) const SLOW_LANES: usize = 2;
/// Tokens without drafts after one whose mask could not be told in time.
pub(crate) const CAUTION: usize = 16;

/// The limits that llguidance enforces itself.
pub(crate) fn parser() -> ParserLimits {
    ParserLimits {
        max_items_in_row: MOST_ROW_ITEMS,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: HARD_FUEL,
        step_max_items: 50_000,
        max_lexer_states: HARD_STATES,
        max_grammar_size: 250_000,
        // What it would compute ahead is computed with the first mask, under the limits of a mask.
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// Items a row may have under a grammar of so many symbols.
pub(crate) fn row_items(symbols: usize) -> usize {
    symbols.saturating_mul(2).clamp(ROW_ITEMS, MOST_ROW_ITEMS)
}

/// What the lexer has done since the grammar was compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) fuel: u64,
    pub(crate) states: usize,
    pub(crate) bytes: usize,
}

impl Spent {
    /// What was done since.
    pub(crate) fn since(self, start: Self) -> Self {
        Self {
            fuel: self.fuel.saturating_sub(start.fuel),
            states: self.states.saturating_sub(start.states),
            bytes: self.bytes.saturating_sub(start.bytes),
        }
    }

    /// What a text of so many bytes may need.
    pub(crate) fn limit(text: usize) -> Self {
        let hard = HARD_STATES - STATES;
        Self {
            fuel: FUEL + (FUEL_PER_BYTE * text as u64).min(HARD_FUEL / 2 - FUEL),
            states: STATES + (STATES_PER_BYTE * text).min(hard),
            bytes: TABLE_BYTES + (TABLE_BYTES_PER_BYTE * text).min(TABLE_BYTES),
        }
    }

    /// What a grammar may need before its first answer begins. How much work that was is limited elsewhere.
    pub(crate) fn at_start() -> Self {
        Self { fuel: u64::MAX, states: STATES, bytes: TABLE_BYTES }
    }

    /// Half of it.
    pub(crate) fn half(self) -> Self {
        Self { fuel: self.fuel / 2, states: self.states / 2, bytes: self.bytes / 2 }
    }

    /// What of it is more than `most`, in words.
    pub(crate) fn over(self, most: Self) -> Option<String> {
        let said = |what: &str, most: u64| {
            Some(format!(
                "its grammar is too complex here: a mask would need more than {most} {what}"
            ))
        };
        if self.states > most.states {
            said("states of the lexer", most.states as u64)
        } else if self.fuel > most.fuel {
            said("steps of the lexer", most.fuel)
        } else if self.bytes > most.bytes {
            said("bytes of tables", (most.bytes * OVERHEAD) as u64)
        } else {
            None
        }
    }
}
