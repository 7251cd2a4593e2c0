//! What would keep an adapter busy for long is several dispatches, each within its time by estimate, with the same
//! bits.

#[path = "common/device.rs"]
mod adapter;
#[path = "common/stage.rs"]
mod stage;

use adapter::open_device;
use forerun_backend::Backend;
use forerun_backend::op::{Attention, CacheLayout, DeltaRule, DeltaShape, SpanEntry, Spans};
use forerun_backend_wgpu::Wgpu;
use forerun_testkit::tolerance::assert_same_bits;
use stage::{contents, floats, integers, numbers};
use std::time::{Duration, Instant};

fn longest(device: &Wgpu) -> Duration {
    device.longest_dispatch().expect("dispatches are bounded")
}

/// More keys than 65,536.
const KEYS: usize = 66_000;
const ROWS: usize = 2;
const HEADS: usize = 4;
const DIM: usize = 32;
const LAYOUT: CacheLayout =
    CacheLayout { blocks: 1032, kv_heads: 2, block: 64, head_dim: DIM, ..CacheLayout::NONE };

fn attention(device: &mut Wgpu) -> Attention {
    let blocks: Vec<u32> = (0..LAYOUT.blocks as u32).rev().collect();
    let positions: Vec<u32> = (0..ROWS).map(|row| (KEYS - ROWS + row) as u32).collect();
    Attention {
        q: floats(device, &numbers(ROWS * HEADS * DIM, 1)),
        k_cache: floats(device, &numbers(LAYOUT.len(), 2)),
        v_cache: floats(device, &numbers(LAYOUT.len(), 3)),
        layout: LAYOUT,
        positions: integers(device, &positions),
        span_of: integers(device, &[0; ROWS]),
        tables: integers(device, &blocks),
        table_width: LAYOUT.blocks,
        heads: HEADS,
        scale: 0.4,
        window: None,
        out: floats(device, &[f32::NAN; ROWS * HEADS * DIM]),
    }
}

/// What a head of a row mixes, in f64.
fn expected(row: usize, head: usize) -> Vec<f64> {
    let (q, k, v) =
        (numbers(ROWS * HEADS * DIM, 1), numbers(LAYOUT.len(), 2), numbers(LAYOUT.len(), 3));
    let q = &q[(row * HEADS + head) * DIM..][..DIM];
    let kv_head = head / (HEADS / LAYOUT.kv_heads);
    let place = |key: usize| (LAYOUT.blocks - 1 - key / LAYOUT.block, key % LAYOUT.block);
    let keys = KEYS - ROWS + row + 1;
    let score = |key: usize| -> f64 {
        let (id, at) = place(key);
        let number = |i: usize| f64::from(k[LAYOUT.key(id, kv_head, at, i)]) * f64::from(q[i]);
        0.4 * (0..DIM).map(number).sum::<f64>()
    };
    let scores: Vec<f64> = (0..keys).map(score).collect();
    let most = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mixed = |i: usize| {
        let value = |key: usize| {
            let (id, at) = place(key);
            weights[key] * f64::from(v[LAYOUT.value(id, kv_head, at, i)])
        };
        (0..keys).map(value).sum::<f64>() / total
    };
    (0..DIM).map(mixed).collect()
}

#[test]
fn attention_over_many_keys_is_cut_by_keys_and_exact() {
    let mut device = open_device();
    let op = attention(&mut device);
    device.attention(op).expect("attention");
    let whole = contents(&mut device, op.out);
    let before = longest(&device);
    let mut device = open_device();
    let op = attention(&mut device);
    let limit = before / 5;
    device.limit_dispatches(limit);
    device.attention(op).expect("attention");
    assert!(longest(&device) <= limit, "{:?}", longest(&device));
    let cut = contents(&mut device, op.out);
    assert_same_bits("cut by keys", &whole, &cut);
    for (row, head) in [(0, 0), (1, 3)] {
        let found = &cut[(row * HEADS + head) * DIM..][..DIM];
        for (found, expected) in found.iter().zip(expected(row, head)) {
            let off = (f64::from(*found) - expected).abs();
            assert!(off < 2e-6, "row {row}, head {head}: {found}, not {expected}");
        }
    }
}

