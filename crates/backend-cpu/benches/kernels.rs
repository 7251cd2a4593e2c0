//! Speed of the tuned kernels: `cargo bench -p forerun-backend-cpu --bench kernels [-- <level> <threads> <int8> <part
//! of a name>]`.
//!
//! Weights of up to sixteen rows come from enough copies to exceed the caches, so their GB/s stand beside a plain
//! parallel read of as much memory; "cached" is one copy, in cache where it fits. GFLOP/s count two per multiply-add.

use forerun_backend::conform::{Rng, random_matrix};
use forerun_backend::op::{
    Activation, AddNorm, Attention, AttentionInputs, CacheLayout, ClusterHead, ConvGates,
    DeltaInputs, DeltaRule, DeltaShape, GatedGroupNorm, Glu, HeadLinear, HeadNorm, KdaGates,
    KdaRule, LatentAttention, Linear, NewKeys, Queries, ScanGates, ScanShape, SelectiveScan,
    ShortConv, SpanEntry, Spans, kda_log_len,
};
use forerun_backend::{Backend, BufferRole, BufferSpec, HostData, Op, View, WeightId};
use forerun_backend_cpu::{Cpu, Level, Machine, Tuned};
use forerun_base::{Codes, DType, Format, ScaleKind};
use std::time::{Duration, Instant};

/// Bytes of weights that come from memory.
const FAR_BYTES: usize = 192 << 20;

struct Bench {
    device: Cpu<Tuned>,
    threads: usize,
}

impl Bench {
    fn alloc(&mut self, dtype: DType, len: usize) -> View {
        let spec = BufferSpec { label: "bench", dtype, len, role: BufferRole::State };
        View::head(self.device.alloc(spec).expect("memory for the bench"), len)
    }

    fn noise(&mut self, len: usize) -> View {
        let data = Rng::named("bench").values(len);
        let view = self.alloc(DType::F32, len);
        self.device.write(view, HostData::F32(&data)).expect("view fits");
        view
    }

    fn words(&mut self, data: &[u32]) -> View {
        let view = self.alloc(DType::U32, data.len());
        self.device.write(view, HostData::U32(data)).expect("view fits");
        view
    }

    /// Seconds per operation, the best of several rounds over `ops`.
    fn time(&mut self, ops: &[Op]) -> f64 {
        let mut best = f64::INFINITY;
        let begin = Instant::now();
        let mut rounds = 0;
        while rounds < 3 || begin.elapsed() < Duration::from_millis(300) {
            let start = Instant::now();
            for op in ops {
                op.apply(&mut self.device).expect("operands fit");
            }
            best = best.min(start.elapsed().as_secs_f64() / ops.len() as f64);
            rounds += 1;
        }
        best
    }

    fn weights(
        &mut self,
        format: Format,
        n: usize,
        k: usize,
        bytes_in_use: usize,
    ) -> (Vec<WeightId>, usize) {
        let matrix = random_matrix(&mut Rng::named("weight"), [n, k], format).expect("a format");
        let bytes = matrix.bytes();
        let copies = (bytes_in_use / bytes).clamp(1, 512);
        let mut ids = Vec::new();
        for _ in 0..copies {
            let plane = |p: &forerun_base::Bytes| p.to_vec().into();
            let planes = [plane(matrix.codes()), plane(matrix.scales()), plane(matrix.offsets())];
            let copy = forerun_base::Matrix::new([n, k], format, planes).expect("a copy");
            ids.push(self.device.upload("bench", copy).expect("memory"));
        }
        (ids, bytes)
    }

    fn linear(&mut self, format: Format, n: usize, k: usize) {
        if !wanted(&format!("linear {}", format.name())) {
            return;
        }
        let mut line = format!("linear {:>8} {n:>5}x{k:<5}", format.name());
        let few_rows = [1, 2, 4, 8, 16];
        let cached = few_rows.map(|rows| (rows, 1));
        let from_memory = few_rows.map(|rows| (rows, FAR_BYTES));
        let cases = cached.into_iter().chain(from_memory).chain([(64, 1), (512, 1)]);
        for (rows, bytes_in_use) in cases {
            let (ids, bytes) = self.weights(format, n, k, bytes_in_use);
            let (x, out) = (self.noise(rows * k), self.alloc(DType::F32, rows * n));
            let ops: Vec<Op> = ids.iter().map(|&id| Linear::set(x, id, out).into()).collect();
            let seconds = self.time(&ops);
            if rows <= 16 {
                let cached = if bytes_in_use == 1 { " cached" } else { "" };
                line += &format!("  M={rows}{cached} {:.1} GB/s", bytes as f64 / seconds / 1e9);
            } else {
                let flops = 2.0 * (rows * n * k) as f64 / seconds / 1e9;
                line += &format!("  M={rows} {flops:.0} GFLOP/s");
            }
        }
        println!("{line}");
        // Copies are freed with the device; a fresh one keeps the bench small.
        self.device = device(self.threads);
    }

