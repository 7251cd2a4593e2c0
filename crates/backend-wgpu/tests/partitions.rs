//! Partitions of keys that are spread over workgroups and partitions that one workgroup goes through give the same bits.

use forerun_backend::op::{Attention, CacheLayout};
use forerun_backend::{
    Backend, BufferRole, BufferSpec, HostData, HostDataMut, View, submit_and_wait,
};
use forerun_backend_wgpu::{AdapterChoice, Api, Pick, Wgpu};
use forerun_base::DType;
use forerun_testkit::tolerance::assert_same_bits;

const HEADS: usize = 8;
const ROWS: usize = 66;
const FIRST: usize = 3000;
const LAYOUT: CacheLayout =
    CacheLayout { blocks: 60, kv_heads: 2, block: 64, head_dim: 24, coded: false };

fn numbers(len: usize, salt: u32) -> Vec<f32> {
    let mut state = salt;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn floats(device: &mut Wgpu, values: &[f32]) -> View {
    let (dtype, len) = (DType::F32, values.len());
    let spec = BufferSpec { label: "floats", dtype, len, role: BufferRole::Scratch };
    let view = View::head(device.alloc(spec).expect("memory"), len);
    device.write(view, HostData::F32(values)).expect("written");
    view
}

fn integers(device: &mut Wgpu, values: &[u32]) -> View {
    let (dtype, len) = (DType::U32, values.len());
    let spec = BufferSpec { label: "integers", dtype, len, role: BufferRole::Scratch };
    let view = View::head(device.alloc(spec).expect("memory"), len);
    device.write(view, HostData::U32(values)).expect("written");
    view
}

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

fn result(device: &mut Wgpu, op: &Attention) -> Vec<f32> {
    submit_and_wait(device).expect("attention");
    let mut found = vec![0.0; op.out.len];
    device.read(op.out, HostDataMut::F32(&mut found)).expect("read");
    found
}

#[test]
fn one_row_and_many_have_the_same_bits_over_several_partitions() {
    let choice = AdapterChoice { api: Api::Any, pick: Pick::Software };
    let mut device = Wgpu::open(choice).expect("an adapter");
    for window in [None, Some(1500), Some(40)] {
        let op = operation(&mut device, window);
        device.attention(op).expect("attention");
        let together = result(&mut device, &op);
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
        let alone = result(&mut device, &op);
        assert_same_bits(&format!("window {window:?}"), &together, &alone);
    }
}
