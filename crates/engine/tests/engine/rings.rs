//! Layers with a window keep a ring of blocks per sequence. Where it begins to overwrite itself must not
//! show: every text here is several times as long as the ring, and is held to an engine whose ring
//! is as long as the context.

use crate::common::{
    ByHand, Device, babble, built, engine, finish, golden_runner, remembered, retained, score,
};
use forerun_base::{DType, LeaseId, Token};
use forerun_engine::{Depth, Engine, ModelRunner, Request, Sampling, Settings, Speculation};
use forerun_model::{Blueprint, KV_BLOCK};
use forerun_testkit::tiny::{Family, Gemma, Tiny};
use forerun_testkit::tolerance::assert_same_bits;

/// Windows of 16 with shared keys, with experts, and with a drafter that looks one key further.
const MODELS: [&str; 3] = ["gemma4_e", "gemma4_moe", "gemma4_dense + gemma4_assistant"];

const TEXT: usize = 400;

fn settings(prefill_chunk: usize, kv: DType) -> Settings {
    let speculation = Speculation::mtp(8);
    Settings { context: 512, prefill_chunk, speculation, kv, ..Settings::default() }
}

/// Chunks that fill the context: nothing is ever overwritten.
fn unbroken(kv: DType) -> Settings {
    settings(512, kv)
}

fn blocks_of_ring(runner: &ModelRunner) -> usize {
    let limits = runner.limits();
    assert!(limits.window > 0, "a model with windows");
    limits.ring_width()
}

#[test]
fn any_size_of_ring_gives_the_same_bits() {
    for name in MODELS {
        let tokens = babble(TEXT, 379);
        for kv in [DType::F32, DType::F16, DType::I8] {
            let mut whole = engine(name, Device::Tuned, &unbroken(kv));
            assert_eq!(blocks_of_ring(whole.runner()) * KV_BLOCK, 512, "{name}: no ring at all");
            let expected = score(&mut whole, &tokens);
            for (chunk, blocks) in [(1, 2), (7, 2), (48, 3)] {
                let mut engine = engine(name, Device::Tuned, &settings(chunk, kv));
                assert_eq!(blocks_of_ring(engine.runner()), blocks, "{name}, chunk {chunk}");
                let found = score(&mut engine, &tokens);
                assert_same_bits(&format!("{name}, chunk {chunk}, kv {kv}"), &expected, &found);
            }
        }
    }
}

/// A window of exactly one block, one less and one more, where the first visible key crosses blocks.
#[test]
fn a_window_around_the_size_of_a_block_gives_the_same_bits() {
    for window in [KV_BLOCK - 1, KV_BLOCK, KV_BLOCK + 1] {
        let gemma = Gemma { window, whole: vec![2], ..Gemma::default() };
        let tiny = Tiny { layers: 3, gemma, ..Tiny::new(Family::Gemma3) };
        let folder = tempfile::tempdir().expect("a folder");
        tiny.write(folder.path());
        let blueprint = Blueprint::open(folder.path()).expect("a model");
        let logits = |device, settings: &Settings| {
            score(&mut Engine::new(built(&blueprint, device, settings)), &babble(TEXT, 400))
        };
        let expected = logits(Device::Tuned, &unbroken(DType::F16));
        for chunk in [1, 63, 64, 65] {
            for device in [Device::Tuned, Device::Recorded] {
                let found = logits(device, &settings(chunk, DType::F16));
                assert_same_bits(&format!("window {window}, chunk {chunk}"), &expected, &found);
            }
        }
    }
}

#[test]
fn rejected_drafts_leave_no_trace_in_a_ring() {
    for name in MODELS {
        for device in [Device::Tuned, Device::Recorded] {
            let tokens = babble(TEXT, 379);
            let mut whole = ByHand::new(golden_runner(name, device, &unbroken(DType::F16)));
            let expected = whole.feed(&tokens, 0, TEXT);
            let width = expected.len() / TEXT;
            let mut ring = ByHand::new(golden_runner(name, device, &settings(12, DType::F16)));
            assert_eq!(blocks_of_ring(&ring.runner), 2);
            let mut at = 0;
            // One confirmed token and eight drafts, of which 0, 1, … 8 are right.
            for right in (0..=8).cycle() {
                let right = right.min(TEXT - at - 1);
                let mut span: Vec<Token> = tokens[at..=at + right].to_vec();
                span.resize(9, 378 - (at % 50) as Token);
                let logits = ring.feed(&span, 8, 1 + right);
                let rows = &expected[at * width..(at + 1 + right) * width];
                assert_same_bits(&format!("{name} at {at}"), rows, &logits[..rows.len()]);
                at += 1 + right;
                if at == TEXT {
                    break;
                }
            }
            for layer in 0..whole.runner.model().spec.layers.len() {
                let ours = remembered(&mut ring.runner, &ring.states, ring.lease, layer);
                let theirs = remembered(&mut whole.runner, &whole.states, whole.lease, layer);
                for ((part, ours), (_, theirs)) in ours.parts.iter().zip(&theirs.parts) {
                    assert_same_bits(&format!("{name} layer {layer} {part}"), theirs, ours);
                }
            }
        }
    }
}

