//! An operation on some of its rows: what an operation is cut into that is too large for one submission.

use super::{
    Attention, DeltaInputs, InputNorm, KdaGates, KdaRule, LatentAttention, LatentInputs,
    LinearPart, NewKeys, Sample,
};
use crate::{Catalog, Op, View};

impl Op {
    /// Rows of an operation that may be cut by rows and is worth it. A row's result does not depend on the others, so
    /// the parts together give the same bits.
    pub fn rows(&self, catalog: &dyn Catalog) -> Option<usize> {
        let of = |x: View, weight| Some(x.len / catalog.weight(weight)?.cols.max(1));
        match self {
            Self::Linear(op) => of(op.x, op.weight),
            Self::Linears(op) => of(op.x, op.parts.iter().flatten().next()?.weight),
            Self::GatedLinear(op) => of(op.x, op.gate),
            Self::HeadSample(op) => Some(op.sample.out.len),
            Self::Attention(op) => Some(op.positions.len),
            Self::Experts(op) => Some(op.x.len / op.dim.max(1)),
            Self::LatentAttention(op) => Some(op.positions.len),
            Self::HeadLinear(op) => {
                let inner = catalog.weight(op.weight)?.cols;
                Some(op.x.len / (op.heads * (op.carry + inner)).max(1))
            }
            _ => None,
        }
    }

    /// The operation on rows `first..first + count` of `rows` alone.
    #[must_use]
    pub fn part(mut self, rows: usize, first: usize, count: usize) -> Self {
        for place in views(&mut self).into_iter().filter(|place| place.by_row) {
            let each = place.view.len / rows;
            *place.view = place.view.part(first * each, count * each);
        }
        self
    }
}

/// One view of an operation.
pub(crate) struct OperandView<'a> {
    pub(crate) view: &'a mut View,
    /// Whether row `i` of a call uses part `i` of the view alone.
    pub(crate) by_row: bool,
}

fn by_row(view: &mut View) -> OperandView<'_> {
    OperandView { view, by_row: true }
}

fn shared(view: &mut View) -> OperandView<'_> {
    OperandView { view, by_row: false }
}

/// Rows of a product and the scratch of the norm that makes them.
fn input<'a>(
    x: &'a mut View,
    norm: &'a mut Option<InputNorm>,
) -> impl Iterator<Item = OperandView<'a>> {
    [by_row(x)].into_iter().chain(norm.as_mut().map(|norm| by_row(&mut norm.room)))
}

fn outs(parts: &mut [Option<LinearPart>]) -> impl Iterator<Item = OperandView<'_>> {
    parts.iter_mut().flatten().map(|part| by_row(&mut part.out))
}