    /// Keys and values of a whole pool, each written: pages that were never written are all one zero page, which reads
    /// faster.
    fn caches(&mut self, layout: CacheLayout, dtype: DType) -> [View; 2] {
        let [k_cache, v_cache] = [0; 2].map(|_| self.alloc(dtype, layout.len()));
        let each = self.noise(layout.block * layout.kv_heads * layout.head_dim);
        for block in 0..layout.blocks {
            let first = (block * layout.block) as u32;
            let places: Vec<u32> = (first..first + layout.block as u32).collect();
            let places = self.words(&places);
            let keys = plain_keys(each, places, [k_cache, v_cache], layout);
            self.device.attention_inputs(AttentionInputs::plain(keys)).expect("operands fit");
        }
        [k_cache, v_cache]
    }

    /// Sixteen query heads on four key heads of `head_dim`; the rows are the last of `context`.
    fn attention(
        &mut self,
        dtype: DType,
        rows: usize,
        context: usize,
        head_dim: usize,
        window: Option<usize>,
    ) {
        let suffix = window.map_or(String::new(), |window| format!(" window {window}"));
        let name =
            format!("attention {dtype} width {head_dim} rows {rows} context {context}{suffix}");
        if !wanted(&name) {
            return;
        }
        let (heads, kv_heads, block) = (16, 4, 64);
        let layout = CacheLayout {
            blocks: context.div_ceil(block),
            kv_heads,
            block,
            head_dim,
            coded: dtype == DType::I8,
            ..CacheLayout::NONE
        };
        let [k_cache, v_cache] = self.caches(layout, dtype);
        let tables: Vec<u32> = (0..layout.blocks as u32).collect();
        let first = context - rows;
        let positions: Vec<u32> = (first..context).map(|p| p as u32).collect();
        let op = Attention {
            q: self.noise(rows * heads * head_dim),
            k_cache,
            v_cache,
            layout,
            positions: self.words(&positions),
            span_of: self.words(&vec![0; rows]),
            tables: self.words(&tables),
            table_width: tables.len(),
            heads,
            scale: 0.1,
            window,
            out: self.alloc(DType::F32, rows * heads * head_dim),
        };
        let seconds = self.time(&[op.into()]);
        let seen = |position| position + 1 - Attention::first_key(window, position);
        let keys: usize = (first..context).map(seen).sum();
        let flops = 4.0 * (keys * heads * head_dim) as f64 / seconds / 1e9;
        let stored = 2 * kv_heads * layout.stored() * dtype.size();
        let bytes = (seen(context - 1) * stored) as f64 / seconds / 1e9;
        let us = seconds * 1e6;
        println!("{name}: {us:.0} us, {flops:.1} GFLOP/s, {bytes:.1} GB/s");
        self.device = device(self.threads);
    }

    /// Heads of Kimi-Linear over a cache of latents, and the products on both sides.
    fn latent(&mut self, dtype: DType, rows: usize, context: usize) {
        let name = format!("latent {dtype} rows {rows} context {context}");
        if !wanted(&name) {
            return;
        }
        let (heads, block, rope, latent, nope) = (32, 64, 64, 512, 128);
        let (blocks, coded) = (context.div_ceil(block), dtype == DType::I8);
        let head_dim = rope + latent;
        let layout =
            CacheLayout { blocks, kv_heads: 1, block, head_dim, coded, ..CacheLayout::NONE };
        let [_, cache] = self.caches(layout, dtype);
        let tables: Vec<u32> = (0..blocks as u32).collect();
        let positions: Vec<u32> = (context - rows..context).map(|p| p as u32).collect();
        let attention = Op::from(LatentAttention {
            q: self.noise(rows * heads * head_dim),
            cache,
            layout,
            latent,
            positions: self.words(&positions),
            span_of: self.words(&vec![0; rows]),
            tables: self.words(&tables),
            table_width: blocks,
            heads,
            scale: 0.1,
            out: self.alloc(DType::F32, rows * heads * latent),
        });
        let flops = attention.desc(&self.device).cost().flops as f64;
        let seconds = self.time(&[attention]);
        let stored = context * layout.stored() * dtype.size();
        let (us, gflops, bytes) =
            (seconds * 1e6, flops / seconds / 1e9, stored as f64 / seconds / 1e9);
        println!("{name}: {us:.0} us, {gflops:.1} GFLOP/s, {bytes:.1} GB/s");
        let format = Format::Dense(DType::BF16);
        let (weights, bytes) = self.weights(format, heads * latent, nope, FAR_BYTES);
        let x = self.noise(rows * heads * (rope + nope));
        let out = self.alloc(DType::F32, rows * heads * head_dim);
        let product = |&weight| Op::from(HeadLinear { x, weight, heads, carry: rope, out });
        let ops: Vec<Op> = weights.iter().map(product).collect();
        let seconds = self.time(&ops);
        println!(
            "{name}, head_linear: {:.1} us, {:.1} GB/s",
            seconds * 1e6,
            bytes as f64 / seconds / 1e9
        );
        self.device = device(self.threads);
    }

