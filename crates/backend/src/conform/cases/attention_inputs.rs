//! Queries that are rotated, keys and values that reach scattered places of a cache.
//!
//! A cache that holds less than f32 is held to the reference's bits, so those cases have no norms, whose sums a device
//! may round in an order of its own.

use super::ConformCase;
use crate::conform::ConformStage;
use crate::op::{AttentionInputs, CacheLayout, HeadNorm, NewKeys, Queries};
use crate::{BackendError, View};
use forerun_base::DType;

#[derive(Clone, Copy, Debug)]
struct RotaryShape {
    heads: usize,
    head_dim: usize,
    rotary: usize,
    norm: bool,
}

/// Where values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueSource {
    Own,
    Normed,
    /// From the keys, before these are normed and rotated.
    OfKeys,
}

pub(super) fn cases() -> Vec<ConformCase> {
    let turn = |heads, head_dim, rotary, norm| RotaryShape { heads, head_dim, rotary, norm };
    let mut cases = Vec::new();
    for rows in [0, 1, 67] {
        for turn in [
            turn(1, 8, 8, false),
            turn(3, 16, 4, true),
            turn(4, 34, 10, true),
            turn(2, 64, 64, true),
            turn(2, 128, 32, false),
            turn(2, 9, 0, true),
            turn(2, 9, 0, false),
        ] {
            cases.push(queries(rows, turn));
        }
    }
    for rows in [0, 1, 7, 65] {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::I8] {
            // Codes of a whole group, and of one that ends in the middle of a vector.
            let head_dim = if dtype == DType::I8 { 42 } else { 10 };
            for rotary in [0, 6] {
                cases.push(keys(rows, dtype, turn(3, head_dim, rotary, false), ValueSource::Own));
            }
        }
        for values in [ValueSource::Own, ValueSource::Normed, ValueSource::OfKeys] {
            cases.push(both(rows, turn(3, 20, 8, true), values));
            cases.push(both(rows, turn(1, 64, 64, values == ValueSource::OfKeys), values));
        }
    }
    cases
}

fn queries(rows: usize, turn: RotaryShape) -> ConformCase {
    ConformCase::new(
        "attention_inputs",
        format_args!("queries, {rows} rows, {turn:?}"),
        rows,
        move |stage| {
            let (table, queries) =
                (angles(stage, rows, turn)?, Some(rotated_queries(stage, rows, turn)?));
            let RotaryShape { head_dim, rotary, .. } = turn;
            Ok(AttentionInputs { table, rotary, head_dim, queries, keys: None }.into())
        },
    )
}

fn keys(rows: usize, dtype: DType, turn: RotaryShape, values: ValueSource) -> ConformCase {
    let layout = layout(turn, dtype == DType::I8);
    let name = format!("keys, {dtype} {rows} rows, {turn:?}");
    ConformCase::new("attention_inputs", name, rows, move |stage| {
        let caches = if layout.coded {
            // Any but the lowest, which is no code.
            let before = super::attention::random_bytes(&mut stage.rng, layout.len());
            stage.coded_caches(layout, [&before, &before])?
        } else {
            let before = stage.rng.values(layout.len());
            stage.caches(dtype, layout, [&before, &before])?
        };
        let table = angles(stage, rows, turn)?;
        let keys = Some(new_keys(stage, rows, (turn, values), (layout, caches))?);
        let RotaryShape { head_dim, rotary, .. } = turn;
        Ok(AttentionInputs { table, rotary, head_dim, queries: None, keys }.into())
    })
}

/// Queries of twice as many heads as keys, all in f32.
fn both(rows: usize, turn: RotaryShape, values: ValueSource) -> ConformCase {
    let layout = layout(turn, false);
    let name = format!("both, {rows} rows, {turn:?}, values {values:?}");
    ConformCase::new("attention_inputs", name, rows, move |stage| {
        let before = stage.rng.values(layout.len());
        let caches = stage.updated_caches(layout, [&before, &before])?;
        let table = angles(stage, rows, turn)?;
        let queries =
            Some(rotated_queries(stage, rows, RotaryShape { heads: 2 * turn.heads, ..turn })?);
        let keys = Some(new_keys(stage, rows, (turn, values), (layout, caches))?);
        let RotaryShape { head_dim, rotary, .. } = turn;
        Ok(AttentionInputs { table, rotary, head_dim, queries, keys }.into())
    })
}

fn layout(turn: RotaryShape, coded: bool) -> CacheLayout {
    let RotaryShape { heads: kv_heads, head_dim, .. } = turn;
    CacheLayout { blocks: 9, kv_heads, block: 8, head_dim, coded, ..CacheLayout::NONE }
}

fn angles(
    stage: &mut ConformStage<'_>,
    rows: usize,
    turn: RotaryShape,
) -> Result<View, BackendError> {
    stage.random("table", rows * turn.rotary)
}

fn norm(stage: &mut ConformStage<'_>, head_dim: usize) -> Result<HeadNorm, BackendError> {
    Ok(HeadNorm { weight: stage.norm_weight(head_dim)?, eps: 1e-6 })
}

fn rotated_queries(
    stage: &mut ConformStage<'_>,
    rows: usize,
    turn: RotaryShape,
) -> Result<Queries, BackendError> {
    let RotaryShape { heads, head_dim, .. } = turn;
    let before = stage.rng.values(rows * heads * head_dim);
    let q = stage.updated("q", &before)?;
    let norm = turn.norm.then(|| norm(stage, head_dim)).transpose()?;
    Ok(Queries { q, heads, norm })
}

fn new_keys(
    stage: &mut ConformStage<'_>,
    rows: usize,
    (turn, values): (RotaryShape, ValueSource),
    (layout, [k_cache, v_cache]): (CacheLayout, [View; 2]),
) -> Result<NewKeys, BackendError> {
    let RotaryShape { heads, head_dim, .. } = turn;
    let mut free: Vec<u32> = (0..(layout.blocks * layout.block) as u32).collect();
    let places: Vec<u32> = (0..rows)
        .map(|_| {
            let next = stage.rng.below(free.len());
            free.swap_remove(next)
        })
        .collect();
    let k = stage.random("k", rows * heads * head_dim)?;
    let v = match values {
        ValueSource::OfKeys => k,
        ValueSource::Own | ValueSource::Normed => stage.random("v", rows * heads * head_dim)?,
    };
    let k_norm = turn.norm.then(|| norm(stage, head_dim)).transpose()?;
    let v_norm = (values != ValueSource::Own).then(|| norm(stage, head_dim)).transpose()?;
    let (places, layout) = (stage.indices("places", &places)?, stage.layout(layout));
    Ok(NewKeys { k, v, k_norm, v_norm, places, k_cache, v_cache, layout })
}