#[test]
fn a_submission_takes_at_least_what_its_work_takes_and_at_most_what_the_host_saw() {
    let mut device = open_device();
    let op = attention(&mut device);
    // The first time a driver may compile.
    for _ in 0..2 {
        let started = Instant::now();
        device.attention(op).expect("attention");
        let ticket = device.submit().expect("submitted");
        let busy = device.wait(ticket).expect("done");
        // 66,000 keys of two rows, four heads and 32 elements, at 100 GFLOP/s.
        assert!(busy > Duration::from_micros(300), "{busy:?}");
        assert!(busy <= started.elapsed(), "{busy:?}");
    }
}

const SHAPE: DeltaShape = DeltaShape { key_heads: 2, value_heads: 4, dk: 16, dv: 16 };
const STEPS: usize = 600;

/// A delta rule over the first rows of a text, fed in chunks; its outputs and its last state.
fn rule(device: &mut Wgpu, chunk: usize) -> [Vec<f32>; 2] {
    let state = floats(device, &numbers(SHAPE.state_len(), 5));
    let log = floats(device, &vec![0.0; 2 * SHAPE.log_len()]);
    let qkv = floats(device, &numbers(STEPS * SHAPE.channels(), 6));
    let decays: Vec<f32> =
        numbers(STEPS * SHAPE.value_heads, 7).iter().map(|x| 0.97 + 0.02 * x).collect();
    let betas: Vec<f32> =
        numbers(STEPS * SHAPE.value_heads, 8).iter().map(|x| 0.05 + 0.02 * x).collect();
    let (decay, beta) = (floats(device, &decays), floats(device, &betas));
    let out = floats(device, &vec![f32::NAN; STEPS * SHAPE.value_heads * SHAPE.dv]);
    for first in (0..STEPS).step_by(chunk) {
        let rows = chunk.min(STEPS - first);
        let span = SpanEntry {
            rows: rows as u32,
            confirmed: rows as u32,
            start: first as u32,
            ..SpanEntry::default()
        };
        let part = |view: forerun_backend::View, width| view.part(first * width, rows * width);
        let op = DeltaRule {
            qkv: part(qkv, SHAPE.channels()),
            decay: part(decay, SHAPE.value_heads),
            beta: part(beta, SHAPE.value_heads),
            state,
            log,
            spans: Spans { table: integers(device, &span.words()), slots: 1, log_rows: 2 },
            shape: SHAPE,
            out: part(out, SHAPE.value_heads * SHAPE.dv),
        };
        device.delta_rule(op).expect("the rule");
    }
    [contents(device, out), contents(device, state)]
}

#[test]
fn a_state_over_many_chunks_is_finite_and_has_the_bits_of_one() {
    let mut device = open_device();
    let whole = rule(&mut device, STEPS);
    assert!(whole.iter().flatten().all(|x| x.is_finite()));
    let before = longest(&device);
    for chunk in [7, 64] {
        let chunked = rule(&mut open_device(), chunk);
        assert_same_bits(&format!("outputs in chunks of {chunk}"), &whole[0], &chunked[0]);
        assert_same_bits(&format!("state after chunks of {chunk}"), &whole[1], &chunked[1]);
    }
    let mut device = open_device();
    device.limit_dispatches(before / 30);
    let cut = rule(&mut device, STEPS);
    assert!(longest(&device) <= before / 30, "{:?}", longest(&device));
    assert_same_bits("outputs of a cut rule", &whole[0], &cut[0]);
    assert_same_bits("state of a cut rule", &whole[1], &cut[1]);
}
