//! The delta rule and what goes in: `conv.wgsl`, `gates.wgsl`, `delta.wgsl`.

use super::Lowered;
use super::products::fits;
use crate::device::Device;
use crate::kernels::{CONV, DELTA_LOG, DELTA_RULE, GATES, Kernel, UNIT, site};
use crate::launch::{Words, folded, invocations};
use crate::pipelines::Call;
use forerun_backend::op::{DeltaInputs, DeltaRule, DeltaShape};

/// Numbers of state in workgroup memory.
const STATE: usize = 4096;

pub(super) fn delta_inputs(device: &mut Device, op: DeltaInputs) -> Lowered {
    let DeltaShape { key_heads, value_heads, dk, .. } = op.shape;
    let channels = op.shape.channels();
    let taps = device.weights.get(op.weight).info.cols;
    let (rows, spans) = (op.x.len / channels, op.spans.count());
    let site = site("delta_inputs") as usize;
    let weight = device.plain(op.weight)?;
    let words = Words::of(&[
        op.x.start,
        op.window.start,
        op.log.start,
        op.spans.table.start,
        op.qkv.start,
        rows,
        spans,
        op.spans.slots,
        op.spans.log_rows,
        channels,
        taps,
        key_heads,
        dk,
        site,
    ]);
    for (kernel, grid) in [
        (&CONV, [channels.div_ceil(64), spans, 1]),
        (&UNIT, folded(if spans > 0 { rows * 2 * key_heads } else { 0 })),
    ] {
        let memory = &device.memory;
        let call = Call {
            kernel,
            constants: &[],
            operands: &[
                memory.buffer(op.x),
                Some(&weight),
                memory.buffer(op.spans.table),
                memory.buffer(op.window),
                memory.buffer(op.log),
                memory.buffer(op.qkv),
            ],
            words: words.clone(),
            grid,
        };
        Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)?;
    }
    let [rate, bias] = [op.rate, op.dt_bias].map(|id| device.plain(id));
    let (rate, bias) = (rate?, bias?);
    let words = Words::of(&[
        op.a.start,
        op.b.start,
        op.spans.table.start,
        op.decay.start,
        op.beta.start,
        rows,
        spans,
        op.spans.slots,
        op.spans.log_rows,
        value_heads,
        site,
    ]);
    let memory = &device.memory;
    let call = Call {
        kernel: &GATES,
        constants: &[],
        operands: &[
            memory.buffer(op.a),
            memory.buffer(op.b),
            Some(&rate),
            Some(&bias),
            memory.buffer(op.spans.table),
            memory.buffer(op.decay),
            memory.buffer(op.beta),
        ],
        words,
        grid: if spans > 0 { invocations(rows * value_heads) } else { [0; 3] },
    };
    Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)
}

pub(super) fn delta_rule(device: &mut Device, op: DeltaRule) -> Lowered {
    let DeltaShape { key_heads, value_heads, dk, dv } = op.shape;
    fits("delta_rule", dk, STATE / 16)?;
    let columns = if dk <= STATE / 32 { 32 } else { 16 };
    let (rows, spans) = (op.qkv.len / op.shape.channels(), op.spans.count());
    let words = Words::of(&[
        op.qkv.start,
        op.decay.start,
        op.beta.start,
        op.state.start,
        op.log.start,
        op.spans.table.start,
        op.out.start,
        rows,
        spans,
        op.spans.slots,
        op.spans.log_rows,
        key_heads,
        value_heads,
        dk,
        dv,
        site("delta_rule") as usize,
    ]);
    let launches: [(&'static Kernel, [usize; 3]); 2] = [
        (&DELTA_RULE, [dv.div_ceil(columns), value_heads, spans]),
        (&DELTA_LOG, [op.spans.log_rows, spans, 1]),
    ];
    for (kernel, grid) in launches {
        let memory = &device.memory;
        let call = Call {
            kernel,
            constants: &[("COLUMNS", columns as u32)],
            operands: &[
                memory.buffer(op.qkv),
                memory.buffer(op.decay),
                memory.buffer(op.beta),
                memory.buffer(op.spans.table),
                memory.buffer(op.state),
                memory.buffer(op.log),
                memory.buffer(op.out),
            ],
            words: words.clone(),
            grid,
        };
        Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)?;
    }
    Ok(())
}
