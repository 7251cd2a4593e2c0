//! Operations as data: one struct of operands per operation, one closed enum over them.
//!
//! Unless an operation says otherwise, operands are row-major f32 and `rows` follows from the
//! first operand's length. A row's result depends on that row alone and is the same sequence of
//! floating-point operations whatever rows share the call; that is what makes speculation,
//! batching and chunking exact.

mod activation;
mod attention;
mod delta;
mod linear;
mod moe;
mod norm;
mod rope;
mod rows;
mod sample;
mod spans;

pub use activation::{AddGated, GateMul, SwiGlu};
pub use attention::{Attention, CacheLayout, CacheWrite};
pub use delta::{Conv, DeltaPrepare, DeltaRule, DeltaShape};
pub use linear::{GatedLinear, Linear, Store};
pub use moe::{ExpertRows, Experts, Router};
pub use norm::{GatedNorm, JoinNorm, RmsNorm};
pub use rope::{HeadNorm, Rope, RopeTable};
pub use rows::{Embed, GatherRows, ScatterRows};
pub use sample::{HistoryEntry, Sample, SampleRow, gumbel, uniform};
pub use spans::{SpanEntry, Spans};

use crate::Sheet;

macro_rules! operations {
    ($($name:ident => $text:literal),* $(,)?) => {
        /// Any operation.
        #[derive(Clone, Copy, Debug)]
        #[expect(missing_docs, reason = "each variant is documented at its struct")]
        pub enum Op { $($name($name)),* }

        impl Op {
            /// The operation's name in errors, traces and benchmarks.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $text),* }
            }

            /// Writes operands, sizes and cost onto a sheet.
            pub fn describe(&self, sheet: &mut Sheet<'_>) {
                match self { $(Self::$name(op) => op.describe(sheet)),* }
            }
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Self { Self::$name(op) }
        })*
    };
}

operations! {
    Embed => "embed",
    RmsNorm => "rms_norm",
    JoinNorm => "join_norm",
    Linear => "linear",
    GatedLinear => "gated_linear",
    RopeTable => "rope_table",
    Rope => "rope",
    CacheWrite => "cache_write",
    Attention => "attention",
    Conv => "conv",
    DeltaPrepare => "delta_prepare",
    DeltaRule => "delta_rule",
    GatedNorm => "gated_norm",
    GateMul => "gate_mul",
    SwiGlu => "swiglu",
    Router => "router",
    Experts => "experts",
    AddGated => "add_gated",
    GatherRows => "gather_rows",
    ScatterRows => "scatter_rows",
    Sample => "sample",
}
