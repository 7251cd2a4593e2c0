//! Products with weights: every format once, every awkward size with the typical ones.

use super::ConformCase;
use crate::BackendError;
use crate::conform::ConformStage;
use crate::conform::matrices::{all_formats, fitting_columns, format_name, typical_formats};
use crate::op::{Activation, Channels, GatedLinear, InputNorm, Linear, LinearPart, Linears, Store};
use forerun_base::Format;

#[derive(Clone, Copy)]
struct LinearSizes {
    rows: usize,
    n: usize,
    k: usize,
}

pub(super) fn cases() -> Vec<ConformCase> {
    let mut cases = Vec::new();
    for format in all_formats() {
        // 200 columns: no group width divides it, so every last group is short.
        let sizes = LinearSizes { rows: 3, n: 37, k: 200 };
        cases.push(linear(format, sizes, Store::Set, false));
        cases.push(first_channels(format, sizes, 21));
        for normed in [false, true] {
            let sizes = LinearSizes { rows: 2, n: 19, k: 128 };
            cases.push(gated_linear(format, sizes, Activation::Silu, normed));
            cases.push(linears(&[format], &[37, 5, 16], 3, normed));
        }
    }
    for format in typical_formats() {
        for rows in [0, 1, 2, 5, 17, 65, 130] {
            for (n, k) in [(1, 1), (16, 64), (33, 65)] {
                cases.push(linear(format, LinearSizes { rows, n, k }, Store::Add, true));
            }
        }
        for rows in [1, 4, 33] {
            for channels in [0, 1, 64, 130, 131] {
                cases.push(first_channels(format, LinearSizes { rows, n: 131, k: 257 }, channels));
            }
            cases.push(linear(format, LinearSizes { rows, n: 131, k: 257 }, Store::Set, false));
            cases.push(linear(format, LinearSizes { rows, n: 64, k: 256 }, Store::Add, false));
            cases.push(linear(format, LinearSizes { rows, n: 48, k: 320 }, Store::Set, true));
            for activation in [Activation::Silu, Activation::GeluTanh, Activation::Relu] {
                cases.push(gated_linear(
                    format,
                    LinearSizes { rows, n: 33, k: 65 },
                    activation,
                    false,
                ));
            }
        }
        let rows = [0, 1, 2, 4, 17, 70].map(|rows| (rows, false));
        for (rows, normed) in rows.into_iter().chain([1, 9, 130].map(|rows| (rows, true))) {
            cases.push(linears(&[format], &[130, 33, 6, 6], rows, normed));
            cases.push(linears(&[format], &[16, 96], rows, normed));
            // What lies in another order cannot be cut together.
            let [first, .., last] = &typical_formats()[..] else { unreachable!("there are some") };
            cases.push(linears(&[format, *last, format, *first], &[64, 48, 33, 7], rows, normed));
        }
        for (rows, n, k, normed) in [(0, 16, 64, true), (16, 66, 192, true), (70, 130, 192, false)]
        {
            cases.push(gated_linear(format, LinearSizes { rows, n, k }, Activation::Silu, normed));
        }
        let none = LinearSizes { rows: 0, n: 16, k: 64 };
        cases.push(gated_linear(format, none, Activation::GeluTanh, false));
    }
    cases
}

fn linear(format: Format, sizes: LinearSizes, store: Store, biased: bool) -> ConformCase {
    let LinearSizes { rows, n, k } = sizes;
    let k = fitting_columns(format, k);
    let bias = if biased { ", bias" } else { "" };
    let name = format!("{}, {rows} rows, [{n}, {k}], {store:?}{bias}", format_name(format));
    ConformCase::new("linear", name, rows, move |stage| {
        let x = stage.random("x", rows * k)?;
        let weight = stage.matrix([n, k], format)?;
        let bias = if biased { Some(stage.norm_weight(n)?) } else { None };
        let before = stage.rng.values(rows * n);
        let out = match store {
            Store::Set => stage.output("out", rows * n)?,
            Store::Add => stage.updated("out", &before)?,
        };
        Ok(Linear { x, weight, bias, channels: None, out, store }.into())
    })
}

fn first_channels(format: Format, sizes: LinearSizes, channels: usize) -> ConformCase {
    let LinearSizes { rows, n, k } = sizes;
    let k = fitting_columns(format, k);
    let name = format!("{}, {rows} rows, first {channels} of [{n}, {k}]", format_name(format));
    ConformCase::new("linear", name, rows, move |stage| {
        let x = stage.random("x", rows * k)?;
        let weight = stage.matrix([n, k], format)?;
        let out = stage.output("out", rows * channels)?;
        Ok(Linear { channels: Some(Channels::head(channels)), ..Linear::set(x, weight, out) }
            .into())
    })
}

/// A norm for rows of `dim`.
fn input_norm(
    stage: &mut ConformStage<'_>,
    [rows, dim]: [usize; 2],
) -> Result<Option<InputNorm>, BackendError> {
    let (weight, room) = (stage.norm_weight(dim)?, stage.scratch("room", rows * dim)?);
    Ok(Some(InputNorm { weight, dim, eps: 1e-5, room }))
}

/// Weights of these formats and channels; the second has a bias.
fn linears(formats: &[Format], ns: &[usize], rows: usize, normed: bool) -> ConformCase {
    let k = formats.iter().fold(192, |k, &format| fitting_columns(format, k));
    let name: Vec<String> = formats.iter().map(|&format| format_name(format)).collect();
    let norm = if normed { ", normed" } else { "" };
    let name = format!("{}, {rows} rows{norm}, {ns:?} x {k}", name.join(" and "));
    let (formats, ns) = (formats.to_vec(), ns.to_vec());
    ConformCase::new("linears", name, rows, move |stage| {
        let x = stage.random("x", rows * k)?;
        let norm = if normed { input_norm(stage, [rows, k])? } else { None };
        let mut parts = [None; Linears::MOST];
        for (i, (&n, part)) in ns.iter().zip(&mut parts).enumerate() {
            let weight = stage.matrix([n, k], formats[i % formats.len()])?;
            let bias = if i == 1 { Some(stage.norm_weight(n)?) } else { None };
            let out = stage.output(["first", "second", "third", "fourth"][i], rows * n)?;
            *part = Some(LinearPart { weight, bias, out });
        }
        Ok(Linears { x, norm, parts }.into())
    })
}

fn gated_linear(
    format: Format,
    sizes: LinearSizes,
    activation: Activation,
    normed: bool,
) -> ConformCase {
    let LinearSizes { rows, n, k } = sizes;
    let k = fitting_columns(format, k);
    let norm = if normed { ", normed" } else { "" };
    let name = format!("{}, {rows} rows{norm}, [{n}, {k}], {activation:?}", format_name(format));
    ConformCase::new("gated_linear", name, rows, move |stage| {
        let x = stage.random("x", rows * k)?;
        let norm = if normed { input_norm(stage, [rows, k])? } else { None };
        let gate = stage.matrix([n, k], format)?;
        // Relu of a product times itself: an MLP without a gate.
        let alone = activation == Activation::Relu;
        let up = if alone { gate } else { stage.matrix([n, k], format)? };
        let scratch = stage.scratch("scratch", rows * n)?;
        let out = stage.output("out", rows * n)?;
        Ok(GatedLinear { x, norm, gate, up, scratch, out, activation }.into())
    })
}
