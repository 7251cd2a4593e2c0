//! The views and weights of an operation as places that a check can change.

use crate::op::{InputNorm, LinearPart, NewKeys, Sample, Spans};
use crate::{Op, View, WeightId};

/// One view of an operation.
pub(super) struct Place<'a> {
    pub(super) view: &'a mut View,
    /// Whether row `i` of a call uses part `i` of the view alone.
    pub(super) by_row: bool,
}

fn by_row(view: &mut View) -> Place<'_> {
    Place { view, by_row: true }
}

fn shared(view: &mut View) -> Place<'_> {
    Place { view, by_row: false }
}

/// Rows of a product and the room of what makes them.
fn input<'a>(x: &'a mut View, norm: &'a mut Option<InputNorm>) -> impl Iterator<Item = Place<'a>> {
    [by_row(x)].into_iter().chain(norm.as_mut().map(|norm| by_row(&mut norm.room)))
}

fn outs(parts: &mut [Option<LinearPart>]) -> impl Iterator<Item = Place<'_>> {
    parts.iter_mut().flatten().map(|part| by_row(&mut part.out))
}

/// All views, in the order in which the operation's desc lists them.
pub(super) fn views(op: &mut Op) -> Vec<Place<'_>> {
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
        Op::Attention(op) => vec![
            by_row(&mut op.q),
            shared(&mut op.k_cache),
            shared(&mut op.v_cache),
            by_row(&mut op.positions),
            by_row(&mut op.span_of),
            shared(&mut op.tables),
            by_row(&mut op.out),
        ],
        Op::DeltaInputs(op) => vec![
            shared(&mut op.x),
            shared(&mut op.a),
            shared(&mut op.b),
            shared(&mut op.window),
            shared(&mut op.log),
            shared(&mut op.spans.table),
            shared(&mut op.qkv),
            shared(&mut op.decay),
            shared(&mut op.beta),
        ],
        Op::DeltaRule(op) => vec![
            shared(&mut op.qkv),
            shared(&mut op.decay),
            shared(&mut op.beta),
            shared(&mut op.state),
            shared(&mut op.log),
            shared(&mut op.spans.table),
            shared(&mut op.out),
        ],
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
    }
}

fn new_keys(keys: &mut NewKeys) -> [Place<'_>; 5] {
    [
        by_row(&mut keys.k),
        by_row(&mut keys.v),
        by_row(&mut keys.places),
        shared(&mut keys.k_cache),
        shared(&mut keys.v_cache),
    ]
}

fn choice(op: &mut Sample) -> [Place<'_>; 6] {
    [
        by_row(&mut op.logits),
        by_row(&mut op.rows),
        shared(&mut op.history),
        shared(&mut op.ids),
        shared(&mut op.masks),
        by_row(&mut op.out),
    ]
}

/// All weights.
pub(super) fn weights(op: &mut Op) -> Vec<&mut WeightId> {
    match op {
        Op::Embed(op) => vec![&mut op.table],
        Op::RmsNorm(op) => vec![&mut op.weight],
        Op::AddNorm(op) => vec![&mut op.weight],
        Op::JoinNorm(op) => op.norms.iter_mut().flatten().collect(),
        Op::Linear(op) => [Some(&mut op.weight), op.bias.as_mut()].into_iter().flatten().collect(),
        Op::Linears(op) => {
            let parts = op.parts.iter_mut().flatten();
            let parts = parts.flat_map(|part| [Some(&mut part.weight), part.bias.as_mut()]);
            parts.flatten().chain(op.norm.as_mut().map(|norm| &mut norm.weight)).collect()
        }
        Op::GatedLinear(op) => {
            let norm = op.norm.as_mut().map(|norm| &mut norm.weight);
            [&mut op.gate, &mut op.up].into_iter().chain(norm).collect()
        }
        Op::RopeTable(op) => vec![&mut op.inv_freq],
        Op::AttentionInputs(op) => {
            let queries = op.queries.as_mut().map(|queries| &mut queries.norm);
            let keys = op.keys.as_mut().map(|keys| [&mut keys.k_norm, &mut keys.v_norm]);
            let norms = queries.into_iter().chain(keys.into_iter().flatten());
            norms.flatten().map(|norm| &mut norm.weight).collect()
        }
        Op::DeltaInputs(op) => vec![&mut op.weight, &mut op.rate, &mut op.dt_bias],
        Op::GatedNorm(op) => vec![&mut op.weight],
        Op::ClusterHead(op) => vec![&mut op.members, &mut op.head],
        Op::HeadSample(op) => vec![&mut op.weight],
        Op::Router(op) => op.expert_scale.iter_mut().collect(),
        Op::Experts(op) => vec![&mut op.gate.weight, &mut op.up.weight, &mut op.down.weight],
        Op::Attention(_)
        | Op::DeltaRule(_)
        | Op::GateMul(_)
        | Op::Glu(_)
        | Op::Softcap(_)
        | Op::AddGated(_)
        | Op::GatherRows(_)
        | Op::ScatterRows(_)
        | Op::ScatterWords(_)
        | Op::Sample(_) => Vec::new(),
    }
}

/// The span table of a recurrent operation.
pub(super) fn spans(op: &mut Op) -> Option<&mut Spans> {
    match op {
        Op::DeltaInputs(op) => Some(&mut op.spans),
        Op::DeltaRule(op) => Some(&mut op.spans),
        _ => None,
    }
}
