//! Constraints and log-probabilities: obeyed, exact with and without drafts, and nobody else's business.

use crate::common::{Device, answers, engine, finish, prompt, score};
use forerun_base::{DType, SeqId, Token};
use forerun_engine::{
    Allowed, Constraint, Depth, Engine, Event, FinishReason, ModelRunner, Receipt, RejectError,
    Request, Sampling, Settings, Speculation, SpeculationMode, TokenLogprobs, log_probability,
};

/// Allows the tokens whose remainder by `period` is that of their place; the place that ends a run of `free` is forced,
/// and a length may be the whole of it.
#[derive(Clone, Debug)]
struct Pattern {
    period: u32,
    free: usize,
    done_at: usize,
    /// Says at this place that something is wrong.
    fails_at: usize,
    /// Allows nothing at this place.
    starves_at: usize,
    taken: Vec<Token>,
}

impl Pattern {
    fn new(period: u32, free: usize) -> Self {
        let never = usize::MAX;
        Self {
            period,
            free,
            done_at: never,
            fails_at: never,
            starves_at: never,
            taken: Vec::with_capacity(512),
        }
    }

    fn forced_at(&self, place: usize) -> Option<Token> {
        // Two in a row, and then a choice again.
        (place % (self.free + 2) >= self.free).then_some(17 + place as Token % 3)
    }

    fn allows(&self, token: Token) -> bool {
        let place = self.taken.len();
        if place == self.starves_at {
            return false;
        }
        match self.forced_at(place) {
            Some(forced) => token == forced,
            None => token % self.period == place as u32 % self.period,
        }
    }

    /// Whether an answer keeps to it.
    fn fits(mut self, answer: &[Token]) -> bool {
        answer.iter().all(|&token| self.take(token))
    }
}

