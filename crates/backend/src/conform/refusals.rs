//! What makes no sense is an error: not a panic, not silence, and the device works afterwards.

use super::cases::cases;
use super::operands::weights;
use super::{ConformCase, ConformReport, ConformStage, compare, invariance};
use crate::op::parts::views;
use crate::op::{
    AddNorm, Attention, AttentionPart, Channels, ClusterHead, DeltaInputs, DeltaRule, ExpertGroups,
    GatedGroupNorm, Glu, HeadSample, Linear, Router, Sample, ScanGates, SelectiveScan, ShortConv,
    Softcap,
};
use crate::{
    Backend, BackendError, BufferId, BufferRole, BufferSpec, HostData, Op, View, WeightId,
    submit_and_wait,
};
use forerun_base::{DType, Matrix};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Cases of each operation that are spoiled.
const CASES_PER_OP: usize = 3;

/// Operands whose length is free: any number of them is a sensible call.
const FREE_LENGTHS: [(&str, &str); 9] = [
    ("softcap", "x"),
    ("silu_rows", "x"),
    ("sample", "ids"),
    ("head_sample", "ids"),
    ("add_gated", "gate"),
    ("gather_rows", "x"),
    ("scatter_rows", "out"),
    ("scatter_words", "words"),
    ("scatter_words", "out"),
];

/// An index that points nowhere: element `at` of an operand becomes `value`.
struct BadIndex {
    op: &'static str,
    /// Selects the case.
    case: &'static str,
    operand: &'static str,
    at: usize,
    value: u32,
}

const fn bad(op: &'static str, operand: &'static str, at: usize, value: u32) -> BadIndex {
    BadIndex { op, case: "", operand, at, value }
}

/// Larger than anything a case holds, small enough to be multiplied without overflow.
const FAR: u32 = 1_000_000;

