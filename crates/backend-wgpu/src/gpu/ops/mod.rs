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
use forerun_backend::{BackendError, Op};

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
    }
}
