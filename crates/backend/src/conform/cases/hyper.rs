//! Parallel residual streams, embeddings of several tokens, rotated tails, and what else stands around them.

use super::ConformCase;
use super::delta::{BATCHES, Batch, SLOTS, Width, log_rows, rows_of, slots};
use crate::conform::ConformStage;
use crate::conform::matrices::{format_name, typical_formats};
use crate::op::{
    CollapseStreams, GroupNorm, GroupedLinear, HashRouter, HeadNorm, MixStreams, NgramEmbed,
    NgramGate, NgramHash, Scores, SiluRows, Spans, StreamMixing, StreamUpdate, TurnTails,
    UpdateStreams,
};
use crate::{BackendError, Op};
use forerun_base::{DType, Format};

pub(super) fn cases() -> Vec<ConformCase> {
    let mut cases = Vec::new();
    for rows in [3, 0, 1, 37] {
        for (streams, dim) in [(2, 48), (1, 1), (4, 33), (3, 130), (16, 5)] {
            cases.push(group_norm(rows, streams, dim));
            cases.push(mix_streams(rows, streams, dim));
            for kind in 0..4 {
                cases.push(update_streams(rows, streams, dim, kind));
            }
            for rounds in [None, Some(1), Some(4)] {
                cases.push(collapse_streams(rows, streams, dim, rounds));
            }
            cases.push(ngram_gate(rows, streams, dim));
        }
        for len in [1, 40, 8200] {
            cases.push(silu_rows(rows, len));
        }
        for (heads, dim, rotary) in [(4, 32, 8), (1, 2, 2), (3, 17, 6), (2, 64, 64), (5, 9, 0)] {
            for norm in [true, false] {
                cases.push(turn_tails(rows, [heads, dim, rotary], norm));
            }
        }
        for scores in [Scores::SqrtSoftplus, Scores::Softmax, Scores::Sigmoid] {
            cases.push(hash_router(rows, scores));
        }
        for format in typical_formats() {
            cases.push(grouped_linear(rows, format));
        }
    }
    for (name, widths) in BATCHES {
        for (order, heads) in [(3, 2), (2, 1), (4, 5)] {
            cases.push(ngram_embed(name, widths, (order, heads)));
        }
    }
    cases
}

fn group_norm(rows: usize, groups: usize, group: usize) -> ConformCase {
    let name = format!("{rows} rows of {groups} groups of {group}");
    ConformCase::new("group_norm", name, rows, move |stage| {
        let dim = groups * group;
        let x = stage.random("x", rows * dim)?;
        let weight = stage.norm_weight(dim)?;
        let out = stage.output("out", rows * dim)?;
        Ok(GroupNorm { x, weight, out, dim, group, eps: 1e-5 }.into())
    })
}

fn silu_rows(rows: usize, len: usize) -> ConformCase {
    ConformCase::new("silu_rows", format_args!("{rows} rows of {len}"), rows, move |stage| {
        let before: Vec<f32> = stage.rng.values(rows * len).iter().map(|x| 30.0 * x).collect();
        let x = stage.updated("x", &before)?;
        Ok(SiluRows { x }.into())
    })
}

fn mix_streams(rows: usize, streams: usize, dim: usize) -> ConformCase {
    let name = format!("{rows} rows of {streams} streams of {dim}");
    ConformCase::new("mix_streams", name, rows, move |stage| {
        let x = stage.random("x", rows * streams * dim)?;
        let gates = stage.random("gates", rows * streams * dim)?;
        let out = stage.output("out", rows * dim)?;
        Ok(MixStreams { x, gates, streams, dim, out }.into())
    })
}

fn update_streams(rows: usize, streams: usize, dim: usize, kind: usize) -> ConformCase {
    let what = ["mixed", "gated", "added", "set"][kind];
    let name = format!("{what}, {rows} rows of {streams} streams of {dim}");
    ConformCase::new("update_streams", name, rows, move |stage| {
        let y = stage.random("y", rows * dim)?;
        let update = match kind {
            0 => StreamUpdate::Mixed {
                post: stage.random("post", rows * streams)?,
                comb: stage.random("comb", rows * streams * streams)?,
            },
            1 => StreamUpdate::Gated { gates: stage.random("gates", rows * streams)? },
            2 => StreamUpdate::Add,
            _ => StreamUpdate::Set,
        };
        let before = stage.rng.values(rows * streams * dim);
        let x = match update {
            StreamUpdate::Set => stage.output("x", rows * streams * dim)?,
            _ => stage.updated("x", &before)?,
        };
        Ok(UpdateStreams { y, update, streams, dim, x }.into())
    })
}

fn collapse_streams(rows: usize, streams: usize, dim: usize, rounds: Option<usize>) -> ConformCase {
    let name = format!("{rows} rows of {streams} streams of {dim}, rounds {rounds:?}");
    ConformCase::new("collapse_streams", name, rows, move |stage| {
        let each = CollapseStreams::logits(streams, rounds.is_some());
        let x = stage.random("x", rows * streams * dim)?;
        let logits = stage.random("logits", rows * each)?;
        let scale = stage.norm_weight(if rounds.is_some() { 3 } else { 1 })?;
        let base = stage.rng.values(each);
        let base = stage.vector(&base)?;
        let mixing = match rounds {
            Some(iterations) => Some(StreamMixing {
                iterations,
                post: stage.output("post", rows * streams)?,
                comb: stage.output("comb", rows * streams * streams)?,
            }),
            None => None,
        };
        let out = stage.output("out", rows * dim)?;
        let op = CollapseStreams { x, logits, scale, base, mixing, streams, dim, eps: 1e-6, out };
        Ok(op.into())
    })
}

