//! The tuned kernels: every operation on the thread pool and the best instruction set of the machine.
//!
//! Nothing is allocated once each operation has run at its largest size: scratch and decoded small weights are kept.
//! `gather_rows` is a copy, for which the reference serves.

use crate::gemm::linear;
use crate::gemm::packed_rows::InputRows;
use crate::gemm::packed_weight::PackedWeight;
use crate::kernels::OpResult;
use crate::pool::SharedSlice;
use crate::simd::{self, ExecCtx, FusedNorm, Gate, Level, Norm, Partners, Scratch, Stack};
use crate::small_weights::SmallWeights;
use crate::weight::WeightForm;
use crate::{BufferStorage, Cpu, Kernels, Memory, Weight, reference};
use forerun_backend::op::{
    AddGated, AddNorm, Attention, AttentionInputs, AttentionPart, Channels, ClusterHead,
    CorrectStreams, DeltaGates, DeltaInputs, DeltaRule, Embed, ExpertRows, Experts, GateMul,
    GatedGroupNorm, GatedLinear, GatedNorm, Glu, HeadLinear, HeadSample, InputNorm, JoinNorm,
    KdaGates, KdaRule, LatentAttention, LatentInputs, Linear, Linears, MatchRms, PredictStreams,
    RmsNorm, RopeTable, Router, Sample, ScanGates, SelectiveScan, ShortConv, Softcap, SpanEntry,
    Spans, Threshold,
};
use forerun_backend::op::{
    ChooseEntries, CollapseStreams, CompressedAttention, GroupNorm, GroupedLinear, MixStreams,
    NgramEmbed, PoolEntries, SiluRows, SparseAttention, TurnTails, UpdateStreams,
};
use forerun_backend::{BackendError, CutSizes, View, WeightId};
use forerun_base::MatrixParts;
use std::ops::Range;

/// See the module's text. Belongs to one device: small weights are kept decoded under their ids.
#[derive(Debug)]
pub struct Tuned {
    ctx: ExecCtx,
    /// Scratch shared by all threads, as opposed to the context's scratch for each thread.
    shared: Scratch,
    vectors: SmallWeights,
    /// Convolution weights as `[taps][channels]`.
    taps: SmallWeights,
    /// What each row of an attention over latents sees: its line of the tables and how many keys.
    seen: Vec<(usize, usize)>,
    /// Memory for what a span sees.
    seen_rows: reference::SeenRows,
}

/// A device with tuned kernels on `threads` threads; `None` asks the machine.
pub fn tuned(threads: Option<usize>) -> Cpu<Tuned> {
    Cpu::with_kernels(Tuned::new(threads))
}

impl Tuned {
    /// The best instruction set, on `threads` threads or as many as suit the machine.
    pub fn new(threads: Option<usize>) -> Self {
        let best = Level::ALL.into_iter().find_map(|level| Self::with_isa(level, threads));
        best.expect("the portable level is always there")
    }

    /// A given instruction set, if the processor has it.
    pub fn with_isa(level: Level, threads: Option<usize>) -> Option<Self> {
        let ctx = ExecCtx::new(level, threads)?;
        let (vectors, taps) = (SmallWeights::default(), SmallWeights::default());
        let (shared, seen_rows) = (Scratch::default(), reference::SeenRows::default());
        Some(Self { ctx, shared, vectors, taps, seen: Vec::new(), seen_rows })
    }

    /// Rounds activations to int8 where they meet weights with integer codes: faster, and no longer exact, but still
    /// batch-invariant. `None` where there are no int8 kernels, and with AMX, whose exact products are faster.
    pub fn rounding(self) -> Option<Self> {
        let ctx = self.ctx.rounding()?;
        Some(Self { ctx, ..self })
    }

    /// Attention over some keys, whose state, if it is carried, is in `state`.
    fn attend(
        &mut self,
        memory: &mut Memory,
        op: Attention,
        state: View,
        keys: KeyRange,
    ) -> OpResult {
        memory.lend([op.out, state], |memory, [out, carried]| {
            let data = SharedSlice::new(carried.f32_mut(state));
            let carried =
                keys.state.map(|(begins, ends)| simd::CarriedState { data, begins, ends });
            let operands = simd::AttentionArgs {
                q: memory.f32(op.q),
                k: memory.storage(op.k_cache.buffer),
                v: memory.storage(op.v_cache.buffer),
                starts: [op.k_cache.start, op.v_cache.start],
                layout: op.layout,
                positions: memory.u32(op.positions),
                span_of: memory.u32(op.span_of),
                tables: memory.u32(op.tables),
                table_width: op.table_width,
                heads: op.heads,
                scale: op.scale,
                window: op.window,
                keys: keys.keys,
                carried,
            };
            simd::attention(&mut self.ctx, &operands, &mut self.shared, out.f32_mut(op.out))
        })
    }

