//! Products with channels that rows name: `product_named.wgsl`, `cluster.wgsl`.

use super::products::{At, GatedProduct, Naming, ProductCall, ProductInput, ROWS, product, tiles};
use super::{Lowered, elementwise};
use crate::gpu::kernels::{
    CHOOSE, CLUSTER_FILL, CLUSTER_TOKENS, EXPERTS_SUM, GLU, GROUP, PRODUCT_OF_CHOICES, site,
};
use crate::gpu::launch::{BoundOperand, Call, Words, folded, invocations};
use crate::gpu::layout::PANEL;
use crate::gpu::lowering::{Lowering, bound};
use forerun_backend::View;
use forerun_backend::op::{ClusterHead, ExpertRows, Experts, Store};

pub(super) fn experts(to: &mut Lowering<'_>, op: Experts) -> Lowered {
    if op.chosen.len == 0 {
        return Ok(());
    }
    let order = grouped(to, &op);
    gate_and_up(to, &op, order)?;
    if order.is_some() {
        return down_and_sum(to, &op, order);
    }
    let weights = to.layout(op.down.weight);
    if weights.pieces.len() == 1 {
        return weighed_down(to, &op);
    }
    down_and_sum(to, &op, None)
}

/// Most experts that are told apart while choices are grouped.
const MOST: usize = 1024;

/// Choices in tiles of one expert each, where there are enough of them to fill tiles.
fn grouped(to: &mut Lowering<'_>, op: &Experts) -> Option<Group> {
    let choices = op.chosen.len;
    if choices < 2 * op.experts || op.experts > MOST {
        return None;
    }
    // The last tile of an expert may be as good as empty.
    let places = (choices.div_ceil(ROWS) + op.experts.min(choices)) * ROWS;
    let order = to.scratch(1, 4 * places);
    let sizes = [op.chosen.start, choices, op.experts, places, site("experts") as usize];
    to.calls.push(Call {
        kernel: &GROUP,
        constants: Vec::new(),
        operands: vec![bound(op.chosen), order],
        words: Words::of(&sizes),
        grid: [1, 1, 1],
        work: to.elements(2 * choices * op.experts.div_ceil(64)),
    });
    Some(Group { order, places })
}

/// Choices in tiles.
#[derive(Clone, Copy)]
struct Group {
    order: BoundOperand,
    places: usize,
}

impl Group {
    /// The rows of a product of choices, one by one or in tiles.
    fn input(group: Option<Self>, x: View, choices: usize, cols: usize) -> ProductInput {
        let rows = group.map_or(choices, |group| group.places);
        ProductInput { order: group.map(|group| group.order), ..ProductInput::new(x, rows, cols) }
    }
}

fn named(op: &Experts, at: ExpertRows) -> Naming {
    Naming::Expert { names: op.chosen.into(), at, experts: op.experts }
}

/// The hidden rows of all choices.
fn gate_and_up(to: &mut Lowering<'_>, op: &Experts, group: Option<Group>) -> Lowered {
    let choices = op.chosen.len;
    let input = ProductInput { share: op.top_k, ..Group::input(group, op.x, choices, op.dim) };
    let naming = [op.gate, op.up].map(|at| named(op, at));
    let gated = GatedProduct {
        input,
        weights: [op.gate.weight, op.up.weight],
        naming,
        height: op.ffn,
        out: op.hidden,
        activation: op.activation,
    };
    if gated.is_one_call(to) {
        return gated.lower(to);
    }
    let count = choices * op.ffn;
    let up = At(to.scratch(0, 4 * count), 0);
    for (at, naming, out) in [(op.gate, naming[0], op.hidden.into()), (op.up, naming[1], up)] {
        let (weight, height) = (at.weight, op.ffn);
        let (bias, add, cap) = (None, false, None);
        product(to, &ProductCall { input, weight, height, naming, bias, out, add, cap })?;
    }
    let mode = elementwise::mode(op.activation);
    let words = Words::of(&[op.hidden.start, 0, 0, count, op.ffn, op.ffn, 0, mode]);
    to.calls.push(Call {
        kernel: &GLU,
        constants: Vec::new(),
        operands: vec![bound(op.hidden), up.0, BoundOperand::Absent],
        words: words.map(|words| words.float(0.0)),
        grid: invocations(count),
        work: to.elements(count),
    });
    Ok(())
}