const BAD_INDICES: [BadIndex; 72] = [
    bad("embed", "ids", 0, 23),
    bad("embed", "ids", 2, u32::MAX),
    bad("gather_rows", "rows", 1, 9),
    bad("scatter_rows", "rows", 0, FAR),
    bad("scatter_words", "from", 0, 9),
    bad("scatter_words", "to", 1, FAR),
    BadIndex { case: "keys", ..bad("attention_inputs", "places", 3, 72) },
    BadIndex { case: "both", ..bad("attention_inputs", "places", 0, u32::MAX) },
    bad("attention", "positions", 0, FAR),
    bad("attention", "positions", 1, u32::MAX),
    bad("attention", "span_of", 2, FAR),
    bad("attention", "tables", 0, FAR),
    // The window's first and last block.
    BadIndex { case: "window of 9", ..bad("attention", "tables", 34, FAR) },
    BadIndex { case: "window of 9", ..bad("attention", "tables", 37, u32::MAX) },
    BadIndex { case: "mixed", ..bad("short_conv", "spans", 0, FAR) },
    BadIndex { case: "mixed", ..bad("short_conv", "spans", 1, u32::MAX) },
    BadIndex { case: "mixed", ..bad("short_conv", "spans", 2, 6) },
    BadIndex { case: "mixed", ..bad("short_conv", "spans", 3, 5) },
    BadIndex { case: "mixed", ..bad("short_conv", "spans", 4, 6) },
    BadIndex { case: "mixed", ..bad("delta_gates", "spans", 0, FAR) },
    BadIndex { case: "mixed", ..bad("delta_gates", "spans", 1, u32::MAX) },
    BadIndex { case: "mixed", ..bad("delta_inputs", "spans", 0, FAR) },
    BadIndex { case: "mixed", ..bad("delta_inputs", "spans", 1, u32::MAX) },
    BadIndex { case: "mixed", ..bad("delta_inputs", "spans", 2, 6) },
    BadIndex { case: "mixed", ..bad("delta_inputs", "spans", 3, 5) },
    BadIndex { case: "mixed", ..bad("delta_inputs", "spans", 4, 6) },
    BadIndex { case: "mixed", ..bad("delta_rule", "spans", 0, u32::MAX) },
    BadIndex { case: "mixed", ..bad("delta_rule", "spans", 1, FAR) },
    BadIndex { case: "mixed", ..bad("delta_rule", "spans", 2, u32::MAX) },
    BadIndex { case: "mixed", ..bad("delta_rule", "spans", 3, u32::MAX) },
    BadIndex { case: "mixed", ..bad("delta_rule", "spans", 4, FAR) },
    BadIndex { case: "mixed", ..bad("selective_scan", "spans", 0, u32::MAX) },
    BadIndex { case: "mixed", ..bad("selective_scan", "spans", 1, FAR) },
    BadIndex { case: "mixed", ..bad("selective_scan", "spans", 2, u32::MAX) },
    BadIndex { case: "mixed", ..bad("selective_scan", "spans", 3, u32::MAX) },
    BadIndex { case: "mixed", ..bad("selective_scan", "spans", 4, FAR) },
    bad("experts", "chosen", 1, 6),
    bad("sample", "rows", 10, FAR),
    bad("sample", "rows", 11, u32::MAX),
    bad("sample", "rows", 12, u32::MAX),
    bad("sample", "rows", 13, FAR),
    BadIndex { case: "top 5", ..bad("sample", "history", 0, FAR) },
    BadIndex { case: "greedy with penalties", ..bad("sample", "ids", 0, FAR) },
    bad("sample", "rows", 15, FAR),
    BadIndex { case: "masked", ..bad("sample", "rows", 15, u32::MAX) },
    bad("head_sample", "rows", 12, u32::MAX),
    BadIndex { case: "greedy with penalties", ..bad("head_sample", "history", 0, FAR) },
    bad("head_sample", "rows", 15, FAR),
    BadIndex { case: "masked", ..bad("head_sample", "rows", 15, u32::MAX) },
    bad("latent_inputs", "places", 3, FAR),
    bad("latent_attention", "positions", 0, FAR),
    bad("latent_attention", "span_of", 2, FAR),
    bad("latent_attention", "tables", 0, FAR),
    BadIndex { case: "mixed", ..bad("kda_gates", "spans", 0, FAR) },
    BadIndex { case: "mixed", ..bad("kda_rule", "spans", 1, FAR) },
    BadIndex { case: "mixed", ..bad("kda_rule", "spans", 3, u32::MAX) },
    BadIndex { case: "mixed", ..bad("ngram_embed", "spans", 0, FAR) },
    BadIndex { case: "mixed", ..bad("ngram_embed", "spans", 4, 6) },
    BadIndex { case: "mixed", ..bad("pool_entries", "spans", 1, u32::MAX) },
    BadIndex { case: "mixed", ..bad("pool_entries", "spans", 3, 5) },
    BadIndex { case: "prompt", ..bad("pool_entries", "tables", 30, FAR) },
    bad("choose_entries", "positions", 0, FAR),
    bad("choose_entries", "span_of", 2, FAR),
    bad("choose_entries", "tables", 5, FAR),
    bad("sparse_attention", "positions", 0, u32::MAX),
    bad("sparse_attention", "span_of", 1, FAR),
    bad("sparse_attention", "tables", 0, FAR),
    bad("sparse_attention", "chosen", 0, FAR),
    BadIndex { case: "mixed", ..bad("compressed_attention", "spans", 0, FAR) },
    BadIndex { case: "mixed", ..bad("compressed_attention", "spans", 2, 6) },
    BadIndex { case: "prompt", ..bad("compressed_attention", "chosen", 120, FAR) },
    bad("hash_router", "ids", 1, FAR),
];

pub(super) fn check(candidate: &mut dyn Backend) -> ConformReport {
    let mut report = ConformReport::default();
    let missing = candidate.missing();
    let there = |case: &ConformCase| case.rows > 1 && !missing.contains(&case.op);
    let all: Vec<ConformCase> = cases().into_iter().filter(there).collect();
    let mut seen: Vec<&str> = Vec::new();
    for case in &all {
        if seen.iter().filter(|op| **op == case.op).count() < CASES_PER_OP {
            seen.push(case.op);
            report.note(&case.name, "refusal", spoiled_operands(case, candidate));
        }
    }
    for index in BAD_INDICES.iter().filter(|index| !missing.contains(&index.op)) {
        let fits = |case: &&ConformCase| case.op == index.op && case.name.contains(index.case);
        let name = format!("{} `{}` {} = {}", index.op, index.operand, index.at, index.value);
        let found = match all.iter().find(fits) {
            Some(case) => spoiled_index(case, index, candidate),
            None => Ok(Some("no such case".to_owned())),
        };
        report.note(&name, "refusal", found);
    }
    for case in all.iter().filter(|case| case.op == "cluster_head").take(CASES_PER_OP) {
        report.note(&case.name, "members", spoiled_members(case, candidate));
    }
    for case in all.iter().filter(|case| case.name.contains("log of 0")) {
        report.note(&case.name, "empty operand", empty_log_in_state(case, candidate));
    }
    report
}

