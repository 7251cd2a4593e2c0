//! Gated DeltaNet: `delta.cu`.

use super::Done;
use crate::cuda::Device;
use crate::driver::Args;
use crate::kernels::DELTA;
use crate::queue::site;
use forerun_backend::BackendError;
use forerun_backend::op::{DeltaInputs, DeltaRule, DeltaShape, Spans};

/// Most taps of a convolution.
const TAPS: usize = 16;

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

pub(crate) fn delta_inputs(device: &mut Device, op: DeltaInputs) -> Done {
    let (shape, name) = (op.shape, "delta_inputs");
    let taps = device.weights.info(op.weight).map_or(0, |info| info.cols);
    if taps > TAPS {
        return Err(BackendError::Parameter {
            op: name,
            what: "a convolution of more than 16 taps",
        });
    }
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
    let args = heads(spans(device, args, name, &op.spans, rows), &shape).size(taps);
    let parts = 2 * shape.key_heads + (shape.value_heads * shape.dv).div_ceil(128);
    device.queue.run((&DELTA, "delta_inputs"), [rows, parts, 1], 128, &args)?;
    let grid = [channels.div_ceil(128), op.spans.count(), 1];
    device.queue.run((&DELTA, "delta_window"), grid, 128, &args)
}

pub(crate) fn delta_rule(device: &mut Device, op: DeltaRule) -> Done {
    let (shape, memory) = (op.shape, &device.memory);
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
    let args = Args::new()
        .with(memory.at(op.qkv))
        .with(memory.at(op.decay))
        .with(memory.at(op.beta))
        .with(memory.at(op.state))
        .with(memory.at(op.log))
        .with(memory.at(op.out));
    let args = heads(spans(device, args, "delta_rule", &op.spans, rows), &shape);
    let grid = [op.spans.count(), shape.value_heads, shape.dv.div_ceil(32)];
    device.queue.run((&DELTA, kernel), grid, 128, &args)?;
    if op.spans.log_rows == 0 {
        return Ok(());
    }
    device.queue.run((&DELTA, "delta_log"), [rows, 1, 1], 128, &args)
}
