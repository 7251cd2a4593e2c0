//! Operations that have no kernels yet.

use super::Done;
use crate::cuda::Device;
use forerun_backend::BackendError;
use forerun_backend::op;

macro_rules! missing {
    ($($name:ident: $op:ident),* $(,)?) => {
        /// Their names.
        pub(crate) const MISSING: &[&str] = &[$(stringify!($name)),*];

        $(pub(crate) fn $name(_device: &mut Device, _op: op::$op) -> Done {
            Err(BackendError::Missing { op: stringify!($name) })
        })*
    };
}

missing! {
    head_linear: HeadLinear,
    latent_inputs: LatentInputs,
    latent_attention: LatentAttention,
    kda_gates: KdaGates,
    kda_rule: KdaRule,
    scan_gates: ScanGates,
    selective_scan: SelectiveScan,
    gated_group_norm: GatedGroupNorm,
    group_norm: GroupNorm,
    silu_rows: SiluRows,
    mix_streams: MixStreams,
    update_streams: UpdateStreams,
    collapse_streams: CollapseStreams,
    ngram_embed: NgramEmbed,
    ngram_gate: NgramGate,
    pool_entries: PoolEntries,
    choose_entries: ChooseEntries,
    sparse_attention: SparseAttention,
    compressed_attention: CompressedAttention,
    turn_tails: TurnTails,
    grouped_linear: GroupedLinear,
    hash_router: HashRouter,
}
