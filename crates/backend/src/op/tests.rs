//! What operations say they cost, against counts by hand.

use super::*;
use crate::{BufferId, BufferInfo, Catalog, Cost, View, WeightId, WeightInfo};
use forerun_base::{DType, Format};

/// Buffers and weights that have sizes and, where told, contents.
#[derive(Default)]
struct Shelf {
    buffers: Vec<BufferInfo>,
    weights: Vec<WeightInfo>,
    words: Vec<(View, Vec<u32>)>,
}

impl Shelf {
    fn view_of(&mut self, dtype: DType, len: usize) -> View {
        self.buffers.push(BufferInfo { dtype, len });
        View::head(BufferId(self.buffers.len() as u32 - 1), len)
    }

    fn f32(&mut self, len: usize) -> View {
        self.view_of(DType::F32, len)
    }

    fn u32(&mut self, len: usize) -> View {
        self.view_of(DType::U32, len)
    }

    fn known(&mut self, words: &[u32]) -> View {
        let view = self.u32(words.len());
        self.words.push((view, words.to_vec()));
        view
    }

    /// A weight that takes `row_bytes` a row.
    fn matrix(&mut self, rows: usize, cols: usize, row_bytes: usize) -> WeightId {
        let format = Format::Dense(DType::BF16);
        self.weights.push(WeightInfo { rows, cols, format, bytes: rows * row_bytes });
        WeightId(self.weights.len() as u32 - 1)
    }

    #[track_caller]
    fn cost(&self, op: impl Into<Op>) -> Cost {
        op.into().desc(self).check().unwrap()
    }
}

impl Catalog for Shelf {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.buffers.get(id.0 as usize).copied()
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.weights.get(id.0 as usize).copied()
    }

    fn words(&self, view: View) -> Option<&[u32]> {
        self.words.iter().find(|(known, _)| *known == view).map(|(_, words)| &words[..])
    }
}

#[test]
fn a_product_reads_its_weight_once_whatever_the_rows() {
    for rows in [1, 4, 512] {
        let mut shelf = Shelf::default();
        let (x, out) = (shelf.f32(rows * 8), shelf.f32(rows * 6));
        let weight = shelf.matrix(6, 8, 10);
        let bytes = (60 + 4 * rows * (8 + 6)) as u64;
        let set = Cost { bytes, weights: 60, state: 0, flops: (2 * rows * 48) as u64 };
        assert_eq!(shelf.cost(Linear::set(x, weight, out)), set);
        let add = Cost { bytes: set.bytes + 4 * 6 * rows as u64, ..set };
        assert_eq!(shelf.cost(Linear::add(x, weight, out)), add, "the sum is read too");
    }
}

#[test]
fn a_gated_product_does_not_pay_for_room_that_is_left_unspecified() {
    let mut shelf = Shelf::default();
    let [x, scratch, out] = [8, 6, 6].map(|width| shelf.f32(2 * width));
    let [gate, up] = [(); 2].map(|()| shelf.matrix(6, 8, 10));
    let activation = Activation::Silu;
    let op = GatedLinear { x, norm: None, gate, up, scratch, out, activation };
    let flops = 2 * (2 * 2 * 48) + 12 * 10;
    let bytes = 2 * 60 + 4 * 2 * (8 + 6);
    assert_eq!(shelf.cost(op), Cost { bytes, weights: 2 * 60, state: 0, flops });
}

