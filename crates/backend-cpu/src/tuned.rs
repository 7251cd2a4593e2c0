//! The tuned kernels: every operation over the pool and the best instruction set of the machine.
//!
//! Nothing is allocated once each operation has run at its largest size: scratch and decoded small weights are
//! kept. `gather_rows` is a copy and stays the reference's.

use crate::pool::Shared;
use crate::simd::{self, Crew, Gate, Level, Norm, Normed, Partners, Rows, Scratch, Stack, Tiled};
use crate::weight::Form;
use crate::{Cpu, Kernels, Memory, Storage, Weight, reference};
use forerun_backend::op::{
    AddGated, AddNorm, Attention, AttentionInputs, ClusterHead, DeltaInputs, DeltaRule, Embed,
    ExpertRows, Experts, GateMul, GatedLinear, GatedNorm, Glu, HeadSample, InputNorm, JoinNorm,
    Linear, Linears, RmsNorm, RopeTable, Router, Sample, Softcap, SpanEntry, Spans,
};
use forerun_backend::{BackendError, View, WeightId};
use forerun_base::Matrix;

type Done = Result<(), BackendError>;

/// See the module's text. Belongs to one device: small weights are kept decoded under their ids.
#[derive(Debug)]
pub struct Tuned {
    crew: Crew,
    /// Room shared by all threads, as opposed to the crew's own.
    shared: Scratch,
    vectors: Decoded,
    /// Convolution weights as `[taps][channels]`.
    taps: Decoded,
}

/// A device with tuned kernels on `threads` threads; `None` asks the machine.
pub fn tuned(threads: Option<usize>) -> Cpu<Tuned> {
    Cpu::with_kernels(Tuned::new(threads))
}

impl Tuned {
    /// The best instruction set, on `threads` threads or as many as the machine has for us.
    pub fn new(threads: Option<usize>) -> Self {
        let best = Level::ALL.into_iter().find_map(|level| Self::with_isa(level, threads));
        best.expect("the portable level is always there")
    }

    /// A given instruction set, where the processor has it.
    pub fn with_isa(level: Level, threads: Option<usize>) -> Option<Self> {
        let crew = Crew::new(level, threads)?;
        let (vectors, taps) = (Decoded::default(), Decoded::default());
        Some(Self { crew, shared: Scratch::default(), vectors, taps })
    }

    /// Rounds activations to 8 bits where they meet weights with integer codes: faster, and no longer exact. A row is still the same in any company.
    /// `None` where such weights are not multiplied as bytes, and where there are tiles, whose exact products are faster.
    pub fn rounding(self) -> Option<Self> {
        let crew = self.crew.rounding()?;
        Some(Self { crew, ..self })
    }

    /// What multiplies, in words.
    fn instructions(&self) -> String {
        let rounded = if self.crew.rounds() { ", int8" } else { "" };
        format!("{}{rounded}", self.crew.level().name())
    }
}

/// Small weights as f32, decoded when first used.
#[derive(Debug, Default)]
struct Decoded(Vec<Box<[f32]>>);

impl Decoded {
    fn get(&self, id: WeightId) -> &[f32] {
        &self.0[id.0 as usize]
    }

    /// Makes sure of a weight; with `turned` its columns become rows.
    fn prepare(&mut self, memory: &Memory, id: WeightId, turned: bool) {
        let (at, matrix) = (id.0 as usize, memory.matrix(id));
        let (rows, cols) = (matrix.rows(), matrix.cols());
        if self.0.len() <= at {
            self.0.resize_with(at + 1, Box::default);
        }
        if self.0[at].len() == rows * cols {
            return;
        }
        let mut all = vec![0.0; rows * cols];
        let mut line = vec![0.0; cols];
        for row in 0..rows {
            matrix.decode_row(row, &mut line);
            for (col, &x) in line.iter().enumerate() {
                all[if turned { col * rows + row } else { row * cols + col }] = x;
            }
        }
        self.0[at] = all.into();
    }

    /// All rows of a weight, most often one.
    fn vector(&mut self, memory: &Memory, id: WeightId) -> &[f32] {
        self.prepare(memory, id, false);
        self.get(id)
    }
}

/// Whether the entries are valid, and no two of them share a slot or a row, so that spans may run side by side.
fn apart(
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

/// Rows that a product reads.
fn rows_of(memory: &Memory, x: View) -> Rows<'_> {
    Rows { data: memory.f32(x), stamp: Some(memory.stamp(x)), norm: None }
}