    /// The rule with a decay of each key channel, 32 heads of 128.
    fn kda(&mut self, rows: usize) {
        let heads = 32;
        let shape = DeltaShape { key_heads: heads, value_heads: heads, dk: 128, dv: 128 };
        let (wide, log_rows) = (heads * shape.dk, 8);
        let rows_u32 = rows as u32;
        let (first_row, pending, slot, start) = (0, 0, 0, 1);
        let entry =
            SpanEntry { first_row, rows: rows_u32, confirmed: rows_u32, pending, slot, start };
        let spans = Spans { table: self.words(&entry.words()), slots: 1, log_rows };
        let qkv = self.noise(rows * shape.channels());
        let [decay, beta] = [wide, heads].map(|width| self.alloc(DType::F32, rows * width));
        let gates = KdaGates {
            qkv,
            a: self.noise(rows * wide),
            b: self.noise(rows * heads),
            rate: self.ones(heads),
            dt_bias: self.ones(wide),
            spans,
            shape,
            decay,
            beta,
        };
        let rule = KdaRule {
            qkv,
            decay: self.alloc(DType::F32, rows * wide),
            beta,
            state: self.alloc(DType::F32, shape.state_len()),
            log: self.alloc(DType::F32, log_rows * kda_log_len(&shape)),
            spans,
            shape,
            out: self.alloc(DType::F32, rows * wide),
        };
        for (name, op) in [("kda_gates", Op::from(gates)), ("kda_rule", Op::from(rule))] {
            if wanted(name) {
                println!("{name} rows {rows}: {:.1} us", self.time(&[op]) * 1e6);
            }
        }
        self.device = device(self.threads);
    }

    /// Sixteen query heads and four key heads of width 128: norm, rope, and the write to the cache.
    fn attention_inputs(&mut self, dtype: DType, rows: usize) {
        if !wanted("attention_inputs") {
            return;
        }
        let (heads, head_dim) = (16, 128);
        let coded = dtype == DType::I8;
        let layout = CacheLayout {
            blocks: 512,
            kv_heads: 4,
            block: 64,
            head_dim,
            coded,
            ..CacheLayout::NONE
        };
        let caches = self.caches(layout, dtype);
        let each = self.noise(rows * layout.kv_heads * head_dim);
        let (q, table) = (self.noise(rows * heads * head_dim), self.noise(rows * head_dim));
        let norm = Some(HeadNorm { weight: self.ones(head_dim), eps: 1e-6 });
        let mut ops: Vec<Op> = Vec::new();
        for first in (0..layout.blocks * layout.block - rows).step_by(rows).take(1024) {
            let places: Vec<u32> = (first as u32..(first + rows) as u32).collect();
            let places = self.words(&places);
            let keys = NewKeys { k_norm: norm, ..plain_keys(each, places, caches, layout) };
            let queries = Some(Queries { q, heads, norm });
            let (rotary, keys) = (head_dim, Some(keys));
            ops.push(AttentionInputs { table, rotary, head_dim, queries, keys }.into());
        }
        println!("attention_inputs {dtype} rows {rows}: {:.2} us", self.time(&ops) * 1e6);
        self.device = device(self.threads);
    }

    fn ones(&mut self, len: usize) -> WeightId {
        let ones = forerun_base::Matrix::from_f32(1, len, &vec![1.0; len]).expect("a vector");
        self.device.upload("bench", ones).expect("memory")
    }

