//! The accept rule.

use forerun_base::Token;

/// What the model says of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Tokens of the span that become part of the sequence's state.
    pub keep: usize,
    /// SampledTokens that become part of the text.
    pub emit: usize,
}

/// Keeps the longest run of drafts the model agrees with.
///
/// `sampled[i]` is the model's own token after sampled row `i`, so a span with `d` drafts has `d + 1`
/// sampled tokens and always yields at least one token.
pub fn accept(confirmed: usize, drafts: &[Token], sampled: &[Token]) -> Verdict {
    debug_assert_eq!(sampled.len(), drafts.len() + 1, "one token per sampled row");
    let agreed = drafts.iter().zip(sampled).take_while(|(g, p)| g == p).count();
    Verdict { keep: confirmed + agreed, emit: agreed + 1 }
}

impl Verdict {
    /// The verdict when the text ends with emitted token number `last` (from 0): drafts from there
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
    fn first_rejected_draft_ends_the_run_but_still_emits_one_token() {
        struct Case {
            drafts: &'static [Token],
            sampled: &'static [Token],
            keep: usize,
            emit: usize,
        }
        let cases = [
            Case { drafts: &[], sampled: &[7], keep: 1, emit: 1 },
            Case { drafts: &[7], sampled: &[7, 8], keep: 2, emit: 2 },
            Case { drafts: &[9], sampled: &[7, 8], keep: 1, emit: 1 },
            Case { drafts: &[7, 9, 9], sampled: &[7, 8, 9, 1], keep: 2, emit: 2 },
            Case { drafts: &[7, 8, 9], sampled: &[7, 8, 9, 1], keep: 4, emit: 4 },
        ];
        for Case { drafts, sampled, keep, emit } in cases {
            assert_eq!(
                accept(1, drafts, sampled),
                Verdict { keep, emit },
                "{drafts:?} {sampled:?}"
            );
        }
    }

    #[test]
    fn an_ending_drops_the_drafts_behind_it() {
        let all = accept(1, &[7, 8, 9], &[7, 8, 9, 1]);
        assert_eq!(all.ending_at(0), Verdict { keep: 1, emit: 1 });
        assert_eq!(all.ending_at(2), Verdict { keep: 3, emit: 3 });
        assert_eq!(all.ending_at(3), all);
    }
}