    /// The instruction set, for people.
    fn instructions(&self) -> String {
        let rounded = if self.ctx.rounds() { ", int8" } else { "" };
        format!("{}{rounded}", self.ctx.level().name())
    }
}

/// The keys of a call of attention.
struct KeyRange {
    keys: Range<usize>,
    /// Where a call takes some keys only: whether it begins, and whether it ends.
    state: Option<(bool, bool)>,
}

/// Whether the entries are valid, and no two of them share a slot or a row, so that spans may run in parallel.
fn disjoint(
    op: &'static str,
    spans: &Spans,
    table: &[u32],
    rows: usize,
) -> Result<bool, BackendError> {
    let entries = || table.chunks_exact(SpanEntry::WORDS);
    for words in entries() {
        reference::span_entry(op, spans, words, rows)?;
    }
    let mut all = entries().map(SpanEntry::from_words).enumerate();
    Ok(all.all(|(i, a)| {
        entries().take(i).map(SpanEntry::from_words).all(|b| {
            let rows = a.first_row >= b.first_row + b.rows || b.first_row >= a.first_row + a.rows;
            rows && a.slot != b.slot
        })
    }))
}

/// The numbers of operands that were lent.
fn mutable<const N: usize>(
    lent: [&mut BufferStorage; N],
    views: [View; N],
) -> [SharedSlice<'_, f32>; N] {
    let mut views = views.into_iter();
    lent.map(|storage| {
        let view = views.next().expect("there is a view for each");
        SharedSlice::new(storage.f32_mut(view))
    })
}

/// Rows that a product reads.
fn rows_of(memory: &Memory, x: View) -> InputRows<'_> {
    InputRows { data: memory.f32(x), version: Some(memory.version(x)), norm: None }
}

/// Where the rows of a norm go; without one, an empty view.
fn norm_output(x: View, norm: Option<InputNorm>) -> View {
    norm.map_or(x.part(0, 0), |norm| norm.room)
}

/// The rows of a product, with the norm that makes them in `normed`, if there is one.
fn normed_rows<'a>(
    memory: &'a Memory,
    vectors: &'a SmallWeights,
    (x, norm): (View, Option<InputNorm>),
    normed: &'a mut BufferStorage,
) -> InputRows<'a> {
    let Some(norm) = norm else { return rows_of(memory, x) };
    let out = SharedSlice::new(normed.f32_mut(norm.room));
    let made = FusedNorm { norm: Norm { weight: vectors.get(norm.weight), eps: norm.eps }, out };
    InputRows { data: memory.f32(x), version: None, norm: Some(made) }
}

/// One weight of a product.
fn linear_part<'a>(
    memory: &'a Memory,
    op: Linear,
    bias: &'a [f32],
    out: &'a mut BufferStorage,
) -> linear::ProductPart<'a> {
    let (matrix, store) = (memory.matrix(op.weight), op.store);
    let channels = op.channels.unwrap_or(Channels::head(matrix.rows()));
    linear::ProductPart { matrix, channels, bias, out: out.f32_mut(op.out), store }
}

/// The operands of sampling.
fn choose<'a>(memory: &'a Memory, op: &Sample) -> simd::SampleArgs<'a> {
    let (history, ids) = (memory.u32(op.history), memory.u32(op.ids));
    let masks = memory.u32(op.masks);
    simd::SampleArgs {
        logits: memory.f32(op.logits),
        candidates: op.candidates,
        rows: memory.u32(op.rows),
        before: reference::Before { vocabulary: op.vocabulary, history, ids, masks },
    }
}

impl Kernels for Tuned {
    fn name(&self) -> String {
        format!("cpu ({}, {} threads)", self.instructions(), self.ctx.threads())
    }

    fn arithmetic(&self) -> String {
        // Any number of threads gives the same bits.
        format!("cpu ({})", self.instructions())
    }

    fn cut_sizes(&self, block: usize) -> CutSizes {
        CutSizes { keys: simd::chunk_keys(block), channels: linear::CUT_CHANNELS }
    }

    fn keep(&mut self, parts: &MatrixParts) -> Weight {
        match PackedWeight::keep(&mut self.ctx, parts) {
            Some(weight) => Weight(WeightForm::Packed(weight)),
            None => Weight::canonical(parts),
        }
    }

    fn embed(&mut self, memory: &mut Memory, op: Embed) -> OpResult {
        memory.lend([op.out], |memory, [out]| {
            let (table, ids) = (memory.matrix(op.table), memory.u32(op.ids));
            simd::embed(&mut self.ctx, table, ids, op.scale, out.f32_mut(op.out))
        })
    }

    fn rms_norm(&mut self, memory: &mut Memory, op: RmsNorm) -> OpResult {
        memory.lend([op.out], |memory, [out]| {
            let norm = Norm { weight: self.vectors.vector(memory, op.weight), eps: op.eps };
            simd::norm(&mut self.ctx, norm, Some(memory.f32(op.x)), None, out.f32_mut(op.out));
            Ok(())
        })
    }

