//! The operations as functions over host memory; the reference is the default body of each.

use crate::{Memory, reference};
use forerun_backend::BackendError;
use forerun_backend::op::{
    AddGated, Attention, CacheWrite, Conv, DeltaPrepare, DeltaRule, Embed, Experts, GateMul,
    GatedLinear, GatedNorm, GatherRows, JoinNorm, Linear, RmsNorm, Rope, RopeTable, Router, Sample,
    ScatterRows, SwiGlu,
};

type Done = Result<(), BackendError>;

macro_rules! kernels {
    ($($name:ident: $op:ident),* $(,)?) => {
        /// One function per operation. Operands were checked against their sheet before the call;
        /// an override may only be faster than the definition, never mean something else.
        pub trait Kernels: Send {
            /// The kernels in words, for the user.
            fn name(&self) -> String;
            $(
                /// See the operation's own text.
                fn $name(&mut self, memory: &mut Memory, op: $op) -> Done {
                    reference::$name(memory, op)
                }
            )*
        }
    };
}

kernels! {
    embed: Embed,
    rms_norm: RmsNorm,
        join_norm: JoinNorm,
    linear: Linear,
    gated_linear: GatedLinear,
    rope_table: RopeTable,
    rope: Rope,
    cache_write: CacheWrite,
    attention: Attention,
    conv: Conv,
    delta_prepare: DeltaPrepare,
    delta_rule: DeltaRule,
    gated_norm: GatedNorm,
    gate_mul: GateMul,
    swiglu: SwiGlu,
    router: Router,
    experts: Experts,
    add_gated: AddGated,
    gather_rows: GatherRows,
        scatter_rows: ScatterRows,
    sample: Sample,
}

/// Definitions only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Kernels for Plain {
    fn name(&self) -> String {
        "cpu (plain reference)".to_owned()
    }
}
