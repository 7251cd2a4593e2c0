//! Operations as data: one struct of operands per operation, one closed enum over them.
//!
//! Unless an operation says otherwise, operands are row-major f32 and `rows` follows from the
//! first operand's length. A row's result depends on that row alone and is the same sequence of
//! floating-point operations whatever rows share the call; that is what makes speculation,
//! batching and chunking exact.

mod activation;
mod attention;
mod attention_inputs;
mod cache;
mod cluster;
mod conv;
mod delta;
mod entries;
mod hyper;
mod kda;
mod latent;
mod linear;
mod moe;
mod ngram;
mod norm;
pub(crate) mod parts;
mod rope;
mod rows;
mod sample;
mod scan;
mod spans;
mod sparse;
mod streams;
#[cfg(test)]
mod tests;
mod turn;

pub use activation::{Activation, AddGated, GateMul, Glu, Softcap};
pub use attention::{Attention, AttentionPart};
pub use attention_inputs::{AttentionInputs, HeadNorm, NewKeys, Queries};
pub use cache::{CacheLayout, CacheOrder, code, encode};
pub use cluster::ClusterHead;
pub use conv::{ConvGates, ShortConv};
pub use delta::{DeltaGates, DeltaInputs, DeltaRule, DeltaShape};
pub use entries::{ChooseEntries, EntryLayout, PoolEntries, Turned};
pub use hyper::{
    CollapseStreams, GroupNorm, MixStreams, SiluRows, StreamMixing, StreamUpdate, UpdateStreams,
};
pub use kda::{KdaGates, KdaRule, kda_log_len};
pub use latent::{HeadLinear, LatentAttention, LatentInputs};
pub use linear::{
    Channels, GatedLinear, GroupedLinear, InputNorm, Linear, LinearPart, Linears, Store,
};
pub use moe::{ExpertGroups, ExpertRows, Experts, HashRouter, Router, Scores};
pub use ngram::{NgramEmbed, NgramGate, NgramHash};
pub use norm::{AddNorm, GatedNorm, JoinNorm, RmsNorm};
pub use rope::RopeTable;
pub use rows::{Embed, GatherRows, ScatterRows, ScatterWords};
pub use sample::{
    HeadSample, HistoryEntry, Sample, SampleRow, gumbel, passes, reaches, uniform, weight,
};
pub use scan::{GatedGroupNorm, ScanGates, ScanShape, SelectiveScan};
pub use spans::{SpanEntry, Spans};
pub use sparse::{CompressedAttention, SeenEntries, SparseAttention};
pub use streams::{CorrectStreams, MatchRms, PredictStreams, Streams, Threshold};
pub use turn::TurnTails;

use crate::{Backend, BackendError, OpDesc};

/// The one list of operations: calls `$with! { method: Type, … }`.
#[macro_export]
macro_rules! for_each_operation {
    ($with:ident) => {
        $with! {
            embed: Embed,
            rms_norm: RmsNorm,
            add_norm: AddNorm,
            join_norm: JoinNorm,
            linear: Linear,
            linears: Linears,
            gated_linear: GatedLinear,
            rope_table: RopeTable,
            attention_inputs: AttentionInputs,
            attention: Attention,
            attention_part: AttentionPart,
            short_conv: ShortConv,
            delta_gates: DeltaGates,
            delta_inputs: DeltaInputs,
            delta_rule: DeltaRule,
            gated_norm: GatedNorm,
            scan_gates: ScanGates,
            selective_scan: SelectiveScan,
            gated_group_norm: GatedGroupNorm,
            gate_mul: GateMul,
            glu: Glu,
            softcap: Softcap,
            router: Router,
            experts: Experts,
            add_gated: AddGated,
            cluster_head: ClusterHead,
            gather_rows: GatherRows,
            scatter_rows: ScatterRows,
            scatter_words: ScatterWords,
            sample: Sample,
            head_sample: HeadSample,
            predict_streams: PredictStreams,
            correct_streams: CorrectStreams,
            match_rms: MatchRms,
            threshold: Threshold,
            head_linear: HeadLinear,
            latent_inputs: LatentInputs,
            latent_attention: LatentAttention,
            kda_gates: KdaGates,
            kda_rule: KdaRule,
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
    };
}

macro_rules! operations {
    ($($method:ident: $name:ident),* $(,)?) => {
        /// Any operation.
        #[derive(Clone, Copy, Debug)]
        #[expect(missing_docs, reason = "each variant is documented at its struct")]
        pub enum Op { $($name($name)),* }

        impl Op {
            /// The operation's name in errors, traces and benchmarks.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($method)),* }
            }

            /// Writes operands, sizes and cost into a description.
            pub fn describe(&self, desc: &mut OpDesc<'_>) {
                match self { $(Self::$name(op) => op.describe(desc)),* }
            }

            /// Calls the method this operation belongs to.
            pub fn apply<B: Backend + ?Sized>(self, backend: &mut B) -> Result<(), BackendError> {
                match self { $(Self::$name(op) => backend.$method(op)),* }
            }
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Self { Self::$name(op) }
        })*
    };
}

for_each_operation! { operations }
