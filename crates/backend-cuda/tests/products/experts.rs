//! Experts: against f64, and the same bits in any batch.

use super::stage::{ProductStage, bits, check, product};
use forerun_backend::conform::{fitting_columns, typical_formats};
use forerun_backend::op::Activation;
use forerun_backend_cuda::driver::Address;
use forerun_backend_cuda::products::{
    ExpertStack, ExpertsCall, KernelChoice, Precision, ProductInput,
};
use forerun_base::{Format, Matrix};

const ROUTE: usize = 5;
const TOP_K: usize = 3;

struct ExpertLayer {
    /// Rows of a stack before its first expert.
    before: usize,
    op: ExpertsCall,
    gate_up: Matrix,
    down: Matrix,
    x: Vec<f32>,
    chosen: Vec<u32>,
    weights: Vec<f32>,
}

fn layer(
    stage: &mut ProductStage,
    format: Format,
    [rows, ffn, dim]: [usize; 3],
    before: usize,
) -> ExpertLayer {
    let (gate_up, gates) = stage.weight([before + ROUTE * 2 * ffn, dim], format);
    let (down, downs) = stage.weight([before + ROUTE * dim, ffn], format);
    let x = stage.rng.values(rows * dim);
    let chosen: Vec<u32> =
        (0..rows * TOP_K).map(|i| ((i / TOP_K * i / TOP_K + 7 * i) % ROUTE) as u32).collect();
    let weights = stage.rng.values(rows * TOP_K);
    let stack = |weight, first, stride| ExpertStack { weight, first, stride };
    let op = ExpertsCall {
        x: stage.input(&x, dim),
        chosen: stage.put_words(&chosen),
        weights: stage.put(&weights),
        gate: stack(gate_up, before, 2 * ffn),
        up: stack(gate_up, before + ffn, 2 * ffn),
        down: stack(down, before, dim),
        experts: ROUTE,
        top_k: TOP_K,
        ffn,
        hidden: stage.scratch(rows * TOP_K * ffn),
        partial: stage.scratch(rows * TOP_K * dim),
        out: stage.scratch(rows * dim),
        add: false,
        activation: Activation::Silu,
        fault: (stage.put_words(&[0; 4]), 1),
    };
    ExpertLayer { before, op, gate_up: gates, down: downs, x, chosen, weights }
}

fn run(stage: &mut ProductStage, op: &ExpertsCall, precision: Precision) -> Vec<f32> {
    // SAFETY: the stage made the memory for these sizes.
    let done = unsafe { stage.products.experts(&mut stage.driver, op, precision).unwrap() };
    assert!(done, "the stacks have the same kernels");
    stage.get(op.out, op.x.rows * op.x.dim)
}

fn expected(layer: &ExpertLayer) -> Vec<f64> {
    let (ffn, dim) = (layer.op.ffn, layer.op.x.dim);
    let part = |matrix: &Matrix, from: usize, rows: usize| {
        matrix.select_rows(std::slice::from_ref(&(from..from + rows))).unwrap()
    };
    let mut out = vec![0.0; layer.x.len()];
    for (pair, (&e, &weight)) in layer.chosen.iter().zip(&layer.weights).enumerate() {
        let (row, e) = (pair / TOP_K, e as usize);
        let x = &layer.x[row * dim..(row + 1) * dim];
        let first = layer.before + e * 2 * ffn;
        let [gate, up] =
            [first, first + ffn].map(|first| product(x, &part(&layer.gate_up, first, ffn)));
        let hidden: Vec<f32> =
            gate.iter().zip(&up).map(|(g, u)| (g / (1.0 + (-g).exp()) * u) as f32).collect();
        let down = product(&hidden, &part(&layer.down, layer.before + e * dim, dim));
        for (out, down) in out[row * dim..].iter_mut().zip(down) {
            *out += f64::from(weight) * down;
        }
    }
    out
}

#[test]
fn experts_are_weighted_sums_of_gated_products() {
    let mut stage = ProductStage::new(6);
    for format in typical_formats() {
        let cols = fitting_columns(format, 1);
        let all = [([4, 48, 64], 2), ([1, 19, 33], 2), ([9, 32, 40], 2), ([3, 48, 64], 16)];
        for (sizes, before) in if cols > 1 { &all[2..] } else { &all[..] } {
            let [ffn, dim] = [sizes[1], sizes[2]].map(|n: usize| n.next_multiple_of(cols));
            let layer = layer(&mut stage, format, [sizes[0], ffn, dim], *before);
            let found = run(&mut stage, &layer.op, Precision::Exact);
            let name = layer.op.gate.weight.form();
            check(&format!("{name} {sizes:?}"), &found, &expected(&layer), 5e-6);
        }
    }
}

#[test]
fn experts_of_a_row_have_the_same_bits_in_any_batch_by_any_kernel() {
    let mut stage = ProductStage::new(7);
    for format in typical_formats() {
        for (precision, before, ffn) in
            [(Precision::Half, 16, 48), (Precision::Exact, 16, 128), (Precision::Exact, 2, 48)]
        {
            let [ffn, dim] = [ffn, 64].map(|n| fitting_columns(format, n));
            let layer = layer(&mut stage, format, [23, ffn, dim], before);
            stage.products.choice = KernelChoice::General;
            let all = bits(&run(&mut stage, &layer.op, precision));
            stage.products.choice = KernelChoice::Fastest;
            for (first, rows) in [(0, 1), (5, 2), (11, 9), (0, 23)] {
                let at = |at: Address, width: usize| at.offset((first * width * 4) as u64);
                let op = ExpertsCall {
                    x: ProductInput { at: at(layer.op.x.at, dim), rows, ..layer.op.x },
                    chosen: at(layer.op.chosen, TOP_K),
                    weights: at(layer.op.weights, TOP_K),
                    ..layer.op
                };
                let found = bits(&run(&mut stage, &op, precision));
                assert_eq!(found, all[first * dim..(first + rows) * dim], "{precision:?} {rows}");
            }
        }
    }
}
