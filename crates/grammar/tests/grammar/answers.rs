//! Answers of the bundled model under grammars: valid, and the same whatever helps or shares the step.

use crate::schemas::schema;
use crate::setup::{ENDS, Luck, engine, grammars, tokenizer};
use crate::valid::is_valid;
use forerun_base::{SeqId, Token};
use forerun_engine::{
    Constraint, Depth, Engine, Event, FinishReason, ModelRunner, Receipt, Request, Sampling,
    Speculation,
};
use forerun_grammar::{GrammarSource, Grammars};
use serde_json::{Value, json};

/// One request in all but its depth.
struct GrammarRequest {
    source: GrammarSource,
    sampling: Sampling,
    thinks: Option<usize>,
    prompt: Vec<Token>,
}

impl GrammarRequest {
    fn request(&self, grammars: &Grammars, depth: Depth) -> Request {
        let inner = grammars.compile(&self.source).expect("compiled");
        let constraint: Box<dyn Constraint> = match self.thinks {
            Some(budget) => {
                grammars.after_reasoning("</think>", Some(budget), Some(inner)).expect("a gate")
            }
            None => inner,
        };
        Request {
            sampling: self.sampling.clone(),
            end_tokens: ENDS.to_vec(),
            depth,
            constraint: Some(constraint),
            ..Request::greedy(self.prompt.clone(), 160)
        }
    }
}

fn asked(luck: &mut Luck, count: usize) -> Vec<GrammarRequest> {
    let text = "<|im_start|>user\nTell me of a fox and a bear.<|im_end|>\n<|im_start|>assistant\n";
    let prompt = tokenizer().encode(text, false).expect("tokens");
    (0..count)
        .map(|i| {
            let hot = Sampling { temperature: 0.9, seed: i as u64, ..Sampling::default() };
            let sampling = match i % 4 {
                0 => Sampling::default(),
                1 => hot,
                2 => Sampling { top_k: 20, top_p: 0.9, min_p: 0.02, ..hot },
                _ => Sampling {
                    repetition_penalty: 1.2,
                    presence_penalty: 0.3,
                    frequency_penalty: 0.2,
                    logit_bias: vec![(40, 2.0)],
                    ..hot
                },
            };
            let source = match i % 6 {
                4 => GrammarSource::Regex(r"(the|a) [a-z]{2,8}( and [a-z]{2,8}){0,2}\.".to_owned()),
                5 => GrammarSource::Choice(["a fox", "a bear", "both"].map(str::to_owned).to_vec()),
                _ => GrammarSource::JsonSchema(schema(luck)),
            };
            let thinks = luck.once_in(4).then(|| luck.below(20));
            GrammarRequest {
                source,
                sampling,
                thinks,
                prompt: prompt[..prompt.len() - i % 3].to_vec(),
            }
        })
        .collect()
}

/// What became of an answer.
#[derive(Debug, PartialEq)]
struct CheckedAnswer {
    tokens: Vec<Token>,
    reason: FinishReason,
}

fn answer_of(events: &[Event], id: SeqId) -> (CheckedAnswer, Receipt) {
    let own = |event: &Event| match event {
        Event::Token { seq, token, .. } if *seq == id => Some(*token),
        _ => None,
    };
    let tokens = events.iter().filter_map(own).collect();
    let end = events.iter().find_map(|event| match event {
        Event::Finished { seq, reason, receipt } if *seq == id => {
            Some((reason.clone(), Receipt::clone(receipt)))
        }
        _ => None,
    });
    let (reason, receipt) = end.expect("every answer ends");
    (CheckedAnswer { tokens, reason }, receipt)
}

fn run(engine: &mut Engine<ModelRunner>) -> Vec<Event> {
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    events
}

