//! Sliding windows against attention without one.

use forerun_backend::conform::{ConformCase, ConformStage, cases};
use forerun_backend::op::{Attention, CacheLayout};
use forerun_backend::{Backend, HostDataMut, Op, View};
use forerun_backend_cpu::{Cpu, Level, Tuned, plain};
use forerun_base::bf16_to_f32;

fn devices() -> Vec<(&'static str, Box<dyn Backend>)> {
    let levels = Level::ALL.into_iter().filter_map(|level| {
        let tuned = Tuned::with_isa(level, Some(2))?;
        Some((level.name(), Box::new(Cpu::with_kernels(tuned)) as Box<dyn Backend>))
    });
    levels.chain([("plain", Box::new(plain()) as Box<dyn Backend>)]).collect()
}

fn attention_cases(name: &str) -> Vec<ConformCase> {
    let found =
        |case: &ConformCase| case.op == "attention" && case.rows > 0 && case.name.contains(name);
    cases().into_iter().filter(found).collect()
}

fn set(case: &ConformCase, device: &mut dyn Backend) -> Attention {
    match case.set(&mut ConformStage::new(device, &case.name)).expect("a stage") {
        Op::Attention(op) => op,
        other => panic!("{} is {}", case.name, other.name()),
    }
}

fn floats(device: &mut dyn Backend, view: View) -> Vec<f32> {
    let mut out = vec![0.0; view.len];
    device.read(view, HostDataMut::F32(&mut out)).expect("a view of floats");
    out
}

fn run(device: &mut dyn Backend, op: Attention) -> Vec<u32> {
    device.attention(op).expect("operands fit");
    floats(device, op.out).into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_window_as_long_as_the_sequence_changes_no_bit() {
    for case in attention_cases("many").iter().filter(|case| !case.name.contains("window")) {
        for (name, mut device) in devices() {
            let op = set(case, &mut *device);
            let all = run(&mut *device, op);
            let longest = Attention { window: Some(op.table_width * op.layout.block), ..op };
            assert!(run(&mut *device, longest) == all, "{name} {}", case.name);
        }
    }
}

#[test]
fn a_window_of_one_gives_every_row_its_own_value() {
    let of_one: Vec<ConformCase> = attention_cases("window of 1")
        .into_iter()
        .filter(|case| case.name.ends_with("window of 1"))
        .collect();
    assert!(!of_one.is_empty(), "no case has a window of one");
    for case in of_one {
        for (name, mut device) in devices() {
            let op = set(&case, &mut *device);
            let found: Vec<f32> = run(&mut *device, op).into_iter().map(f32::from_bits).collect();
            let values = floats(&mut *device, op.v_cache);
            let [positions, span_of, tables] = [op.positions, op.span_of, op.tables].map(|view| {
                let mut words = vec![0; view.len];
                device.read(view, HostDataMut::U32(&mut words)).expect("a view of words");
                words
            });
            let layout = op.layout;
            for (i, out) in found.chunks(layout.head_dim).enumerate() {
                let (row, head) = (i / op.heads, i % op.heads / (op.heads / layout.kv_heads));
                let position = positions[row] as usize;
                let entry = span_of[row] as usize * op.table_width + position / layout.block;
                let (id, place) = (tables[entry] as usize, position % layout.block);
                let scale = |element: usize| {
                    if !layout.coded {
                        return 1.0;
                    }
                    let at = layout.scale(id, head, place, element / CacheLayout::GROUP);
                    let bytes = [values[at], values[at + 1]].map(|byte| byte as i8 as u8);
                    bf16_to_f32(u16::from_le_bytes(bytes))
                };
                let value = |i| values[layout.value(id, head, place, i)] * scale(i);
                let value: Vec<f32> = (0..layout.head_dim).map(value).collect();
                assert_eq!(out, value, "{name} {} {i}", case.name);
            }
        }
    }
}