fn ngram_gate(rows: usize, streams: usize, dim: usize) -> ConformCase {
    let name = format!("{rows} rows of {streams} streams of {dim}");
    ConformCase::new("ngram_gate", name, rows, move |stage| {
        let keys = stage.random("keys", rows * streams * dim)?;
        let queries = stage.random("queries", rows * streams * dim)?;
        let values = stage.random("values", rows * dim)?;
        let out = stage.output("out", rows * streams * dim)?;
        Ok(NgramGate { keys, queries, values, streams, dim, out }.into())
    })
}

fn turn_tails(rows: usize, [heads, dim, rotary]: [usize; 3], normed: bool) -> ConformCase {
    let name = format!("{rows} rows, {heads} heads of {dim}, {rotary} turned, normed: {normed}");
    ConformCase::new("turn_tails", name, rows, move |stage| {
        let table = stage.random("table", rows * rotary)?;
        let norm = match normed {
            true => Some(HeadNorm { weight: stage.norm_weight(dim)?, eps: 1e-6 }),
            false => None,
        };
        let before = stage.rng.values(rows * heads * dim);
        let x = stage.updated("x", &before)?;
        Ok(TurnTails { table, rotary, backwards: !normed, norm, heads, dim, x }.into())
    })
}

fn hash_router(rows: usize, scores: Scores) -> ConformCase {
    ConformCase::new("hash_router", format_args!("{rows} rows, {scores:?}"), rows, move |stage| {
        let (vocabulary, experts, top_k) = (23, 9, 3);
        let ids: Vec<u32> = (0..rows).map(|_| stage.rng.below(vocabulary) as u32).collect();
        let ids = stage.indices("ids", &ids)?;
        let chosen = |i: usize| ((i / top_k * 5 + i % top_k * 2) % experts) as f32;
        let table: Vec<f32> = (0..vocabulary * top_k).map(chosen).collect();
        let table = stage.table([vocabulary, top_k], &table)?;
        let logits = stage.random("logits", rows * experts)?;
        let chosen = stage.chosen("chosen", rows * top_k)?;
        let weights = stage.output("weights", rows * top_k)?;
        let (renormalise, scale) = (Some(1e-20), 1.5);
        Ok(HashRouter {
            ids,
            table,
            logits,
            experts,
            top_k,
            scores,
            renormalise,
            scale,
            chosen,
            weights,
        }
        .into())
    })
}

fn grouped_linear(rows: usize, format: Format) -> ConformCase {
    let name = format!("{}, {rows} rows", format_name(format));
    ConformCase::new("grouped_linear", name, rows, move |stage| {
        let (groups, wide, count) = (3, super::super::matrices::fitting_columns(format, 32), 20);
        let x = stage.random("x", rows * groups * wide)?;
        let weight = stage.matrix([groups * count, wide], format)?;
        let gathered = stage.scratch("gathered", rows * groups * wide)?;
        let products = stage.scratch("products", rows * groups * count)?;
        let out = stage.output("out", rows * groups * count)?;
        Ok(GroupedLinear { x, weight, groups, gathered, products, out }.into())
    })
}

fn ngram_embed(name: &str, widths: &'static [Width], sizes: (usize, usize)) -> ConformCase {
    let log_rows = log_rows(widths);
    let name = format!("{name}, {sizes:?}, log of {log_rows}");
    ConformCase::new("ngram_embed", name, rows_of(widths), move |stage| {
        ngram_op(stage, sizes, &Batch::new(widths, log_rows))
    })
}

/// Embeddings of so many tokens, by so many heads each, over a batch.
pub(in crate::conform) fn ngram_op(
    stage: &mut ConformStage<'_>,
    (order, heads): (usize, usize),
    batch: &Batch,
) -> Result<Op, BackendError> {
    let Batch { rows, entries, log_rows } = batch;
    let (width, vocabulary) = (7, 40);
    let mut hash = NgramHash {
        order,
        heads,
        multipliers: std::array::from_fn(|i| (2 * i as u64 + 1) * 0x9E37_79B9),
        sizes: [0; NgramHash::MOST_HEADS],
        boundary: 3,
    };
    let all = hash.all_heads();
    hash.sizes[..all]
        .iter_mut()
        .zip([11, 13, 17, 19, 23].iter().cycle())
        .for_each(|(to, &n)| *to = n);
    let mut token = || stage.rng.below(vocabulary) as u32;
    let ids: Vec<u32> = (0..*rows).map(|_| token()).collect();
    let tokens: Vec<f32> = (0..SLOTS * log_rows).map(|_| token() as f32).collect();
    let ids = stage.indices("ids", &ids)?;
    let table = stage.matrix([hash.rows() + 2, width], Format::Dense(DType::F32))?;
    let window = slots(stage, entries, order - 1);
    let window: Vec<f32> =
        window.into_iter().map(|x| if x.is_nan() { x } else { (x.abs() * 30.0).floor() }).collect();
    let window = stage.moved("window", &window)?;
    let log = stage.moved("log", &tokens)?;
    let spans = Spans { table: stage.span_table(entries)?, slots: SLOTS, log_rows: *log_rows };
    let out = stage.output("out", rows * all * width)?;
    Ok(NgramEmbed { ids, table, hash, width, window, log, spans, out }.into())
}