/// All views, in the order in which the operation's description lists them.
pub(crate) fn views(op: &mut Op) -> Vec<OperandView<'_>> {
    match op {
        Op::Embed(op) => vec![by_row(&mut op.ids), by_row(&mut op.out)],
        Op::RmsNorm(op) => vec![by_row(&mut op.x), by_row(&mut op.out)],
        Op::AddNorm(op) => vec![by_row(&mut op.x), by_row(&mut op.out)],
        Op::JoinNorm(op) => vec![by_row(&mut op.a), by_row(&mut op.b), by_row(&mut op.out)],
        Op::Linear(op) => vec![by_row(&mut op.x), by_row(&mut op.out)],
        Op::Linears(op) => input(&mut op.x, &mut op.norm).chain(outs(&mut op.parts)).collect(),
        Op::GatedLinear(op) => {
            let outs = [&mut op.scratch, &mut op.out].map(by_row);
            input(&mut op.x, &mut op.norm).chain(outs).collect()
        }
        Op::RopeTable(op) => vec![by_row(&mut op.positions), by_row(&mut op.out)],
        Op::AttentionInputs(op) => {
            let queries = op.queries.as_mut().map(|queries| by_row(&mut queries.q));
            let keys = op.keys.as_mut().map(new_keys).into_iter().flatten();
            [by_row(&mut op.table)].into_iter().chain(queries).chain(keys).collect()
        }
        Op::Attention(op) => attention(op).into(),
        Op::AttentionPart(op) => {
            attention(&mut op.whole).into_iter().chain([by_row(&mut op.state)]).collect()
        }
        Op::ShortConv(op) => {
            let gates = op.gates.as_mut().map(|gates| [&mut gates.input, &mut gates.output]);
            let state = [&mut op.window, &mut op.log, &mut op.spans.table, &mut op.out];
            let gates = gates.into_iter().flatten();
            [&mut op.x].into_iter().chain(gates).chain(state).map(shared).collect()
        }
        Op::DeltaGates(op) => {
            let inputs = [&mut op.qkv, &mut op.a, &mut op.b, &mut op.spans.table];
            inputs.into_iter().chain([&mut op.decay, &mut op.beta]).map(shared).collect()
        }
        Op::DeltaInputs(op) => delta_inputs(op).map(shared).into(),
        Op::DeltaRule(op) => {
            let inputs = [&mut op.qkv, &mut op.decay, &mut op.beta];
            let state = [&mut op.state, &mut op.log, &mut op.spans.table, &mut op.out];
            inputs.into_iter().chain(state).map(shared).collect()
        }
        Op::GatedNorm(op) => vec![by_row(&mut op.x), by_row(&mut op.gate)],
        Op::GateMul(op) => vec![by_row(&mut op.x), by_row(&mut op.gate)],
        Op::Glu(op) => vec![by_row(&mut op.gate), by_row(&mut op.up)],
        Op::Softcap(op) => vec![by_row(&mut op.x)],
        Op::Router(op) => {
            vec![by_row(&mut op.logits), by_row(&mut op.chosen), by_row(&mut op.weights)]
        }
        Op::Experts(op) => vec![
            by_row(&mut op.x),
            by_row(&mut op.chosen),
            by_row(&mut op.weights),
            by_row(&mut op.hidden),
            by_row(&mut op.partial),
            by_row(&mut op.out),
        ],
        Op::AddGated(op) => vec![by_row(&mut op.x), by_row(&mut op.gate), by_row(&mut op.out)],
        Op::ClusterHead(op) => {
            vec![by_row(&mut op.x), by_row(&mut op.scores), by_row(&mut op.out)]
        }
        Op::GatherRows(op) => vec![shared(&mut op.x), by_row(&mut op.rows), by_row(&mut op.out)],
        Op::ScatterRows(op) => vec![by_row(&mut op.x), by_row(&mut op.rows), shared(&mut op.out)],
        Op::ScatterWords(op) => vec![
            shared(&mut op.words),
            by_row(&mut op.from),
            by_row(&mut op.to),
            shared(&mut op.out),
        ],
        Op::Sample(op) => choice(op).into(),
        Op::HeadSample(op) => {
            [by_row(&mut op.x)].into_iter().chain(choice(&mut op.sample)).collect()
        }
        Op::HeadLinear(op) => vec![by_row(&mut op.x), by_row(&mut op.out)],
        Op::LatentInputs(op) => latent_inputs(op).into(),
        Op::LatentAttention(op) => latent_attention(op).into(),
        Op::KdaGates(op) => kda_gates(op).map(shared).into(),
        Op::KdaRule(op) => kda_rule(op).map(shared).into(),
    }
}

fn attention(op: &mut Attention) -> [OperandView<'_>; 7] {
    [
        by_row(&mut op.q),
        shared(&mut op.k_cache),
        shared(&mut op.v_cache),
        by_row(&mut op.positions),
        by_row(&mut op.span_of),
        shared(&mut op.tables),
        by_row(&mut op.out),
    ]
}

fn new_keys(keys: &mut NewKeys) -> [OperandView<'_>; 5] {
    [
        by_row(&mut keys.k),
        by_row(&mut keys.v),
        by_row(&mut keys.places),
        shared(&mut keys.k_cache),
        shared(&mut keys.v_cache),
    ]
}

fn choice(op: &mut Sample) -> [OperandView<'_>; 6] {
    [
        by_row(&mut op.logits),
        by_row(&mut op.rows),
        shared(&mut op.history),
        shared(&mut op.ids),
        shared(&mut op.masks),
        by_row(&mut op.out),
    ]
}

fn delta_inputs(op: &mut DeltaInputs) -> [&mut View; 9] {
    let DeltaInputs { x, a, b, window, log, spans, qkv, decay, beta, .. } = op;
    [x, a, b, window, log, &mut spans.table, qkv, decay, beta]
}

fn latent_inputs(op: &mut LatentInputs) -> [OperandView<'_>; 5] {
    let LatentInputs { table, q, kv, places, cache, .. } = op;
    [by_row(table), by_row(q), by_row(kv), by_row(places), shared(cache)]
}

fn latent_attention(op: &mut LatentAttention) -> [OperandView<'_>; 6] {
    let LatentAttention { q, cache, positions, span_of, tables, out, .. } = op;
    [by_row(q), shared(cache), by_row(positions), by_row(span_of), shared(tables), by_row(out)]
}

fn kda_gates(op: &mut KdaGates) -> [&mut View; 6] {
    let KdaGates { qkv, a, b, spans, decay, beta, .. } = op;
    [qkv, a, b, &mut spans.table, decay, beta]
}

fn kda_rule(op: &mut KdaRule) -> [&mut View; 7] {
    let KdaRule { qkv, decay, beta, state, log, spans, out, .. } = op;
    [qkv, decay, beta, state, log, &mut spans.table, out]
}
