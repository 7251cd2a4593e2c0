//! Products run as CUDA kernels on the CPU, with the arithmetic of the tensor core.
#![expect(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]

mod chains;
mod device;
mod experts;
mod gathered;
mod stage;

use forerun_backend::conform::{all_formats, fitting_columns, typical_formats};
use forerun_backend::op::Activation;
use forerun_backend_cuda::products::{
    ChangeKind, DeviceWeight, GatedOutcome, KernelChoice, Precision, ProductInput, ProductOutput,
    RowChange,
};
use forerun_base::{Codes, DType, Format, ScaleKind};
use stage::{ProductStage, bits, check, product};

/// f32 activations are taken whole.
const EXACT: f64 = 3e-6;

fn grouped(codes: Codes, group: usize, scale: ScaleKind, offset: bool) -> Format {
    Format::Grouped { codes, group, scale, offset }
}

#[test]
fn every_format_gives_the_product_of_its_numbers() {
    let mut stage = ProductStage::new(1);
    // Other kernels have a text for each kind of weight; those of typical formats are tested below.
    stage.products.choice = KernelChoice::General;
    for format in all_formats() {
        let (rows, cols) = (21, fitting_columns(format, 200));
        let (weight, matrix) = stage.weight([rows, cols], format);
        let x = stage.rng.values(3 * cols);
        let (input, output) = (stage.input(&x, cols), stage.output(weight, 3));
        // SAFETY: the stage made the memory for these sizes.
        unsafe {
            let (products, driver) = (&mut stage.products, &mut stage.driver);
            products.linears(driver, input, &[output], Precision::Exact).unwrap();
        }
        let found = stage.get(output.at, 3 * rows);
        check(&weight.form(), &found, &product(&x, &matrix), EXACT);
    }
}

#[test]
fn awkward_sizes_bias_and_sums_are_kept_apart() {
    let mut stage = ProductStage::new(2);
    for format in typical_formats() {
        for (rows, cols, tokens, channels) in
            [(1, 1, 2, 1), (33, 65, 9, 33), (16, 16, 1, 16), (50, 130, 2, 17), (2, 300, 17, 2)]
        {
            let cols = fitting_columns(format, cols);
            let (weight, matrix) = stage.weight([rows, cols], format);
            let x = stage.rng.values(tokens * cols);
            let (bias, before) = (stage.rng.values(rows), stage.rng.values(tokens * channels));
            let input = stage.input(&x, cols);
            let (bias_at, at) = (stage.put(&bias), stage.put(&before));
            let output = ProductOutput { weight, bias: Some(bias_at), channels, at, add: true };
            // SAFETY: the stage made the memory for these sizes.
            unsafe {
                let (products, driver) = (&mut stage.products, &mut stage.driver);
                products.linears(driver, input, &[output], Precision::Exact).unwrap();
            }
            let found = stage.get(at, tokens * channels);
            let all = product(&x, &matrix);
            let expected: Vec<f64> = (0..tokens * channels)
                .map(|i| {
                    let (token, channel) = (i / channels, i % channels);
                    all[token * rows + channel] + f64::from(bias[channel]) + f64::from(before[i])
                })
                .collect();
            check(&weight.form(), &found, &expected, EXACT);
        }
    }
}

/// Formats with kernels of their own and widths that have four segments.
fn served() -> Vec<(Format, usize)> {
    vec![
        (Format::Dense(DType::BF16), 2048),
        (grouped(Codes::E4m3, 128, ScaleKind::F32, false), 2048),
        (grouped(Codes::Uint { bits: 4 }, 64, ScaleKind::BF16, true), 2048),
        (grouped(Codes::Int { bits: 8 }, 32, ScaleKind::F16, false), 384),
        (grouped(Codes::Uint { bits: 4 }, 32, ScaleKind::Nested, true), 2048),
    ]
}

/// The product of some rows, by a choice of kernels.
fn rows_by(
    stage: &mut ProductStage,
    weights: &[DeviceWeight],
    x: &[f32],
    precision: Precision,
    choice: KernelChoice,
) -> Vec<Vec<u32>> {
    let cols = weights[0].cols;
    let rows = x.len() / cols;
    let input = stage.input(x, cols);
    let outputs: Vec<ProductOutput> =
        weights.iter().map(|&weight| stage.output(weight, rows)).collect();
    stage.products.choice = choice;
    // SAFETY: the stage made the memory for these sizes.
    unsafe {
        let (products, driver) = (&mut stage.products, &mut stage.driver);
        products.linears(driver, input, &outputs, precision).unwrap();
    }
    outputs.iter().map(|output| bits(&stage.get(output.at, rows * output.channels))).collect()
}