/// Where the rows of a norm go; without one, nothing that is lent.
fn room_of(x: View, norm: Option<InputNorm>) -> View {
    norm.map_or(x.part(0, 0), |norm| norm.room)
}

/// Rows that a norm makes for a product in `room`, or those of `x`.
fn made_of<'a>(
    memory: &'a Memory,
    vectors: &'a Decoded,
    (x, norm): (View, Option<InputNorm>),
    room: &'a mut Storage,
) -> Rows<'a> {
    let Some(norm) = norm else { return rows_of(memory, x) };
    let out = Shared::new(room.f32_mut(norm.room));
    let made = Normed { norm: Norm { weight: vectors.get(norm.weight), eps: norm.eps }, out };
    Rows { data: memory.f32(x), stamp: None, norm: Some(made) }
}

/// One weight of a product.
fn linear_part<'a>(
    memory: &'a Memory,
    op: Linear,
    bias: &'a [f32],
    out: &'a mut Storage,
) -> simd::LinearPart<'a> {
    let (matrix, store) = (memory.matrix(op.weight), op.store);
    let channels = op.channels.unwrap_or(matrix.rows());
    simd::LinearPart { matrix, channels, bias, out: out.f32_mut(op.out), store }
}

/// What a choice reads.
fn choose<'a>(memory: &'a Memory, op: &Sample) -> simd::Choose<'a> {
    let (history, ids) = (memory.u32(op.history), memory.u32(op.ids));
    let masks = memory.u32(op.masks);
    simd::Choose {
        logits: memory.f32(op.logits),
        candidates: op.candidates,
        rows: memory.u32(op.rows),
        before: reference::Before { vocabulary: op.vocabulary, history, ids, masks },
    }
}

impl Kernels for Tuned {
    fn name(&self) -> String {
        format!("cpu ({}, {} threads)", self.instructions(), self.crew.threads())
    }

    fn arithmetic(&self) -> String {
        // Any number of threads gives the same bits.
        format!("cpu ({})", self.instructions())
    }

    fn keep(&mut self, matrix: Matrix) -> Weight {
        match Tiled::keep(&mut self.crew, &matrix) {
            Some(tiled) => Weight(Form::Tiled(tiled)),
            None => matrix.into(),
        }
    }

    fn embed(&mut self, memory: &mut Memory, op: Embed) -> Done {
        memory.lend([op.out], |memory, [out]| {
            let (table, ids) = (memory.matrix(op.table), memory.u32(op.ids));
            simd::embed(&mut self.crew, table, ids, op.scale, out.f32_mut(op.out))
        })
    }

    fn rms_norm(&mut self, memory: &mut Memory, op: RmsNorm) -> Done {
        memory.lend([op.out], |memory, [out]| {
            let norm = Norm { weight: self.vectors.vector(memory, op.weight), eps: op.eps };
            simd::norm(&mut self.crew, norm, Some(memory.f32(op.x)), None, out.f32_mut(op.out));
            Ok(())
        })
    }

    fn add_norm(&mut self, memory: &mut Memory, op: AddNorm) -> Done {
        memory.lend([op.out], |memory, [out]| {
            let norm = Norm { weight: self.vectors.vector(memory, op.weight), eps: op.eps };
            let (x, out) = (memory.f32(op.x), out.f32_mut(op.out));
            simd::add_norm(&mut self.crew, norm, x, out, op.scale);
            Ok(())
        })
    }