    fn add_norm(&mut self, memory: &mut Memory, op: AddNorm) -> OpResult {
        memory.lend([op.out], |memory, [out]| {
            let norm = Norm { weight: self.vectors.vector(memory, op.weight), eps: op.eps };
            let (x, out) = (memory.f32(op.x), out.f32_mut(op.out));
            simd::add_norm(&mut self.ctx, norm, x, out, op.scale);
            Ok(())
        })
    }

    fn join_norm(&mut self, memory: &mut Memory, op: JoinNorm) -> OpResult {
        for &id in op.norms.iter().flatten() {
            self.vectors.prepare(memory, id, false);
        }
        memory.lend([op.out], |memory, [out]| {
            let norms = op.norms.map(|ids| ids.map(|id| (self.vectors.get(id), op.eps)));
            let sources = [memory.f32(op.a), memory.f32(op.b)];
            // A handful of rows per round: not worth waking the pool.
            reference::join_rows(sources, norms, op.dim, out.f32_mut(op.out));
            Ok(())
        })
    }

    fn gated_norm(&mut self, memory: &mut Memory, op: GatedNorm) -> OpResult {
        memory.lend([op.x], |memory, [x]| {
            let norm = Norm { weight: self.vectors.vector(memory, op.weight), eps: op.eps };
            simd::norm(&mut self.ctx, norm, None, Some(memory.f32(op.gate)), x.f32_mut(op.x));
            Ok(())
        })
    }

    fn linear(&mut self, memory: &mut Memory, op: Linear) -> OpResult {
        memory.lend([op.out], |memory, [out]| {
            let bias = op.bias.map_or(&[][..], |id| self.vectors.vector(memory, id));
            let part = linear_part(memory, op, bias, out);
            linear::linears(&mut self.ctx, rows_of(memory, op.x), [Some(part), None, None, None]);
            Ok(())
        })
    }

    fn linears(&mut self, memory: &mut Memory, op: Linears) -> OpResult {
        for id in op.parts.iter().flatten().filter_map(|part| part.bias) {
            self.vectors.prepare(memory, id, false);
        }
        if let Some(norm) = op.norm {
            self.vectors.prepare(memory, norm.weight, false);
        }
        let (_, mut products) = op.parts();
        let products: [Option<Linear>; Linears::MOST] = std::array::from_fn(|_| products.next());
        // Views of missing products are empty.
        let [a, b, c, d] = products.map(|part| part.map_or(op.x.part(0, 0), |part| part.out));
        memory.lend([a, b, c, d, norm_output(op.x, op.norm)], |memory, [a, b, c, d, normed]| {
            let mut products = products.iter();
            let parts = [a, b, c, d].map(|out| {
                let op = products.next().copied().flatten()?;
                let bias = op.bias.map_or(&[][..], |id| self.vectors.get(id));
                Some(linear_part(memory, op, bias, out))
            });
            let x = normed_rows(memory, &self.vectors, (op.x, op.norm), normed);
            linear::linears(&mut self.ctx, x, parts);
            Ok(())
        })
    }

    fn gated_linear(&mut self, memory: &mut Memory, op: GatedLinear) -> OpResult {
        if let Some(norm) = op.norm {
            self.vectors.prepare(memory, norm.weight, false);
        }
        memory.lend([op.out, norm_output(op.x, op.norm)], |memory, [out, normed]| {
            let weights = [memory.matrix(op.gate), memory.matrix(op.up)];
            let x = normed_rows(memory, &self.vectors, (op.x, op.norm), normed);
            let out = out.f32_mut(op.out);
            linear::gated_linear(&mut self.ctx, weights, op.activation, x, out);
            Ok(())
        })
    }

    fn rope_table(&mut self, memory: &mut Memory, op: RopeTable) -> OpResult {
        memory.lend([op.out], |memory, [out]| {
            let inv_freq = self.vectors.vector(memory, op.inv_freq);
            let (positions, out) = (memory.u32(op.positions), out.f32_mut(op.out));
            let angles = simd::Angles { inv_freq, shift: op.shift, scale: op.scale };
            simd::rope_table(&mut self.ctx, positions, angles, out);
            Ok(())
        })
    }

