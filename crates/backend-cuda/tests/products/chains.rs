//! Operations of a program that run together leave what they leave one by one, bit for bit.

use super::device::{DeviceStage, emulated};
use forerun_backend::op::{
    Activation, AddGated, GateMul, GatedLinear, GatedNorm, InputNorm, Linear, LinearPart, Linears,
    RmsNorm, Store,
};
use forerun_backend::{Backend, Op, Program, View};
use forerun_base::{Codes, DType, Format, ScaleKind};

/// Wider than rows that a warp norms.
const WIDE: usize = 1088;
const INNER: usize = 256;

struct Chain {
    ops: Vec<Op>,
    /// What the operations change.
    views: Vec<View>,
}

/// A stretch of a layer with each pair of operations that runs together; weights of `format`, some of bfloat16.
fn chain(stage: &mut DeviceStage<'_>, format: Format, rows: usize) -> Chain {
    let bf16 = Format::Dense(DType::BF16);
    let f32 = Format::Dense(DType::F32);
    let eps = 1e-5;
    let resid = stage.numbers(rows * WIDE);
    let [normed, room] = [(); 2].map(|()| stage.numbers(rows * WIDE));
    let [heads, gate, up] = [(); 3].map(|()| stage.numbers(rows * INNER));
    let [a, b] = [(); 2].map(|()| stage.numbers(rows * 20));
    let share = stage.numbers(rows);
    let [ones, of_heads] = [WIDE, 64].map(|cols| stage.weight([1, cols], f32));
    let wide = |stage: &mut DeviceStage<'_>, format| stage.weight([INNER, WIDE], format);
    let [into_heads, into_gate, into_up] = [(); 3].map(|()| wide(stage, format));
    let [of_a, of_b] = [(); 2].map(|()| stage.weight([20, WIDE], bf16));
    let back = stage.weight([WIDE, INNER], format);
    let part = |weight, out| Some(LinearPart { weight, bias: None, out });
    let add = |x| Linear { store: Store::Add, ..Linear::set(x, back, resid) };
    let norm = Some(InputNorm { weight: ones, dim: WIDE, eps, room });
    let ops: Vec<Op> = vec![
        Linears {
            x: resid,
            norm,
            parts: [part(of_a, a), part(into_heads, heads), part(into_gate, gate), part(of_b, b)],
        }
        .into(),
        GatedNorm { x: heads, gate, weight: of_heads, dim: 64, eps }.into(),
        add(heads).into(),
        Linear::set(resid, into_heads, heads).into(),
        Linear::set(resid, into_gate, gate).into(),
        GateMul { x: heads, gate }.into(),
        add(heads).into(),
        RmsNorm { x: resid, weight: ones, out: normed, dim: WIDE, eps }.into(),
        Linear::set(normed, of_a, a).into(),
        GatedLinear {
            x: normed,
            norm: None,
            gate: into_gate,
            up: into_up,
            activation: Activation::Silu,
            scratch: up,
            out: gate,
        }
        .into(),
        add(gate).into(),
        Linear::set(normed, of_b, b).into(),
        Linear::set(normed, ones, share).into(),
        AddGated { x: normed, gate: share, out: resid }.into(),
    ];
    Chain { ops, views: vec![resid, normed, heads, gate, a, b, share] }
}

/// What a run of the chain leaves, over what earlier runs left.
fn after(
    device: &mut dyn Backend,
    chain: &Chain,
    run: impl FnOnce(&mut dyn Backend),
) -> Vec<Vec<u32>> {
    run(device);
    let mut stage = DeviceStage::new(device, "unused");
    let read = |view: &View| stage.read(*view).iter().map(|v| v.to_bits()).collect();
    chain.views.iter().map(read).collect()
}

#[test]
fn a_program_leaves_the_bits_of_its_operations_one_by_one() {
    let fp8 =
        Format::Grouped { codes: Codes::E4m3, group: 128, scale: ScaleKind::F32, offset: false };
    let (codes, scale) = (Codes::Uint { bits: 4 }, ScaleKind::BF16);
    let u4 = Format::Grouped { codes, group: 64, scale, offset: true };
    for format in [fp8, u4, Format::Dense(DType::BF16), Format::Dense(DType::F16)] {
        for rows in [1, 3] {
            let [mut alone, mut together] = [emulated(), emulated()];
            let one = chain(&mut DeviceStage::new(&mut alone, "chain"), format, rows);
            let other = chain(&mut DeviceStage::new(&mut together, "chain"), format, rows);
            let mut program = Program::with_capacity(other.ops.len());
            program.rewrite().extend(&other.ops);
            together.prepare(&mut program).unwrap();
            // A program is run as it is, then recorded, then replayed.
            for turn in 0..3 {
                let expected = after(&mut alone, &one, |device| {
                    one.ops.iter().for_each(|op| op.apply(device).unwrap());
                });
                let found = after(&mut together, &other, |device| device.run(&program).unwrap());
                assert_eq!(found, expected, "{} of {rows} rows, run {turn}", format.name());
            }
        }
    }
}
