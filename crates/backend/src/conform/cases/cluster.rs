//! Logits of chosen clusters.

use super::ConformCase;
use crate::conform::matrices::{fitting_columns, format_name, typical_formats};
use crate::op::ClusterHead;
use forerun_base::Format;

#[derive(Clone, Copy, Debug)]
struct ClusterSizes {
    rows: usize,
    clusters: usize,
    each: usize,
    top_k: usize,
    k: usize,
}

pub(super) fn cases() -> Vec<ConformCase> {
    let mut cases = Vec::new();
    for format in typical_formats() {
        for rows in [0, 1, 3, 19] {
            let sizes = ClusterSizes { rows, clusters: 12, each: 7, top_k: 3, k: 200 };
            cases.push(cluster_head(format, sizes, false));
        }
        let sizes = ClusterSizes { rows: 2, clusters: 1, each: 5, top_k: 1, k: 17 };
        cases.push(cluster_head(format, sizes, false));
        let sizes = ClusterSizes { rows: 4, clusters: 6, each: 1, top_k: 6, k: 64 };
        cases.push(cluster_head(format, sizes, false));
        let sizes = ClusterSizes { rows: 5, clusters: 9, each: 4, top_k: 4, k: 33 };
        cases.push(cluster_head(format, sizes, true));
    }
    cases
}

/// With `ties` many scores are equal: the lower cluster comes first.
fn cluster_head(format: Format, sizes: ClusterSizes, ties: bool) -> ConformCase {
    let sizes = ClusterSizes { k: fitting_columns(format, sizes.k), ..sizes };
    let equal = if ties { ", ties" } else { "" };
    let name = format!("{}, {sizes:?}{equal}", format_name(format));
    ConformCase::new("cluster_head", name, sizes.rows, move |stage| {
        let ClusterSizes { rows, clusters, each, top_k, k } = sizes;
        let vocabulary = clusters * each;
        let x = stage.random("x", rows * k)?;
        let scores = stage.rng.values(rows * clusters);
        let coarse = |v: f32| if ties { (2.0 * v).floor() } else { v };
        let scores: Vec<f32> = scores.into_iter().map(coarse).collect();
        let scores = stage.input("scores", &scores)?;
        // Every token in one cluster, in no order.
        let mut free: Vec<usize> = (0..vocabulary).collect();
        let mut next = || free.swap_remove(stage.rng.below(free.len())) as f32;
        let members: Vec<f32> = (0..vocabulary).map(|_| next()).collect();
        let members = stage.table([clusters, each], &members)?;
        let head = stage.matrix([vocabulary, k], format)?;
        let out = stage.output("out", rows * vocabulary)?;
        Ok(ClusterHead { x, scores, members, head, clusters, top_k, out }.into())
    })
}