    fn attention_inputs(&mut self, memory: &mut Memory, op: AttentionInputs) -> OpResult {
        let norms = [
            op.queries.and_then(|queries| queries.norm),
            op.keys.and_then(|keys| keys.k_norm),
            op.keys.and_then(|keys| keys.v_norm),
        ];
        for norm in norms.iter().flatten() {
            self.vectors.prepare(memory, norm.weight, false);
        }
        // Views of missing operands are empty.
        let none = op.table.part(0, 0);
        let q = op.queries.map_or(none, |queries| queries.q);
        let [k_cache, v_cache] = op.keys.map_or([none; 2], |keys| [keys.k_cache, keys.v_cache]);
        memory.lend([q, k_cache, v_cache], |memory, [q, k, v]| {
            let [q_norm, k_norm, v_norm] = norms.map(|norm| {
                norm.map(|norm| Norm { weight: self.vectors.get(norm.weight), eps: norm.eps })
            });
            let AttentionInputs { rotary, head_dim, .. } = op;
            let rotation = simd::Rotation { table: memory.f32(op.table), rotary, head_dim };
            let queries = op.queries.map(|op| simd::QueryHeads {
                q: q.f32_mut(op.q),
                heads: op.heads,
                norm: q_norm,
            });
            let keys = op.keys.map(|op| simd::KeyRows {
                sources: [memory.f32(op.k), memory.f32(op.v)],
                norms: [k_norm, v_norm],
                places: memory.u32(op.places),
                caches: [(k, op.k_cache.start), (v, op.v_cache.start)],
                layout: op.layout,
            });
            simd::attention_inputs(&mut self.ctx, rotation, queries, keys)
        })
    }

    fn attention(&mut self, memory: &mut Memory, op: Attention) -> OpResult {
        let keys = KeyRange { keys: 0..usize::MAX, state: None };
        self.attend(memory, op, op.out.part(0, 0), keys)
    }

    fn attention_part(&mut self, memory: &mut Memory, op: AttentionPart) -> OpResult {
        reference::check_part(&op, simd::chunk_keys(op.whole.layout.block))?;
        let AttentionPart { whole, first, end, begins, ends, state } = op;
        self.attend(
            memory,
            whole,
            state,
            KeyRange { keys: first..end, state: Some((begins, ends)) },
        )
    }

    fn short_conv(&mut self, memory: &mut Memory, op: ShortConv) -> OpResult {
        let rows = op.x.len / op.channels;
        if !disjoint("short_conv", &op.spans, memory.u32(op.spans.table), rows)? {
            return reference::short_conv(memory, op);
        }
        self.taps.prepare(memory, op.weight, true);
        if let Some(bias) = op.bias {
            self.vectors.prepare(memory, bias, false);
        }
        memory.lend([op.window, op.log, op.out], |memory, [window, log, out]| {
            let operands = simd::ConvArgs {
                x: memory.f32(op.x),
                gates: op.gates.map(|g| [g.input, g.output].map(|gate| memory.f32(gate))),
                weight: self.taps.get(op.weight),
                bias: op.bias.map(|bias| self.vectors.get(bias)),
                silu: op.silu,
                channels: op.channels,
                spans: memory.u32(op.spans.table),
                log_rows: op.spans.log_rows,
            };
            let to = [window.f32_mut(op.window), log.f32_mut(op.log), out.f32_mut(op.out)];
            simd::short_conv(&mut self.ctx, &operands, to);
            Ok(())
        })
    }

    fn predict_streams(&mut self, memory: &mut Memory, op: PredictStreams) -> OpResult {
        self.vectors.prepare(memory, op.weight, false);
        let views = reference::lent(&op.streams, op.router, op.out);
        memory.lend(views, |memory, lent| {
            let weight = self.vectors.get(op.weight);
            let coefficients = reference::Coefficients { weight, one: 0.0 };
            let router = memory.f32(op.router);
            let mix = simd::StreamMix { streams: &op.streams, coefficients, router };
            simd::predict_streams(&mut self.ctx, mix, mutable(lent, views));
            Ok(())
        })
    }

    fn correct_streams(&mut self, memory: &mut Memory, op: CorrectStreams) -> OpResult {
        self.vectors.prepare(memory, op.weight, false);
        if let Some(scale) = op.scale {
            self.vectors.prepare(memory, scale, false);
        }
        let views = reference::lent(&op.streams, op.router, op.out);
        memory.lend(views, |memory, lent| {
            let weight = self.vectors.get(op.weight);
            let coefficients = reference::Coefficients { weight, one: 1.0 };
            let (router, x) = (memory.f32(op.router), memory.f32(op.x));
            let mix = simd::StreamMix { streams: &op.streams, coefficients, router };
            let scale = op.scale.map(|scale| self.vectors.get(scale));
            simd::correct_streams(&mut self.ctx, mix, (x, scale), mutable(lent, views));
            Ok(())
        })
    }

    fn match_rms(&mut self, memory: &mut Memory, op: MatchRms) -> OpResult {
        memory.lend([op.out], |memory, [out]| {
            let rows = [memory.f32(op.x), memory.f32(op.like)];
            let MatchRms { dim, floor, scale, store, .. } = op;
            let args = simd::MatchArgs { rows, dim, floor, scale, store };
            simd::match_rms(&mut self.ctx, args, out.f32_mut(op.out));
            Ok(())
        })
    }

    fn threshold(&mut self, memory: &mut Memory, op: Threshold) -> OpResult {
        memory.lend([op.x], |_, [x]| {
            simd::threshold(&mut self.ctx, op.dim, op.deviations, x.f32_mut(op.x));
            Ok(())
        })
    }