    /// Gates and norms of a layer 2560 wide inside, 10240 in its MLP.
    fn elementwise(&mut self, rows: usize) {
        let (dim, ffn) = (2560, 10240);
        let weight = self.ones(dim);
        // Gates of zero: the product then stays zero however often it is taken.
        let (gate, up) = (self.alloc(DType::F32, rows * ffn), self.noise(rows * ffn));
        let (x, out) = (self.noise(rows * dim), self.noise(rows * dim));
        let glu = |activation| Glu { gate, up, dim: ffn, up_width: ffn, up_first: 0, activation };
        let ops: [(&str, Op); 3] = [
            ("glu silu", glu(Activation::Silu).into()),
            ("glu gelu", glu(Activation::GeluTanh).into()),
            ("add_norm", AddNorm { x, weight, out, dim, eps: 1e-6, scale: 0.5 }.into()),
        ];
        for (name, op) in ops.into_iter().filter(|(name, _)| wanted(name)) {
            let seconds = self.time(&[op]);
            let bytes = op.desc(&self.device).cost().bytes as f64;
            let (us, rate) = (seconds * 1e6, bytes / seconds / 1e9);
            println!("{name} rows {rows}: {us:.1} us, {rate:.1} GB/s");
        }
        self.device = device(self.threads);
    }

    /// A drafter's head of 2048 clusters of 128 tokens, 32 of them chosen, beside the whole product.
    fn clusters(&mut self, rows: usize) {
        if !wanted("cluster_head") {
            return;
        }
        let (clusters, each, top_k, k) = (2048, 128, 32, 256);
        let vocabulary = clusters * each;
        // Members of a cluster lie far apart.
        let members: Vec<f32> =
            (0..vocabulary).map(|i| (i % each * clusters + i / each) as f32).collect();
        let members = forerun_base::Matrix::from_f32(clusters, each, &members).expect("a table");
        let members = self.device.upload("bench", members).expect("memory");
        let (head, _) = self.weights(Format::Dense(DType::BF16), vocabulary, k, 1);
        let (x, scores) = (self.noise(rows * k), self.noise(rows * clusters));
        let (head, out) = (head[0], self.alloc(DType::F32, rows * vocabulary));
        let op = ClusterHead { x, scores, members, head, clusters, top_k, out };
        let some = 1e6 * self.time(&[op.into()]);
        let all = 1e6 * self.time(&[Linear::set(x, head, out).into()]);
        println!("cluster_head rows {rows}: {some:.0} us, the whole product {all:.0} us");
        self.device = device(self.threads);
    }

    /// A gated short convolution of LFM2 1.2B.
    fn short_conv(&mut self, rows: usize) {
        if !wanted("short_conv") {
            return;
        }
        let (channels, taps, log_rows) = (2048, 3, 8);
        let rows_u32 = rows as u32;
        let (first_row, pending, slot, start) = (0, 0, 0, 1);
        let entry =
            SpanEntry { first_row, rows: rows_u32, confirmed: rows_u32, pending, slot, start };
        let (kernel, _) = self.weights(Format::Dense(DType::F32), channels, taps, 1);
        let [x, input, output] = [0; 3].map(|_| self.noise(rows * channels));
        let op = Op::from(ShortConv {
            x,
            gates: Some(ConvGates { input, output }),
            weight: kernel[0],
            bias: None,
            silu: false,
            channels,
            window: self.alloc(DType::F32, (taps - 1) * channels),
            log: self.alloc(DType::F32, log_rows * channels),
            spans: Spans { table: self.words(&entry.words()), slots: 1, log_rows },
            out: self.alloc(DType::F32, rows * channels),
        });
        let bytes = op.desc(&self.device).cost().bytes as f64;
        let seconds = self.time(&[op]);
        println!(
            "short_conv rows {rows}: {:.1} us, {:.1} GB/s",
            seconds * 1e6,
            bytes / seconds / 1e9
        );
        self.device = device(self.threads);
    }