/// An empty operand that shares a written buffer may be refused or harmless, nothing else.
fn empty_log_in_state(
    case: &ConformCase,
    candidate: &mut dyn Backend,
) -> Result<Option<String>, BackendError> {
    let before = case.play(candidate)?;
    let mut stage = ConformStage::new(candidate, &case.name);
    let op = match case.set(&mut stage)? {
        Op::ShortConv(op) => Op::ShortConv(ShortConv { log: op.window.part(0, 0), ..op }),
        Op::DeltaInputs(op) => Op::DeltaInputs(DeltaInputs { log: op.window.part(0, 0), ..op }),
        Op::DeltaRule(op) => Op::DeltaRule(DeltaRule { log: op.state.part(0, 0), ..op }),
        Op::SelectiveScan(op) => {
            Op::SelectiveScan(SelectiveScan { log: op.state.part(0, 0), ..op })
        }
        other => other,
    };
    match run(&[op], stage.backend) {
        RefusedCall::Panicked => return Ok(Some("panicked".to_owned())),
        RefusedCall::Refused => {}
        RefusedCall::Accepted => {
            let after = stage.play(&[])?;
            if let Some(what) = compare::same(&before, &after) {
                return Ok(Some(what));
            }
        }
    }
    let after = case.play(candidate)?;
    Ok(compare::same(&before, &after).map(|what| format!("afterwards: {what}")))
}

/// Spoils each operand in turn.
fn spoiled_operands(
    case: &ConformCase,
    candidate: &mut dyn Backend,
) -> Result<Option<String>, BackendError> {
    let before = case.play(candidate)?;
    let mut stage = ConformStage::new(candidate, &case.name);
    let op = case.set(&mut stage)?;
    let parameters = wrong_parameters(op).into_iter();
    let parameters = parameters.map(|(what, op)| (what.to_owned(), op));
    for (what, wrong) in wrong_calls(op, stage.backend)?.into_iter().chain(parameters) {
        if let Some(fault) = accepted(wrong, stage.backend) {
            return Ok(Some(format!("{what}: {fault}")));
        }
    }
    let after = case.play(candidate)?;
    Ok(compare::same(&before, &after).map(|what| format!("after refusals: {what}")))
}

/// Variants of a call that must be refused, each with what is wrong.
fn wrong_calls(op: Op, backend: &mut dyn Backend) -> Result<Vec<(String, Op)>, BackendError> {
    let names: Vec<(&str, View, bool)> = op
        .desc(&*backend)
        .operands()
        .iter()
        .map(|operand| (operand.name, operand.view, operand.access.writes()))
        .collect();
    let largest = names.iter().map(|(_, view, _)| view.start + view.len).max().unwrap_or(0);
    let mut make = |dtype| {
        let spec = BufferSpec { label: "other", dtype, len: largest, role: BufferRole::Scratch };
        backend.alloc(spec)
    };
    let (floats, integers) = (make(DType::F32)?, make(DType::U32)?);
    let mut wrong = Vec::new();
    for (i, &(name, view, writes)) in names.iter().enumerate().filter(|(_, n)| n.1.len > 0) {
        let mut change = |what: &str, changed: View| {
            let mut call = op;
            let mut places = views(&mut call);
            assert_eq!(*places[i].view, view, "views come in the order of the desc");
            *places[i].view = changed;
            wrong.push((format!("`{name}` {what}"), call));
        };
        if !FREE_LENGTHS.contains(&(op.name(), name)) {
            change("too short", View { len: view.len - 1, ..view });
        }
        let is_u32 = backend.buffer(view.buffer).is_some_and(|info| info.dtype == DType::U32);
        let anywhere = matches!(op, Op::Linear(Linear { channels: Some(_), .. })) && name == "out";
        if !is_u32 && !anywhere && view.alignment() > 1 {
            change("between vectors", View { start: view.start - 1, ..view });
        }
        change("past the end", View { start: FAR as usize, ..view });
        change("at the end of the world", View { start: usize::MAX, ..view });
        change("in no buffer", View { buffer: BufferId(u32::MAX), ..view });
        let other = if is_u32 { floats } else { integers };
        change("of another type", View { buffer: other, ..view });
        for (_, shared, shared_is_written) in names.iter().filter(|n| n.1 != view) {
            if shared.len > 0 && (writes || *shared_is_written) {
                change("in a written buffer", View { buffer: shared.buffer, ..view });
            }
        }
    }
    let small = Matrix::from_f32(7, 11, &[0.5; 77]);
    let small = small.map_err(|why| BackendError::Protocol(why.to_string()))?;
    let small = backend.upload("small", small)?;
    let mut call = op;
    for i in 0..weights(&mut call).len() {
        for (what, id) in [("missing", WeightId(u32::MAX)), ("of another shape", small)] {
            let mut call = op;
            *weights(&mut call)[i] = id;
            wrong.push((format!("weight {i} {what}"), call));
        }
    }
    Ok(wrong)
}

