//! The seam's conformance suite on an adapter: software unless `FORERUN_WGPU_ADAPTER` has the number of another. No
//! adapter is a failure.

#[path = "common/device.rs"]
mod adapter;

use adapter::open_device;
use forerun_backend::conform::{
    ConformCase, ConformReport, Tolerances, cases, check, check_commits, check_copies,
    check_refusals, check_uploads,
};
use forerun_backend_cpu::plain;
use std::collections::BTreeSet;

/// Cases of a device: nothing is given back before it is.
const TOGETHER: usize = 64;

fn assert_passed(report: &ConformReport) {
    assert!(report.checks > 0, "nothing was checked");
    assert!(report.failures.is_empty(), "{report}");
}

/// Operations whose kernels read weights by the text by which `linear` reads them, which meets every format. They meet
/// all codes and all sorts of scales at each size, but not each pair of them.
const COVERED: [&str; 2] = ["linears", "gated_linear"];

/// The cases of an operation.
fn selected(op: &str) -> Vec<ConformCase> {
    let mut seen = BTreeSet::new();
    let mut is_selected = |case: &ConformCase| {
        if case.op != op || !COVERED.contains(&op) {
            return case.op == op;
        }
        // A name begins with its formats, each its codes, a stroke, and its scales.
        let at = case.name.find(&format!(", {} row", case.rows)).expect("a name has its rows");
        let (formats, sizes) = case.name.split_at(at);
        let (codes, scales) = formats.split_once('/').unwrap_or((formats, ""));
        let parts = [codes, scales].map(|part| (part.to_owned(), sizes.to_owned()));
        parts.map(|part| seen.insert(part)).contains(&true)
    };
    cases().into_iter().filter(|case| is_selected(case)).collect()
}

fn conform(op: &str) {
    let mut report = ConformReport::default();
    for cases in selected(op).chunks(TOGETHER) {
        let mut device = open_device();
        for case in cases {
            report.merge(check(case, &mut device, &mut plain(), &Tolerances::f32()));
        }
    }
    assert_passed(&report);
}

macro_rules! conforms {
    ($($op:ident),* $(,)?) => {
        $(#[test]
        fn $op() {
            conform(stringify!($op));
        })*
    };
}

conforms!(
    embed,
    rms_norm,
    add_norm,
    join_norm,
    linear,
    linears,
    gated_linear,
    rope_table,
    attention_inputs,
    attention,
    short_conv,
    delta_gates,
    delta_inputs,
    delta_rule,
    gated_norm,
    gate_mul,
    glu,
    softcap,
    router,
    experts,
    add_gated,
    cluster_head,
    gather_rows,
    scatter_rows,
    scatter_words,
    sample,
    head_sample,
    choose_entries,
    collapse_streams,
    compressed_attention,
    group_norm,
    grouped_linear,
    hash_router,
    head_linear,
    kda_gates,
    kda_rule,
    latent_attention,
    latent_inputs,
    mix_streams,
    ngram_embed,
    ngram_gate,
    pool_entries,
    silu_rows,
    sparse_attention,
    turn_tails,
    update_streams,
);

#[test]
fn all_codes_and_all_scales_are_met_though_not_each_pair() {
    let parts = |cases: &[ConformCase]| -> [BTreeSet<String>; 2] {
        let format = |case: &ConformCase| {
            let (formats, _) = case.name.split_once(" row").expect("a name has its rows");
            let (formats, _) = formats.rsplit_once(", ").expect("a name has its formats");
            let (codes, scales) = formats.split_once('/').unwrap_or((formats, ""));
            [codes.to_owned(), scales.to_owned()]
        };
        let formats: Vec<[String; 2]> = cases.iter().map(format).collect();
        [0, 1].map(|i| formats.iter().map(|format| format[i].clone()).collect())
    };
    for op in COVERED {
        let all: Vec<ConformCase> = cases().into_iter().filter(|case| case.op == op).collect();
        let some = selected(op);
        assert_eq!(parts(&some), parts(&all), "{op}");
        assert!(3 * some.len() < 2 * all.len(), "{op}: {} of {}", some.len(), all.len());
    }
}

#[test]
fn kept_drafts_lead_to_the_state_of_confirmed_rows() {
    assert_passed(&check_commits(&mut open_device()));
}

#[test]
fn bytes_are_copied_as_they_are() {
    assert_passed(&check_copies(&mut open_device()));
}

#[test]
fn weights_in_parts_are_the_weights_as_a_whole() {
    assert_passed(&check_uploads(&mut open_device()));
}

#[test]
fn what_makes_no_sense_is_refused() {
    assert_passed(&check_refusals(&mut open_device()));
}