    /// The delta rule of sixteen key heads and 32 value heads, and what makes its inputs.
    fn delta(&mut self, rows: usize, confirmed: usize) {
        let shape = DeltaShape { key_heads: 16, value_heads: 32, dk: 128, dv: 128 };
        let (channels, heads, log_rows, taps) = (shape.channels(), shape.value_heads, 8, 4);
        let entry = SpanEntry {
            first_row: 0,
            rows: rows as u32,
            confirmed: confirmed as u32,
            pending: 0,
            slot: 0,
            start: 1,
        };
        let spans = Spans { table: self.words(&entry.words()), slots: 1, log_rows };
        let qkv = self.noise(rows * channels);
        let [decay, beta] = [0; 2].map(|_| self.alloc(DType::F32, rows * heads));
        let (kernel, _) = self.weights(Format::Dense(DType::F32), channels, taps, 1);
        let inputs = DeltaInputs {
            x: self.noise(rows * channels),
            a: self.noise(rows * heads),
            b: self.noise(rows * heads),
            weight: kernel[0],
            rate: self.ones(heads),
            dt_bias: self.ones(heads),
            beta_scale: 1.0,
            window: self.alloc(DType::F32, (taps - 1) * channels),
            log: self.alloc(DType::F32, log_rows * channels),
            spans,
            shape,
            qkv,
            decay,
            beta,
        };
        let rule = DeltaRule {
            qkv: self.noise(rows * channels),
            decay: self.alloc(DType::F32, rows * heads),
            beta: self.alloc(DType::F32, rows * heads),
            state: self.alloc(DType::F32, shape.state_len()),
            log: self.alloc(DType::F32, log_rows * shape.log_len()),
            spans,
            shape,
            out: self.alloc(DType::F32, rows * heads * shape.dv),
        };
        let (_, gates) = inputs.parts();
        let ops = [
            ("delta_inputs", Op::from(inputs)),
            ("delta_gates", Op::from(gates)),
            ("delta_rule", Op::from(rule)),
        ];
        for (name, op) in ops {
            if wanted(name) {
                let flops = op.desc(&self.device).cost().flops as f64;
                let seconds = self.time(&[op]);
                let (us, gflops) = (seconds * 1e6, flops / seconds / 1e9);
                println!(
                    "{name} rows {rows} confirmed {confirmed}: {us:.1} us, {gflops:.1} GFLOP/s"
                );
            }
        }
        self.device = device(self.threads);
    }
}

impl Bench {
    /// Mamba-2 with a state as large as that of the delta rule here: 64 heads of 64, a state of 128, eight groups.
    fn scan(&mut self, rows: usize, confirmed: usize) {
        let shape = ScanShape { heads: 64, groups: 8, width: 64, state: 128 };
        let (heads, log_rows) = (shape.heads, 8);
        let (rows_u32, confirmed_u32) = (rows as u32, confirmed as u32);
        let (first_row, pending, slot, start) = (0, 0, 0, 1);
        let entry =
            SpanEntry { first_row, rows: rows_u32, confirmed: confirmed_u32, pending, slot, start };
        let spans = Spans { table: self.words(&entry.words()), slots: 1, log_rows };
        let [step, decay] = [0; 2].map(|_| self.alloc(DType::F32, rows * heads));
        let gates = ScanGates {
            step: self.noise(rows * heads),
            rate: self.ones(heads),
            bias: self.ones(heads),
            heads,
            least: 0.0,
            most: f32::INFINITY,
            decay,
        };
        let scan = SelectiveScan {
            xbc: self.noise(rows * shape.channels()),
            step,
            decay: self.alloc(DType::F32, rows * heads),
            skip: self.ones(heads),
            state: self.alloc(DType::F32, shape.state_len()),
            log: self.alloc(DType::F32, log_rows * shape.log_len()),
            spans,
            shape,
            out: self.alloc(DType::F32, rows * shape.inner()),
        };
        let norm = GatedGroupNorm {
            x: self.noise(rows * shape.inner()),
            gate: self.noise(rows * shape.inner()),
            weight: self.ones(shape.inner()),
            dim: shape.inner() / shape.groups,
            eps: 1e-5,
        };
        let ops: [(&str, Op); 3] = [
            ("scan_gates", gates.into()),
            ("selective_scan", scan.into()),
            ("gated_group_norm", norm.into()),
        ];
        for (name, op) in ops.into_iter().filter(|(name, _)| wanted(name)) {
            let cost = op.desc(&self.device).cost();
            let seconds = self.time(&[op]);
            println!(
                "{name} rows {rows} confirmed {confirmed}: {:.1} us, {:.1} GFLOP/s, {:.1} GB/s",
                seconds * 1e6,
                cost.flops as f64 / seconds / 1e9,
                cost.bytes as f64 / seconds / 1e9
            );
        }
        self.device = device(self.threads);
    }
}