    fn delta_gates(&mut self, memory: &mut Memory, op: DeltaGates) -> OpResult {
        let rows = op.decay.len / op.shape.value_heads;
        if !disjoint("delta_gates", &op.spans, memory.u32(op.spans.table), rows)? {
            return reference::delta_gates(memory, op);
        }
        self.vectors.prepare(memory, op.rate, false);
        self.vectors.prepare(memory, op.dt_bias, false);
        memory.lend([op.qkv, op.decay, op.beta], |memory, [qkv, decay, beta]| {
            let operands = simd::GateArgs {
                a: memory.f32(op.a),
                b: memory.f32(op.b),
                rate: self.vectors.get(op.rate),
                dt_bias: self.vectors.get(op.dt_bias),
                beta_scale: op.beta_scale,
                shape: op.shape,
            };
            let to = [qkv.f32_mut(op.qkv), decay.f32_mut(op.decay), beta.f32_mut(op.beta)];
            simd::delta_gates(&mut self.ctx, &operands, memory.u32(op.spans.table), to);
            Ok(())
        })
    }

    fn delta_inputs(&mut self, memory: &mut Memory, op: DeltaInputs) -> OpResult {
        let rows = op.decay.len / op.shape.value_heads;
        if !disjoint("delta_inputs", &op.spans, memory.u32(op.spans.table), rows)? {
            return reference::delta_inputs(memory, op);
        }
        self.taps.prepare(memory, op.weight, true);
        self.vectors.prepare(memory, op.rate, false);
        self.vectors.prepare(memory, op.dt_bias, false);
        let lent = [op.window, op.log, op.qkv, op.decay, op.beta];
        memory.lend(lent, |memory, [window, log, qkv, decay, beta]| {
            let operands = simd::Projected {
                x: memory.f32(op.x),
                weight: self.taps.get(op.weight),
                gates: simd::GateArgs {
                    a: memory.f32(op.a),
                    b: memory.f32(op.b),
                    rate: self.vectors.get(op.rate),
                    dt_bias: self.vectors.get(op.dt_bias),
                    beta_scale: op.beta_scale,
                    shape: op.shape,
                },
                spans: memory.u32(op.spans.table),
                log_rows: op.spans.log_rows,
            };
            let to = simd::DeltaRows {
                window: window.f32_mut(op.window),
                log: log.f32_mut(op.log),
                qkv: qkv.f32_mut(op.qkv),
                decay: decay.f32_mut(op.decay),
                beta: beta.f32_mut(op.beta),
            };
            simd::delta_inputs(&mut self.ctx, &operands, to);
            Ok(())
        })
    }

    fn delta_rule(&mut self, memory: &mut Memory, op: DeltaRule) -> OpResult {
        let rows = op.decay.len / op.shape.value_heads;
        if !disjoint("delta_rule", &op.spans, memory.u32(op.spans.table), rows)? {
            return reference::delta_rule(memory, op);
        }
        memory.lend([op.state, op.log, op.out], |memory, [state, log, out]| {
            let operands = simd::DeltaArgs {
                shape: op.shape,
                qkv: memory.f32(op.qkv),
                decay: memory.f32(op.decay),
                beta: memory.f32(op.beta),
                spans: memory.u32(op.spans.table),
                log_rows: op.spans.log_rows,
                by_channel: false,
            };
            let (state, log) = (state.f32_mut(op.state), log.f32_mut(op.log));
            simd::delta_rule(&mut self.ctx, &operands, state, log, out.f32_mut(op.out));
            Ok(())
        })
    }

    fn kda_gates(&mut self, memory: &mut Memory, op: KdaGates) -> OpResult {
        let rows = op.beta.len / op.shape.value_heads;
        if !disjoint("kda_gates", &op.spans, memory.u32(op.spans.table), rows)? {
            return reference::kda_gates(memory, op);
        }
        self.vectors.prepare(memory, op.rate, false);
        self.vectors.prepare(memory, op.dt_bias, false);
        memory.lend([op.qkv, op.decay, op.beta], |memory, [qkv, decay, beta]| {
            let operands = simd::KdaGateArgs {
                a: memory.f32(op.a),
                b: memory.f32(op.b),
                rate: self.vectors.get(op.rate),
                dt_bias: self.vectors.get(op.dt_bias),
                shape: op.shape,
                spans: memory.u32(op.spans.table),
            };
            let to = [qkv.f32_mut(op.qkv), decay.f32_mut(op.decay), beta.f32_mut(op.beta)];
            simd::kda_gates(&mut self.ctx, &operands, to);
            Ok(())
        })
    }

    fn kda_rule(&mut self, memory: &mut Memory, op: KdaRule) -> OpResult {
        let rows = op.beta.len / op.shape.value_heads;
        if !disjoint("kda_rule", &op.spans, memory.u32(op.spans.table), rows)? {
            return reference::kda_rule(memory, op);
        }
        memory.lend([op.state, op.log, op.out], |memory, [state, log, out]| {
            let operands = simd::DeltaArgs {
                shape: op.shape,
                qkv: memory.f32(op.qkv),
                decay: memory.f32(op.decay),
                beta: memory.f32(op.beta),
                spans: memory.u32(op.spans.table),
                log_rows: op.spans.log_rows,
                by_channel: true,
            };
            let (state, log) = (state.f32_mut(op.state), log.f32_mut(op.log));
            simd::delta_rule(&mut self.ctx, &operands, state, log, out.f32_mut(op.out));
            Ok(())
        })
    }

