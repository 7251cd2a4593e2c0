//! The requests that are answered in every way.

use crate::prompt::{TokenIdStream, VerifyPrompts};
use crate::record::AnswerRecord;
use forerun_base::Token;
use forerun_engine::{Depth, Request, Sampling};

/// Tokens that a second turn adds.
pub(crate) const MORE: usize = 13;

/// What ends an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestEnd {
    Length,
    EndToken(Token),
    /// After so many tokens, by the watch that stop strings use.
    Watch(usize),
}

/// One request, as often as it is needed.
#[derive(Clone, Debug)]
pub(crate) struct VerifyRequest {
    pub(crate) name: &'static str,
    pub(crate) prompt: Vec<Token>,
    sampling: Sampling,
    max_tokens: usize,
    stop: RequestEnd,
}

impl VerifyRequest {
    pub(crate) fn request(&self, depth: Depth) -> Request {
        let mut end_tokens = Vec::new();
        let mut watch: Option<forerun_engine::Watch> = None;
        match self.stop {
            RequestEnd::Length => {}
            RequestEnd::EndToken(token) => end_tokens.push(token),
            RequestEnd::Watch(last) => {
                let mut seen = 0;
                watch = Some(Box::new(move |_| {
                    seen += 1;
                    seen == last
                }));
            }
        }
        let (prompt, sampling) = (self.prompt.clone(), self.sampling.clone());
        let max_tokens = self.max_tokens;
        Request { sampling, end_tokens, watch, depth, ..Request::greedy(prompt, max_tokens) }
    }

    /// Positions it can reach.
    pub(crate) fn positions(&self) -> usize {
        self.prompt.len() + self.max_tokens
    }
}

/// Outweighs any logit: the answer is one token over and over. Every draft that follows the same
/// rules is then right, so that long accepted runs occur on any model, however badly it drafts.
const LOOP_BIAS: f32 = 1e4;

/// The requests that can be made before anything was answered.
pub(crate) fn openings(
    prompts: &VerifyPrompts,
    vocabulary: usize,
    max_tokens: usize,
    seed: u64,
) -> Vec<VerifyRequest> {
    let greedy = Sampling::default();
    let seeded = |k: u64, temperature| Sampling {
        temperature,
        seed: seed.wrapping_add(k),
        ..Sampling::default()
    };
    let nucleus = Sampling { top_p: 0.9, ..seeded(1, 0.8) };
    let top_k = Sampling { top_k: 20, min_p: 0.02, ..seeded(2, 1.2) };
    let penalties = Sampling {
        repetition_penalty: 1.3,
        presence_penalty: 0.5,
        frequency_penalty: 0.2,
        logit_bias: vec![(0, 2.0), (vocabulary as Token / 2, -3.0)],
        ..seeded(3, 0.7)
    };
    let looping = Sampling { logit_bias: vec![(1, LOOP_BIAS)], ..greedy.clone() };
    let [first, second] = &prompts.openings;
    let mut cases: Vec<VerifyRequest> = [
        ("greedy, opening", first, greedy.clone()),
        ("greedy, long prompt", &prompts.long, greedy.clone()),
        ("greedy, looped prompt", &prompts.looped, greedy.clone()),
        ("greedy, prompt of one token", &prompts.single, greedy),
        ("temperature, top-p", second, nucleus),
        ("temperature, top-k, min-p", &prompts.looped, top_k),
        ("penalties, logit bias", first, penalties),
        ("biased into a loop", second, looping),
    ]
    .map(|(name, prompt, sampling)| VerifyRequest {
        name,
        prompt: prompt.clone(),
        sampling,
        max_tokens,
        stop: RequestEnd::Length,
    })
    .into();
    // Ends in the middle of an accepted run.
    let looping = cases[cases.len() - 1].clone();
    let stop = RequestEnd::Watch(max_tokens * 2 / 3 + 1);
    cases.push(VerifyRequest { name: "a loop stopped by a watch", stop, ..looping });
    cases
}

/// The same request, made to end early in each way, within what it is known to answer.
pub(crate) fn early_stops(case: &VerifyRequest, answer: &[Token]) -> Vec<VerifyRequest> {
    let middle = answer.len() / 2;
    // An end token ends the answer where it first occurs.
    let first_time = |&i: &usize| !answer[..i].contains(&answer[i]);
    let end = (0..=middle).rev().find(first_time).unwrap_or(0);
    let ends = [
        ("stopped by an end token", RequestEnd::EndToken(answer[end]), case.max_tokens),
        ("stopped by a watch", RequestEnd::Watch(answer.len() * 2 / 3 + 1), case.max_tokens),
        ("stopped by max_tokens", RequestEnd::Length, middle / 2 + 1),
    ];
    ends.map(|(name, stop, max_tokens)| VerifyRequest { name, stop, max_tokens, ..case.clone() })
        .into()
}

/// A second turn in a conversation.
pub(crate) struct SecondTurn {
    pub(crate) first: VerifyRequest,
    /// What follows the first answer.
    pub(crate) more: Vec<Token>,
    /// The whole conversation as one prompt.
    pub(crate) cold: VerifyRequest,
}

/// Second turns after requests that ended early or count what was said.
pub(crate) fn second_turns(
    cases: &[VerifyRequest],
    answers: &[AnswerRecord],
    ids: &mut TokenIdStream,
) -> Vec<SecondTurn> {
    let asked = cases.iter().zip(answers);
    asked
        .filter(|(case, _)| {
            case.stop != RequestEnd::Length || case.sampling.frequency_penalty != 0.0
        })
        .map(|(case, answer)| {
            let more = ids.take(MORE);
            let prompt = [&case.prompt[..], &answer.tokens, &more].concat();
            let cold = VerifyRequest { prompt, stop: RequestEnd::Length, ..case.clone() };
            SecondTurn { first: case.clone(), more, cold }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greedy(max_tokens: usize) -> VerifyRequest {
        let (name, sampling) = ("greedy", Sampling::default());
        VerifyRequest { name, prompt: vec![1, 2], sampling, max_tokens, stop: RequestEnd::Length }
    }

    #[test]
    fn early_stops_lie_inside_the_answer_and_an_end_token_where_it_first_occurs() {
        let stops = early_stops(&greedy(8), &[5, 6, 5, 7, 6, 5, 5, 5]);
        let found: Vec<(RequestEnd, usize)> =
            stops.iter().map(|c| (c.stop, c.max_tokens)).collect();
        assert_eq!(
            found,
            [(RequestEnd::EndToken(7), 8), (RequestEnd::Watch(6), 8), (RequestEnd::Length, 3)]
        );
    }

    #[test]
    fn an_answer_of_one_token_can_still_be_stopped() {
        let stops = early_stops(&greedy(1), &[5]);
        let found: Vec<(RequestEnd, usize)> =
            stops.iter().map(|c| (c.stop, c.max_tokens)).collect();
        assert_eq!(
            found,
            [(RequestEnd::EndToken(5), 1), (RequestEnd::Watch(1), 1), (RequestEnd::Length, 1)]
        );
    }
}
