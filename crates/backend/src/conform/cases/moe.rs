//! Routers and experts.

use super::ConformCase;
use crate::conform::matrices::{fitting_columns, format_name, typical_formats};
use crate::op::{Activation, ExpertGroups, ExpertRows, Experts, Router, Scores, Store};
use forerun_base::{DType, Format};

pub(super) fn cases() -> Vec<ConformCase> {
    // First what uses every operand, since the first cases are also spoiled.
    let mut cases: Vec<ConformCase> =
        routings(Scores::Sigmoid).map(|routing| router(2, routing)).into();
    for rows in [0, 1, 3, 65] {
        for (experts, top_k) in [(1, 1), (8, 3), (129, 8), (5, 5)] {
            for renormalise in [Some(0.0), None] {
                for own_scales in [false, true] {
                    let plain = Routing::plain(experts, top_k);
                    cases.push(router(rows, Routing { renormalise, own_scales, ..plain }));
                }
            }
        }
        for scores in [Scores::Softmax, Scores::Sigmoid, Scores::SqrtSoftplus] {
            cases.extend(routings(scores).map(|routing| router(rows, routing)));
        }
    }
    cases.push(router_ties(None));
    cases.push(router_ties(Some(ExpertGroups { count: 3, open: 2, ranked_by: 1 })));
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
            cases.push(experts(format, fused, sizes, (Activation::Relu, Store::Add)));
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

/// What a router does, but for its rows.
#[derive(Clone, Copy, Debug)]
struct Routing {
    experts: usize,
    top_k: usize,
    scores: Scores,
    biased: bool,
    groups: Option<ExpertGroups>,
    renormalise: Option<f32>,
    scale: f32,
    own_scales: bool,
}

impl Routing {
    const fn plain(experts: usize, top_k: usize) -> Self {
        Self {
            experts,
            top_k,
            scores: Scores::Softmax,
            biased: false,
            groups: None,
            renormalise: None,
            scale: 1.0,
            own_scales: false,
        }
    }
}

/// Everything but the plain softmax, for one kind of scores.
fn routings(scores: Scores) -> [Routing; 7] {
    let of = |experts, top_k| Routing { scores, ..Routing::plain(experts, top_k) };
    let groups = |count, open, ranked_by| Some(ExpertGroups { count, open, ranked_by });
    [
        Routing { biased: true, renormalise: Some(0.5), scale: 0.5, own_scales: true, ..of(8, 8) },
        Routing { scale: 2.5, ..of(8, 3) },
        Routing { biased: true, renormalise: Some(1e-20), ..of(129, 8) },
        Routing { groups: groups(4, 2, 2), renormalise: Some(0.0), ..of(32, 5) },
        Routing { groups: groups(3, 1, 1), biased: true, ..of(15, 5) },
        Routing { groups: groups(1, 1, 6), biased: true, scale: 1.5, ..of(6, 2) },
        Routing { groups: groups(32, 7, 3), biased: true, scale: 2.0, ..of(160, 6) },
    ]
}

fn router(rows: usize, routing: Routing) -> ConformCase {
    let Routing { experts, top_k, scores, groups, renormalise, scale, .. } = routing;
    ConformCase::new("router", format!("{rows} rows, {routing:?}"), rows, move |stage| {
        // On a grid that is not symmetric: sums of scores that are equal but for their rounding could be ranked
        // either way.
        let logit = |v: f32| (20.0 * v).round() / 4.0 + 0.07;
        let logits: Vec<f32> = stage.rng.values(rows * experts).into_iter().map(logit).collect();
        let logits = stage.input("logits", &logits)?;
        let chosen = stage.chosen("chosen", rows * top_k)?;
        let weights = stage.output("weights", rows * top_k)?;
        let bias = routing.biased.then(|| stage.matrix([1, experts], BIAS)).transpose()?;
        let own = routing.own_scales.then(|| stage.norm_weight(experts)).transpose()?;
        Ok(Router {
            logits,
            experts,
            top_k,
            scores,
            bias,
            groups,
            renormalise,
            scale,
            expert_scale: own,
            chosen,
            weights,
        }
        .into())
    })
}

const BIAS: Format = Format::Dense(DType::F32);

/// Equal logits in every arrangement: the lower index comes first, of groups too.
fn router_ties(groups: Option<ExpertGroups>) -> ConformCase {
    const LOGITS: [[f32; 6]; 4] = [
        [1.0; 6],
        [0.0, 2.0, 2.0, 0.0, 2.0, 2.0],
        [3.0, 1.0, 3.0, 1.0, 1.0, 1.0],
        [-1.0, -1.0, -2.0, -1.0, -1.0, 5.0],
    ];
    ConformCase::new("router", format!("ties, {groups:?}"), LOGITS.len(), move |stage| {
        let (experts, top_k) = (6, 3);
        let logits = stage.input("logits", LOGITS.as_flattened())?;
        let chosen = stage.chosen("chosen", LOGITS.len() * top_k)?;
        let weights = stage.output("weights", LOGITS.len() * top_k)?;
        Ok(Router {
            logits,
            experts,
            top_k,
            scores: Scores::Softmax,
            bias: None,
            groups,
            renormalise: Some(0.0),
            scale: 1.0,
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
            // Relu of a product times itself: experts without gates.
            let alone = activation == Activation::Relu;
            let up = if alone { gate } else { stage.matrix([experts * ffn, dim], format)? };
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
