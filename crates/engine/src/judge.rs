//! The accept rule.

use forerun_base::Token;

/// What the model says of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Tokens of the span that become part of the sequence's state.
    pub keep: usize,
    /// Picks that become part of the text.
    pub emit: usize,
}

/// Keeps the longest run of guesses the model agrees with.
///
/// `picks[i]` is the model's own token after sampled row `i`, so a span with `d` guesses has `d + 1`
/// picks and always yields at least one token.
pub fn judge(certain: usize, guesses: &[Token], picks: &[Token]) -> Verdict {
    debug_assert_eq!(picks.len(), guesses.len() + 1, "one pick per sampled row");
    let agreed = guesses.iter().zip(picks).take_while(|(g, p)| g == p).count();
    Verdict { keep: certain + agreed, emit: agreed + 1 }
}

impl Verdict {
    /// The verdict when the text ends with emitted token number `last` (from 0): guesses from there
    /// on are dropped, so the state is what plain decoding would have left.
    pub fn ending_at(self, last: usize) -> Self {
        let agreed = self.emit - 1;
        Self { keep: self.keep - agreed + agreed.min(last), emit: self.emit.min(last + 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_wrong_guess_ends_the_run_but_still_emits_one_token() {
        struct Case {
            guesses: &'static [Token],
            picks: &'static [Token],
            keep: usize,
            emit: usize,
        }
        let cases = [
            Case { guesses: &[], picks: &[7], keep: 1, emit: 1 },
            Case { guesses: &[7], picks: &[7, 8], keep: 2, emit: 2 },
            Case { guesses: &[9], picks: &[7, 8], keep: 1, emit: 1 },
            Case { guesses: &[7, 9, 9], picks: &[7, 8, 9, 1], keep: 2, emit: 2 },
            Case { guesses: &[7, 8, 9], picks: &[7, 8, 9, 1], keep: 4, emit: 4 },
        ];
        for Case { guesses, picks, keep, emit } in cases {
            assert_eq!(judge(1, guesses, picks), Verdict { keep, emit }, "{guesses:?} {picks:?}");
        }
    }

    #[test]
    fn an_ending_drops_the_guesses_behind_it() {
        let all = judge(1, &[7, 8, 9], &[7, 8, 9, 1]);
        assert_eq!(all.ending_at(0), Verdict { keep: 1, emit: 1 });
        assert_eq!(all.ending_at(2), Verdict { keep: 3, emit: 3 });
        assert_eq!(all.ending_at(3), all);
    }
}
