//! The trait a device implements.

use crate::op::{
    AddGated, AddNorm, Attention, AttentionInputs, AttentionPart, ClusterHead, CorrectStreams,
    DeltaGates, DeltaInputs, DeltaRule, Embed, Experts, GateMul, GatedGroupNorm, GatedLinear,
    GatedNorm, GatherRows, Glu, HeadLinear, HeadSample, JoinNorm, KdaGates, KdaRule,
    LatentAttention, LatentInputs, Linear, Linears, MatchRms, PredictStreams, RmsNorm, RopeTable,
    Router, Sample, ScanGates, ScatterRows, ScatterWords, SelectiveScan, ShortConv, Softcap,
    Threshold,
};
use crate::op::{
    ChooseEntries, CollapseStreams, CompressedAttention, GroupNorm, GroupedLinear, HashRouter,
    MixStreams, NgramEmbed, NgramGate, PoolEntries, SiluRows, SparseAttention, TurnTails,
    UpdateStreams,
};
use crate::{
    BackendError, BufferId, BufferSpec, Catalog, Op, OpDesc, Program, StashId, View, WeightId,
};
use forerun_base::{Bytes, Matrix, MatrixParts};
use std::time::Duration;

/// Bytes of host memory that a device with memory of its own may use to bring weights there, however large they are.
pub const STAGING: usize = 64 << 20;