#[test]
fn an_expert_is_read_once_by_all_rows_that_chose_it() {
    // Eight experts of [3, 4], [3, 4] and [4, 3]; two rows choose three each.
    let cost = |chosen: Option<[u32; 6]>| {
        let mut shelf = Shelf::default();
        let chosen = match chosen {
            Some(words) => shelf.known(&words),
            None => shelf.u32(6),
        };
        let stack = |weight| ExpertRows { weight, first: 0, stride: 3 };
        let tall = |weight| ExpertRows { weight, first: 0, stride: 4 };
        let op = Experts {
            x: shelf.f32(8),
            chosen,
            weights: shelf.f32(6),
            gate: stack(shelf.matrix(24, 4, 5)),
            up: stack(shelf.matrix(24, 4, 5)),
            down: tall(shelf.matrix(32, 3, 7)),
            experts: 8,
            top_k: 3,
            ffn: 3,
            dim: 4,
            hidden: shelf.f32(18),
            partial: shelf.f32(24),
            out: shelf.f32(8),
            store: Store::Set,
            activation: Activation::Silu,
        };
        shelf.cost(op)
    };
    let (one, others) = (2 * 3 * 5 + 4 * 7, 4 * (8 + 6 + 6 + 8));
    let flops = 6 * (3 * 2 * 12 + 3 * 10 + 2 * 4);
    for (chosen, read) in [
        (Some([0, 1, 2, 0, 1, 2]), 3),
        (Some([0, 1, 2, 2, 5, 7]), 5),
        (Some([0, 1, 2, 3, 4, 5]), 6),
        (None, 6),
    ] {
        let (bytes, weights) = (read * one + others, read * one);
        assert_eq!(cost(chosen), Cost { bytes, weights, state: 0, flops }, "{chosen:?}");
    }
}

#[test]
fn a_token_that_repeats_is_looked_up_once() {
    let mut shelf = Shelf::default();
    let (table, out) = (shelf.matrix(100, 8, 12), shelf.f32(4 * 8));
    let (unknown, known) = (shelf.u32(4), shelf.known(&[7, 9, 7, 7]));
    let cost = |ids| shelf.cost(Embed { ids, table, scale: 1.0, out }).bytes;
    let others = 4 * (4 + 4 * 8);
    assert_eq!((cost(unknown), cost(known)), (4 * 12 + others, 2 * 12 + others));
}

/// Two key heads of width 8 in f16, four query heads, blocks of 16.
fn attention(shelf: &mut Shelf, rows: &[(u32, u32)], known: bool, window: Option<usize>) -> Cost {
    let layout =
        CacheLayout { blocks: 64, kv_heads: 2, block: 16, head_dim: 8, ..CacheLayout::NONE };
    let (spans, positions): (Vec<u32>, Vec<u32>) = rows.iter().copied().unzip();
    let index = |shelf: &mut Shelf, words: &[u32]| {
        if known { shelf.known(words) } else { shelf.u32(words.len()) }
    };
    let op = Attention {
        q: shelf.f32(rows.len() * 32),
        k_cache: shelf.view_of(DType::F16, layout.len()),
        v_cache: shelf.view_of(DType::F16, layout.len()),
        layout,
        positions: index(shelf, &positions),
        span_of: index(shelf, &spans),
        tables: shelf.u32(2 * 64),
        table_width: 64,
        heads: 4,
        scale: 1.0,
        window,
        out: shelf.f32(rows.len() * 32),
    };
    shelf.cost(op)
}

#[test]
fn rows_of_a_sequence_share_the_keys_they_see() {
    let decode = [(0, 99)];
    let verify = [(0, 99), (0, 100), (0, 101)];
    let two = [(0, 99), (0, 100), (1, 40)];
    let prompt: Vec<(u32, u32)> = (0..200).map(|p| (0, p)).collect();
    for (rows, window, keys) in [
        (&decode[..], None, 100),
        (&verify, None, 102),
        (&two, None, 101 + 41),
        (&prompt, None, 200),
        (&decode, Some(10), 10),
        (&verify, Some(10), 12),
        (&prompt, Some(10), 200),
    ] {
        let cost = attention(&mut Shelf::default(), rows, true, window);
        let n = rows.len() as u64;
        let others = 4 * (2 * n * 32 + 2 * n);
        assert_eq!(cost.state, keys * 2 * 2 * 8 * 2, "{rows:?} {window:?}");
        assert_eq!(cost.bytes, cost.state + others, "{rows:?} {window:?}");
        let seen = |p: usize| p + 1 - Attention::first_key(window, p);
        let pairs: usize = rows.iter().map(|&(_, p)| seen(p as usize)).sum();
        assert_eq!(cost.flops, (pairs * 4 * (4 * 8 + 10)) as u64, "{rows:?} {window:?}");
        let bound = attention(&mut Shelf::default(), rows, false, window);
        assert!(bound.bytes >= cost.bytes, "without contents the cost is an upper bound");
    }
}

