//! Operations as calls of kernels.

mod attention;
mod delta;
mod elementwise;
mod experts;
mod norm;
mod products;
mod rows;
mod sample;

pub(crate) use attention::PARTITION;

use crate::gpu::lowering::Lowering;
use forerun_backend::op::Activation;
use forerun_backend::{BackendError, Op};

/// Operations that there is no kernel for, see [`Backend::missing`](forerun_backend::Backend::missing).
pub(crate) const MISSING: &[&str] = &[
    "predict_streams",
    "correct_streams",
    "match_rms",
    "threshold",
    "head_linear",
    "latent_inputs",
    "latent_attention",
    "kda_gates",
    "kda_rule",
    "scan_gates",
    "selective_scan",
    "gated_group_norm",
    "group_norm",
    "silu_rows",
    "mix_streams",
    "update_streams",
    "collapse_streams",
    "ngram_embed",
    "ngram_gate",
    "pool_entries",
    "choose_entries",
    "sparse_attention",
    "compressed_attention",
    "turn_tails",
    "grouped_linear",
    "hash_router",
];

/// What lowering leaves beside calls.
pub(crate) type Lowered = Result<(), BackendError>;

/// Lays down the calls of an operation, which was checked; of the next one as well if the two share a call. Whether
/// they did.
pub(crate) fn lower_pair(
    to: &mut Lowering<'_>,
    op: Op,
    next: Option<Op>,
) -> Result<bool, BackendError> {
    match (op, next) {
        (Op::Attention(op), Some(Op::GateMul(next))) if next.x == op.out => {
            attention::attention(to, op, Some(next.gate))?;
        }
        (Op::DeltaRule(op), Some(Op::GatedNorm(next)))
            // The log is written beside the norm, so the gate must not lie in it.
            if next.x == op.out
                && next.dim == op.shape.dv
                && next.gate.buffer != op.log.buffer =>
        {
            delta::delta_rule(to, op, Some(next))?;
        }
        _ => return lower(to, op).map(|()| false),
    }
    Ok(true)
}

fn lower(to: &mut Lowering<'_>, op: Op) -> Lowered {
    match op {
        Op::Glu(op) => op.activation.unclamped("glu")?,
        Op::GatedLinear(op) => op.activation.unclamped("gated_linear")?,
        Op::Experts(op) => op.activation.unclamped("experts")?,
        _ => Activation::Silu,
    };
    match op {
        Op::Embed(op) => products::embed(to, op),
        Op::RmsNorm(op) => norm::rms_norm(to, op),
        Op::AddNorm(op) => norm::add_norm(to, op),
        Op::JoinNorm(op) => norm::join_norm(to, op),
        Op::Linear(op) => products::linear(to, op),
        Op::Linears(op) => products::linears(to, op),
        Op::GatedLinear(op) => products::gated_linear(to, op),
        Op::RopeTable(op) => rows::rope_table(to, op),
        Op::AttentionInputs(op) => attention::attention_inputs(to, op),
        Op::Attention(op) => attention::attention(to, op, None),
        Op::AttentionPart(op) => attention::attention_part(to, op),
        Op::ShortConv(op) => delta::short_conv(to, op),
        Op::DeltaGates(op) => delta::delta_gates(to, op),
        Op::DeltaInputs(op) => {
            let (conv, gates) = op.parts();
            delta::short_conv(to, conv)?;
            delta::delta_gates(to, gates)
        }
        Op::DeltaRule(op) => delta::delta_rule(to, op, None),
        Op::GatedNorm(op) => norm::gated_norm(to, op),
        Op::GateMul(op) => elementwise::gate_mul(to, op),
        Op::Glu(op) => elementwise::glu(to, op),
        Op::Softcap(op) => elementwise::softcap(to, op),
        Op::Router(op) => rows::router(to, op),
        Op::Experts(op) => experts::experts(to, op),
        Op::AddGated(op) => elementwise::add_gated(to, op),
        Op::ClusterHead(op) => experts::cluster_head(to, op),
        Op::GatherRows(op) => rows::gather_rows(to, op),
        Op::ScatterRows(op) => rows::scatter_rows(to, op),
        Op::ScatterWords(op) => rows::scatter_words(to, op),
        Op::Sample(op) => sample::sample(to, op),
        Op::HeadSample(op) => {
            let (product, cap, choice) = op.parts();
            products::head(to, product, cap.map(|cap| cap.cap))?;
            sample::sample(to, choice)
        }
        Op::PredictStreams(_)
        | Op::CorrectStreams(_)
        | Op::MatchRms(_)
        | Op::Threshold(_)
        | Op::HeadLinear(_)
        | Op::LatentInputs(_)
        | Op::LatentAttention(_)
        | Op::KdaGates(_)
        | Op::KdaRule(_)
        | Op::ScanGates(_)
        | Op::SelectiveScan(_)
        | Op::GatedGroupNorm(_)
        | Op::GroupNorm(_)
        | Op::SiluRows(_)
        | Op::MixStreams(_)
        | Op::UpdateStreams(_)
        | Op::CollapseStreams(_)
        | Op::NgramEmbed(_)
        | Op::NgramGate(_)
        | Op::PoolEntries(_)
        | Op::ChooseEntries(_)
        | Op::SparseAttention(_)
        | Op::CompressedAttention(_)
        | Op::TurnTails(_)
        | Op::GroupedLinear(_)
        | Op::HashRouter(_) => Err(BackendError::Missing { op: op.name() }),
    }
}
