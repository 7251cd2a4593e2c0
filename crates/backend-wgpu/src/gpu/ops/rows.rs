//! Rows by index, rotary angles and the router: `rows.wgsl`, `rope.wgsl`, `router.wgsl`.

use super::Lowered;
use crate::gpu::kernels::{MOVE_ROWS, ROPE_TABLE, ROUTER, site};
use crate::gpu::launch::{BoundOperand, Call, Words, folded, invocations};
use crate::gpu::lowering::{Lowering, bound, bound_or_absent, plain};
use forerun_backend::op::{
    ExpertGroups, GatherRows, RopeTable, Router, ScatterRows, ScatterWords, Scores,
};
use forerun_backend::{BackendError, View};

/// Rows of `dim` words that move.
struct Moved {
    x: View,
    from: Option<View>,
    to: Option<View>,
    out: View,
    rows: usize,
    dim: usize,
    op: &'static str,
    /// One past the largest word that moves as it is.
    limit: Option<u32>,
}

fn move_rows(lowering: &mut Lowering<'_>, moved: Moved) -> Lowered {
    let Moved { x, from, to, out, rows, dim, op, limit } = moved;
    let start = |view: Option<View>| view.map_or(0, |view| view.start);
    let site = site(op) as usize;
    let (x_rows, out_rows) = (x.len / dim, out.len / dim);
    let most = limit.unwrap_or(0) as usize;
    let sizes =
        [x.start, start(from), start(to), out.start, rows, dim, x_rows, out_rows, site, most];
    lowering.calls.push(Call {
        kernel: &MOVE_ROWS,
        constants: vec![
            ("GATHER", u32::from(from.is_some())),
            ("SCATTER", u32::from(to.is_some())),
            ("LIMITED", u32::from(limit.is_some())),
        ],
        operands: vec![bound(x), bound_or_absent(from), bound_or_absent(to), bound(out)],
        words: Words::of(&sizes),
        grid: folded(rows),
        work: lowering.elements(rows * dim),
    });
    Ok(())
}

pub(super) fn gather_rows(lowering: &mut Lowering<'_>, op: GatherRows) -> Lowered {
    let GatherRows { x, rows, out, dim } = op;
    let (from, to, op) = (Some(rows), None, "gather_rows");
    move_rows(lowering, Moved { x, from, to, out, rows: rows.len, dim, op, limit: None })
}

pub(super) fn scatter_rows(lowering: &mut Lowering<'_>, op: ScatterRows) -> Lowered {
    let ScatterRows { x, rows, out, dim } = op;
    let (from, to, op) = (None, Some(rows), "scatter_rows");
    move_rows(lowering, Moved { x, from, to, out, rows: rows.len, dim, op, limit: None })
}

pub(super) fn scatter_words(lowering: &mut Lowering<'_>, op: ScatterWords) -> Lowered {
    let ScatterWords { words, from, to, out, limit } = op;
    let (rows, from, to) = (from.len, Some(from), Some(to));
    move_rows(
        lowering,
        Moved { x: words, from, to, out, rows, dim: 1, op: "scatter_words", limit: Some(limit) },
    )
}

pub(super) fn rope_table(to: &mut Lowering<'_>, op: RopeTable) -> Lowered {
    if op.out.len == 0 {
        return Ok(());
    }
    let count = op.out.len / 2;
    let pairs = count / op.positions.len;
    let words = Words::of(&[op.positions.start, op.out.start, count, pairs, op.shift as usize]);
    to.calls.push(Call {
        kernel: &ROPE_TABLE,
        constants: Vec::new(),
        operands: vec![bound(op.positions), BoundOperand::Plain(op.inv_freq), bound(op.out)],
        words: words.map(|words| words.float(op.scale)),
        grid: invocations(count),
        work: to.work(op),
    });
    Ok(())
}

/// Groups of experts that the kernel ranks: one for each invocation.
const GROUPS: usize = 64;

pub(super) fn router(to: &mut Lowering<'_>, op: Router) -> Lowered {
    let rows = op.logits.len / op.experts;
    let ExpertGroups { count, open, ranked_by } =
        op.groups.unwrap_or(ExpertGroups { count: 0, open: 0, ranked_by: 0 });
    if count > GROUPS {
        let what = "more than 64 groups of experts";
        return Err(BackendError::Parameter { op: "router", what });
    }
    let scores = match op.scores {
        Scores::Softmax => 0,
        Scores::Sigmoid => 1,
        Scores::SqrtSoftplus => 2,
    };
    let words = Words::of(&[
        op.logits.start,
        op.chosen.start,
        op.weights.start,
        rows,
        op.experts,
        op.top_k,
        scores,
        count,
        open,
        ranked_by,
        usize::from(op.renormalise.is_some()),
        usize::from(op.bias.is_some()),
        usize::from(op.expert_scale.is_some()),
    ]);
    to.calls.push(Call {
        kernel: &ROUTER,
        constants: Vec::new(),
        operands: vec![
            bound(op.logits),
            plain(op.bias),
            plain(op.expert_scale),
            bound(op.chosen),
            bound(op.weights),
        ],
        words: words.map(|words| words.float(op.renormalise.unwrap_or(0.0)).float(op.scale)),
        grid: folded(rows),
        work: to.work(op),
    });
    Ok(())
}