    fn head_linear(&mut self, memory: &mut Memory, op: HeadLinear) -> OpResult {
        memory.lend([op.out], |memory, [out]| {
            let (x, weight) = (memory.f32(op.x), memory.matrix(op.weight));
            let HeadLinear { heads, carry, .. } = op;
            let operands = simd::HeadLinearArgs { x, weight, heads, carry };
            simd::head_linear(&mut self.ctx, &operands, out.f32_mut(op.out));
            Ok(())
        })
    }

    fn latent_inputs(&mut self, memory: &mut Memory, op: LatentInputs) -> OpResult {
        self.vectors.prepare(memory, op.norm.weight, false);
        memory.lend([op.q, op.cache], |memory, [q, cache]| {
            let (rotary, layout) = (op.rotary, op.layout);
            let (table, places) = (memory.f32(op.table), memory.u32(op.places));
            for &place in places {
                reference::index("latent_inputs", "places", place, layout.blocks * layout.block)?;
            }
            let rotation = simd::Rotation { table, rotary, head_dim: layout.head_dim };
            let (q, heads) = (q.f32_mut(op.q), op.heads);
            let queries = (rotary > 0).then_some(simd::QueryHeads { q, heads, norm: None });
            simd::attention_inputs(&mut self.ctx, rotation, queries, None)?;
            let norm = Norm { weight: self.vectors.get(op.norm.weight), eps: op.norm.eps };
            let kv = memory.f32(op.kv);
            let rows = simd::LatentRows { kv, table, rotary, norm, places, layout };
            simd::store_latents(&mut self.ctx, rows, cache, op.cache.start);
            Ok(())
        })
    }

    fn latent_attention(&mut self, memory: &mut Memory, op: LatentAttention) -> OpResult {
        let tables = memory.u32(op.tables);
        let mut seen = std::mem::take(&mut self.seen);
        seen.clear();
        for row in 0..op.positions.len {
            let (line, keys) = reference::seen_keys(memory, &op, row)?;
            for &id in &tables[line..line + keys.div_ceil(op.layout.block)] {
                reference::index("latent_attention", "tables", id, op.layout.blocks)?;
            }
            seen.push((line, keys));
        }
        memory.lend([op.out], |memory, [out]| {
            let operands = simd::LatentArgs {
                q: memory.f32(op.q),
                cache: memory.storage(op.cache.buffer),
                start: op.cache.start,
                layout: op.layout,
                latent: op.latent,
                seen: &seen,
                tables: memory.u32(op.tables),
                heads: op.heads,
                scale: op.scale,
            };
            simd::latent_attention(&mut self.ctx, &operands, out.f32_mut(op.out));
        });
        self.seen = seen;
        Ok(())
    }

    fn scan_gates(&mut self, memory: &mut Memory, op: ScanGates) -> OpResult {
        self.vectors.prepare(memory, op.rate, false);
        self.vectors.prepare(memory, op.bias, false);
        memory.lend([op.step, op.decay], |_, [step, decay]| {
            let (rate, bias) = (self.vectors.get(op.rate), self.vectors.get(op.bias));
            let operands = simd::ScanGateArgs { rate, bias, least: op.least, most: op.most };
            let to = [step.f32_mut(op.step), decay.f32_mut(op.decay)];
            simd::scan_gates(&mut self.ctx, &operands, to);
            Ok(())
        })
    }

    fn selective_scan(&mut self, memory: &mut Memory, op: SelectiveScan) -> OpResult {
        let rows = op.step.len / op.shape.heads;
        if !disjoint("selective_scan", &op.spans, memory.u32(op.spans.table), rows)? {
            return reference::selective_scan(memory, op);
        }
        self.vectors.prepare(memory, op.skip, false);
        memory.lend([op.state, op.log, op.out], |memory, [state, log, out]| {
            let operands = simd::ScanArgs {
                shape: op.shape,
                xbc: memory.f32(op.xbc),
                step: memory.f32(op.step),
                decay: memory.f32(op.decay),
                skip: self.vectors.get(op.skip),
                spans: memory.u32(op.spans.table),
                log_rows: op.spans.log_rows,
            };
            let (state, log) = (state.f32_mut(op.state), log.f32_mut(op.log));
            simd::selective_scan(&mut self.ctx, &operands, state, log, out.f32_mut(op.out));
            Ok(())
        })
    }

