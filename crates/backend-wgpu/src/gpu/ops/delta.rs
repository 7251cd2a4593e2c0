//! The short convolution and the delta rule: `conv.wgsl`, `delta_gates.wgsl`, `delta.wgsl`, `delta_log.wgsl`.

use super::Lowered;
use super::attention::fits;
use crate::gpu::kernels::{CONV, DELTA_GATES, DELTA_LOG, DELTA_RULE, site};
use crate::gpu::launch::{BoundOperand, Call, Words, folded};
use crate::gpu::lowering::{Lowering, bound, bound_or_absent, plain, portion};
use forerun_backend::op::{DeltaGates, DeltaRule, DeltaShape, GatedNorm, ShortConv};
use forerun_backend::{Cost, View};

/// Numbers of state in workgroup memory.
const STATE: usize = 4096;

/// Bits of `flags` in the convolution's text.
const SILU: usize = 1;
const HAS_BIAS: usize = 2;
const HAS_GATES: usize = 4;

pub(super) fn short_conv(to: &mut Lowering<'_>, op: ShortConv) -> Lowered {
    let channels = op.channels;
    let taps = to.info(op.weight).cols;
    let (rows, spans) = (op.x.len / channels, op.spans.count());
    let gates = [op.gates.map(|gates| gates.input), op.gates.map(|gates| gates.output)];
    let [gate_in, gate_out] = gates.map(|gate: Option<View>| gate.map_or(0, |gate| gate.start));
    let flags = if op.silu { SILU } else { 0 }
        | if op.bias.is_some() { HAS_BIAS } else { 0 }
        | if op.gates.is_some() { HAS_GATES } else { 0 };
    let starts = [op.x, op.window, op.log, op.spans.table, op.out].map(|view| view.start);
    let sizes = [rows, spans, op.spans.slots, op.spans.log_rows, channels, taps];
    let words = Words::of(&starts).and_then(|words| {
        words.sizes(&sizes)?.sizes(&[flags, gate_in, gate_out, site("short_conv") as usize])
    });
    let [gate_in, gate_out] = gates.map(bound_or_absent);
    let operands = vec![
        bound(op.x),
        BoundOperand::Plain(op.weight),
        plain(op.bias),
        bound(op.spans.table),
        bound(op.window),
        bound(op.log),
        bound(op.out),
        gate_in,
        gate_out,
    ];
    for share in to.shares(to.work(op), channels, 64) {
        to.calls.push(Call {
            kernel: &CONV,
            constants: Vec::new(),
            operands: operands.clone(),
            words: words.clone().and_then(|words| words.sizes(&[share.first])),
            grid: [share.count.div_ceil(64), spans, 1],
            work: share.work,
        });
    }
    Ok(())
}

pub(super) fn delta_gates(to: &mut Lowering<'_>, op: DeltaGates) -> Lowered {
    let DeltaShape { key_heads, value_heads, dk, .. } = op.shape;
    let channels = op.shape.channels();
    let (rows, spans) = (op.qkv.len / channels, op.spans.count());
    let views = [op.qkv, op.a, op.b, op.spans.table, op.decay, op.beta];
    let words = Words::of(&views.map(|view| view.start)).and_then(|words| {
        let words = words.sizes(&[rows, spans, op.spans.slots, op.spans.log_rows])?;
        let sizes = [key_heads, value_heads, dk, channels, site("delta_gates") as usize];
        Some(words.sizes(&sizes)?.float(op.beta_scale))
    });
    to.calls.push(Call {
        kernel: &DELTA_GATES,
        constants: Vec::new(),
        operands: vec![
            bound(op.a),
            bound(op.b),
            BoundOperand::Plain(op.rate),
            BoundOperand::Plain(op.dt_bias),
            bound(op.spans.table),
            bound(op.qkv),
            bound(op.decay),
            bound(op.beta),
        ],
        words,
        grid: folded(if spans > 0 { rows * (2 * key_heads + 1) } else { 0 }),
        work: to.work(op),
    });
    Ok(())
}

/// The delta rule, and perhaps the gated norm of what it gives.
pub(super) fn delta_rule(to: &mut Lowering<'_>, op: DeltaRule, norm: Option<GatedNorm>) -> Lowered {
    let DeltaShape { key_heads, value_heads, dk, dv } = op.shape;
    fits("delta_rule", dk, STATE / 16)?;
    let columns = if dk <= STATE / 32 { 32 } else { 16 };
    let (rows, spans) = (op.qkv.len / op.shape.channels(), op.spans.count());
    let views = [op.qkv, op.decay, op.beta, op.state, op.log, op.spans.table, op.out];
    let words = Words::of(&views.map(|view| view.start)).and_then(|words| {
        let words = words.sizes(&[rows, spans, op.spans.slots, op.spans.log_rows])?;
        words.sizes(&[key_heads, value_heads, dk, dv, site("delta_rule") as usize])
    });
    let operands = [op.qkv, op.decay, op.beta, op.spans.table, op.state, op.log, op.out].map(bound);
    for heads in to.shares(to.work(op), value_heads, 1) {
        // Rows of a span follow each other: what one call leaves in the slot is what the next one goes on with.
        let shares = to.shares(heads.work, rows.max(1), 1);
        let last = shares.len() - 1;
        for (i, share) in shares.into_iter().enumerate() {
            let end = if i == last { u32::MAX as usize } else { share.first + share.count };
            let place = [heads.first, share.first, end];
            to.calls.push(Call {
                kernel: &DELTA_RULE,
                constants: vec![("COLUMNS", columns as u32)],
                operands: operands.to_vec(),
                words: words.clone().and_then(|words| words.sizes(&place)),
                grid: [dv.div_ceil(columns), heads.count, spans],
                work: share.work,
            });
        }
    }
    log_and_norm(to, &op, norm);
    Ok(())
}

/// Drafts to the log, and the norm.
fn log_and_norm(to: &mut Lowering<'_>, op: &DeltaRule, norm: Option<GatedNorm>) {
    let DeltaShape { key_heads, value_heads, dk, dv } = op.shape;
    let (rows, spans) = (op.qkv.len / op.shape.channels(), op.spans.count());
    let heads = norm.map_or(0, |norm| norm.x.len / norm.dim);
    let start = |view: Option<View>| view.map_or(0, |view| view.start);
    let (x, gate) = (norm.map(|norm| norm.x), norm.map(|norm| norm.gate));
    let views = [op.qkv, op.decay, op.beta, op.log, op.spans.table].map(|view| view.start);
    let words = Words::of(&views).and_then(|words| {
        let words = words.sizes(&[rows, spans, op.spans.slots, op.spans.log_rows])?;
        let words = words.sizes(&[key_heads, value_heads, dk, dv, site("delta_rule") as usize])?;
        Some(words.sizes(&[start(x), start(gate), heads])?.float(norm.map_or(1.0, |norm| norm.eps)))
    });
    let logged = spans * op.spans.log_rows;
    let log = portion(Cost { bytes: 8, ..Cost::default() }, logged * op.shape.log_len(), 1);
    let inputs = [op.qkv, op.decay, op.beta, op.spans.table, op.log].map(bound);
    let rest = [plain(norm.map(|norm| norm.weight)), bound_or_absent(gate), bound_or_absent(x)];
    to.calls.push(Call {
        kernel: &DELTA_LOG,
        constants: Vec::new(),
        operands: inputs.into_iter().chain(rest).collect(),
        words,
        grid: folded(logged + heads),
        work: log + to.elements(heads * dv),
    });
}
