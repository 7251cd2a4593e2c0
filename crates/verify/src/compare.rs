//! Whether two runs of the same requests gave the same, and where they first did not.

use crate::record::AnswerRecord;
use forerun_base::Token;
use forerun_engine::FinishReason;
use serde::Serialize;
use std::fmt;

/// What comparing found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerComparison {
    /// Tokens compared.
    pub(crate) tokens: usize,
    /// Rows of logits compared.
    pub(crate) rows: usize,
    /// In the first request that has any.
    pub(crate) difference: Option<AnswerDifference>,
}

/// Where one request first differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct AnswerDifference {
    /// From 1.
    pub(crate) request: usize,
    pub(crate) name: &'static str,
    pub(crate) token: Option<TokenDifference>,
    /// Position of the first row of logits whose bits differ. Behind a different token rows belong
    /// to different texts, so none of those counts.
    pub(crate) logits_position: Option<usize>,
    pub(crate) ending: Option<EndingDifference>,
}

/// The first token that differs; `None` where the answer had already ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TokenDifference {
    /// In the answer, from 0.
    pub(crate) index: usize,
    pub(crate) expected: Option<Token>,
    pub(crate) found: Option<Token>,
}

/// The same tokens, ended for different reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct EndingDifference {
    pub(crate) expected: String,
    pub(crate) found: String,
}

/// Compares request by request.
pub(crate) fn compare(expected: &[AnswerRecord], found: &[AnswerRecord]) -> AnswerComparison {
    assert_eq!(expected.len(), found.len(), "both runs answer the same requests");
    let mut all = AnswerComparison::default();
    for (i, (expected, found)) in expected.iter().zip(found).enumerate() {
        let difference = difference(i + 1, expected, found);
        all.tokens += expected.tokens.len().max(found.tokens.len());
        let rows = expected.rows.len().max(found.rows.len());
        let token = difference.as_ref().and_then(|d| d.token.as_ref());
        all.rows += rows.min(shared_rows(token));
        all.difference = all.difference.or(difference);
    }
    all
}

/// How many rows of two answers stand behind the same text: all, or those up to the first different
/// token. A token that is missing on one side has its row on the other side only.
fn shared_rows(token: Option<&TokenDifference>) -> usize {
    match token {
        Some(TokenDifference { index, expected: Some(_), found: Some(_) }) => index + 1,
        Some(token) => token.index,
        None => usize::MAX,
    }
}

fn difference(
    request: usize,
    expected: &AnswerRecord,
    found: &AnswerRecord,
) -> Option<AnswerDifference> {
    let token = first_difference(&expected.tokens, &found.tokens).map(|index| TokenDifference {
        index,
        expected: expected.tokens.get(index).copied(),
        found: found.tokens.get(index).copied(),
    });
    let shared = shared_rows(token.as_ref());
    let ours = &expected.rows[..shared.min(expected.rows.len())];
    let theirs = &found.rows[..shared.min(found.rows.len())];
    let logits_position = match first_difference(ours, theirs) {
        _ if expected.first_row != found.first_row => Some(expected.first_row),
        row => row.map(|row| expected.first_row + row),
    };
    let ending = (token.is_none() && expected.ending != found.ending).then(|| EndingDifference {
        expected: ending_text(expected.ending.as_ref()),
        found: ending_text(found.ending.as_ref()),
    });
    let differs = token.is_some() || logits_position.is_some() || ending.is_some();
    let name = expected.name;
    differs.then_some(AnswerDifference { request, name, token, logits_position, ending })
}

/// The first place where two lists differ; a list that goes on differs from one that ended.
fn first_difference<T: PartialEq>(a: &[T], b: &[T]) -> Option<usize> {
    (0..a.len().max(b.len())).find(|&i| a.get(i) != b.get(i))
}

fn ending_text(ending: Option<&FinishReason>) -> String {
    match ending {
        None => "nothing".to_owned(),
        Some(FinishReason::EndToken) => "an end token".to_owned(),
        Some(FinishReason::Complete) => "its grammar".to_owned(),
        Some(FinishReason::Watched) => "the watch".to_owned(),
        Some(FinishReason::Length) => "length".to_owned(),
        Some(FinishReason::Cancelled) => "being cancelled".to_owned(),
        Some(FinishReason::Refused(why)) => format!("its grammar, unfinished: {why}"),
        Some(FinishReason::Failed(why)) => format!("a failure: {why}"),
    }
}