/// The last product, weighed and summed on its way out.
fn weighed_down(to: &mut Lowering<'_>, op: &Experts) -> Lowered {
    let layout = to.layout(op.down.weight);
    let piece = &layout.pieces[0];
    let rows = op.x.len / op.dim;
    let input = ProductInput::new(op.hidden, op.chosen.len, op.ffn);
    let flags = if op.store == Store::Add { super::products::ADD } else { 0 };
    let naming = named(op, op.down).number();
    let words = ProductInput { rows, ..input }.words(layout, naming, flags, 0.0);
    let work = input.work(to, op.down.weight, op.dim, true);
    for tile in tiles(to, work, op.dim.div_ceil(PANEL), [rows, 1]) {
        let ExpertRows { first, stride, .. } = op.down;
        let sizes = [
            [op.out.start, op.dim, piece.scales_at, piece.offsets_at],
            [op.chosen.start, 1, first, stride],
            [op.weights.start, op.top_k, op.experts, site("experts") as usize],
            [0, layout.info.rows, tile.block * PANEL, tile.row],
        ];
        to.calls.push(Call {
            kernel: &PRODUCT_OF_CHOICES,
            constants: layout.constants.clone(),
            operands: vec![
                bound(op.hidden),
                bound(op.weights),
                bound(op.chosen),
                BoundOperand::WeightPiece(op.down.weight, 0),
                BoundOperand::Absent,
                bound(op.out),
            ],
            words: words.clone().and_then(|words| words.sizes(sizes.as_flattened())),
            grid: tile.grid,
            work: tile.work,
        });
    }
    Ok(())
}

/// The last product, and then its sum: of a weight in pieces, any of which a row's experts may be in, or of choices in
/// tiles.
fn down_and_sum(to: &mut Lowering<'_>, op: &Experts, group: Option<Group>) -> Lowered {
    let last = ProductCall {
        input: Group::input(group, op.hidden, op.chosen.len, op.ffn),
        weight: op.down.weight,
        height: op.dim,
        naming: named(op, op.down),
        bias: None,
        out: op.partial.into(),
        add: false,
        cap: None,
    };
    product(to, &last)?;
    let add = usize::from(op.store == Store::Add);
    let starts = [op.out.start, op.partial.start, op.weights.start];
    let [x, y, z] = starts;
    let words = Words::of(&[x, y, z, op.out.len, op.dim, op.top_k, 0, add]);
    to.calls.push(Call {
        kernel: &EXPERTS_SUM,
        constants: Vec::new(),
        operands: vec![bound(op.out), bound(op.partial), bound(op.weights)],
        words: words.map(|words| words.float(0.0)),
        grid: invocations(op.out.len),
        work: to.elements(op.partial.len),
    });
    Ok(())
}

pub(super) fn cluster_head(to: &mut Lowering<'_>, op: ClusterHead) -> Lowered {
    let (members, head) = (to.info(op.members), to.info(op.head));
    let rows = op.scores.len / op.clusters;
    if rows == 0 {
        return Ok(());
    }
    let share = op.top_k * members.cols;
    let chosen = to.scratch(1, 4 * rows * op.top_k);
    let list = to.scratch(2, 4 * rows * share);
    let logits = to.scratch(3, 4 * rows * share);
    to.calls.push(Call {
        kernel: &CHOOSE,
        constants: Vec::new(),
        operands: vec![bound(op.scores), chosen],
        words: Words::of(&[op.scores.start, 0, rows, op.clusters, op.top_k]),
        grid: folded(rows),
        work: to.elements(rows * op.clusters * op.top_k),
    });
    let site = site("cluster_head") as usize;
    let sizes = [0, 0, 0, op.out.start, rows, members.cols, op.top_k, head.rows, site];
    let call = |kernel, [logits, out]: [BoundOperand; 2], grid, work| Call {
        kernel,
        constants: Vec::new(),
        // What a kernel does not use stays absent: nothing may be bound both as read and as written.
        operands: vec![chosen, BoundOperand::Plain(op.members), logits, list, out],
        words: Words::of(&sizes),
        grid,
        work,
    };
    let work = [to.elements(rows * share), to.elements(op.out.len)];
    to.calls.push(call(
        &CLUSTER_TOKENS,
        [BoundOperand::Absent; 2],
        invocations(rows * share),
        work[0],
    ));
    let listed = ProductCall {
        input: ProductInput::new(op.x, rows, head.cols),
        weight: op.head,
        height: share,
        naming: Naming::Listed { names: At(list, 0) },
        bias: None,
        out: At(logits, 0),
        add: false,
        cap: None,
    };
    product(to, &listed)?;
    to.calls.push(call(&CLUSTER_FILL, [logits, bound(op.out)], folded(rows), work[1]));
    Ok(())
}
