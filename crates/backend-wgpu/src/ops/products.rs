//! Embedding and products with weights: `embed.wgsl`, `product.wgsl`, `cluster.wgsl`.

use super::{Lowered, elementwise};
use crate::device::Device;
use crate::kernels::{
    CHOOSE, CLUSTER_FILL, CLUSTER_TOKENS, EMBED, EXPERTS_SUM, GLU, PRODUCT_FOUR, PRODUCT_ONE, site,
};
use crate::launch::{Words, folded, invocations};
use crate::pipelines::Call;
use crate::weights::PANEL;
use forerun_backend::op::{Channels, ClusterHead, Embed, ExpertRows, Experts, Linear, Store};
use forerun_backend::{BackendError, WeightId};

/// Rows of an invocation where there are more than one.
const ROWS: usize = 4;

pub(super) fn embed(device: &mut Device, op: Embed) -> Lowered {
    let weight = device.weights.get(op.table);
    let (rows, info) = (op.ids.len, weight.info);
    for piece in &weight.pieces {
        let sizes = [
            op.ids.start,
            op.out.start,
            rows,
            info.cols,
            info.rows,
            piece.first,
            piece.channels,
            site("embed") as usize,
        ];
        let words = Words::of(&sizes).and_then(|words| words.sizes(&weight.planes(piece)));
        let constants: Vec<_> = weight.constants.iter().copied().chain([("NAMED", 1)]).collect();
        let memory = &device.memory;
        let call = Call {
            kernel: &EMBED,
            constants: &constants,
            operands: &[Some(&piece.buffer), memory.buffer(op.ids), memory.buffer(op.out)],
            words: words.map(|words| words.float(op.scale)),
            grid: folded(rows),
        };
        Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)?;
    }
    Ok(())
}

/// A buffer and the first element of it that takes part.
type At<'a> = (&'a wgpu::Buffer, usize);

/// Which channels of a weight a row meets.
#[derive(Clone, Copy)]
enum Naming<'a> {
    /// The first so many.
    All,
    /// Those of the expert that the row names; rows share a row of `x` `share` by `share`.
    Expert { names: At<'a>, at: ExpertRows, experts: usize, share: usize },
    /// Those that the row lists.
    Listed { names: At<'a> },
}

/// Some rows times some channels.
struct Product<'a> {
    x: At<'a>,
    rows: usize,
    weight: WeightId,
    /// Channels of a row of `out`.
    height: usize,
    naming: Naming<'a>,
    bias: Option<&'a wgpu::Buffer>,
    out: At<'a>,
    add: bool,
}

fn product(device: &mut Device, product: &Product<'_>) -> Lowered {
    let Product { x, rows, weight, height, naming, bias, out, add } = *product;
    let weight = device.weights.get(weight);
    let (number, names, share) = match naming {
        Naming::All => (0, None, 1),
        Naming::Expert { names, share, .. } => (1, Some(names), share),
        Naming::Listed { names } => (2, Some(names), 1),
    };
    let (base, stride, limit) = match naming {
        Naming::All => (0, 0, 0),
        Naming::Expert { at, experts, .. } => (at.first, at.stride, experts),
        Naming::Listed { .. } => (0, 0, weight.info.rows),
    };
    let many = number == 0 && rows > 1;
    let (kernel, tile) = if many { (&PRODUCT_FOUR, ROWS) } else { (&PRODUCT_ONE, 1) };
    let constants: Vec<_> = weight.constants.iter().copied().chain([("NAMING", number)]).collect();
    for piece in &weight.pieces {
        // Where channels are named, any piece may have one.
        let (first, last) = if number == 0 {
            (piece.first, (piece.first + piece.channels).min(height))
        } else {
            (0, height)
        };
        if first >= last {
            continue;
        }
        let words = Words::of(&[
            x.1,
            out.1,
            names.map_or(0, |names| names.1),
            rows,
            weight.info.cols,
            height,
            piece.first,
            piece.channels,
        ]);
        let words = words.and_then(|words| words.sizes(&weight.planes(piece)));
        let words = words.and_then(|words| {
            let site = site("experts") as usize;
            let (add, has_bias) = (usize::from(add), usize::from(bias.is_some()));
            words.sizes(&[add, has_bias, share, base, stride, limit, site, first])
        });
        let call = Call {
            kernel,
            constants: &constants,
            operands: &[
                Some(&piece.buffer),
                Some(x.0),
                bias,
                names.map(|names| names.0),
                Some(out.0),
            ],
            words,
            grid: [(last - first).div_ceil(PANEL), rows.div_ceil(tile), 1],
        };
        Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)?;
    }
    Ok(())
}

pub(super) fn linear(device: &mut Device, op: Linear) -> Lowered {
    let info = device.weights.get(op.weight).info;
    let Channels { first, count } = op.channels.unwrap_or(Channels::head(info.rows));
    if first > 0 {
        let what = "this device does not cut products by channels";
        return Err(BackendError::Parameter { op: "linear", what });
    }
    let bias = op.bias.map(|id| device.plain(id)).transpose()?;
    let buffers = [op.x, op.out].map(|view| device.memory.buffer(view).cloned());
    let [Some(x), Some(out)] = &buffers else { return Ok(()) };
    let call = Product {
        x: (x, op.x.start),
        rows: op.x.len / info.cols,
        weight: op.weight,
        height: count,
        naming: Naming::All,
        bias: bias.as_ref(),
        out: (out, op.out.start),
        add: op.store == Store::Add,
    };
    product(device, &call)
}