impl Constraint for Pattern {
    fn mask(&mut self, mask: &mut [u32]) -> Result<Allowed, String> {
        if self.taken.len() == self.fails_at {
            return Err("the pattern is torn".to_owned());
        }
        // One place in seven has no say.
        if self.taken.len() % 7 == 3 && self.forced_at(self.taken.len()).is_none() {
            return Ok(Allowed::Any);
        }
        for token in (0..32 * mask.len() as Token).filter(|&token| self.allows(token)) {
            mask[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(Allowed::Some)
    }

    fn take(&mut self, token: Token) -> bool {
        let any = self.taken.len() % 7 == 3 && self.forced_at(self.taken.len()).is_none();
        let allowed = any || self.allows(token);
        if allowed {
            self.taken.push(token);
        }
        allowed
    }

    fn back(&mut self, count: usize) {
        let left = self.taken.len().checked_sub(count).expect("no more back than forth");
        self.taken.truncate(left);
    }

    fn forced(&mut self, most: usize, tokens: &mut Vec<Token>) {
        tokens.extend((self.taken.len()..).map_while(|place| self.forced_at(place)).take(most));
    }

    fn is_done(&mut self) -> bool {
        self.taken.len() >= self.done_at
    }
}

fn settings(chunk: usize, speculation: Speculation) -> Settings {
    Settings {
        context: 192,
        prefill_chunk: chunk,
        speculation,
        kv: DType::F16,
        ..Settings::default()
    }
}

/// Patterns and samplings of all kinds; every third request has no pattern.
fn requests(name: &str, depth: Depth) -> Vec<(Option<Pattern>, Request)> {
    let hot = Sampling { temperature: 0.9, seed: 5, ..Sampling::default() };
    let samplings = [
        Sampling::default(),
        hot.clone(),
        Sampling { top_k: 12, ..hot.clone() },
        Sampling { top_p: 0.7, min_p: 0.05, ..hot.clone() },
        Sampling { repetition_penalty: 1.4, presence_penalty: 0.3, ..Sampling::default() },
        Sampling { frequency_penalty: 0.4, logit_bias: vec![(20, 3.0), (21, -5.0)], ..hot },
    ];
    let request = |(i, sampling): (usize, Sampling)| {
        let pattern = Pattern {
            done_at: if i == 1 { 23 } else { usize::MAX },
            ..Pattern::new(2 + i as u32, 1 + 2 * i)
        };
        let pattern = (i % 3 != 2).then_some(pattern);
        let constraint = pattern.clone().map(|pattern| Box::new(pattern) as Box<dyn Constraint>);
        let logprobs = (i % 2 == 0).then_some(i);
        let request = Request {
            sampling,
            depth,
            constraint,
            logprobs,
            ..Request::greedy(prompt(name, 5 + 6 * i), 30)
        };
        (pattern, request)
    };
    samplings.into_iter().enumerate().map(request).collect()
}

type ToldAnswer = (Vec<Token>, Vec<Option<Box<TokenLogprobs>>>, FinishReason);

fn told(events: &[Event], id: SeqId) -> ToldAnswer {
    let (mut tokens, mut logprobs, mut end) = (Vec::new(), Vec::new(), None);
    for event in events {
        match event {
            Event::Token { seq, token, logprobs: told } if *seq == id => {
                tokens.push(*token);
                logprobs.push(told.clone());
            }
            Event::Finished { seq, reason, .. } if *seq == id => end = Some(reason.clone()),
            _ => {}
        }
    }
    (tokens, logprobs, end.expect("every answer ends"))
}

fn run(engine: &mut Engine<ModelRunner>) -> Vec<Event> {
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    events
}

fn receipt(events: &[Event]) -> Receipt {
    let mut all = Receipt::default();
    for event in events {
        if let Event::Finished { receipt, .. } = event {
            all.add(receipt);
        }
    }
    all
}

#[test]
fn constrained_answers_are_the_same_everywhere_and_keep_to_their_constraint() {
    for (name, devices) in [
        ("qwen3_5", &Device::ALL[..]),
        ("gemma4_dense + gemma4_assistant", &[Device::Tuned]),
        ("llama", &[Device::Tuned]),
    ] {
        for &device in devices {
            let mut plain = engine(name, device, &settings(64, Speculation::OFF));
            let alone: Vec<ToldAnswer> = requests(name, Depth::Auto)
                .into_iter()
                .map(|(pattern, request)| {
                    let id = plain.submit(request).expect("accepted");
                    let told = told(&run(&mut plain), id);
                    assert!(pattern.is_none_or(|pattern| pattern.fits(&told.0)), "{name} {told:?}");
                    told
                })
                .collect();
            assert_eq!(alone[1].2, FinishReason::Complete);
            assert_eq!(alone[1].0.len(), 23);
            let both = Speculation { text: true, ..Speculation::mtp(8) };
            let few =
                Speculation { vocabulary: forerun_engine::DraftVocabulary::First(40), ..both };
            for (chunk, sequences, speculation, depth) in [
                (64, 1, Speculation::OFF, Depth::Auto),
                (64, 4, Speculation::OFF, Depth::Auto),
                (3, 4, both, Depth::Auto),
                (64, 1, both, Depth::Fixed(1)),
                (64, 1, both, Depth::Fixed(8)),
                (64, 4, both, Depth::Fixed(4)),
                (64, 4, if name.contains("assistant") { both } else { few }, Depth::Fixed(3)),
                (512, 4, both, Depth::Auto),
            ] {
                let settings = Settings { sequences, ..settings(chunk, speculation) };
                let mut engine = engine(name, device, &settings);
                let submit = |(_, request)| engine.submit(request).expect("accepted");
                let ids: Vec<SeqId> = requests(name, depth).into_iter().map(submit).collect();
                let events = run(&mut engine);
                let what =
                    format!("{name} {device:?}, chunk {chunk}, {sequences} at a time, {depth:?}");
                for (id, alone) in ids.into_iter().zip(&alone) {
                    assert_eq!(told(&events, id), *alone, "{what}");
                }
                let all = receipt(&events);
                assert_eq!(all.forced > 0, speculation != Speculation::OFF, "{what}: {all:?}");
            }
        }
    }
}

#[test]
fn log_probabilities_are_those_of_the_scored_text() {
    let name = "qwen3_next";
    let mut engine = engine(name, Device::Tuned, &settings(64, Speculation::mtp(4)));
    let (start, vocabulary) = (prompt(name, 12), engine.runner().model().spec.vocabulary);
    let sampling =
        Sampling { temperature: 1.0, repetition_penalty: 1.3, seed: 3, ..Sampling::default() };
    let request = Request {
        sampling,
        depth: Depth::Fixed(3),
        logprobs: Some(5),
        constraint: Some(Box::new(Pattern::new(3, 4))),
        ..Request::greedy(start.clone(), 25)
    };
    let id = engine.submit(request).expect("accepted");
    let (tokens, logprobs, _) = told(&run(&mut engine), id);
    let logits = score(&mut engine, &[&start[..], &tokens].concat());
    for (i, (&token, told)) in tokens.iter().zip(&logprobs).enumerate() {
        let row = &logits[(start.len() - 1 + i) * vocabulary..][..vocabulary];
        let told = told.as_ref().expect("requested");
        assert_eq!((told.token, told.logprob), (token, log_probability(row, token) as f32), "{i}");
        assert_eq!(**told, TokenLogprobs::of(row, token, 5), "{i}");
        assert!(told.top.is_sorted_by(|a, b| a.1 >= b.1) && told.top.len() == 5, "{told:?}");
    }
    let too_many = Request { logprobs: Some(129), ..Request::greedy(start, 1) };
    assert!(matches!(engine.submit(too_many), Err(RejectError::Sampling { name: "logprobs", .. })));
}

#[test]
fn a_constraint_that_fails_ends_its_own_answer_only() {
    let name = "qwen3_5";
    for speculation in [Speculation::OFF, Speculation::mtp(4)] {
        let settings = Settings { sequences: 4, ..settings(64, speculation) };
        let mut engine = engine(name, Device::Tuned, &settings);
        let pattern = Pattern::new(2, 3);
        let cases = [
            (None, 20),
            (Some(Pattern { fails_at: 0, ..pattern.clone() }), 0),
            (Some(Pattern { fails_at: 7, ..pattern.clone() }), 7),
            (Some(Pattern { starves_at: 9, ..pattern.clone() }), 9),
            (Some(pattern), 20),
        ];
        let ids: Vec<SeqId> = cases
            .iter()
            .map(|(pattern, len)| {
                let constraint = pattern.clone().map(|p| Box::new(p) as Box<dyn Constraint>);
                let request = Request {
                    constraint,
                    retain: *len < 20,
                    depth: Depth::Fixed(4),
                    ..Request::greedy(prompt(name, 9), 20)
                };
                engine.submit(request).expect("accepted")
            })
            .collect();
        let events = run(&mut engine);
        for (id, (pattern, len)) in ids.into_iter().zip(&cases) {
            let (tokens, _, reason) = told(&events, id);
            assert_eq!(tokens.len(), *len, "{reason:?}");
            match (&reason, pattern) {
                (FinishReason::Length, _) => assert_eq!(*len, 20),
                (FinishReason::Refused(why), Some(p)) if p.starves_at == 9 => {
                    assert!(why.contains("allows no token"), "{why}");
                }
                (FinishReason::Refused(why), Some(_)) => assert!(why.contains("torn"), "{why}"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(engine.states().free().0, 4, "what failed is not kept");
    }
}

#[test]
fn unchecked_drafts_keep_to_the_constraint_and_stand_back_for_log_probabilities() {
    let name = "qwen3_5";
    let speculation = Speculation { mode: SpeculationMode::Optimistic, ..Speculation::mtp(3) };
    let mut engine = engine(name, Device::Tuned, &settings(64, speculation));
    let pattern = Pattern::new(2, 2);
    let depth = Depth::Fixed(3);
    let constraint: Box<dyn Constraint> = Box::new(pattern.clone());
    let request =
        Request { depth, constraint: Some(constraint), ..Request::greedy(prompt(name, 20), 40) };
    engine.submit(request).expect("accepted");
    let events = run(&mut engine);
    let (tokens, reason) = answers(&events).remove(0);
    assert_eq!((tokens.len(), reason), (40, FinishReason::Length));
    assert!(pattern.fits(&tokens), "{tokens:?}");
    assert!(receipt(&events).unchecked > 10, "{:?}", receipt(&events));
    let request = Request { depth, logprobs: Some(0), ..Request::greedy(prompt(name, 20), 10) };
    let id = engine.submit(request).expect("accepted");
    let events = run(&mut engine);
    assert!(told(&events, id).1.iter().all(Option::is_some), "each token has its row");
    assert_eq!(receipt(&events).unchecked, 0);
}

#[test]
fn the_receipt_says_in_which_rounds_the_host_followed_each_draft() {
    let name = "qwen3_5";
    let mut engine = engine(name, Device::Tuned, &settings(64, Speculation::mtp(3)));
    let ask = |constraint: Option<Pattern>| Request {
        depth: Depth::Fixed(3),
        constraint: constraint.map(|pattern| Box::new(pattern) as Box<dyn Constraint>),
        ..Request::greedy(prompt(name, 20), 40)
    };
    for constraint in [None, Some(Pattern::new(5, 100))] {
        let constrained = constraint.is_some();
        engine.submit(ask(constraint)).expect("accepted");
        let receipt = receipt(&run(&mut engine));
        // The first round has no drafts, the last may have room for none.
        let expected = if constrained { receipt.rounds - receipt.depths[0] } else { 0 };
        assert_eq!(receipt.rounds_with_host, expected, "{constrained}: {receipt:?}");
        assert!(!constrained || expected > 5, "{receipt:?}");
    }
    assert!(engine.stats().speculation.rounds_with_host > 0);
}

#[test]
fn every_draft_of_a_round_may_come_after_those_before_it() {
    let name = "qwen3_5";
    let pattern = Pattern::new(5, 100);
    for drafts in [2, 3, 8] {
        let speculation =
            Speculation { mode: SpeculationMode::Optimistic, ..Speculation::mtp(drafts) };
        let mut engine = engine(name, Device::Tuned, &settings(64, speculation));
        let rounds = 4;
        let request = Request {
            depth: Depth::Fixed(drafts),
            constraint: Some(Box::new(pattern.clone())),
            ..Request::greedy(prompt(name, 20), rounds * (1 + drafts) + 1)
        };
        engine.submit(request).expect("accepted");
        let events = run(&mut engine);
        let (tokens, _) = answers(&events).remove(0);
        assert!(pattern.clone().fits(&tokens), "{tokens:?}");
        // A draft that may not come is thrown away, and the round would be shorter.
        assert_eq!(receipt(&events).unchecked as usize, rounds * drafts, "{drafts} drafts");
    }
}

#[test]
fn drafts_stop_where_the_constraint_is_fulfilled() {
    let name = "qwen3_5";
    let mut engine = engine(name, Device::Tuned, &settings(64, Speculation::mtp(8)));
    for done_at in 1..12 {
        let pattern = Pattern { done_at, ..Pattern::new(3, 100) };
        let request = Request {
            depth: Depth::Fixed(8),
            constraint: Some(Box::new(pattern)),
            ..Request::greedy(prompt(name, 15), 50)
        };
        engine.submit(request).expect("accepted");
        let (tokens, reason) = finish(&mut engine).remove(0);
        assert_eq!((tokens.len(), reason), (done_at, FinishReason::Complete));
    }
}

#[test]
fn a_complete_answer_can_be_continued() {
    let name = "qwen3_5";
    let mut engine = engine(name, Device::Tuned, &settings(64, Speculation::mtp(4)));
    let pattern = Pattern { done_at: 11, ..Pattern::new(3, 2) };
    let request = Request {
        constraint: Some(Box::new(pattern)),
        depth: Depth::Fixed(4),
        retain: true,
        ..Request::greedy(prompt(name, 15), 50)
    };
    let id = engine.submit(request).expect("accepted");
    let (tokens, reason) = finish(&mut engine).remove(0);
    assert_eq!((tokens.len(), reason), (11, FinishReason::Complete));
    let more = prompt(name, 4);
    engine.resume(id, Request::greedy(more.clone(), 12)).expect("resumed");
    let (continued, _) = finish(&mut engine).remove(0);
    let mut cold = crate::common::engine(name, Device::Tuned, &settings(64, Speculation::OFF));
    cold.submit(Request::greedy([&prompt(name, 15)[..], &tokens, &more].concat(), 12))
        .expect("accepted");
    assert_eq!(continued, finish(&mut cold).remove(0).0);
}