/// Keys that are values too, without a norm.
fn plain_keys(
    each: View,
    places: View,
    [k_cache, v_cache]: [View; 2],
    layout: CacheLayout,
) -> NewKeys {
    NewKeys { k: each, v: each, k_norm: None, v_norm: None, places, k_cache, v_cache, layout }
}

/// The argument that rounds activations to int8.
const INT8: &str = "int8";

/// Arguments, less the flags that cargo adds.
fn typed() -> impl Iterator<Item = String> {
    std::env::args().skip(1).filter(|a| !a.starts_with('-'))
}

fn level() -> Option<Level> {
    typed().find_map(|name| Level::ALL.into_iter().find(|level| level.name() == name))
}

/// Whether `name` contains the filter, if one was given.
fn wanted(name: &str) -> bool {
    let is_level = |a: &str| Level::ALL.into_iter().any(|level| level.name() == a);
    let is_name = |a: &String| !is_level(a) && a != INT8 && a.parse::<usize>().is_err();
    let mut parts = typed().filter(is_name);
    parts.next().is_none_or(|part| name.contains(&part))
}

fn device(threads: usize) -> Cpu<Tuned> {
    let chosen = level().and_then(|level| Tuned::with_isa(level, Some(threads)));
    let kernels = chosen.unwrap_or_else(|| Tuned::new(Some(threads)));
    Cpu::with_kernels(if typed().any(|a| a == INT8) {
        kernels.rounding().expect("products of bytes, and no tiles")
    } else {
        kernels
    })
}

fn main() {
    let given = typed().find_map(|a| a.parse().ok());
    let threads =
        given.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let mut bench = Bench { device: device(threads), threads };
    let machine = Machine::measure(Some(threads)).expect("memory for the bench");
    println!(
        "{}; reading memory {:.1} GB/s, multiply-adds {:.0} GFLOP/s, an empty job {:.1} us",
        bench.device.name(),
        machine.read_bytes_per_s / 1e9,
        machine.flops_per_s / 1e9,
        machine.dispatch.as_secs_f64() * 1e6,
    );
    let grouped =
        |codes, group, offset| Format::Grouped { codes, group, scale: ScaleKind::BF16, offset };
    let uint = |bits| grouped(Codes::Uint { bits }, 64, true);
    let nested = |codes, group, offset| {
        let scale = ScaleKind::Nested;
        Format::Grouped { codes, group, scale, offset }
    };
    let table = Codes::Table { values: [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7] };
    let formats = [
        Format::Dense(DType::F32),
        Format::Dense(DType::BF16),
        Format::Dense(DType::F16),
        uint(8),
        uint(6),
        uint(5),
        uint(4),
        uint(3),
        uint(2),
        grouped(Codes::Uint { bits: 4 }, 32, true),
        grouped(Codes::Int { bits: 6 }, 16, false),
        grouped(table, 32, false),
        nested(Codes::Uint { bits: 4 }, 32, true),
        nested(Codes::Uint { bits: 5 }, 32, true),
        nested(Codes::Int { bits: 6 }, 16, false),
        grouped(Codes::E4m3, 128, false),
    ];
    for format in formats {
        bench.linear(format, 2048, 2048);
    }
    for [n, k] in [[384, 1152], [1152, 384], [8192, 384]] {
        bench.linear(uint(8), n, k);
    }
    for [n, k] in [[576, 576], [1536, 576], [576, 1536]] {
        bench.linear(grouped(Codes::Uint { bits: 4 }, 32, true), n, k);
    }
    for dtype in [DType::F16, DType::I8] {
        for head_dim in [64, 128, 256] {
            for context in [1024, 16384, 131_072] {
                bench.attention(dtype, 1, context, head_dim, None);
            }
            bench.attention(dtype, 4, 4096, head_dim, None);
            for context in [1024, 2048, 4096, 8192] {
                bench.attention(dtype, 512, context, head_dim, None);
            }
        }
        for rows in [1, 512] {
            bench.attention(dtype, rows, 8192, 128, Some(512));
            bench.attention_inputs(dtype, rows);
        }
    }
    for rows in [1, 512] {
        bench.elementwise(rows);
    }
    for rows in [1, 4] {
        bench.clusters(rows);
    }
    for (rows, confirmed) in [(1, 1), (4, 1), (512, 512)] {
        bench.delta(rows, confirmed);
        bench.scan(rows, confirmed);
        bench.short_conv(rows);
        bench.kda(rows);
    }
    for (rows, context) in [(1, 1024), (1, 16384), (4, 4096), (512, 2048)] {
        bench.latent(DType::F16, rows, context);
    }
}