#[test]
fn state_is_read_and_written_once_a_span_and_drafts_go_to_the_log() {
    let entry = |rows, confirmed, pending, start| {
        SpanEntry { first_row: 0, rows, confirmed, pending, slot: 0, start }.words()
    };
    let shape = DeltaShape { key_heads: 1, value_heads: 2, dk: 4, dv: 8 };
    let (state, log) = (2 * 4 * 8, 4 + 2 * 10);
    // Rows, confirmed, pending, start; states moved, log rows moved, rows of flops.
    for (words, moved, logged, [run, folded]) in [
        (entry(1, 1, 0, 50), 2, 0, [1, 0]),
        (entry(4, 1, 0, 50), 2, 3, [4, 0]),
        (entry(4, 1, 2, 50), 2, 5, [4, 2]),
        (entry(512, 512, 0, 512), 2, 0, [512, 0]),
        (entry(512, 512, 0, 0), 1, 0, [512, 0]),
    ] {
        let mut shelf = Shelf::default();
        let rows = words[1] as usize;
        let spans = Spans { table: shelf.known(&words), slots: 3, log_rows: 4 };
        let op = DeltaRule {
            qkv: shelf.f32(rows * shape.channels()),
            decay: shelf.f32(rows * 2),
            beta: shelf.f32(rows * 2),
            state: shelf.f32(3 * state),
            log: shelf.f32(3 * 4 * log),
            spans,
            shape,
            out: shelf.f32(rows * 16),
        };
        let others = 4 * (rows * (shape.channels() + 2 + 2 + 16) + SpanEntry::WORDS);
        let kept = 4 * (moved * state + logged * log) as u64;
        let flops = ((7 * run + 5 * folded) * state) as u64;
        let cost = Cost { bytes: kept + others as u64, weights: 0, state: kept, flops };
        assert_eq!(shelf.cost(op), cost, "{words:?}");

        let channels = shape.channels();
        let inputs = delta_inputs(&mut shelf, shape, rows, spans);
        let others = 4 * (rows * (2 * channels + 4 * 2) + SpanEntry::WORDS) + 8 * (channels + 2);
        let bytes = (4 * (moved * 3 + logged) * channels + others) as u64;
        assert_eq!(shelf.cost(inputs).bytes, bytes, "{words:?}");
    }
}

/// Inputs of the delta rule with a convolution of four taps; a row of a weight takes 8 bytes.
fn delta_inputs(shelf: &mut Shelf, shape: DeltaShape, rows: usize, spans: Spans) -> DeltaInputs {
    let (channels, heads) = (shape.channels(), shape.value_heads);
    let [x, qkv] = [(); 2].map(|()| shelf.f32(rows * channels));
    let [a, b, decay, beta] = [(); 4].map(|()| shelf.f32(rows * heads));
    let weight = shelf.matrix(channels, 4, 8);
    let [rate, dt_bias] = [(); 2].map(|()| shelf.matrix(1, heads, 8));
    let window = shelf.f32(spans.slots * 3 * channels);
    let log = shelf.f32(spans.slots * spans.log_rows * channels);
    let beta_scale = 1.0;
    DeltaInputs {
        x,
        a,
        b,
        weight,
        rate,
        dt_bias,
        beta_scale,
        window,
        log,
        spans,
        shape,
        qkv,
        decay,
        beta,
    }
}

