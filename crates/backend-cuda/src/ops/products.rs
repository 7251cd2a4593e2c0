//! Embedding and products with weights.

use super::elementwise::number_of;
use super::{Done, glu};
use crate::cuda::Device;
use crate::driver::Args;
use crate::kernels::CANONICAL;
use crate::products::{
    self, ChangeKind, Columns, ExpertStack, GatedOutcome, GatheredRows, Precision, ProductInput,
    ProductNorm, ProductOutput, RowChange,
};
use crate::queue::site;
use forerun_backend::op::{
    ClusterHead, Embed, ExpertRows, Experts, GatedLinear, Glu, InputNorm, Linear, LinearPart,
    Linears, Store,
};
use forerun_backend::{BackendError, View};

/// Rows below which one is shared by several blocks.
const FEW_ROWS: usize = 64;

pub(crate) fn embed(device: &mut Device, op: Embed) -> Done {
    let args = device
        .weights
        .fields(Args::new(), op.table)
        .with(device.memory.at(op.ids))
        .with(device.memory.at(op.out))
        .with(device.queue.fault)
        .with(site("embed"))
        .with(op.scale);
    // Few rows are shared by several blocks.
    let dim = device.weights.get(op.table).cols;
    let pieces = if op.ids.len < FEW_ROWS { dim.div_ceil(256) } else { 1 };
    device.queue.run((&CANONICAL, "embed"), [op.ids.len, pieces, 1], 256, &args)
}

/// One weight of a call.
fn output(
    device: &Device,
    op: &'static str,
    part: LinearPart,
    channels: Option<usize>,
) -> Result<ProductOutput, BackendError> {
    let weight = device.weights.get(part.weight);
    let bias = part.bias.map(|id| device.weights.small(op, id)).transpose()?;
    let (channels, at) = (channels.unwrap_or(weight.rows), device.memory.at(part.out));
    Ok(ProductOutput { weight, bias, channels, at, add: false })
}

/// Rows that are multiplied, of a weight's width.
pub(super) fn input(
    device: &Device,
    x: View,
    cols: usize,
    norm: Option<InputNorm>,
) -> Result<ProductInput, BackendError> {
    let change = norm.map(|InputNorm { weight, eps, .. }| {
        let weight = device.weights.small("input_norm", weight)?;
        let kind = ChangeKind::Norm(ProductNorm { weight, eps });
        Ok::<_, BackendError>(RowChange { kind, into: None })
    });
    let plain = ProductInput::plain(device.memory.at(x), x.len / cols, cols);
    Ok(ProductInput { change: change.transpose()?, ..plain })
}

fn multiply(
    device: &mut Device,
    x: ProductInput,
    outputs: &[ProductOutput],
    precision: Precision,
) -> Done {
    let driver = device.queue.driver_mut();
    // SAFETY: `OpDesc::check` has compared the views' lengths with the weights' shapes, so the operands are valid.
    Ok(unsafe { device.products.linears(driver, x, outputs, precision) }?)
}

pub(crate) fn linear(device: &mut Device, op: Linear) -> Done {
    let precision = device.precision;
    linear_in(device, op, precision)
}

/// A product in a precision of its own.
pub(super) fn linear_in(device: &mut Device, op: Linear, precision: Precision) -> Done {
    let output = output_of(device, &op)?;
    let x = input(device, op.x, output.weight.cols, None)?;
    multiply(device, x, &[output], precision)
}

/// A product of rows that are changed first: those of `op.x`, or others that become them.
pub(super) fn linear_of(device: &mut Device, op: Linear, at: View, change: RowChange) -> Done {
    let output = output_of(device, &op)?;
    let x = input(device, at, output.weight.cols, None)?;
    let precision = device.precision;
    multiply(device, ProductInput { change: Some(change), ..x }, &[output], precision)
}