#[test]
fn a_row_has_the_same_bits_in_any_number_of_rows_by_any_kernel() {
    let mut stage = ProductStage::new(3);
    for (format, cols) in served() {
        let weights = [24, 100].map(|rows| stage.weight([rows, cols], format).0);
        let x = stage.rng.values(40 * cols);
        for precision in [Precision::Half, Precision::Exact] {
            let all = rows_by(&mut stage, &weights, &x, precision, KernelChoice::General);
            for (from, rows) in [(7, 1), (3, 2), (11, 5), (16, 10), (1, 19), (3, 37)] {
                let x = &x[from * cols..(from + rows) * cols];
                let found = rows_by(&mut stage, &weights, x, precision, KernelChoice::Fastest);
                for ((found, all), weight) in found.iter().zip(&all).zip(&weights) {
                    let n = weight.rows;
                    let name = format!("{} {rows} {precision:?}", weight.form());
                    assert_eq!(*found, all[from * n..(from + rows) * n], "{name}");
                }
            }
        }
    }
}

#[test]
fn activations_that_do_not_fit_in_shared_memory_change_no_bit() {
    let mut stage = ProductStage::new(8);
    let u4 = grouped(Codes::Uint { bits: 4 }, 64, ScaleKind::BF16, true);
    for format in [Format::Dense(DType::BF16), u4] {
        let cols = 15360;
        let weights = [stage.weight([200, cols], format).0];
        let x = stage.rng.values(9 * cols);
        let all = rows_by(&mut stage, &weights, &x, Precision::Half, KernelChoice::General);
        let found = rows_by(&mut stage, &weights, &x, Precision::Half, KernelChoice::Fastest);
        assert_eq!(found, all, "{}", weights[0].form());
    }
}

#[test]
fn half_precision_multiplies_activations_rounded_to_bfloat16() {
    let mut stage = ProductStage::new(4);
    for (format, cols) in served() {
        let (weight, matrix) = stage.weight([24, cols], format);
        let x: Vec<f32> = stage.rng.values(2 * cols);
        let (input, output) = (stage.input(&x, cols), stage.output(weight, 2));
        // SAFETY: the stage made the memory for these sizes.
        unsafe {
            let (products, driver) = (&mut stage.products, &mut stage.driver);
            products.linears(driver, input, &[output], Precision::Half).unwrap();
        }
        let rounded: Vec<f32> =
            x.iter().map(|&v| forerun_base::bf16_to_f32(forerun_base::f32_to_bf16(v))).collect();
        let found = stage.get(output.at, 2 * 24);
        check(&weight.form(), &found, &product(&rounded, &matrix), 1e-5);
    }
}

#[test]
fn a_norm_gates_and_several_weights_are_taken_along() {
    let mut stage = ProductStage::new(5);
    for format in typical_formats() {
        let (tokens, cols) = (3, fitting_columns(format, 150));
        let (gate, gates) = stage.weight([37, cols], format);
        let (up, ups) = stage.weight([37, cols], format);
        let x = stage.rng.values(tokens * cols);
        let (norm, factors) = stage.norm(cols);
        let input = stage.input(&x, cols);
        let change = Some(RowChange { kind: ChangeKind::Norm(norm), into: None });
        let input = ProductInput { change, ..input };
        let normed: Vec<f32> = x
            .chunks_exact(cols)
            .flat_map(|row| {
                let squares: f64 = row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
                let by = 1.0 / (squares / cols as f64 + 1e-5).sqrt();
                row.iter()
                    .zip(&factors)
                    .map(move |(v, f)| (f64::from(*v) * by * f64::from(*f)) as f32)
            })
            .collect();
        let [first, second] = [&gates, &ups].map(|matrix| product(&normed, matrix));
        let outputs = [gate, up].map(|weight| stage.output(weight, tokens));
        for activation in [Activation::Silu, Activation::GeluTanh] {
            // SAFETY: the stage made the memory for these sizes.
            let done = unsafe {
                let (products, driver) = (&mut stage.products, &mut stage.driver);
                let how = (Precision::Exact, None);
                products.gated(driver, input, outputs, activation, how).unwrap()
            };
            assert!(matches!(done, GatedOutcome::Done(None)), "both weights have the same kernels");
            let function = |x: f64| match activation {
                Activation::Silu => x / (1.0 + (-x).exp()),
                Activation::GeluTanh => {
                    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                    0.5 * x * (1.0 + inner.tanh())
                }
                Activation::Relu => x.max(0.0),
                Activation::ClampedSilu { .. } => unreachable!("it is refused"),
            };
            let expected: Vec<f64> =
                first.iter().zip(&second).map(|(g, u)| function(*g) * u).collect();
            check(&gate.form(), &stage.get(outputs[0].at, tokens * 37), &expected, EXACT);
        }
        // SAFETY: the stage made the memory for these sizes.
        unsafe {
            let (products, driver) = (&mut stage.products, &mut stage.driver);
            products.linears(driver, input, &outputs, Precision::Exact).unwrap();
        }
        check(&gate.form(), &stage.get(outputs[0].at, tokens * 37), &first, EXACT);
        check(&gate.form(), &stage.get(outputs[1].at, tokens * 37), &second, EXACT);
    }
}
