//! A device that is lost ends the requests whose state was on it; it is opened again, and answers are what they were.

use forerun_backend::Backend;
use forerun_backend_cpu::tuned;
use forerun_base::{SeqId, Token};
use forerun_engine::{
    CacheSettings, Engine, Event, FinishReason, ModelRunner, Request, Sampling, Settings,
    Speculation,
};
use forerun_model::{Blueprint, Model};
use forerun_testkit::{Golden, Losable, LossSwitch};

const MODEL: &str = "qwen3_5";

fn engine() -> (Engine<ModelRunner>, LossSwitch) {
    let blueprint = Blueprint::open(Golden::open(MODEL).checkpoint()).expect("a model");
    let (device, switch) = Losable::new(Box::new(|| Box::new(tuned(Some(1)))));
    let mut device: Box<dyn Backend> = Box::new(device);
    let settings = Settings {
        context: 192,
        sequences: 2,
        prefill_chunk: 16,
        speculation: Speculation { text: true, ..Speculation::mtp(3) },
        cache: CacheSettings { bytes: 64 << 20, interval: Some(16) },
        ..Settings::default()
    };
    let model = Model::load(&blueprint, &mut *device, &mut |_| {}).expect("a model");
    let mut runner = ModelRunner::new(device, model, &settings).expect("memory");
    runner.set_reload(Box::new(move |device| Model::load(&blueprint, device, &mut |_| {})));
    (Engine::new(runner), switch)
}

/// Three requests, the last of which waits for a lease.
fn requests() -> Vec<Request> {
    let prompt = Golden::open(MODEL).tokens("input_ids");
    let warm = Sampling { temperature: 0.9, seed: 7, ..Sampling::default() };
    let penalised = Sampling { presence_penalty: 0.5, ..warm.clone() };
    vec![
        Request { sampling: warm, ..Request::greedy(prompt[..20].to_vec(), 24) },
        Request { retain: true, ..Request::greedy(prompt[3..25].to_vec(), 20) },
        Request { sampling: penalised, ..Request::greedy(prompt[..18].to_vec(), 16) },
    ]
}

type Answer = (Vec<Token>, FinishReason);

fn answers(engine: &mut Engine<ModelRunner>) -> Vec<(SeqId, Answer)> {
    let ids = requests().into_iter().map(|request| engine.submit(request).expect("fits"));
    let ids: Vec<SeqId> = ids.collect();
    let (mut events, mut steps) = (Vec::new(), 0);
    while !engine.is_idle() {
        engine.step(&mut events);
        steps += 1;
        assert!(steps < 2000, "the engine goes on without an end");
    }
    let of = |id: SeqId| {
        let token = |event: &Event| match event {
            Event::Token { seq, token, .. } if *seq == id => Some(*token),
            _ => None,
        };
        let ends: Vec<FinishReason> = events
            .iter()
            .filter_map(|event| match event {
                Event::Finished { seq, reason, .. } if *seq == id => Some(reason.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(ends.len(), 1, "every answer ends once");
        (id, (events.iter().filter_map(token).collect(), ends[0].clone()))
    };
    ids.into_iter().map(of).collect()
}

fn forget_parked(engine: &mut Engine<ModelRunner>, answers: &[(SeqId, Answer)]) {
    answers.iter().for_each(|(id, _)| engine.cancel(*id, &mut Vec::new()));
}

fn fresh() -> Vec<Answer> {
    answers(&mut engine().0).into_iter().map(|(_, answer)| answer).collect()
}

#[test]
fn whenever_the_device_is_lost_those_on_it_end_and_the_next_answers_are_those_of_a_fresh_engine() {
    let expected = fresh();
    let (mut engine, switch) = engine();
    let (mut failed, mut whole) = (0, 0);
    for calls in [0, 1, 7, 20, 40, 80, 120] {
        let before = (switch.reopened(), engine.stats().devices_lost);
        switch.lose_after(calls);
        let found = answers(&mut engine);
        assert!(!switch.is_due(), "after {calls} calls");
        for ((_, (tokens, reason)), (said, ended)) in found.iter().zip(&expected) {
            match reason {
                FinishReason::Failed(why) => {
                    assert!(why.contains("the device was lost"), "{why}");
                    assert!(said.starts_with(tokens), "what was said before holds");
                    failed += 1;
                }
                _ => {
                    assert_eq!((tokens, reason), (said, ended), "after {calls} calls");
                    whole += 1;
                }
            }
        }
        assert_eq!((switch.reopened(), engine.stats().devices_lost), (before.0 + 1, before.1 + 1));
        forget_parked(&mut engine, &found);
        let again = answers(&mut engine);
        let answered: Vec<&Answer> = again.iter().map(|(_, answer)| answer).collect();
        assert_eq!(answered, expected.iter().collect::<Vec<_>>(), "asked again after {calls}");
        forget_parked(&mut engine, &again);
        assert_eq!(engine.states().free(), engine.states().size(), "leases and blocks came back");
    }
    assert!(failed > 0 && whole > 0, "{failed} answers ended and {whole} did not");
}

#[test]
fn a_parked_sequence_goes_with_the_device() {
    let (mut engine, switch) = engine();
    let found = answers(&mut engine);
    let retained = found[1].0;
    assert!(engine.tokens(retained).is_some());
    switch.lose_after(0);
    engine.submit(requests().swap_remove(0)).expect("fits");
    engine.step(&mut Vec::new());
    assert!(engine.tokens(retained).is_none());
}

#[test]
fn while_the_device_cannot_be_opened_requests_end_with_the_reason() {
    let expected = fresh();
    let (mut engine, switch) = engine();
    switch.lose_after(10);
    switch.refuse(3);
    let found = answers(&mut engine);
    assert!(matches!(&found[0].1.1, FinishReason::Failed(why) if why.contains("a test lost it")));
    let later = &found[2].1.1;
    assert!(
        matches!(later, FinishReason::Failed(why) if why.contains("there is no device yet")),
        "{later:?}"
    );
    let mut tries = 0;
    loop {
        let found = answers(&mut engine);
        forget_parked(&mut engine, &found);
        let answered: Vec<Answer> = found.into_iter().map(|(_, answer)| answer).collect();
        if answered == expected {
            break;
        }
        tries += 1;
        assert!(tries < 3, "it opens in the end");
    }
    assert_eq!(switch.reopened(), 1);
}