    fn join_norm(&mut self, memory: &mut Memory, op: JoinNorm) -> Done {
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

    fn gated_norm(&mut self, memory: &mut Memory, op: GatedNorm) -> Done {
        memory.lend([op.x], |memory, [x]| {
            let norm = Norm { weight: self.vectors.vector(memory, op.weight), eps: op.eps };
            simd::norm(&mut self.crew, norm, None, Some(memory.f32(op.gate)), x.f32_mut(op.x));
            Ok(())
        })
    }

    fn linear(&mut self, memory: &mut Memory, op: Linear) -> Done {
        memory.lend([op.out], |memory, [out]| {
            let bias = op.bias.map_or(&[][..], |id| self.vectors.vector(memory, id));
            let part = linear_part(memory, op, bias, out);
            simd::linears(&mut self.crew, rows_of(memory, op.x), [Some(part), None, None, None]);
            Ok(())
        })
    }

    fn linears(&mut self, memory: &mut Memory, op: Linears) -> Done {
        for id in op.parts.iter().flatten().filter_map(|part| part.bias) {
            self.vectors.prepare(memory, id, false);
        }
        if let Some(norm) = op.norm {
            self.vectors.prepare(memory, norm.weight, false);
        }
        let (_, mut products) = op.parts();
        let products: [Option<Linear>; Linears::MOST] = std::array::from_fn(|_| products.next());
        // Where there is no product nothing is lent.
        let [a, b, c, d] = products.map(|part| part.map_or(op.x.part(0, 0), |part| part.out));
        memory.lend([a, b, c, d, room_of(op.x, op.norm)], |memory, [a, b, c, d, room]| {
            let mut products = products.iter();
            let parts = [a, b, c, d].map(|out| {
                let op = products.next().copied().flatten()?;
                let bias = op.bias.map_or(&[][..], |id| self.vectors.get(id));
                Some(linear_part(memory, op, bias, out))
            });
            let x = made_of(memory, &self.vectors, (op.x, op.norm), room);
            simd::linears(&mut self.crew, x, parts);
            Ok(())
        })
    }

    fn gated_linear(&mut self, memory: &mut Memory, op: GatedLinear) -> Done {
        if let Some(norm) = op.norm {
            self.vectors.prepare(memory, norm.weight, false);
        }
        memory.lend([op.out, room_of(op.x, op.norm)], |memory, [out, room]| {
            let weights = [memory.matrix(op.gate), memory.matrix(op.up)];
            let x = made_of(memory, &self.vectors, (op.x, op.norm), room);
            let out = out.f32_mut(op.out);
            simd::gated_linear(&mut self.crew, weights, op.activation, x, out);
            Ok(())
        })
    }

    fn rope_table(&mut self, memory: &mut Memory, op: RopeTable) -> Done {
        memory.lend([op.out], |memory, [out]| {
            let inv_freq = self.vectors.vector(memory, op.inv_freq);
            let (positions, out) = (memory.u32(op.positions), out.f32_mut(op.out));
            let angles = simd::Angles { inv_freq, shift: op.shift, scale: op.scale };
            simd::rope_table(&mut self.crew, positions, angles, out);
            Ok(())
        })
    }

    fn attention_inputs(&mut self, memory: &mut Memory, op: AttentionInputs) -> Done {
        let norms = [
            op.queries.and_then(|queries| queries.norm),
            op.keys.and_then(|keys| keys.k_norm),
            op.keys.and_then(|keys| keys.v_norm),
        ];
        for norm in norms.iter().flatten() {
            self.vectors.prepare(memory, norm.weight, false);
        }
        // What is not there is not lent.
        let none = op.table.part(0, 0);
        let q = op.queries.map_or(none, |queries| queries.q);
        let [k_cache, v_cache] = op.keys.map_or([none; 2], |keys| [keys.k_cache, keys.v_cache]);
        memory.lend([q, k_cache, v_cache], |memory, [q, k, v]| {
            let [q_norm, k_norm, v_norm] = norms.map(|norm| {
                norm.map(|norm| Norm { weight: self.vectors.get(norm.weight), eps: norm.eps })
            });
            let AttentionInputs { rotary, head_dim, .. } = op;
            let turns = simd::Turns { table: memory.f32(op.table), rotary, head_dim };
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
            simd::attention_inputs(&mut self.crew, turns, queries, keys)
        })
    }

    fn attention(&mut self, memory: &mut Memory, op: Attention) -> Done {
        memory.lend([op.out], |memory, [out]| {
            let operands = simd::Attend {
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
            };
            simd::attention(&mut self.crew, &operands, &mut self.shared, out.f32_mut(op.out))
        })
    }

    fn delta_inputs(&mut self, memory: &mut Memory, op: DeltaInputs) -> Done {
        let rows = op.decay.len / op.shape.value_heads;
        if !apart("delta_inputs", &op.spans, memory.u32(op.spans.table), rows)? {
            return reference::delta_inputs(memory, op);
        }
        self.taps.prepare(memory, op.weight, true);
        self.vectors.prepare(memory, op.rate, false);
        self.vectors.prepare(memory, op.dt_bias, false);
        let lent = [op.window, op.log, op.qkv, op.decay, op.beta];
        memory.lend(lent, |memory, [window, log, qkv, decay, beta]| {
            let operands = simd::Projected {
                x: memory.f32(op.x),
                a: memory.f32(op.a),
                b: memory.f32(op.b),
                weight: self.taps.get(op.weight),
                rate: self.vectors.get(op.rate),
                dt_bias: self.vectors.get(op.dt_bias),
                shape: op.shape,
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
            simd::delta_inputs(&mut self.crew, &operands, to);
            Ok(())
        })
    }

    fn delta_rule(&mut self, memory: &mut Memory, op: DeltaRule) -> Done {
        let rows = op.decay.len / op.shape.value_heads;
        if !apart("delta_rule", &op.spans, memory.u32(op.spans.table), rows)? {
            return reference::delta_rule(memory, op);
        }
        memory.lend([op.state, op.log, op.out], |memory, [state, log, out]| {
            let operands = simd::Deltas {
                shape: op.shape,
                qkv: memory.f32(op.qkv),
                decay: memory.f32(op.decay),
                beta: memory.f32(op.beta),
                spans: memory.u32(op.spans.table),
                log_rows: op.spans.log_rows,
            };
            let (state, log) = (state.f32_mut(op.state), log.f32_mut(op.log));
            simd::delta_rule(&mut self.crew, &operands, state, log, out.f32_mut(op.out));
            Ok(())
        })
    }

    fn gate_mul(&mut self, memory: &mut Memory, op: GateMul) -> Done {
        memory.lend([op.x], |memory, [x]| {
            let gates = Partners::same(memory.f32(op.gate));
            simd::gate(&mut self.crew, Gate::Sigmoid, x.f32_mut(op.x), gates);
            Ok(())
        })
    }

    fn glu(&mut self, memory: &mut Memory, op: Glu) -> Done {
        memory.lend([op.gate], |memory, [gate]| {
            let Glu { dim, up_width: width, up_first: first, .. } = op;
            let up = memory.f32(op.up);
            let whole = Partners { data: up, dim, width, first };
            // Rows that lie side by side are one long row.
            let ups = if width == dim { Partners::same(up) } else { whole };
            simd::gate(&mut self.crew, Gate::Glu(op.activation), gate.f32_mut(op.gate), ups);
            Ok(())
        })
    }

    fn softcap(&mut self, memory: &mut Memory, op: Softcap) -> Done {
        memory.lend([op.x], |_, [x]| {
            simd::softcap(&mut self.crew, x.f32_mut(op.x), op.cap);
            Ok(())
        })
    }

    fn add_gated(&mut self, memory: &mut Memory, op: AddGated) -> Done {
        memory.lend([op.out], |memory, [out]| {
            let (x, gates) = (memory.f32(op.x), memory.f32(op.gate));
            simd::add_gated(&mut self.crew, x, gates, out.f32_mut(op.out));
            Ok(())
        })
    }

    fn router(&mut self, memory: &mut Memory, op: Router) -> Done {
        memory.lend([op.chosen, op.weights], |memory, [chosen, weights]| {
            let Router { experts, top_k, renormalise, .. } = op;
            let logits = memory.f32(op.logits);
            let scales = op.expert_scale.map_or(&[][..], |id| self.vectors.vector(memory, id));
            let route = simd::Route { logits, experts, top_k, renormalise, scales };
            let (chosen, weights) = (chosen.u32_mut(op.chosen), weights.f32_mut(op.weights));
            simd::router(&mut self.crew, route, chosen, weights);
            Ok(())
        })
    }

    fn experts(&mut self, memory: &mut Memory, op: Experts) -> Done {
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
            simd::experts(&mut self.crew, &operands, &mut self.shared, written)
        })
    }

    fn cluster_head(&mut self, memory: &mut Memory, op: ClusterHead) -> Done {
        memory.lend([op.out], |memory, [out]| {
            let operands = simd::Clusters {
                x: memory.f32(op.x),
                scores: memory.f32(op.scores),
                members: self.vectors.vector(memory, op.members),
                head: memory.matrix(op.head),
                clusters: op.clusters,
                top_k: op.top_k,
            };
            simd::cluster_head(&mut self.crew, &operands, &mut self.shared, out.f32_mut(op.out))
        })
    }

    fn sample(&mut self, memory: &mut Memory, op: Sample) -> Done {
        memory.lend([op.out], |memory, [out]| {
            let operands = choose(memory, &op);
            simd::sample(&mut self.crew, &operands, &mut self.shared, out.u32_mut(op.out))
        })
    }

    fn head_sample(&mut self, memory: &mut Memory, op: HeadSample) -> Done {
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
            simd::greedy_head(&mut self.crew, &head, &mut self.shared, out.u32_mut(sample.out));
            Ok(())
        })
    }
}
