//! Partitions of keys that are spread over workgroups and partitions that one workgroup goes through give the same
//! bits.

#[path = "common/device.rs"]
mod adapter;
#[path = "common/stage.rs"]
mod stage;

use adapter::open_device;
use forerun_backend::Backend;
use forerun_backend::op::{Attention, AttentionPart, CacheLayout};
use forerun_backend_wgpu::Wgpu;
use forerun_testkit::tolerance::assert_same_bits;
use stage::{contents, floats, integers, numbers};

const HEADS: usize = 8;
const ROWS: usize = 66;
const FIRST: usize = 3000;
const LAYOUT: CacheLayout =
    CacheLayout { blocks: 60, kv_heads: 2, block: 64, head_dim: 24, ..CacheLayout::NONE };

fn operation(device: &mut Wgpu, window: Option<usize>) -> Attention {
    let wide = ROWS * HEADS * LAYOUT.head_dim;
    let positions: Vec<u32> = (FIRST as u32..).take(ROWS).collect();
    let blocks: Vec<u32> = (0..LAYOUT.blocks as u32).rev().collect();
    Attention {
        q: floats(device, &numbers(wide, 1)),
        k_cache: floats(device, &numbers(LAYOUT.len(), 2)),
        v_cache: floats(device, &numbers(LAYOUT.len(), 3)),
        layout: LAYOUT,
        positions: integers(device, &positions),
        span_of: integers(device, &[0; ROWS]),
        tables: integers(device, &blocks),
        table_width: LAYOUT.blocks,
        heads: HEADS,
        scale: 0.7,
        window,
        out: floats(device, &vec![f32::NAN; wide]),
    }
}

/// The attention of all rows, `rows` at a time and 1024 keys at a time.
fn by_keys(device: &mut Wgpu, op: &Attention, rows: usize) -> Vec<f32> {
    const KEYS: usize = 1024;
    let wide = HEADS * LAYOUT.head_dim;
    let state = floats(device, &vec![f32::NAN; rows * HEADS * AttentionPart::state_width(24)]);
    let last = LAYOUT.blocks * LAYOUT.block;
    for row in (0..ROWS).step_by(rows) {
        let whole = Attention {
            q: op.q.part(row * wide, rows * wide),
            positions: op.positions.part(row, rows),
            span_of: op.span_of.part(row, rows),
            out: op.out.part(row * wide, rows * wide),
            ..*op
        };
        for first in (0..last).step_by(KEYS) {
            let end = first + KEYS;
            let (begins, ends) = (first == 0, end >= last);
            let part = AttentionPart { whole, first, end, begins, ends, state };
            device.attention_part(part).expect("a part");
        }
    }
    contents(device, op.out)
}

#[test]
fn one_row_and_many_and_keys_in_parts_have_the_same_bits_over_several_partitions() {
    let mut device = open_device();
    for window in [None, Some(1500), Some(40)] {
        let op = operation(&mut device, window);
        device.attention(op).expect("attention");
        let together = contents(&mut device, op.out);
        assert!(together.iter().all(|x| x.is_finite()));
        let wide = HEADS * LAYOUT.head_dim;
        for row in 0..ROWS {
            let one = Attention {
                q: op.q.part(row * wide, wide),
                positions: op.positions.part(row, 1),
                span_of: op.span_of.part(row, 1),
                out: op.out.part(row * wide, wide),
                ..op
            };
            device.attention(one).expect("attention");
        }
        let alone = contents(&mut device, op.out);
        assert_same_bits(&format!("window {window:?}"), &together, &alone);
        for rows in [1, ROWS] {
            let parts = by_keys(&mut device, &op, rows);
            assert_same_bits(&format!("keys in parts, window {window:?}"), &together, &parts);
        }
    }
}