#[test]
fn a_state_whose_span_cannot_be_seen_is_read_and_written() {
    let mut shelf = Shelf::default();
    let table = shelf.u32(2 * SpanEntry::WORDS);
    let shape = DeltaShape { key_heads: 1, value_heads: 1, dk: 2, dv: 2 };
    let op = delta_inputs(&mut shelf, shape, 5, Spans { table, slots: 2, log_rows: 0 });
    let bytes = 4 * (5 * (2 * 6 + 4) + 2 * 6) + (6 + 2) * 8 + 2 * 2 * 4 * 3 * 6;
    assert_eq!(shelf.cost(op).bytes, bytes);
}

#[test]
fn what_an_operation_passes_over_costs_nothing() {
    let mut shelf = Shelf::default();
    let (q, table) = (shelf.f32(2 * 3 * 8), shelf.f32(2 * 4));
    let queries = Some(Queries { q, heads: 3, norm: None });
    let rope = AttentionInputs { table, rotary: 4, head_dim: 8, queries, keys: None };
    let cost = Cost { bytes: 4 * (2 * 2 * 3 * 4 + 8), flops: 3 * 2 * 3 * 4, ..Cost::default() };
    assert_eq!(shelf.cost(rope), cost, "only the dims that turn");

    let (gate, up) = (shelf.f32(2 * 4), shelf.f32(2 * 16));
    let glu = Glu { gate, up, dim: 4, up_width: 16, up_first: 8, activation: Activation::GeluTanh };
    assert_eq!(shelf.cost(glu).bytes, 4 * (2 * 8 + 8), "only its part of a wide row");
}

#[test]
fn new_keys_cost_what_is_stored_of_them() {
    for (dtype, coded, stored) in [(DType::F16, false, 2 * 40), (DType::I8, true, 40 + 2 * 2)] {
        let mut shelf = Shelf::default();
        let layout = CacheLayout {
            blocks: 3,
            kv_heads: 2,
            block: 8,
            head_dim: 40,
            coded,
            ..CacheLayout::NONE
        };
        let [k, v] = [(); 2].map(|()| shelf.f32(5 * 2 * 40));
        let [k_cache, v_cache] = [(); 2].map(|()| shelf.view_of(dtype, layout.len()));
        let (places, table) = (shelf.u32(5), shelf.f32(5 * 16));
        let weight = shelf.matrix(1, 40, 160);
        let k_norm = Some(HeadNorm { weight, eps: 1e-6 });
        let keys = NewKeys { k, v, k_norm, v_norm: None, places, k_cache, v_cache, layout };
        let op =
            AttentionInputs { table, rotary: 16, head_dim: 40, queries: None, keys: Some(keys) };
        let state = 2 * 5 * 2 * stored;
        let others = 4 * (5 * 16 + 2 * 5 * 2 * 40 + 5) + 160;
        let flops = 4 * 5 * 2 * 40 + 3 * 5 * 2 * 16;
        let cost = Cost { bytes: state + others, weights: 160, state, flops };
        assert_eq!(shelf.cost(op), cost, "{dtype}");
    }
}

#[test]
fn taking_the_largest_is_cheaper_than_drawing() {
    let mut shelf = Shelf::default();
    let greedy = SampleRow::GREEDY.words();
    let warm = SampleRow { temperature: 0.7, ..SampleRow::GREEDY }.words();
    let rows = shelf.known(&[greedy, warm].concat());
    let [history, ids, masks, out] = [0, 1, 4, 2].map(|len| shelf.u32(len));
    let logits = shelf.f32(200);
    let op = Sample { logits, candidates: 100, vocabulary: 100, rows, history, ids, masks, out };
    // History and masks are charged by nobody: rows look up what they need.
    let words = 2 * SampleRow::WORDS + 1 + 2;
    let cost = Cost { bytes: 4 * (200 + words as u64), flops: 100 * (1 + 20), ..Cost::default() };
    assert_eq!(shelf.cost(op), cost);
}