/// Whether a whole answer is what was requested.
fn check(asked: &GrammarRequest, answer: &CheckedAnswer) {
    let text = tokenizer().decode(&answer.tokens, false).expect("text");
    let text = match asked.thinks {
        Some(_) => text.split_once("</think>").expect("thoughts end").1,
        None => &text,
    };
    let text = text.trim_end_matches("<|im_end|>").trim_end_matches("<|endoftext|>");
    match &asked.source {
        GrammarSource::JsonSchema(schema) => {
            let value: Value =
                serde_json::from_str(text).unwrap_or_else(|e| panic!("{schema}: {text}: {e}"));
            assert!(is_valid(schema, &value), "{schema}: {text}");
        }
        GrammarSource::Choice(texts) => assert!(texts.iter().any(|t| t == text), "{text:?}"),
        _ => assert!(text.ends_with('.') && text.len() < 60, "{text:?}"),
    }
}

#[test]
fn answers_fit_and_are_the_same_with_drafts_and_in_batches() {
    let (grammars, mut luck) = (grammars(), Luck(11));
    let asked = asked(&mut luck, 36);
    let mut plain = engine(1, Speculation::OFF);
    let mut whole = 0;
    let alone: Vec<CheckedAnswer> = asked
        .iter()
        .map(|asked| {
            let id = plain.submit(asked.request(grammars, Depth::Auto)).expect("accepted");
            let (answer, _) = answer_of(&run(&mut plain), id);
            match answer.reason {
                FinishReason::Complete | FinishReason::EndToken => {
                    check(asked, &answer);
                    whole += 1;
                }
                FinishReason::Length => {}
                ref other => panic!("{:?}: {other:?}", asked.source),
            }
            answer
        })
        .collect();
    assert!(whole >= 32, "{whole} of 36 are whole");
    for (sequences, depth) in
        [(1, Depth::Fixed(1)), (1, Depth::Fixed(8)), (5, Depth::Auto), (5, Depth::Fixed(3))]
    {
        let both = Speculation { text: true, ..Speculation::mtp(8) };
        let mut engine = engine(sequences, both);
        let ids: Vec<SeqId> = asked
            .iter()
            .map(|asked| engine.submit(asked.request(grammars, depth)).expect("accepted"))
            .collect();
        let events = run(&mut engine);
        let mut all = Receipt::default();
        for ((asked, id), alone) in asked.iter().zip(ids).zip(&alone) {
            let (answer, receipt) = answer_of(&events, id);
            let what = format!("{:?}, {sequences} at a time, {depth:?}", asked.source);
            assert_eq!(answer, *alone, "{what}");
            all.add(&receipt);
        }
        assert!(all.forced > 0 && all.accepted >= all.forced, "{depth:?}: {all:?}");
        assert!(all.accepted > all.forced || depth == Depth::Auto, "{depth:?}: {all:?}");
        assert_eq!(engine.states().free().0, sequences, "every lease came back");
    }
}

#[test]
fn what_the_schema_says_anyway_costs_few_steps() {
    let grammars = grammars();
    let schema =
        json!({"const": {"a rather long name": "and a constant of some length", "b": [1, 2, 3]}});
    let source = GrammarSource::JsonSchema(schema);
    let mut engine = engine(1, Speculation::mtp(8));
    let prompt = tokenizer().encode("Once upon a time", false).expect("tokens");
    let request = Request {
        constraint: Some(grammars.compile(&source).expect("compiled")),
        depth: Depth::Fixed(8),
        ..Request::greedy(prompt, 100)
    };
    let id = engine.submit(request).expect("accepted");
    let (answer, receipt) = answer_of(&run(&mut engine), id);
    assert_eq!(answer.reason, FinishReason::Complete);
    assert_eq!(receipt.drafted, receipt.accepted, "what is forced is never wrong: {receipt:?}");
    let rounds = receipt.rounds as usize;
    assert!(
        9 * rounds >= answer.tokens.len() && rounds <= answer.tokens.len() / 8 + 2,
        "{receipt:?}"
    );
}