impl fmt::Display for AnswerDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "differs at request {} ({})", self.request, self.name)?;
        let say = |token: Option<Token>| token.map_or("the end".to_owned(), |t| t.to_string());
        if let Some(TokenDifference { index, expected, found }) = &self.token {
            let (expected, found) = (say(*expected), say(*found));
            write!(f, " token {index}: expected {expected}, found {found}")?;
        }
        if let Some(EndingDifference { expected, found }) = &self.ending {
            write!(f, ": ended by {found}, expected {expected}")?;
        }
        match self.logits_position {
            Some(position) => write!(f, "; first logits difference at position {position}"),
            None => write!(f, "; logits up to there are the same"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::DraftCounts;

    fn record() -> AnswerRecord {
        AnswerRecord {
            name: "greedy",
            tokens: vec![4, 5, 6],
            ending: Some(FinishReason::Length),
            first_row: 9,
            rows: vec![40, 50, 60],
            drafts: DraftCounts::default(),
        }
    }

    /// Compares two requests of which the second was tampered with.
    fn forged(tamper: impl Fn(&mut AnswerRecord)) -> AnswerComparison {
        let mut other = record();
        tamper(&mut other);
        compare(&[record(), record()], &[record(), other])
    }

    fn said(comparison: &AnswerComparison) -> String {
        comparison.difference.as_ref().expect("a difference").to_string()
    }

    #[test]
    fn the_same_is_the_same_however_it_was_drafted() {
        let same = forged(|r| r.drafts = DraftCounts { drafted: 8, accepted: 3 });
        assert_eq!(same, AnswerComparison { tokens: 6, rows: 6, difference: None });
    }

    #[test]
    fn a_forged_token_is_found_and_rows_behind_it_do_not_count() {
        let found = forged(|r| {
            r.tokens[1] = 7;
            r.rows[2] = 0;
        });
        let words = "differs at request 2 (greedy) token 1: expected 5, found 7; \
                     logits up to there are the same";
        assert_eq!(said(&found), words);
        assert_eq!(found.rows, 5);
    }

    #[test]
    fn forged_logits_are_found_although_every_token_is_the_same() {
        let found = forged(|r| r.rows[1] += 1);
        let words = "differs at request 2 (greedy); first logits difference at position 10";
        assert_eq!(said(&found), words);
    }

    #[test]
    fn logits_under_a_forged_token_are_named_with_it() {
        let found = forged(|r| {
            r.tokens[2] = 7;
            r.rows[2] = 0;
        });
        let words = "differs at request 2 (greedy) token 2: expected 6, found 7; \
                     first logits difference at position 11";
        assert_eq!(said(&found), words);
    }

    #[test]
    fn an_answer_that_goes_on_or_ends_early_differs() {
        let short = forged(|r| {
            r.tokens.pop();
            r.rows.pop();
        });
        assert!(said(&short).contains("token 2: expected 6, found the end"), "{}", said(&short));
        let long = forged(|r| {
            r.tokens.push(7);
            r.rows.push(70);
        });
        assert!(said(&long).contains("token 3: expected the end, found 7"), "{}", said(&long));
        let missing = forged(|r| _ = r.rows.pop());
        assert!(said(&missing).contains("position 11"), "{}", said(&missing));
    }

    #[test]
    fn another_reason_to_end_differs() {
        let found = forged(|r| r.ending = Some(FinishReason::Watched));
        assert!(said(&found).contains("ended by the watch, expected length"), "{}", said(&found));
    }

    #[test]
    fn the_first_request_that_differs_is_the_one_named() {
        let mut others = [record(), record(), record()];
        others[1].rows[0] = 1;
        others[2].tokens[0] = 1;
        let found = compare(&[record(), record(), record()], &others);
        assert_eq!(found.difference.map(|d| d.request), Some(2));
    }
}
