//! The seam's conformance suite on an adapter: software unless `FORERUN_WGPU_ADAPTER` has the number of another. No
//! adapter is a failure.

use forerun_backend::conform::{
    ConformCase, ConformReport, Tolerances, cases, check, check_commits, check_copies,
    check_refusals, check_uploads,
};
use forerun_backend_cpu::plain;
use forerun_backend_wgpu::{AdapterChoice, AdapterSelector, Api, Wgpu};

/// Cases of a device: nothing is given back before it is.
const TOGETHER: usize = 64;

fn device() -> Wgpu {
    let number = std::env::var("FORERUN_WGPU_ADAPTER").ok();
    let selector = number.map_or(AdapterSelector::Software, |number| {
        AdapterSelector::Number(number.parse().expect("a number"))
    });
    Wgpu::open(AdapterChoice { api: Api::Any, selector }).expect("an adapter")
}

fn assert_passed(report: &ConformReport) {
    assert!(report.checks > 0, "nothing was checked");
    assert!(report.failures.is_empty(), "{report}");
}

fn conform(op: &str) {
    let mut report = ConformReport::default();
    let of_op = |case: &ConformCase| case.op == op;
    for cases in cases().into_iter().filter(of_op).collect::<Vec<_>>().chunks(TOGETHER) {
        let mut device = device();
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
fn kept_drafts_lead_to_the_state_of_confirmed_rows() {
    assert_passed(&check_commits(&mut device()));
}

#[test]
fn bytes_are_copied_as_they_are() {
    assert_passed(&check_copies(&mut device()));
}

#[test]
fn weights_in_parts_are_the_weights_as_a_whole() {
    assert_passed(&check_uploads(&mut device()));
}

#[test]
fn what_makes_no_sense_is_refused() {
    assert_passed(&check_refusals(&mut device()));
}