/// Variants of a call with numbers that make no sense, each with what is wrong.
fn wrong_parameters(op: Op) -> Vec<(&'static str, Op)> {
    match op {
        Op::Attention(op) => vec![("a window of 0", Attention { window: Some(0), ..op }.into())],
        Op::AttentionPart(op) => vec![("no keys", AttentionPart { end: op.first, ..op }.into())],
        Op::Linear(op) => {
            let with = |first, count| Linear { channels: Some(Channels { first, count }), ..op };
            vec![
                ("endless channels", with(0, usize::MAX).into()),
                ("channels past the end of the world", with(usize::MAX, 1).into()),
            ]
        }
        Op::Sample(op) => [("none", 0), ("too many", op.vocabulary + 1), ("endless", usize::MAX)]
            .map(|(what, candidates)| (what, Sample { candidates, ..op }.into()))
            .into(),
        Op::HeadSample(op) => [("a cap of 0", 0.0), ("a cap of NaN", f32::NAN)]
            .map(|(what, cap)| (what, HeadSample { cap: Some(cap), ..op }.into()))
            .into(),
        Op::ShortConv(op) => [("no channels", 0), ("endless channels", usize::MAX)]
            .map(|(what, channels)| (what, ShortConv { channels, ..op }.into()))
            .into(),
        Op::ScanGates(op) => {
            let with = |least, most| Op::from(ScanGates { least, most, ..op });
            vec![
                ("steps below 0", with(-1.0, 1.0)),
                ("no step", with(2.0, 1.0)),
                ("a limit of NaN", with(0.0, f32::NAN)),
                ("no heads", ScanGates { heads: 0, ..op }.into()),
            ]
        }
        Op::GatedGroupNorm(op) => vec![
            ("groups of 0", GatedGroupNorm { dim: 0, ..op }.into()),
            ("endless groups", GatedGroupNorm { dim: usize::MAX, ..op }.into()),
        ],
        Op::AddNorm(op) => vec![("rows of 0", AddNorm { dim: 0, ..op }.into())],
        Op::Softcap(op) => [("0", 0.0), ("−1", -1.0), ("NaN", f32::NAN), ("∞", f32::INFINITY)]
            .map(|(what, cap)| (what, Softcap { cap, ..op }.into()))
            .into(),
        Op::Glu(op) => vec![
            ("up past its row", Glu { up_first: op.up_first + op.up_width, ..op }.into()),
            ("up past every row", Glu { up_first: usize::MAX, ..op }.into()),
            ("rows of 0", Glu { dim: 0, ..op }.into()),
        ],
        Op::Router(op) => {
            let with = |count, open, ranked_by| {
                let groups = Some(ExpertGroups { count, open, ranked_by });
                Op::from(Router { groups, ..op })
            };
            vec![
                ("top 0", Router { top_k: 0, ..op }.into()),
                ("top of too many", Router { top_k: op.experts + 1, ..op }.into()),
                ("no groups", with(0, 1, 1)),
                ("uneven groups", with(op.experts + 1, 1, 1)),
                ("endless groups", with(usize::MAX, 1, 1)),
                ("no open group", with(1, 0, 1)),
                ("more open groups than there are", with(1, 2, 1)),
                ("groups ranked by nobody", with(1, 1, 0)),
                ("groups ranked by too many", with(1, 1, op.experts + 1)),
            ]
        }
        Op::ClusterHead(op) => vec![
            ("top 0", ClusterHead { top_k: 0, ..op }.into()),
            ("top of too many", ClusterHead { top_k: op.clusters + 1, ..op }.into()),
            ("no clusters", ClusterHead { clusters: 0, ..op }.into()),
            ("endless clusters", ClusterHead { clusters: usize::MAX, ..op }.into()),
        ],
        _ => Vec::new(),
    }
}

