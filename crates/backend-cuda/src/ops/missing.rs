//! Operations that there are no kernels for.

use super::Done;
use crate::cuda::Device;
use forerun_backend::BackendError;
use forerun_backend::op::{GatedGroupNorm, ScanGates, SelectiveScan};

/// Their names.
pub(crate) const MISSING: [&str; 3] = ["scan_gates", "selective_scan", "gated_group_norm"];

pub(crate) fn scan_gates(_: &mut Device, _: ScanGates) -> Done {
    Err(BackendError::Missing { op: "scan_gates" })
}

pub(crate) fn selective_scan(_: &mut Device, _: SelectiveScan) -> Done {
    Err(BackendError::Missing { op: "selective_scan" })
}

pub(crate) fn gated_group_norm(_: &mut Device, _: GatedGroupNorm) -> Done {
    Err(BackendError::Missing { op: "gated_group_norm" })
}