    fn gated_group_norm(&mut self, memory: &mut Memory, op: GatedGroupNorm) -> OpResult {
        memory.lend([op.x], |memory, [x]| {
            let norm = Norm { weight: self.vectors.vector(memory, op.weight), eps: op.eps };
            let gate = memory.f32(op.gate);
            simd::gated_group_norm(&mut self.ctx, norm, op.dim, gate, x.f32_mut(op.x));
            Ok(())
        })
    }

    fn gate_mul(&mut self, memory: &mut Memory, op: GateMul) -> OpResult {
        memory.lend([op.x], |memory, [x]| {
            let gates = Partners::same(memory.f32(op.gate));
            simd::gate(&mut self.ctx, Gate::Sigmoid, x.f32_mut(op.x), gates);
            Ok(())
        })
    }

    fn glu(&mut self, memory: &mut Memory, op: Glu) -> OpResult {
        memory.lend([op.gate], |memory, [gate]| {
            let Glu { dim, up_width: width, up_first: first, .. } = op;
            let up = memory.f32(op.up);
            let whole = Partners { data: up, dim, width, first };
            // Contiguous rows are one long row.
            let ups = if width == dim { Partners::same(up) } else { whole };
            simd::gate(&mut self.ctx, Gate::Glu(op.activation), gate.f32_mut(op.gate), ups);
            Ok(())
        })
    }

    fn softcap(&mut self, memory: &mut Memory, op: Softcap) -> OpResult {
        memory.lend([op.x], |_, [x]| {
            simd::softcap(&mut self.ctx, x.f32_mut(op.x), op.cap);
            Ok(())
        })
    }

    fn add_gated(&mut self, memory: &mut Memory, op: AddGated) -> OpResult {
        memory.lend([op.out], |memory, [out]| {
            let (x, gates) = (memory.f32(op.x), memory.f32(op.gate));
            simd::add_gated(&mut self.ctx, x, gates, out.f32_mut(op.out));
            Ok(())
        })
    }

    fn router(&mut self, memory: &mut Memory, op: Router) -> OpResult {
        for id in [op.bias, op.expert_scale].into_iter().flatten() {
            self.vectors.prepare(memory, id, false);
        }
        memory.lend([op.chosen, op.weights], |memory, [chosen, weights]| {
            let numbers = |id: Option<WeightId>| id.map_or(&[][..], |id| self.vectors.get(id));
            let [bias, scales] = [op.bias, op.expert_scale].map(numbers);
            let route = simd::Route { op, logits: memory.f32(op.logits), bias, scales };
            let (chosen, weights) = (chosen.u32_mut(op.chosen), weights.f32_mut(op.weights));
            simd::router(&mut self.ctx, route, chosen, weights);
            Ok(())
        })
    }

    fn experts(&mut self, memory: &mut Memory, op: Experts) -> OpResult {
        memory.lend([op.hidden, op.partial, op.out], |memory, [hidden, partial, out]| {
            let stack = |at: ExpertRows| Stack {
                matrix: memory.matrix(at.weight),
                first: at.first,
                stride: at.stride,
            };
            let operands = simd::Mixture {
                x: memory.f32(op.x),
                chosen: memory.u32(op.chosen),
                weights: memory.f32(op.weights),
                gate: stack(op.gate),
                up: stack(op.up),
                down: stack(op.down),
                experts: op.experts,
                top_k: op.top_k,
                ffn: op.ffn,
                dim: op.dim,
                activation: op.activation,
                store: op.store,
            };
            let written =
                [hidden.f32_mut(op.hidden), partial.f32_mut(op.partial), out.f32_mut(op.out)];
            simd::experts(&mut self.ctx, &operands, &mut self.shared, written)
        })
    }

    fn cluster_head(&mut self, memory: &mut Memory, op: ClusterHead) -> OpResult {
        memory.lend([op.out], |memory, [out]| {
            let operands = simd::ClusterOperands {
                x: memory.f32(op.x),
                scores: memory.f32(op.scores),
                members: self.vectors.vector(memory, op.members),
                head: memory.matrix(op.head),
                clusters: op.clusters,
                top_k: op.top_k,
            };
            simd::cluster_head(&mut self.ctx, &operands, &mut self.shared, out.f32_mut(op.out))
        })
    }

    fn sample(&mut self, memory: &mut Memory, op: Sample) -> OpResult {
        memory.lend([op.out], |memory, [out]| {
            let operands = choose(memory, &op);
            simd::sample(&mut self.ctx, &operands, &mut self.shared, out.u32_mut(op.out))
        })
    }

    fn head_sample(&mut self, memory: &mut Memory, op: HeadSample) -> OpResult {
        let (product, cap, sample) = op.parts();
        let rows = sample.out.len;
        if choose(memory, &sample).greedy_rows(rows)? < rows {
            self.linear(memory, product)?;
            if let Some(cap) = cap {
                self.softcap(memory, cap)?;
            }
            return self.sample(memory, sample);
        }
        memory.lend([sample.out], |memory, [out]| {
            let (x, weight) = (rows_of(memory, op.x), memory.matrix(op.weight));
            let choice = choose(memory, &sample);
            let head = simd::GreedyHead { x, weight, choice, cap: op.cap };
            simd::greedy_head(&mut self.ctx, &head, &mut self.shared, out.u32_mut(sample.out));
            Ok(())
        })
    }