pub(super) fn experts(device: &mut Device, op: Experts) -> Lowered {
    let picks = op.chosen.len;
    let views = [op.x, op.chosen, op.weights, op.hidden, op.partial, op.out];
    let buffers = views.map(|view| device.memory.buffer(view).cloned());
    let [Some(x), Some(chosen), Some(weights), Some(hidden), Some(partial), Some(out)] = &buffers
    else {
        return Ok(());
    };
    let up = device.scratch(0, 4 * picks * op.ffn)?;
    let named = |at, share| Naming::Expert {
        names: (chosen, op.chosen.start),
        at,
        experts: op.experts,
        share,
    };
    let hidden_at = (hidden, op.hidden.start);
    for (at, x, out, height, share) in [
        (op.gate, (x, op.x.start), hidden_at, op.ffn, op.top_k),
        (op.up, (x, op.x.start), (&up, 0), op.ffn, op.top_k),
    ] {
        let (naming, weight) = (named(at, share), at.weight);
        let call = Product { x, rows: picks, weight, height, naming, bias: None, out, add: false };
        product(device, &call)?;
    }
    let count = picks * op.ffn;
    let mode = elementwise::mode(op.activation);
    let words = Words::of(&[op.hidden.start, 0, 0, count, op.ffn, op.ffn, 0, mode]);
    let call = Call {
        kernel: &GLU,
        constants: &[],
        operands: &[Some(hidden), Some(&up), None],
        words: words.map(|words| words.float(0.0)),
        grid: invocations(count),
    };
    Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)?;
    let call = Product {
        x: hidden_at,
        rows: picks,
        weight: op.down.weight,
        height: op.dim,
        naming: named(op.down, 1),
        bias: None,
        out: (partial, op.partial.start),
        add: false,
    };
    product(device, &call)?;
    let add = usize::from(op.store == Store::Add);
    let starts = [op.out.start, op.partial.start, op.weights.start];
    let [x, y, z] = starts;
    let words = Words::of(&[x, y, z, op.out.len, op.dim, op.top_k, 0, add]);
    let call = Call {
        kernel: &EXPERTS_SUM,
        constants: &[],
        operands: &[Some(out), Some(partial), Some(weights)],
        words: words.map(|words| words.float(0.0)),
        grid: invocations(op.out.len),
    };
    Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)
}

pub(super) fn cluster_head(device: &mut Device, op: ClusterHead) -> Lowered {
    let (members, head) = (device.weights.get(op.members).info, device.weights.get(op.head).info);
    let rows = op.scores.len / op.clusters;
    let share = op.top_k * members.cols;
    let views = [op.x, op.scores, op.out];
    let buffers = views.map(|view| device.memory.buffer(view).cloned());
    let [Some(x), Some(scores), Some(out)] = &buffers else { return Ok(()) };
    let members_plain = device.plain(op.members)?;
    let chosen = device.scratch(1, 4 * rows * op.top_k)?;
    let list = device.scratch(2, 4 * rows * share)?;
    let logits = device.scratch(3, 4 * rows * share)?;
    let call = Call {
        kernel: &CHOOSE,
        constants: &[],
        operands: &[Some(scores), None, Some(&chosen), None],
        words: Words::of(&[op.scores.start, 0, 0, rows, op.clusters, op.top_k, 0, 0, 0]),
        grid: folded(rows),
    };
    Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)?;
    let site = site("cluster_head") as usize;
    let sizes = [0, 0, 0, op.out.start, rows, members.cols, op.top_k, head.rows, site];
    let launch = |device: &mut Device, kernel, written: Option<At<'_>>, grid| {
        // Each binding is bound as what the text says, so what a kernel does not use stays absent.
        let logits = written.map(|_| &logits);
        let call = Call {
            kernel,
            constants: &[],
            operands: &[
                Some(&chosen),
                Some(&members_plain),
                logits,
                Some(&list),
                written.map(|(buffer, _)| buffer),
            ],
            words: Words::of(&sizes),
            grid,
        };
        Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)
    };
    launch(device, &CLUSTER_TOKENS, None, invocations(rows * share))?;
    let call = Product {
        x: (x, op.x.start),
        rows,
        weight: op.head,
        height: share,
        naming: Naming::Listed { names: (&list, 0) },
        bias: None,
        out: (&logits, 0),
        add: false,
    };
    product(device, &call)?;
    launch(device, &CLUSTER_FILL, Some((out, op.out.start)), folded(rows))
}

/// Kept beside the operations that need it: an error where a head is wider than a kernel's memory.
pub(super) fn fits(op: &'static str, dim: usize, most: usize) -> Result<(), BackendError> {
    if dim <= most {
        return Ok(());
    }
    Err(BackendError::Device(format!("{op}: heads of {dim} elements; the kernels hold {most}")))
}
