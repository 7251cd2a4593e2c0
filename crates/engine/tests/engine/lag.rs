//! A head that does not draft stays behind: what that costs, and that nothing is lost when it is wanted again.

use crate::common::{Device, babble, runner};
use forerun_base::Token;
use forerun_engine::{
    CacheSettings, Depth, Engine, Event, ModelRunner, Receipt, Request, Settings, Speculation,
    SubmissionBudget,
};
use forerun_testkit::Budget;
use std::path::Path;

/// The bundled model, whose head drafts well: one that missed something would draft otherwise.
fn engine(prefill_chunk: usize, sequences: usize, cache: CacheSettings) -> Engine<ModelRunner> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m"));
    let speculation = Speculation::mtp(4);
    let settings = Settings {
        context: 768,
        sequences,
        prefill_chunk,
        speculation,
        // Work, not time: a busy machine must not cut what is counted here.
        submission_budget: SubmissionBudget::Work(Budget::UNLIMITED),
        cache,
        ..Settings::default()
    };
    Engine::new(runner(folder, Device::Tuned, &settings))
}

const CACHE: CacheSettings = CacheSettings { bytes: 256 << 20, interval: None };

fn with_depth(prompt: &[Token], tokens: usize, depth: usize) -> Request {
    Request { depth: Depth::Fixed(depth), ..Request::greedy(prompt.to_vec(), tokens) }
}

/// Tokens, receipt and cached tokens of the only request.
fn run(engine: &mut Engine<ModelRunner>, request: Request) -> (Vec<Token>, Receipt, usize) {
    engine.submit(request).expect("accepted");
    let (mut events, mut tokens) = (Vec::new(), Vec::new());
    let (mut told, mut cached_tokens) = (None, 0);
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    for event in events {
        match event {
            Event::Started { cached, .. } => cached_tokens = cached.cached_tokens,
            Event::Token { token, .. } => tokens.push(token),
            Event::Finished { receipt, .. } => told = Some(*receipt),
        }
    }
    (tokens, told.expect("it ended"), cached_tokens)
}

#[test]
fn an_answer_without_drafts_costs_the_head_nothing_until_the_window_is_nearly_full() {
    // A window of 320 positions.
    for (answer, passes) in [(150, 0), (280, 1)] {
        let mut engine = engine(256, 1, CACHE);
        run(&mut engine, with_depth(&babble(40, 8192), answer, 0));
        let stats = engine.stats();
        // One more for the beginning of what is published. Nobody has waited for what its end takes: a pass of the head
        // and the copies.
        assert_eq!(stats.submissions, stats.steps + 1 + passes, "{answer} tokens");
    }
}

#[test]
fn answers_that_began_together_are_not_taken_in_together() {
    let mut engine = engine(256, 4, CACHE);
    for first in 0..4 {
        let prompt = [&[first][..], &babble(39, 8192)].concat();
        engine.submit(with_depth(&prompt, 280, 0)).expect("accepted");
    }
    let (mut events, mut passes) = (Vec::new(), Vec::new());
    let mut before = engine.stats();
    while !events.iter().any(|event| matches!(event, Event::Finished { .. })) {
        if before.generated_tokens > 4 {
            passes.push(before.submissions);
        }
        engine.step(&mut events);
        before = engine.stats();
    }
    let passes: Vec<u64> = passes.windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
    assert_eq!(passes.iter().max(), Some(&1), "{passes:?}");
    assert_eq!(passes.iter().sum::<u64>(), 4, "{passes:?}");
}

#[test]
fn a_text_that_was_never_drafted_at_is_published_with_all_its_head_must_know() {
    for (chunk, answer) in [(64, 60), (64, 300), (256, 150), (256, 400)] {
        let prompt = babble(40, 8192);
        let mut warm = engine(chunk, 1, CACHE);
        let (said, _, _) = run(&mut warm, with_depth(&prompt, answer, 0));
        let next = [&prompt[..], &said, &babble(30, 8192)].concat();
        let (tokens, receipt, cached) = run(&mut warm, with_depth(&next, 60, 3));
        let (expected, cold, _) =
            run(&mut engine(chunk, 1, CacheSettings::default()), with_depth(&next, 60, 3));
        let what = format!("chunk {chunk}, answer {answer}");
        assert!(cached + 10 >= prompt.len() + said.len(), "{what}: {cached} cached");
        assert!(cold.accepted > 10, "{what}: {cold:?}");
        assert_eq!((tokens, receipt), (expected, cold), "{what}");
    }
}

#[test]
fn a_prompt_larger_than_the_window_is_known_whole_to_the_head() {
    let prompt = babble(610, 8192);
    let ask =
        |chunk| run(&mut engine(chunk, 1, CacheSettings::default()), with_depth(&prompt, 60, 4));
    let expected = ask(50);
    assert!(expected.1.accepted > 10, "{expected:?}");
    // Chunks below the window of hidden states, above it, and the whole prompt.
    for chunk in [320, 500, 700] {
        assert_eq!(ask(chunk), expected, "chunk {chunk}");
    }
}

#[test]
fn what_waits_of_a_retained_answer_is_taken_in_when_it_goes_on() {
    for (chunk, answer) in [(64, 100), (500, 20), (500, 230)] {
        let prompt = babble(40, 8192);
        let mut retained = engine(chunk, 1, CacheSettings::default());
        let asked = Request { retain: true, ..with_depth(&prompt, answer, 1) };
        // No drafts: the head waits.
        let asked = Request { depth: Depth::Auto, ..asked };
        let seq = retained.submit(asked).expect("accepted");
        let mut events = Vec::new();
        while !retained.is_idle() {
            retained.step(&mut events);
        }
        let said = retained.tokens(seq).expect("retained").0.to_vec();
        events.clear();
        let more = babble(300, 8192);
        retained.resume(seq, with_depth(&more, 60, 3)).expect("accepted");
        while !retained.is_idle() {
            retained.step(&mut events);
        }
        let told = events.into_iter().find_map(|event| match event {
            Event::Finished { receipt, .. } => Some(*receipt),
            _ => None,
        });
        let whole = [&said[..], &more].concat();
        let (_, cold, _) =
            run(&mut engine(chunk, 1, CacheSettings::default()), with_depth(&whole, 60, 3));
        assert_eq!(told, Some(cold), "chunk {chunk}, answer {answer}");
    }
}
