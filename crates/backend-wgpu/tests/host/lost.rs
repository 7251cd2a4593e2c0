//! A lost adapter ends the requests on it; it is opened again, and the next answer has the bits of a fresh process.

use crate::common::{answers, engine, prompt, settings};
use forerun_backend::{Backend, BackendError, BufferRole, BufferSpec, submit_and_wait};
use forerun_base::DType;
use forerun_engine::{Engine, FinishReason, ModelRunner, Request, Settings, Speculation};
use forerun_testkit::tolerance::assert_same_bits;

fn two() -> Settings {
    Settings { sequences: 2, speculation: Speculation::mtp(3), ..settings(192, 16) }
}

fn requests() -> Vec<Request> {
    [20, 30, 25].map(|len| Request::greedy(prompt(len), 12)).into()
}

fn logits(engine: &mut Engine<ModelRunner>) -> Vec<f32> {
    let mut all = Vec::new();
    engine.score(&prompt(40), &mut |row| all.extend_from_slice(row)).expect("scored");
    all
}

#[test]
fn a_lost_adapter_ends_what_was_on_it_and_the_next_answers_are_those_of_a_fresh_process() {
    let (mut fresh, _) = engine(&two());
    let (expected, bits) = (answers(&mut fresh, requests(), &mut |_| {}), logits(&mut fresh));
    let (mut engine, switch) = engine(&two());
    let mut steps = 0;
    let found = answers(&mut engine, requests(), &mut |_| {
        steps += 1;
        if steps == 4 {
            switch.lose();
        }
    });
    let ended: Vec<bool> = found.iter().map(|(_, end)| end.is_failure()).collect();
    assert_eq!(ended, [true, true, false], "two were on it, one waited: {found:?}");
    for ((tokens, end), (said, _)) in found.iter().zip(&expected) {
        assert!(said.starts_with(tokens), "what was said before holds");
        if let FinishReason::Failed(why) = end {
            assert!(why.contains("the device was lost"), "{why}");
        }
    }
    assert_eq!(found[2], expected[2], "who waited is answered by the device that was opened");
    assert_eq!(engine.stats().devices_lost, 1);
    assert_eq!(answers(&mut engine, requests(), &mut |_| {}), expected, "asked again");
    assert_same_bits("logits on the device that was opened", &bits, &logits(&mut engine));
}

#[test]
fn a_limit_of_memory_is_kept_and_refuses_by_name() {
    let mut device = crate::adapter::open_device().with_memory_limit(Some(1 << 20));
    let spec = |label, len| BufferSpec { label, dtype: DType::F32, len, role: BufferRole::State };
    device.alloc(spec("half", 1 << 17)).expect("there is room");
    assert_eq!(device.free_memory(), Some(1 << 19));
    let refused = device.alloc(spec("too much", (1 << 17) + 1));
    let bytes = (1 << 19) + 4;
    assert_eq!(refused, Err(BackendError::OutOfMemory { label: "too much".into(), bytes }));
    device.alloc(spec("the rest", 1 << 17)).expect("a refusal takes nothing");
    let largest = device.largest_buffer().expect("every adapter has a limit");
    let refused = device.alloc(spec("huge", (largest / 4 + 1) as usize));
    assert!(refused.is_err(), "{refused:?}");
    submit_and_wait(&mut device).expect("it still works");
}