fn output_of(device: &Device, op: &Linear) -> Result<ProductOutput, BackendError> {
    let Linear { weight, bias, channels, out, store, .. } = *op;
    if channels.is_some_and(|channels| channels.first > 0) {
        let what = "channels from the middle of a weight";
        return Err(BackendError::Parameter { op: "linear", what });
    }
    let channels = channels.map(|channels| channels.count);
    let part = LinearPart { weight, bias, out };
    let output = output(device, "linear", part, channels)?;
    Ok(ProductOutput { add: store == Store::Add, ..output })
}

pub(crate) fn linears(device: &mut Device, op: Linears) -> Done {
    let parts = op.parts.into_iter().flatten();
    let outputs: Result<Vec<ProductOutput>, BackendError> =
        parts.map(|part| output(device, "linears", part, None)).collect();
    let outputs = outputs?;
    let Some(first) = outputs.first() else { return Ok(()) };
    let x = input(device, op.x, first.weight.cols, op.norm)?;
    multiply(device, x, &outputs, device.precision)
}

pub(crate) fn gated_linear(device: &mut Device, op: GatedLinear) -> Done {
    gated_columns(device, op, None).map(drop)
}

/// A gated product and the one that follows it, which takes what the first leaves without a kernel between them where
/// it can.
pub(super) fn gated_and_down(device: &mut Device, op: GatedLinear, down: Linear) -> Done {
    let output = output_of(device, &down)?;
    let Some(columns) = gated_columns(device, op, Some(&output))? else {
        return linear(device, down);
    };
    let rows = op.out.len / output.weight.cols;
    let driver = device.queue.driver_mut();
    // SAFETY: `OpDesc::check` has compared the views' lengths with the weights' shapes, so the output is valid; the
    // columns were just made for its weight.
    Ok(unsafe { device.products.linear_of_columns(driver, (columns, rows), &output) }?)
}

fn gated_columns(
    device: &mut Device,
    op: GatedLinear,
    next: Option<&ProductOutput>,
) -> Result<Option<Columns>, BackendError> {
    op.activation.unclamped("gated_linear")?;
    let pair = [(op.gate, op.out), (op.up, op.scratch)];
    let [gate, up] = pair.map(|(weight, out)| LinearPart { weight, bias: None, out });
    let gate = output(device, "gated_linear", gate, None)?;
    let up = output(device, "gated_linear", up, None)?;
    let x = input(device, op.x, gate.weight.cols, op.norm)?;
    let how = (device.precision, next.and_then(|next| next.weight.layout));
    let driver = device.queue.driver_mut();
    // SAFETY: `OpDesc::check` has compared the views' lengths with the weights' shapes, so the operands are valid.
    let outcome = unsafe { device.products.gated(driver, x, [gate, up], op.activation, how) }?;
    if let GatedOutcome::Done(columns) = outcome {
        return Ok(columns);
    }
    // Weights of two kinds are multiplied one after the other.
    multiply(device, x, &[gate, up], device.precision)?;
    glu(device, Glu::same(op.out, op.scratch, op.activation))?;
    Ok(None)
}

pub(crate) fn experts(device: &mut Device, op: Experts) -> Done {
    op.activation.unclamped("experts")?;
    let stack = |rows: ExpertRows| ExpertStack {
        weight: device.weights.get(rows.weight),
        first: rows.first,
        stride: rows.stride,
    };
    let memory = &device.memory;
    let call = products::ExpertsCall {
        x: ProductInput::plain(memory.at(op.x), op.x.len / op.dim, op.dim),
        chosen: memory.at(op.chosen),
        weights: memory.at(op.weights),
        gate: stack(op.gate),
        up: stack(op.up),
        down: stack(op.down),
        experts: op.experts,
        top_k: op.top_k,
        ffn: op.ffn,
        hidden: memory.at(op.hidden),
        partial: memory.at(op.partial),
        out: memory.at(op.out),
        add: op.store == Store::Add,
        activation: op.activation,
        fault: (device.queue.fault, site("experts")),
    };
    let driver = device.queue.driver_mut();
    // SAFETY: `OpDesc::check` has compared the views' lengths with the weights' shapes, so the operands are valid.
    if unsafe { device.products.experts(driver, &call, device.precision) }? {
        return Ok(());
    }
    experts_by_element(device, op, &call)
}

