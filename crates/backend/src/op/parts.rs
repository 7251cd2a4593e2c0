//! An operation on some of its rows: what an operation is cut into that is too large for one submission.

use super::{
    Attention, DeltaRule, InputNorm, LinearPart, NewKeys, Sample, SelectiveScan, StreamUpdate,
    Streams,
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
            Self::SparseAttention(op) => Some(op.whole.positions.len),
            Self::ChooseEntries(op) => Some(op.positions.len),
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
        Op::DeltaInputs(op) => {
            let inputs = [&mut op.x, &mut op.a, &mut op.b, &mut op.window, &mut op.log];
            let rest = [&mut op.spans.table, &mut op.qkv, &mut op.decay, &mut op.beta];
            inputs.into_iter().chain(rest).map(shared).collect()
        }
        Op::DeltaRule(op) => delta_rule(op).into(),
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
        _ => of_families(op),
    }
}

/// Of operations that few families have.
fn of_families(op: &mut Op) -> Vec<OperandView<'_>> {
    match op {
        Op::ScanGates(op) => vec![by_row(&mut op.step), by_row(&mut op.decay)],
        Op::SelectiveScan(op) => scan(op).into(),
        Op::GatedGroupNorm(op) => vec![by_row(&mut op.x), by_row(&mut op.gate)],
        Op::PredictStreams(_) | Op::CorrectStreams(_) | Op::MatchRms(_) | Op::Threshold(_) => {
            of_streams(op)
        }
        Op::HeadLinear(_)
        | Op::LatentInputs(_)
        | Op::LatentAttention(_)
        | Op::KdaGates(_)
        | Op::KdaRule(_) => of_latents(op),
        _ => of_entries(op),
    }
}

/// Of attention to latents, and of the delta rule with a decay of each channel.
fn of_latents(op: &mut Op) -> Vec<OperandView<'_>> {
    match op {
        Op::HeadLinear(op) => vec![by_row(&mut op.x), by_row(&mut op.out)],
        Op::LatentInputs(op) => vec![
            by_row(&mut op.table),
            by_row(&mut op.q),
            by_row(&mut op.kv),
            by_row(&mut op.places),
            shared(&mut op.cache),
        ],
        Op::LatentAttention(op) => vec![
            by_row(&mut op.q),
            shared(&mut op.cache),
            by_row(&mut op.positions),
            by_row(&mut op.span_of),
            shared(&mut op.tables),
            by_row(&mut op.out),
        ],
        Op::KdaGates(op) => {
            let inputs = [&mut op.qkv, &mut op.a, &mut op.b, &mut op.spans.table];
            inputs.into_iter().chain([&mut op.decay, &mut op.beta]).map(shared).collect()
        }
        Op::KdaRule(op) => {
            let inputs = [&mut op.qkv, &mut op.decay, &mut op.beta];
            let state = [&mut op.state, &mut op.log, &mut op.spans.table, &mut op.out];
            inputs.into_iter().chain(state).map(shared).collect()
        }
        _ => unreachable!("the caller hands on no other"),
    }
}

/// Of streams that are predicted and corrected.
fn of_streams(op: &mut Op) -> Vec<OperandView<'_>> {
    match op {
        Op::PredictStreams(op) => {
            let streams = streams(&mut op.streams);
            [by_row(&mut op.router)]
                .into_iter()
                .chain(streams)
                .chain([by_row(&mut op.out)])
                .collect()
        }
        Op::CorrectStreams(op) => {
            let rest = [&mut op.x, &mut op.out].map(by_row);
            let streams = streams(&mut op.streams);
            [by_row(&mut op.router)].into_iter().chain(streams).chain(rest).collect()
        }
        Op::MatchRms(op) => [&mut op.x, &mut op.like, &mut op.out].map(by_row).into(),
        Op::Threshold(op) => vec![by_row(&mut op.x)],
        _ => unreachable!("the caller hands on no other"),
    }
}

