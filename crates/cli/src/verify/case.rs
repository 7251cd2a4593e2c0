//! The requests that are answered in every way.

use super::prompt::{Ids, Prompts};
use super::record::Record;
use forerun_base::Token;
use forerun_engine::{Depth, Request, Sampling};

/// Tokens that a second turn adds.
pub(super) const MORE: usize = 13;

/// What ends an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Length,
    EndToken(Token),
    /// After so many tokens, by the watch that stop strings use.
    Watch(usize),
}

/// One request, as often as it is needed.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) prompt: Vec<Token>,
    sampling: Sampling,
    max_tokens: usize,
    stop: Stop,
}

impl Case {
    pub(super) fn request(&self, depth: Depth) -> Request {
        let mut end_tokens = Vec::new();
        let mut watch: Option<forerun_engine::Watch> = None;
        match self.stop {
            Stop::Length => {}
            Stop::EndToken(token) => end_tokens.push(token),
            Stop::Watch(last) => {
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
    pub(super) fn positions(&self) -> usize {
        self.prompt.len() + self.max_tokens
    }
}

/// Outweighs any logit: the answer is one token over and over. Every draft that follows the same
/// rules is then right, so that long accepted runs occur on any model, however badly it drafts.
const LOOP_BIAS: f32 = 1e4;

/// The requests that can be made before anything was answered.
pub(super) fn openings(
    prompts: &Prompts,
    vocabulary: usize,
    max_tokens: usize,
    seed: u64,
) -> Vec<Case> {
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
    let mut cases: Vec<Case> = [
        ("greedy, opening", first, greedy.clone()),
        ("greedy, long prompt", &prompts.long, greedy.clone()),
        ("greedy, looped prompt", &prompts.looped, greedy.clone()),
        ("greedy, prompt of one token", &prompts.single, greedy),
        ("temperature, top-p", second, nucleus),
        ("temperature, top-k, min-p", &prompts.looped, top_k),
        ("penalties, logit bias", first, penalties),
        ("biased into a loop", second, looping),
    ]
    .map(|(name, prompt, sampling)| Case {
        name,
        prompt: prompt.clone(),
        sampling,
        max_tokens,
        stop: Stop::Length,
    })
    .into();
    // Ends in the middle of an accepted run.
    let looping = cases[cases.len() - 1].clone();
    let stop = Stop::Watch(max_tokens * 2 / 3 + 1);
    cases.push(Case { name: "a loop stopped by a watch", stop, ..looping });
    cases
}

/// The same request, made to end early in each way, within what it is known to answer.
pub(super) fn early_stops(case: &Case, answer: &[Token]) -> Vec<Case> {
    let middle = answer.len() / 2;
    // An end token ends the answer where it first occurs.
    let first_time = |&i: &usize| !answer[..i].contains(&answer[i]);
    let end = (0..=middle).rev().find(first_time).unwrap_or(0);
    let ends = [
        ("stopped by an end token", Stop::EndToken(answer[end]), case.max_tokens),
        ("stopped by a watch", Stop::Watch(answer.len() * 2 / 3 + 1), case.max_tokens),
        ("stopped by max_tokens", Stop::Length, middle / 2 + 1),
    ];
    ends.map(|(name, stop, max_tokens)| Case { name, stop, max_tokens, ..case.clone() }).into()
}

/// A second turn in a conversation.
pub(super) struct Turn {
    pub(super) first: Case,
    /// What follows the first answer.
    pub(super) more: Vec<Token>,
    /// The whole conversation as one prompt.
    pub(super) cold: Case,
}

/// Second turns after requests that ended early or count what was said.
pub(super) fn second_turns(cases: &[Case], answers: &[Record], ids: &mut Ids) -> Vec<Turn> {
    let asked = cases.iter().zip(answers);
    asked
        .filter(|(case, _)| case.stop != Stop::Length || case.sampling.frequency_penalty != 0.0)
        .map(|(case, answer)| {
            let more = ids.take(MORE);
            let prompt = [&case.prompt[..], &answer.tokens, &more].concat();
            let cold = Case { prompt, stop: Stop::Length, ..case.clone() };
            Turn { first: case.clone(), more, cold }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greedy(max_tokens: usize) -> Case {
        let (name, sampling) = ("greedy", Sampling::default());
        Case { name, prompt: vec![1, 2], sampling, max_tokens, stop: Stop::Length }
    }

    #[test]
    fn early_stops_lie_inside_the_answer_and_an_end_token_where_it_first_occurs() {
        let stops = early_stops(&greedy(8), &[5, 6, 5, 7, 6, 5, 5, 5]);
        let found: Vec<(Stop, usize)> = stops.iter().map(|c| (c.stop, c.max_tokens)).collect();
        assert_eq!(found, [(Stop::EndToken(7), 8), (Stop::Watch(6), 8), (Stop::Length, 3)]);
    }

    #[test]
    fn an_answer_of_one_token_can_still_be_stopped() {
        let stops = early_stops(&greedy(1), &[5]);
        let found: Vec<(Stop, usize)> = stops.iter().map(|c| (c.stop, c.max_tokens)).collect();
        assert_eq!(found, [(Stop::EndToken(5), 1), (Stop::Watch(1), 1), (Stop::Length, 1)]);
    }
}
