//! The short convolution and Gated DeltaNet: `delta.cu`.

use super::Done;
use crate::cuda::Device;
use crate::driver::{Address, Args};
use crate::kernels::DELTA;
use crate::queue::site;
use forerun_backend::op::{DeltaGates, DeltaInputs, DeltaRule, DeltaShape, ShortConv, Spans};
use forerun_backend::{BackendError, WeightId};

/// Most taps of a convolution.
const TAPS: usize = 16;
/// Rows up to which a span's rows are convolved one after another, by the threads that then move its window on, with
/// four taps and keys up to 128.
const FEW_ROWS: usize = 64;

fn spans(device: &Device, args: Args, op: &str, spans: &Spans, rows: usize) -> Args {
    args.with(device.memory.at(spans.table))
        .with(device.queue.fault)
        .with(site(op))
        .size(spans.count())
        .size(spans.slots)
        .size(spans.log_rows)
        .size(rows)
        .with(0_u32)
}

fn heads(args: Args, shape: &DeltaShape) -> Args {
    args.size(shape.key_heads).size(shape.value_heads).size(shape.dk).size(shape.dv)
}

/// Taps of a convolution, if they are not too many.
fn taps(device: &Device, op: &'static str, weight: WeightId) -> Result<usize, BackendError> {
    let taps = device.weights.info(weight).map_or(0, |info| info.cols);
    let what = "a convolution of more than 16 taps";
    if taps > TAPS { Err(BackendError::Parameter { op, what }) } else { Ok(taps) }
}

pub(crate) fn short_conv(device: &mut Device, op: ShortConv) -> Done {
    let name = "short_conv";
    let taps = taps(device, name, op.weight)?;
    let (memory, weights) = (&device.memory, &device.weights);
    let rows = op.x.len / op.channels;
    let [input, output] = match op.gates {
        Some(gates) => [gates.input, gates.output].map(|gate| memory.at(gate)),
        None => [Address(0); 2],
    };
    let bias = op.bias.map(|bias| weights.small(name, bias)).transpose()?.unwrap_or(Address(0));
    let args = Args::new()
        .with(memory.at(op.x))
        .with(input)
        .with(output)
        .with(weights.small(name, op.weight)?)
        .with(bias)
        .with(memory.at(op.window))
        .with(memory.at(op.log))
        .with(memory.at(op.out));
    let args = spans(device, args, name, &op.spans, rows)
        .size(op.channels)
        .size(taps)
        .with(u32::from(op.silu))
        .with(0_u32);
    let parts = op.channels.div_ceil(128);
    device.queue.run((&DELTA, "short_conv"), [rows, parts, 1], 128, &args)?;
    device.queue.run((&DELTA, "conv_window"), [parts, op.spans.count(), 1], 128, &args)
}

pub(crate) fn delta_gates(device: &mut Device, op: DeltaGates) -> Done {
    let (shape, name) = (op.shape, "delta_gates");
    let rows = op.qkv.len / shape.channels();
    let (memory, weights) = (&device.memory, &device.weights);
    let args = Args::new()
        .with(memory.at(op.qkv))
        .with(memory.at(op.a))
        .with(memory.at(op.b))
        .with(weights.small(name, op.rate)?)
        .with(weights.small(name, op.dt_bias)?)
        .with(memory.at(op.decay))
        .with(memory.at(op.beta));
    let args = heads(spans(device, args, name, &op.spans, rows), &shape).with(op.beta_scale);
    device.queue.run((&DELTA, "delta_gates"), [rows, 2 * shape.key_heads, 1], 128, &args)
}

pub(crate) fn delta_inputs(device: &mut Device, op: DeltaInputs) -> Done {
    let (shape, name) = (op.shape, "delta_inputs");
    let taps = taps(device, name, op.weight)?;
    let channels = shape.channels();
    let rows = op.x.len / channels;
    let (memory, weights) = (&device.memory, &device.weights);
    let args = Args::new()
        .with(memory.at(op.x))
        .with(memory.at(op.a))
        .with(memory.at(op.b))
        .with(weights.small(name, op.weight)?)
        .with(weights.small(name, op.rate)?)
        .with(weights.small(name, op.dt_bias)?)
        .with(memory.at(op.window))
        .with(memory.at(op.log))
        .with(memory.at(op.qkv))
        .with(memory.at(op.decay))
        .with(memory.at(op.beta));
    let args =
        heads(spans(device, args, name, &op.spans, rows), &shape).with(op.beta_scale).size(taps);
    let parts = 2 * shape.key_heads + (shape.value_heads * shape.dv).div_ceil(128);
    if rows <= FEW_ROWS && taps == 4 && shape.dk <= 128 {
        let grid = [op.spans.count(), parts, 1];
        return device.queue.run((&DELTA, "delta_inputs_few"), grid, 128, &args);
    }
    device.queue.run((&DELTA, "delta_inputs"), [rows, parts, 1], 128, &args)?;
    let grid = [channels.div_ceil(128), op.spans.count(), 1];
    device.queue.run((&DELTA, "delta_window"), grid, 128, &args)
}

pub(crate) fn delta_rule(device: &mut Device, op: DeltaRule) -> Done {
    let shape = op.shape;
    let rows = op.qkv.len / shape.channels();
    let kernel = match shape.dk {
        ..=16 => "delta_rule_4",
        17..=64 => "delta_rule_16",
        65..=128 => "delta_rule_32",
        129..=256 => "delta_rule_64",
        _ => {
            let what = "keys wider than 256";
            return Err(BackendError::Parameter { op: "delta_rule", what });
        }
    };
    let arrived = device.queue.counters(op.spans.count() * shape.key_heads)?;
    let memory = &device.memory;
    let args = Args::new()
        .with(memory.at(op.qkv))
        .with(memory.at(op.decay))
        .with(memory.at(op.beta))
        .with(memory.at(op.state))
        .with(memory.at(op.log))
        .with(memory.at(op.out))
        .with(arrived);
    let args = heads(spans(device, args, "delta_rule", &op.spans, rows), &shape);
    let grid = [op.spans.count(), shape.value_heads, shape.dv.div_ceil(32)];
    device.queue.run((&DELTA, kernel), grid, 128, &args)
}