/// Members that are no tokens of the vocabulary.
fn spoiled_members(
    case: &ConformCase,
    candidate: &mut dyn Backend,
) -> Result<Option<String>, BackendError> {
    let before = case.play(candidate)?;
    let mut stage = ConformStage::new(candidate, &case.name);
    let Op::ClusterHead(op) = case.set(&mut stage)? else {
        return Ok(Some("not a cluster head".to_owned()));
    };
    let Some(info) = stage.backend.weight(op.members) else {
        return Ok(Some("no members".to_owned()));
    };
    let count = info.rows * info.cols;
    for number in [count as f32, -1.0, 0.5, f32::NAN, f32::INFINITY] {
        let members = stage.table([info.rows, info.cols], &vec![number; count])?;
        if let Some(fault) = accepted(ClusterHead { members, ..op }.into(), stage.backend) {
            return Ok(Some(format!("token {number}: {fault}")));
        }
    }
    let after = case.play(candidate)?;
    Ok(compare::same(&before, &after).map(|what| format!("after a refusal: {what}")))
}

fn spoiled_index(
    case: &ConformCase,
    index: &BadIndex,
    candidate: &mut dyn Backend,
) -> Result<Option<String>, BackendError> {
    let before = case.play(candidate)?;
    let mut stage = ConformStage::new(candidate, &case.name);
    let op = case.set(&mut stage)?;
    let desc = op.desc(&*stage.backend);
    let Some(operand) = desc.operands().iter().find(|o| o.name == index.operand) else {
        return Ok(Some("no such operand".to_owned()));
    };
    let element = operand.view.part(index.at, 1);
    stage.backend.write(element, HostData::U32(&[index.value]))?;
    if let Some(fault) = accepted(op, stage.backend) {
        return Ok(Some(fault));
    }
    if let Op::Attention(whole) = op {
        let parts = invariance::key_parts(whole, case.rows, &mut stage)?;
        if !parts.is_empty()
            && let Some(fault) = all_accepted(&parts, stage.backend)
        {
            return Ok(Some(format!("cut by keys: {fault}")));
        }
    }
    let after = case.play(candidate)?;
    Ok(compare::same(&before, &after).map(|what| format!("after a refusal: {what}")))
}

/// Says how a wrong call was taken, unless it was refused by the time it was waited for.
fn accepted(op: Op, backend: &mut dyn Backend) -> Option<String> {
    all_accepted(&[op], backend)
}

/// The same of calls of which one is wrong.
fn all_accepted(ops: &[Op], backend: &mut dyn Backend) -> Option<String> {
    match run(ops, backend) {
        RefusedCall::Refused => None,
        RefusedCall::Accepted => Some("accepted".to_owned()),
        RefusedCall::Panicked => Some("panicked".to_owned()),
    }
}

enum RefusedCall {
    Accepted,
    Refused,
    Panicked,
}

fn run(ops: &[Op], backend: &mut dyn Backend) -> RefusedCall {
    // A panic is what this looks for; the device is used on, since only that can show more faults.
    let run = AssertUnwindSafe(|| {
        ops.iter().try_for_each(|op| op.apply(backend))?;
        submit_and_wait(backend)
    });
    match catch_unwind(run) {
        Ok(Ok(_)) => RefusedCall::Accepted,
        Ok(Err(_)) => RefusedCall::Refused,
        Err(_) => RefusedCall::Panicked,
    }
}