/// Experts whose gate and up weights are packed in different formats, or are not packed: a warp for each element.
fn experts_by_element(device: &mut Device, op: Experts, call: &products::ExpertsCall) -> Done {
    let stack = |args: Args, rows: ExpertRows| {
        device.weights.fields(args, rows.weight).size(rows.first).size(rows.stride)
    };
    let memory = &device.memory;
    let routed = op.chosen.len;
    let args = [op.gate, op.up, op.down].into_iter().fold(Args::new(), stack);
    let args = args
        .with(memory.at(op.x))
        .with(memory.at(op.chosen))
        .with(memory.at(op.weights))
        .with(memory.at(op.hidden))
        .with(memory.at(op.partial))
        .with(device.queue.fault)
        .with(site("experts"))
        .size(op.experts)
        .size(op.top_k)
        .size(op.ffn)
        .size(op.dim)
        .with(number_of(op.activation));
    let queue = &mut device.queue;
    queue.run((&CANONICAL, "experts_hidden"), [op.ffn.div_ceil(8), routed, 1], 256, &args)?;
    queue.run((&CANONICAL, "experts_down"), [op.dim.div_ceil(8), routed, 1], 256, &args)?;
    // SAFETY: `out` and `partial` are views of the sizes that `Experts::describe` checks, and `experts_down` wrote
    // `partial`.
    Ok(unsafe { device.products.combine(queue.driver_mut(), call) }?)
}

pub(crate) fn cluster_head(device: &mut Device, op: ClusterHead) -> Done {
    let Some(members) = device.weights.info(op.members) else { return Ok(()) };
    let rows = op.scores.len / op.clusters;
    let routed = rows * op.top_k;
    let (pairs, share) = (routed * members.cols, op.top_k * members.cols);
    // The number of runs, the runs, and four lists.
    let scratch = device.queue.scratch((256 + 4 * routed + 28 * pairs) as u64)?;
    let runs = scratch.offset(256);
    let chosen = runs.offset(16 * pairs as u64);
    let tokens = chosen.offset(4 * routed as u64);
    let [logits, list] = [1, 2].map(|i| tokens.offset(i * 4 * pairs as u64));
    let args = device.weights.fields(Args::new(), op.head);
    let args = device
        .weights
        .fields(args, op.members)
        .with(device.memory.at(op.x))
        .with(device.memory.at(op.scores))
        .with(device.memory.at(op.out))
        .with(chosen)
        .with(tokens)
        .with(logits)
        .with(runs)
        .with(list)
        .with(scratch)
        .with(device.queue.fault)
        .with(site("cluster_head"))
        .size(op.clusters)
        .size(op.top_k)
        .size(rows);
    let weight = device.weights.get(op.head);
    let x = input(device, op.x, weight.cols, None)?;
    let queue = &mut device.queue;
    queue.run((&CANONICAL, "cluster_choose"), [rows.div_ceil(8), 1, 1], 256, &args)?;
    queue.run((&CANONICAL, "cluster_tokens"), [pairs.div_ceil(256), 1, 1], 256, &args)?;
    let call =
        GatheredRows { x, weight, pairs, share, tiles: runs, count: scratch, list, out: logits };
    // SAFETY: `OpDesc::check` compared views and weights; `scratch` holds the count, a run of 16 bytes and three words
    // for each pair, and a word for each chosen cluster.
    let done = unsafe { device.products.gathered(queue.driver_mut(), &call, device.precision) }?;
    if !done {
        queue.run((&CANONICAL, "cluster_logits"), [pairs.div_ceil(8), 1, 1], 256, &args)?;
    }
    queue.run((&CANONICAL, "cluster_fill"), [rows, 1, 1], 256, &args)
}