    fn group_norm(&mut self, memory: &mut Memory, op: GroupNorm) -> OpResult {
        memory.lend([op.out], |memory, [out]| {
            let weight = self.vectors.vector(memory, op.weight);
            let (x, out) = (memory.f32(op.x), out.f32_mut(op.out));
            simd::group_norm(&mut self.ctx, (weight, op.eps), op.group, x, out);
            Ok(())
        })
    }

    fn silu_rows(&mut self, memory: &mut Memory, op: SiluRows) -> OpResult {
        memory.lend([op.x], |_, [x]| {
            simd::silu_rows(&mut self.ctx, x.f32_mut(op.x));
            Ok(())
        })
    }

    fn mix_streams(&mut self, memory: &mut Memory, op: MixStreams) -> OpResult {
        memory.lend([op.out], |memory, [out]| {
            let rows = [op.x, op.gates].map(|view| memory.f32(view));
            let widths = [op.streams * op.dim, op.dim];
            simd::mix_streams(&mut self.ctx, rows, widths, out.f32_mut(op.out));
            Ok(())
        })
    }

    fn update_streams(&mut self, memory: &mut Memory, op: UpdateStreams) -> OpResult {
        memory.lend([op.x], |memory, [x]| {
            let update = reference::UpdateRows::new(memory, &op);
            simd::update_streams(&mut self.ctx, update, op.streams * op.dim, x.f32_mut(op.x));
            Ok(())
        })
    }

    fn collapse_streams(&mut self, memory: &mut Memory, op: CollapseStreams) -> OpResult {
        let ids = [op.scale, op.base];
        ids.into_iter().for_each(|id| self.vectors.prepare(memory, id, false));
        reference::collapse(memory, op, ids.map(|id| self.vectors.get(id)))
    }

    fn ngram_embed(&mut self, memory: &mut Memory, op: NgramEmbed) -> OpResult {
        reference::ngram_rows(memory, op, &mut self.seen_rows.tokens)
    }

    fn pool_entries(&mut self, memory: &mut Memory, op: PoolEntries) -> OpResult {
        let bias = op.gates.map(|(_, bias)| bias);
        for id in bias.into_iter().chain([op.norm.weight, op.inv_freq]) {
            self.vectors.prepare(memory, id, false);
        }
        let weights = reference::EntryWeights {
            bias: bias.map_or(&[], |bias| self.vectors.get(bias)),
            norm: self.vectors.get(op.norm.weight),
            inv_freq: self.vectors.get(op.inv_freq),
        };
        reference::pool(memory, op, weights, &mut self.seen_rows.numbers)
    }

    fn choose_entries(&mut self, memory: &mut Memory, op: ChooseEntries) -> OpResult {
        memory.lend([op.chosen], |memory, [chosen]| {
            let rows = reference::EntryRows::new(memory, &op);
            let chosen = chosen.u32_mut(op.chosen);
            simd::choose_entries(&mut self.ctx, &rows, &mut self.shared, op.most, chosen)
        })
    }

    fn sparse_attention(&mut self, memory: &mut Memory, op: SparseAttention) -> OpResult {
        memory.lend([op.whole.out], |memory, [out]| {
            let rows = reference::SparseRows::new(memory, &op);
            let queries = simd::SparseQueries {
                q: memory.f32(op.whole.q),
                heads: op.whole.heads,
                kv_heads: op.whole.layout.kv_heads,
                dim: op.whole.layout.head_dim,
                scale: op.whole.scale,
            };
            let out = out.f32_mut(op.whole.out);
            simd::sparse_attention(&mut self.ctx, &rows, queries, &mut self.shared, out)
        })
    }

    fn compressed_attention(&mut self, memory: &mut Memory, op: CompressedAttention) -> OpResult {
        let Self { ctx, vectors, seen_rows, .. } = self;
        let sinks = vectors.vector(memory, op.sinks);
        reference::each_row(memory, op, seen_rows, |q, keys, out| {
            simd::attend_to(ctx, [q, sinks], keys, op.scale, out);
        })
    }

    fn turn_tails(&mut self, memory: &mut Memory, op: TurnTails) -> OpResult {
        memory.lend([op.x], |memory, [x]| {
            let weight = op.norm.map_or(&[][..], |norm| self.vectors.vector(memory, norm.weight));
            let operands = [weight, memory.f32(op.table)];
            simd::turn_tails(&mut self.ctx, op, operands, x.f32_mut(op.x));
            Ok(())
        })
    }

    fn grouped_linear(&mut self, memory: &mut Memory, op: GroupedLinear) -> OpResult {
        reference::in_groups(memory, op, |memory, linear| self.linear(memory, linear))
    }
}
