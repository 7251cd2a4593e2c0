//! Routers and experts.

use super::ConformCase;
use crate::conform::matrices::{fitting_columns, format_name, typical_formats};
use crate::op::{Activation, ExpertRows, Experts, Router, Store};
use forerun_base::{DType, Format};

pub(super) fn cases() -> Vec<ConformCase> {
    let mut cases = Vec::new();
    for rows in [0, 1, 3, 65] {
        for (experts, top_k) in [(1, 1), (8, 3), (129, 8), (5, 5)] {
            for renormalise in [true, false] {
                for scaled in [false, true] {
                    cases.push(router(rows, experts, top_k, renormalise, scaled));
                }
            }
        }
    }
    cases.push(router_ties());
    let silu = (Activation::Silu, Store::Add);
    let gelu = (Activation::GeluTanh, Store::Set);
    // Superblocks make every size the same large one, so these have few cases.
    let (any, whole): (Vec<Format>, Vec<Format>) =
        typical_formats().into_iter().partition(|&format| fitting_columns(format, 1) == 1);
    for format in whole {
        for (fused, rows) in [(true, 1), (true, 17), (false, 5)] {
            let cols = fitting_columns(format, 1);
            let sizes = MoeSizes { rows, experts: 3, top_k: 2, ffn: cols, dim: cols };
            cases.push(experts(format, fused, sizes, silu));
        }
    }
    for format in any {
        for fused in [true, false] {
            for rows in [0, 1, 5, 40] {
                let sizes = MoeSizes { rows, experts: 6, top_k: 3, ffn: 48, dim: 64 };
                cases.push(experts(format, fused, sizes, silu));
            }
            let sizes = MoeSizes { rows: 3, experts: 4, top_k: 4, ffn: 19, dim: 33 };
            cases.push(experts(format, fused, sizes, silu));
            cases.push(experts(format, fused, sizes, gelu));
            let sizes = MoeSizes { rows: 2, experts: 1, top_k: 1, ffn: 130, dim: 200 };
            cases.push(experts(format, fused, sizes, silu));
            cases.push(experts(format, fused, MoeSizes { rows: 17, ..sizes }, gelu));
        }
    }
    let sizes = MoeSizes { rows: 4, experts: 3, top_k: 2, ffn: 21, dim: 18 };
    let format = Format::Dense(DType::F32);
    cases.push(experts(format, true, sizes, (Activation::Silu, Store::Set)));
    cases.push(experts(format, true, sizes, (Activation::GeluTanh, Store::Add)));
    cases
}

fn router(
    rows: usize,
    experts: usize,
    top_k: usize,
    renormalise: bool,
    scaled: bool,
) -> ConformCase {
    let divided = if renormalise { ", renormalised" } else { "" };
    let times = if scaled { ", scaled" } else { "" };
    let sizes = format!("{rows} rows, {top_k} of {experts}{divided}{times}");
    ConformCase::new("router", sizes, rows, move |stage| {
        let logits = stage.rng.values(rows * experts);
        let logits: Vec<f32> = logits.iter().map(|v| 5.0 * v).collect();
        let logits = stage.input("logits", &logits)?;
        let chosen = stage.chosen("chosen", rows * top_k)?;
        let weights = stage.output("weights", rows * top_k)?;
        let expert_scale = if scaled { Some(stage.norm_weight(experts)?) } else { None };
        Ok(Router { logits, experts, top_k, renormalise, expert_scale, chosen, weights }.into())
    })
}

/// Equal logits in every arrangement: the lower index comes first.
fn router_ties() -> ConformCase {
    const LOGITS: [[f32; 6]; 4] = [
        [1.0; 6],
        [0.0, 2.0, 2.0, 0.0, 2.0, 2.0],
        [3.0, 1.0, 3.0, 1.0, 1.0, 1.0],
        [-1.0, -1.0, -2.0, -1.0, -1.0, 5.0],
    ];
    ConformCase::new("router", "ties", LOGITS.len(), |stage| {
        let (experts, top_k) = (6, 3);
        let logits = stage.input("logits", LOGITS.as_flattened())?;
        let chosen = stage.chosen("chosen", LOGITS.len() * top_k)?;
        let weights = stage.output("weights", LOGITS.len() * top_k)?;
        Ok(Router {
            logits,
            experts,
            top_k,
            renormalise: true,
            expert_scale: None,
            chosen,
            weights,
        }
        .into())
    })
}

#[derive(Clone, Copy, Debug)]
struct MoeSizes {
    rows: usize,
    experts: usize,
    top_k: usize,
    ffn: usize,
    dim: usize,
}

fn experts(
    format: Format,
    fused: bool,
    sizes: MoeSizes,
    (activation, store): (Activation, Store),
) -> ConformCase {
    let layout = if fused { "fused" } else { "split" };
    let name = format!("{}, {layout}, {sizes:?}, {activation:?}, {store:?}", format_name(format));
    ConformCase::new("experts", name, sizes.rows, move |stage| {
        let MoeSizes { rows, experts, top_k, ffn, dim } = sizes;
        let x = stage.random("x", rows * dim)?;
        let experts_of_rows: Vec<u32> = (0..rows)
            .flat_map(|_| {
                // Different experts, in an order that is not ascending.
                let first = stage.rng.below(experts);
                (0..top_k).map(move |j| ((first + experts - j) % experts) as u32)
            })
            .collect();
        let chosen = stage.indices("chosen", &experts_of_rows)?;
        let weights = stage.random("weights", rows * top_k)?;
        // The stacks have rows before the first expert that belong to nobody here.
        const BEFORE: usize = 2;
        let (gate, up) = if fused {
            let weight = stage.matrix([BEFORE + experts * 2 * ffn, dim], format)?;
            let at = |first| ExpertRows { weight, first, stride: 2 * ffn };
            (at(BEFORE), at(BEFORE + ffn))
        } else {
            let gate = stage.matrix([experts * ffn, dim], format)?;
            let up = stage.matrix([experts * ffn, dim], format)?;
            let at = |weight| ExpertRows { weight, first: 0, stride: ffn };
            (at(gate), at(up))
        };
        let weight = stage.matrix([BEFORE + experts * dim, ffn], format)?;
        let down = ExpertRows { weight, first: BEFORE, stride: dim };
        let hidden = stage.scratch("hidden", rows * top_k * ffn)?;
        let partial = stage.scratch("partial", rows * top_k * dim)?;
        let before = stage.rng.values(rows * dim);
        let out = match store {
            Store::Set => stage.output("out", rows * dim)?,
            Store::Add => stage.updated("out", &before)?,
        };
        Ok(Experts {
            x,
            chosen,
            weights,
            gate,
            up,
            down,
            experts,
            top_k,
            ffn,
            dim,
            hidden,
            partial,
            out,
            store,
            activation,
        }
        .into())
    })
}
