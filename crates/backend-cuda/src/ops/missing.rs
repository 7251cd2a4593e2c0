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
}