#[test]
fn sequences_at_different_places_of_their_rings_do_not_meet() {
    for name in MODELS {
        let tokens = babble(TEXT, 379);
        let mut whole = ByHand::new(golden_runner(name, Device::Tuned, &unbroken(DType::F16)));
        let expected = whole.feed(&tokens, 0, TEXT);
        let width = expected.len() / TEXT;
        let settings = Settings { sequences: 3, ..settings(48, DType::F16) };
        let mut ring = ByHand::new(golden_runner(name, Device::Tuned, &settings));
        let leases = [ring.lease, ring.lend(), ring.lend()];
        let committed = |ring: &ByHand, lease| ring.states.lease(lease).committed as usize;
        // The same text in steps of other widths, so that the three are always somewhere else.
        let strides = [31, 1, 16];
        while leases.iter().any(|&lease| committed(&ring, lease) < TEXT) {
            let next = |(&lease, stride): (&LeaseId, usize)| {
                let at = committed(&ring, lease);
                (at < TEXT).then(|| (lease, &tokens[at..TEXT.min(at + stride)]))
            };
            let spans: Vec<_> = leases.iter().zip(strides).filter_map(next).collect();
            let rows = spans.iter().flat_map(|&(lease, span)| {
                let at = committed(&ring, lease);
                expected[at * width..(at + span.len()) * width].iter().copied()
            });
            let rows: Vec<f32> = rows.collect();
            assert_same_bits(name, &rows, &ring.feed_together(&spans));
        }
    }
}

#[test]
fn a_drafter_beside_a_ring_changes_no_token() {
    let name = MODELS[2];
    for (len, sampling) in [
        (100, Sampling::default()),
        (250, Sampling { temperature: 0.9, seed: 4, ..Sampling::default() }),
    ] {
        let request = |depth| {
            let sampling = sampling.clone();
            Request { depth, sampling, ..Request::greedy(babble(len, 379), 120) }
        };
        let mut whole = engine(name, Device::Tuned, &unbroken(DType::F16));
        whole.submit(request(Depth::Fixed(0))).expect("accepted");
        let expected = finish(&mut whole).remove(0).0;
        for chunk in [12, 48, 512] {
            let mut engine = engine(name, Device::Tuned, &settings(chunk, DType::F16));
            assert_eq!(engine.speculation_off(), None);
            // One after the other: the later ones find a ring full of what the earlier left.
            for depth in [Depth::Fixed(1), Depth::Fixed(8), Depth::Auto] {
                engine.submit(request(depth)).expect("accepted");
                let found = finish(&mut engine).remove(0).0;
                assert_eq!(found, expected, "{len} tokens, chunk {chunk}, {depth:?}");
            }
        }
    }
}

#[test]
fn a_parked_ring_goes_on_where_it_was() {
    for name in MODELS {
        let tokens = babble(TEXT, 379);
        let settings = Settings { sequences: 2, ..settings(48, DType::F16) };
        let mut warm = engine(name, Device::Tuned, &settings);
        let mut so_far = tokens[..150].to_vec();
        let seq = warm.submit(retained(so_far.clone(), 10)).expect("accepted");
        so_far.extend(finish(&mut warm).remove(0).0);
        for more in [&tokens[150..280], &tokens[280..290], &tokens[290..360]] {
            // Somebody else uses the other lease while this one is retained.
            warm.submit(Request::greedy(babble(200, 300), 3)).expect("accepted");
            finish(&mut warm);
            warm.resume(seq, retained(more.to_vec(), 10)).expect("resumed");
            so_far.extend_from_slice(more);
            let text = finish(&mut warm).remove(0).0;
            let mut cold = engine(name, Device::Tuned, &unbroken(DType::F16));
            cold.submit(Request::greedy(so_far.clone(), 10)).expect("accepted");
            assert_eq!(text, finish(&mut cold).remove(0).0, "{name} after {}", so_far.len());
            so_far.extend(text);
        }
    }
}
