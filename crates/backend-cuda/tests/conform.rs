//! The seam's conformance suite over the kernels: as they run on the CPU, and on a GPU where there is one
//! (`--ignored`).

mod common;

use common::{on_a_gpu, on_the_cpu};
use forerun_backend::conform::{
    ConformCase, ConformReport, Tolerances, cases, check, check_commits, check_copies,
    check_refusals, check_uploads,
};
use forerun_backend_cpu::plain;
use forerun_backend_cuda::Cuda;
use forerun_backend_cuda::products::Precision;

/// Cases per device: buffers are freed with the device only.
const TOGETHER: usize = 64;

fn assert_passed(report: &ConformReport) {
    assert!(report.checks > 0, "nothing was checked");
    assert!(report.failures.is_empty(), "{report}");
}

fn conform(op: &str, device: fn() -> Cuda) {
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

/// The GPU has the bits of the emulation, in everything that one of them can do.
fn same_bits(op: &str) {
    let mut report = ConformReport::default();
    let of_op = |case: &ConformCase| case.op == op;
    for cases in cases().into_iter().filter(of_op).collect::<Vec<_>>().chunks(TOGETHER) {
        let (mut gpu, mut cpu) = (on_a_gpu(), on_the_cpu());
        for case in cases {
            report.merge(check(case, &mut gpu, &mut cpu, &Tolerances::general(0.0)));
        }
    }
    assert_passed(&report);
}

macro_rules! conforms {
    ($($op:ident),* $(,)?) => {
        mod emulated {
            $(#[test]
            fn $op() {
                super::conform(stringify!($op), super::on_the_cpu);
            })*
        }

        mod gpu {
            $(#[test]
            #[ignore = "needs a GPU"]
            fn $op() {
                super::conform(stringify!($op), super::on_a_gpu);
            })*
        }

        mod bits {
            $(#[test]
            #[ignore = "needs a GPU"]
            fn $op() {
                super::same_bits(stringify!($op));
            })*
        }
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
    correct_streams,
    group_norm,
    grouped_linear,
    hash_router,
    head_linear,
    kda_gates,
    kda_rule,
    latent_attention,
    latent_inputs,
    match_rms,
    mix_streams,
    ngram_embed,
    ngram_gate,
    pool_entries,
    predict_streams,
    silu_rows,
    sparse_attention,
    threshold,
    turn_tails,
    update_streams,
);

#[test]
fn kept_drafts_lead_to_the_state_of_certain_rows() {
    assert_passed(&check_commits(&mut on_the_cpu()));
}

#[test]
#[ignore = "needs a GPU"]
fn kept_drafts_lead_to_the_state_of_certain_rows_on_a_gpu() {
    assert_passed(&check_commits(&mut on_a_gpu()));
}

#[test]
fn bytes_are_copied_as_they_are() {
    assert_passed(&check_copies(&mut on_the_cpu()));
}

#[test]
#[ignore = "needs a GPU"]
fn bytes_are_copied_as_they_are_on_a_gpu() {
    assert_passed(&check_copies(&mut on_a_gpu()));
}

#[test]
fn weights_in_parts_are_the_weights_as_a_whole() {
    assert_passed(&check_uploads(&mut on_the_cpu()));
}

#[test]
#[ignore = "needs a GPU"]
fn weights_in_parts_are_the_weights_as_a_whole_on_a_gpu() {
    assert_passed(&check_uploads(&mut on_a_gpu()));
}

#[test]
fn what_makes_no_sense_is_refused() {
    assert_passed(&check_refusals(&mut on_the_cpu()));
}

#[test]
#[ignore = "needs a GPU"]
fn what_makes_no_sense_is_refused_on_a_gpu() {
    assert_passed(&check_refusals(&mut on_a_gpu()));
}

/// Queries and weights of one limb: the tensor core's attention as it runs by default.
#[test]
fn attention_in_half_precision_is_near_and_batch_invariant() {
    let mut report = ConformReport::default();
    let wide = |case: &ConformCase| {
        case.op == "attention" && case.name.contains("F16") && case.name.contains("block: 64")
    };
    let mut device = on_the_cpu().with_precision(Precision::Half);
    for case in cases().into_iter().filter(wide) {
        report.merge(check(&case, &mut device, &mut plain(), &Tolerances::general(1e-2)));
    }
    assert_passed(&report);
}