/// Numbers on the host, on their way to a device.
#[derive(Clone, Copy, Debug)]
pub enum HostData<'a> {
    /// For F32 buffers.
    F32(&'a [f32]),
    /// For U32 buffers.
    U32(&'a [u32]),
    /// For buffers of any type: the elements as they are kept, each little-endian.
    Bytes(&'a [u8]),
}

/// Room on the host for numbers from a device.
#[derive(Debug)]
pub enum HostDataMut<'a> {
    /// From F32, F16 and BF16 buffers; 16-bit floats are widened.
    F32(&'a mut [f32]),
    /// From U32 buffers.
    U32(&'a mut [u32]),
    /// From buffers of any type: the elements as they are kept, each little-endian.
    Bytes(&'a mut [u8]),
}

/// A point in a device's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// How finely a device cuts a single row of an operation. Zero: not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutSizes {
    /// [`AttentionPart`]s begin and end at multiples of so many keys.
    pub keys: usize,
    /// [`Channels`](crate::op::Channels) of a product begin at multiples of so many.
    pub channels: usize,
}

/// The device seam. Object-safe: nothing above it is generic over a backend.
///
/// Calls are queued in order. A device may run them at once (a CPU does) or at `submit`;
/// `read` is allowed only when everything submitted has been waited for and nothing is queued.
/// An error leaves buffers unspecified but the device usable, unless it is [`BackendError::Lost`].
///
/// Operands of numbers (F32, caches of any type) begin at a multiple of 16 elements of their buffer, or, where their
/// length is no such multiple, at a multiple of the largest power of two in it: [`View::alignment`]. So a device may
/// read every row of whole vectors by vectors. Exempt are indices (U32), which are read word by word and follow each
/// other closely in an input block; the output of a product of some channels, which is a part of a row; and copies
/// (`write`, `read`, `stash`, `unstash`), which move bytes.
pub trait Backend: Catalog + Send {
    /// The device in words, for the user.
    fn name(&self) -> String;

    /// What results depend on besides operands: devices that say the same give the same bits, so states of one can go
    /// on on the other.
    fn arithmetic(&self) -> String {
        self.name()
    }

    /// Bytes that buffers and weights can still take, on a device with memory of its own.
    fn free_memory(&self) -> Option<u64> {
        None
    }

    /// Bytes of the largest buffer that the device can make, where it has such a limit. Weights may be larger.
    fn largest_buffer(&self) -> Option<u64> {
        None
    }

    /// How long the longest piece of work takes that the device cannot be stopped in, by what it was seen to do;
    /// nothing where it does not cut operations for that.
    fn longest_dispatch(&self) -> Option<Duration> {
        None
    }

    /// Operations that the device does not have, by name: it answers them with [`BackendError::Missing`]. A model that
    /// needs one of them is refused before its weights are uploaded. The conformance suite holds a device to the
    /// others.
    fn missing(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether [`Self::reopen`] can succeed.
    fn reopens(&self) -> bool {
        false
    }

    /// Opens the device again after it was lost. Buffers, weights and programs are gone; stashes whose submission was
    /// waited for stay, and so do results, or it is an error.
    fn reopen(&mut self) -> Result<(), BackendError> {
        Err(BackendError::Protocol("this device cannot be opened again".into()))
    }

    /// How finely a row of an operation may be cut, with a cache in blocks of so many positions. A device that does so
    /// much a second that no row comes near the budget of a submission need not cut one.
    fn cut_sizes(&self, _block: usize) -> CutSizes {
        CutSizes::default()
    }

    /// Makes a buffer. Contents are unspecified.
    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<BufferId, BackendError>;

    /// Takes a weight matrix.
    fn upload(&mut self, label: &str, matrix: Matrix) -> Result<WeightId, BackendError>;

    /// Takes a weight matrix whose rows lie in several places. Defined as an `upload` of the whole. A device that packs
    /// its weights asks for a few rows at a time, keeps no more than [`STAGING`] bytes of them, and releases what it
    /// has packed; the conformance suite holds it to the definition.
    fn upload_parts(&mut self, label: &str, parts: &MatrixParts) -> Result<WeightId, BackendError> {
        self.upload(label, parts.whole())
    }

    /// Queues a copy from the host; the data may be reused on return.
    fn write(&mut self, dst: View, src: HostData<'_>) -> Result<(), BackendError>;

    /// Hands everything queued to the device.
    fn submit(&mut self) -> Result<Ticket, BackendError>;

    /// Waits until the device has passed `ticket`. Returns how long the device itself was busy with what it has passed
    /// since the last wait, which is what a step costs: the host's clock also counts what the host did meanwhile.
    fn wait(&mut self, ticket: Ticket) -> Result<Duration, BackendError>;

    /// Queues a copy of a small view to memory of the host. Once the submission that holds it was waited for, a `read`
    /// of exactly this view takes that copy, whatever was submitted since, and asks nothing of the device; what is
    /// queued behind it must not write the view before. Defined as nothing: a `read` waits for all that was submitted.
    fn post(&mut self, src: View) -> Result<(), BackendError> {
        let _ = src;
        Ok(())
    }

    /// Copies to the host.
    fn read(&mut self, src: View, dst: HostDataMut<'_>) -> Result<(), BackendError>;

    /// Queues putting aside what views hold at this point of the queue, one behind the other: what is queued later does
    /// not change it. Memory for it is taken now. A device keeps stashes where it likes, so long as buffers and weights
    /// have what room they had: on the host, or in memory that it shares with it.
    fn stash(&mut self, views: &[View]) -> Result<StashId, BackendError>;

    /// A stash of bytes from the host, as if views that hold them had been put aside.
    fn stash_host(&mut self, bytes: Bytes) -> Result<StashId, BackendError>;

    /// Queues copying a stash to views, one behind the other, which take exactly what it holds. It stays.
    fn unstash(&mut self, stash: StashId, views: &[View]) -> Result<(), BackendError>;

    /// The bytes of a stash. Waits only until the device has made it, whatever else is queued; it must have been
    /// submitted.
    fn read_stash(&mut self, stash: StashId) -> Result<Bytes, BackendError>;

    /// Forgets a stash. What was queued before still finds it; its bytes count no more.
    fn release_stash(&mut self, stash: StashId) -> Result<(), BackendError>;

    /// Sets the most bytes that stashes may take together; without a call there is no limit.
    fn limit_stashes(&mut self, bytes: u64);

    /// Bytes that stashes take.
    fn stash_bytes(&self) -> u64;

    /// Makes a program ready, which will run many times. A device may check its descriptions once, keep bind groups or
    /// capture a graph. One that was not prepared runs as well.
    fn prepare(&mut self, _program: &mut Program) -> Result<(), BackendError> {
        Ok(())
    }

    /// Queues the operations of a program. Defined as each of them in order.
    fn run(&mut self, program: &Program) -> Result<(), BackendError> {
        program.ops().iter().try_for_each(|op| op.apply(self))
    }

    /// Forgets what the device keeps of a program.
    fn release(&mut self, _program: &mut Program) {}

    /// `out[i] = table[ids[i]]·scale`.
    fn embed(&mut self, op: Embed) -> Result<(), BackendError>;
    /// Root-mean-square norm with a weight.
    fn rms_norm(&mut self, op: RmsNorm) -> Result<(), BackendError>;
    /// A normed row added, and the sum scaled.
    fn add_norm(&mut self, op: AddNorm) -> Result<(), BackendError>;
    /// Two rows, normed or not, laid side by side.
    fn join_norm(&mut self, op: JoinNorm) -> Result<(), BackendError>;
    /// `x Wᵀ`, stored or added.
    fn linear(&mut self, op: Linear) -> Result<(), BackendError>;
    /// Cosines and sines of the rows' positions.
    fn rope_table(&mut self, op: RopeTable) -> Result<(), BackendError>;
    /// Head norms and rotary embedding; new keys and values into the cache.
    fn attention_inputs(&mut self, op: AttentionInputs) -> Result<(), BackendError>;
    /// Causal attention over the cache.
    fn attention(&mut self, op: Attention) -> Result<(), BackendError>;
    /// Causal depthwise convolution with its window and log.
    fn short_conv(&mut self, op: ShortConv) -> Result<(), BackendError>;
    /// q and k of unit length, decay and write strength.
    fn delta_gates(&mut self, op: DeltaGates) -> Result<(), BackendError>;
    /// The gated delta rule over spans.
    fn delta_rule(&mut self, op: DeltaRule) -> Result<(), BackendError>;
    /// `rms(x)·w·silu(gate)`.
    fn gated_norm(&mut self, op: GatedNorm) -> Result<(), BackendError>;
    /// Steps and decays of the selective scan.
    fn scan_gates(&mut self, op: ScanGates) -> Result<(), BackendError>;
    /// The selective scan over spans.
    fn selective_scan(&mut self, op: SelectiveScan) -> Result<(), BackendError>;
    /// `rms(x·silu(gate))·w`, group by group.
    fn gated_group_norm(&mut self, op: GatedGroupNorm) -> Result<(), BackendError>;
    /// `x ← x·σ(gate)`.
    fn gate_mul(&mut self, op: GateMul) -> Result<(), BackendError>;
    /// `gate ← act(gate)·up`.
    fn glu(&mut self, op: Glu) -> Result<(), BackendError>;
    /// `x ← cap·tanh(x / cap)`.
    fn softcap(&mut self, op: Softcap) -> Result<(), BackendError>;
    /// Top-k experts of each row.
    fn router(&mut self, op: Router) -> Result<(), BackendError>;
    /// The chosen experts' weighted sum.
    fn experts(&mut self, op: Experts) -> Result<(), BackendError>;
    /// `out += σ(gate)·x`.
    fn add_gated(&mut self, op: AddGated) -> Result<(), BackendError>;
    /// Logits of the chosen clusters' tokens.
    fn cluster_head(&mut self, op: ClusterHead) -> Result<(), BackendError>;
    /// `out[i] = x[rows[i]]`.
    fn gather_rows(&mut self, op: GatherRows) -> Result<(), BackendError>;
    /// `out[rows[i]] = x[i]`.
    fn scatter_rows(&mut self, op: ScatterRows) -> Result<(), BackendError>;
    /// `out[to[i]] = words[from[i]]`.
    fn scatter_words(&mut self, op: ScatterWords) -> Result<(), BackendError>;
    /// One token per row of logits.
    fn sample(&mut self, op: Sample) -> Result<(), BackendError>;
    /// Root-mean-square norm of groups.
    fn group_norm(&mut self, op: GroupNorm) -> Result<(), BackendError>;
    /// `x ← x·σ(x)`.
    fn silu_rows(&mut self, op: SiluRows) -> Result<(), BackendError>;
    /// Several streams to one, each number by a gate of its own.
    fn mix_streams(&mut self, op: MixStreams) -> Result<(), BackendError>;
    /// A block's output to several streams.
    fn update_streams(&mut self, op: UpdateStreams) -> Result<(), BackendError>;
    /// Several streams to one, and how they will be mixed.
    fn collapse_streams(&mut self, op: CollapseStreams) -> Result<(), BackendError>;
    /// Rows of a table for the last tokens together.
    fn ngram_embed(&mut self, op: NgramEmbed) -> Result<(), BackendError>;
    /// Values for each stream, by how well keys fit queries.
    fn ngram_gate(&mut self, op: NgramGate) -> Result<(), BackendError>;
    /// Entries of neighbouring keys.
    fn pool_entries(&mut self, op: PoolEntries) -> Result<(), BackendError>;
    /// The entries with the best scores.
    fn choose_entries(&mut self, op: ChooseEntries) -> Result<(), BackendError>;
    /// Attention to chosen groups of keys.
    fn sparse_attention(&mut self, op: SparseAttention) -> Result<(), BackendError>;
    /// Attention to the last keys, entries and a sink.
    fn compressed_attention(&mut self, op: CompressedAttention) -> Result<(), BackendError>;
    /// Head norms, and rotary embedding of the last numbers of heads.
    fn turn_tails(&mut self, op: TurnTails) -> Result<(), BackendError>;
    /// Products of parts of a row with parts of a weight.
    fn grouped_linear(&mut self, op: GroupedLinear) -> Result<(), BackendError>;
    /// Experts by a table of tokens.
    fn hash_router(&mut self, op: HashRouter) -> Result<(), BackendError>;

    /// Streams as they are expected to be after a layer.
    fn predict_streams(&mut self, op: PredictStreams) -> Result<(), BackendError>;
    /// Streams as they are after a layer.
    fn correct_streams(&mut self, op: CorrectStreams) -> Result<(), BackendError>;
    /// Rows brought to the size of others.
    fn match_rms(&mut self, op: MatchRms) -> Result<(), BackendError>;
    /// What lies far above a row's mean.
    fn threshold(&mut self, op: Threshold) -> Result<(), BackendError>;

    /// A product of each head with a matrix of its own.
    fn head_linear(&mut self, _op: HeadLinear) -> Result<(), BackendError> {
        Err(BackendError::Missing { op: "head_linear" })
    }
    /// Queries rotated; new rows normed, rotated and into a latent cache.
    fn latent_inputs(&mut self, _op: LatentInputs) -> Result<(), BackendError> {
        Err(BackendError::Missing { op: "latent_inputs" })
    }
    /// Causal attention over a latent cache.
    fn latent_attention(&mut self, _op: LatentAttention) -> Result<(), BackendError> {
        Err(BackendError::Missing { op: "latent_attention" })
    }
    /// q and k of unit length, decay of each key channel and write strength.
    fn kda_gates(&mut self, _op: KdaGates) -> Result<(), BackendError> {
        Err(BackendError::Missing { op: "kda_gates" })
    }
    /// The delta rule with a decay of each key channel over spans.
    fn kda_rule(&mut self, _op: KdaRule) -> Result<(), BackendError> {
        Err(BackendError::Missing { op: "kda_rule" })
    }

    /// Some of the keys of an `attention`. Required of a device whose [`Self::cut_sizes`] have keys.
    fn attention_part(&mut self, _op: AttentionPart) -> Result<(), BackendError> {
        let what = "this device does not cut attention by keys";
        Err(BackendError::Parameter { op: "attention_part", what })
    }

    /// Defined as an `rms_norm` where there is one and a `linear` for each weight. Override only to fuse, as below.
    fn linears(&mut self, op: Linears) -> Result<(), BackendError> {
        let (norm, mut products) = op.parts();
        if let Some(norm) = norm {
            self.rms_norm(norm)?;
        }
        products.try_for_each(|part| self.linear(part))
    }

    /// Defined as an `rms_norm` where there is one, two `linear` and a `glu`. Override only to fuse; the conformance
    /// suite holds an override to this definition.
    fn gated_linear(&mut self, op: GatedLinear) -> Result<(), BackendError> {
        let (norm, products, glu) = op.parts();
        if let Some(norm) = norm {
            self.rms_norm(norm)?;
        }
        products.into_iter().try_for_each(|part| self.linear(part))?;
        self.glu(glu)
    }

    /// Defined as a `short_conv` and a `delta_gates`. Override only to fuse, as above.
    fn delta_inputs(&mut self, op: DeltaInputs) -> Result<(), BackendError> {
        let (conv, gates) = op.parts();
        self.short_conv(conv)?;
        self.delta_gates(gates)
    }

    /// Defined as a `linear`, a `softcap` where there is a cap, and a `sample`. Override only to fuse, as above.
    fn head_sample(&mut self, op: HeadSample) -> Result<(), BackendError> {
        let (linear, cap, sample) = op.parts();
        self.linear(linear)?;
        if let Some(cap) = cap {
            self.softcap(cap)?;
        }
        self.sample(sample)
    }
}

/// Runs everything queued and waits for it.
pub fn submit_and_wait(backend: &mut dyn Backend) -> Result<Duration, BackendError> {
    let ticket = backend.submit()?;
    backend.wait(ticket)
}

impl Op {
    /// The operation's description of itself.
    pub fn desc<'a>(&self, catalog: &'a dyn Catalog) -> OpDesc<'a> {
        let mut desc = OpDesc::new(self.name(), catalog);
        self.describe(&mut desc);
        desc
    }
}
