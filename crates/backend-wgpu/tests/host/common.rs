//! An engine on an adapter.

use crate::adapter::open_device;
use forerun_backend_wgpu::LossSwitch;
use forerun_base::{DType, SeqId, Token};
use forerun_engine::{Engine, Event, FinishReason, ModelRunner, Request, Settings};
use forerun_model::{Blueprint, Model};
use forerun_testkit::Golden;

/// A hybrid with an MTP head.
pub(crate) const MODEL: &str = "qwen3_5";

pub(crate) fn settings(context: usize, prefill_chunk: usize) -> Settings {
    Settings { context, prefill_chunk, kv: DType::F16, ..Settings::default() }
}

pub(crate) fn engine(settings: &Settings) -> (Engine<ModelRunner>, LossSwitch) {
    let blueprint = Blueprint::open(Golden::open(MODEL).checkpoint()).expect("a model");
    let mut device = Box::new(open_device());
    let switch = device.loss_switch();
    let model = Model::load(&blueprint, &mut *device, &mut |_| {}).expect("a model");
    let mut runner = ModelRunner::new(device, model, settings).expect("memory");
    runner.set_reload(Box::new(move |device| Model::load(&blueprint, device, &mut |_| {})));
    (Engine::new(runner), switch)
}

/// A prompt of so many tokens.
pub(crate) fn prompt(len: usize) -> Vec<Token> {
    Golden::open(MODEL).tokens("input_ids").into_iter().cycle().take(len).collect()
}

/// Runs until idle; tokens and end of each request, in order. `watch` sees the engine after each step.
pub(crate) fn answers(
    engine: &mut Engine<ModelRunner>,
    requests: Vec<Request>,
    watch: &mut dyn FnMut(&mut Engine<ModelRunner>),
) -> Vec<(Vec<Token>, FinishReason)> {
    let ids = requests.into_iter().map(|request| engine.submit(request).expect("accepted"));
    let ids: Vec<SeqId> = ids.collect();
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
        watch(engine);
    }
    let of = |id: SeqId| {
        let token = |event: &Event| match event {
            Event::Token { seq, token, .. } if *seq == id => Some(*token),
            _ => None,
        };
        let end = events.iter().find_map(|event| match event {
            Event::Finished { seq, reason, .. } if *seq == id => Some(reason.clone()),
            _ => None,
        });
        (events.iter().filter_map(token).collect(), end.expect("every answer ends"))
    };
    ids.into_iter().map(of).collect()
}

/// The text of one greedy request.
pub(crate) fn text(engine: &mut Engine<ModelRunner>, request: Request) -> Vec<Token> {
    let (tokens, end) = answers(engine, vec![request], &mut |_| {}).remove(0);
    assert!(!end.is_failure(), "{end:?}");
    tokens
}