/// Of streams that are mixed, and of entries that are chosen.
fn of_entries(op: &mut Op) -> Vec<OperandView<'_>> {
    match op {
        Op::GroupNorm(op) => vec![by_row(&mut op.x), by_row(&mut op.out)],
        Op::SiluRows(op) => vec![by_row(&mut op.x)],
        Op::MixStreams(op) => [&mut op.x, &mut op.gates, &mut op.out].map(by_row).into(),
        Op::UpdateStreams(op) => {
            let more = match &mut op.update {
                StreamUpdate::Set | StreamUpdate::Add => [None, None],
                StreamUpdate::Gated { gates } => [Some(gates), None],
                StreamUpdate::Mixed { post, comb } => [Some(post), Some(comb)],
            };
            let more = more.into_iter().flatten();
            [&mut op.y].into_iter().chain(more).chain([&mut op.x]).map(by_row).collect()
        }
        Op::CollapseStreams(op) => {
            let mixing = op.mixing.as_mut().map(|mixing| [&mut mixing.post, &mut mixing.comb]);
            let inputs = [&mut op.x, &mut op.logits].into_iter();
            inputs.chain(mixing.into_iter().flatten()).chain([&mut op.out]).map(by_row).collect()
        }
        Op::NgramEmbed(op) => {
            let state = [&mut op.window, &mut op.log, &mut op.spans.table, &mut op.out];
            [&mut op.ids].into_iter().chain(state).map(shared).collect()
        }
        Op::NgramGate(op) => {
            [&mut op.keys, &mut op.queries, &mut op.values, &mut op.out].map(by_row).into()
        }
        Op::PoolEntries(op) => {
            let gates = op.gates.as_mut().map(|(gates, _)| gates);
            let state = [&mut op.window, &mut op.log, &mut op.spans.table];
            let inputs = [&mut op.keys].into_iter().chain(gates).chain(state);
            inputs.chain([&mut op.tables, &mut op.cache]).map(shared).collect()
        }
        Op::ChooseEntries(op) => {
            let weights = op.weights.as_mut().map(by_row);
            let rows = [&mut op.positions, &mut op.span_of].map(by_row);
            let mut all = vec![by_row(&mut op.q)];
            all.extend(weights.into_iter().chain([shared(&mut op.cache)]).chain(rows));
            all.extend([shared(&mut op.tables), by_row(&mut op.chosen)]);
            all
        }
        Op::SparseAttention(op) => {
            attention(&mut op.whole).into_iter().chain([by_row(&mut op.chosen)]).collect()
        }
        Op::CompressedAttention(op) => {
            let mut all = vec![&mut op.q, &mut op.kv, &mut op.window, &mut op.log];
            all.push(&mut op.spans.table);
            if let Some(entries) = &mut op.entries {
                all.extend([&mut entries.cache, &mut entries.tables]);
                all.extend(entries.chosen.as_mut().map(|(chosen, _)| chosen));
            }
            all.push(&mut op.out);
            all.into_iter().map(shared).collect()
        }
        Op::TurnTails(op) => vec![by_row(&mut op.table), by_row(&mut op.x)],
        Op::GroupedLinear(op) => {
            [&mut op.x, &mut op.gathered, &mut op.products, &mut op.out].map(by_row).into()
        }
        Op::HashRouter(op) => {
            [&mut op.ids, &mut op.logits, &mut op.chosen, &mut op.weights].map(by_row).into()
        }
        _ => unreachable!("the caller hands on no other"),
    }
}

fn streams(streams: &mut Streams) -> impl Iterator<Item = OperandView<'_>> {
    streams.views.iter_mut().flatten().map(by_row)
}

fn scan(op: &mut SelectiveScan) -> [OperandView<'_>; 7] {
    let inputs = [&mut op.xbc, &mut op.step, &mut op.decay];
    let [xbc, step, decay] = inputs.map(shared);
    let [state, log] = [&mut op.state, &mut op.log].map(shared);
    [xbc, step, decay, state, log, shared(&mut op.spans.table), shared(&mut op.out)]
}

fn delta_rule(op: &mut DeltaRule) -> [OperandView<'_>; 7] {
    let inputs = [&mut op.qkv, &mut op.decay, &mut op.beta];
    let [qkv, decay, beta] = inputs.map(shared);
    let [state, log] = [&mut op.state, &mut op.log].map(shared);
    [qkv, decay, beta, state, log, shared(&mut op.spans.table), shared(&mut op.out)]
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
