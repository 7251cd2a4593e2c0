//! The weights and spans of an operation as places that a check can change.

use crate::op::Spans;
use crate::{Op, WeightId};

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
        Op::ShortConv(op) => [&mut op.weight].into_iter().chain(&mut op.bias).collect(),
        Op::DeltaGates(op) => vec![&mut op.rate, &mut op.dt_bias],
        Op::DeltaInputs(op) => vec![&mut op.weight, &mut op.rate, &mut op.dt_bias],
        Op::PredictStreams(op) => vec![&mut op.weight],
        Op::CorrectStreams(op) => [&mut op.weight].into_iter().chain(&mut op.scale).collect(),
        Op::GatedNorm(op) => vec![&mut op.weight],
        Op::ScanGates(op) => vec![&mut op.rate, &mut op.bias],
        Op::SelectiveScan(op) => vec![&mut op.skip],
        Op::GatedGroupNorm(op) => vec![&mut op.weight],
        Op::ClusterHead(op) => vec![&mut op.members, &mut op.head],
        Op::HeadSample(op) => vec![&mut op.weight],
        Op::Router(op) => op.bias.iter_mut().chain(&mut op.expert_scale).collect(),
        Op::Experts(op) => vec![&mut op.gate.weight, &mut op.up.weight, &mut op.down.weight],
        Op::HeadLinear(op) => vec![&mut op.weight],
        Op::LatentInputs(op) => vec![&mut op.norm.weight],
        Op::KdaGates(op) => vec![&mut op.rate, &mut op.dt_bias],
        Op::GroupNorm(op) => vec![&mut op.weight],
        Op::CollapseStreams(op) => vec![&mut op.scale, &mut op.base],
        Op::NgramEmbed(op) => vec![&mut op.table],
        Op::PoolEntries(op) => {
            let bias = op.gates.as_mut().map(|(_, bias)| bias);
            bias.into_iter().chain([&mut op.norm.weight, &mut op.inv_freq]).collect()
        }
        Op::CompressedAttention(op) => vec![&mut op.sinks],
        Op::TurnTails(op) => op.norm.iter_mut().map(|norm| &mut norm.weight).collect(),
        Op::GroupedLinear(op) => vec![&mut op.weight],
        Op::HashRouter(op) => vec![&mut op.table],
        Op::Attention(_)
        | Op::AttentionPart(_)
        | Op::LatentAttention(_)
        | Op::KdaRule(_)
        | Op::DeltaRule(_)
        | Op::GateMul(_)
        | Op::Glu(_)
        | Op::Softcap(_)
        | Op::AddGated(_)
        | Op::MatchRms(_)
        | Op::Threshold(_)
        | Op::GatherRows(_)
        | Op::ScatterRows(_)
        | Op::ScatterWords(_)
        | Op::Sample(_)
        | Op::SiluRows(_)
        | Op::MixStreams(_)
        | Op::UpdateStreams(_)
        | Op::NgramGate(_)
        | Op::ChooseEntries(_)
        | Op::SparseAttention(_) => Vec::new(),
    }
}

/// The span table of a recurrent operation.
pub(super) fn spans(op: &mut Op) -> Option<&mut Spans> {
    match op {
        Op::ShortConv(op) => Some(&mut op.spans),
        Op::DeltaGates(op) => Some(&mut op.spans),
        Op::DeltaInputs(op) => Some(&mut op.spans),
        Op::DeltaRule(op) => Some(&mut op.spans),
        Op::KdaGates(op) => Some(&mut op.spans),
        Op::KdaRule(op) => Some(&mut op.spans),
        Op::SelectiveScan(op) => Some(&mut op.spans),
        Op::NgramEmbed(op) => Some(&mut op.spans),
        Op::PoolEntries(op) => Some(&mut op.spans),
        Op::CompressedAttention(op) => Some(&mut op.spans),
        _ => None,
    }
}
