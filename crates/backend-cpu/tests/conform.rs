//! The backend's conformance suite on every instruction set of this machine, and on pairs of them.

use forerun_backend::Backend;
use forerun_backend::conform::{Tolerances, cases, check, check_copies, run};
use forerun_backend_cpu::{Cpu, Level, Tuned, plain};

fn device(level: Level, threads: usize) -> Cpu<Tuned> {
    Cpu::with_kernels(Tuned::with_isa(level, Some(threads)).expect("the level is available"))
}

fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.available())
}

/// Operations that use packed weights where there are some, which have bits of their own.
const PRODUCTS: [&str; 7] = [
    "linear",
    "linears",
    "gated_linear",
    "experts",
    "cluster_head",
    "head_sample",
    "grouped_linear",
];

#[test]
fn tuned_kernels_conform() {
    for (level, threads) in levels().flat_map(|level| [(level, 1), (level, 3)]) {
        let report = run(&mut device(level, threads), &mut plain(), &Tolerances::f32());
        assert!(report.failures.is_empty(), "{level:?}, {threads} threads: {report}");
    }
}

#[test]
fn every_operation_has_the_same_bits_on_every_level_and_number_of_threads() {
    let exact = Tolerances::general(0.0);
    for (level, threads) in levels().flat_map(|level| [(level, 1), (level, 2), (level, 3)]) {
        for case in cases() {
            let repacks = !matches!(level, Level::Avx512 | Level::Neon | Level::Portable);
            let repacked = repacks && PRODUCTS.contains(&case.op);
            let same = if repacked { level } else { Level::Portable };
            let (mut one, mut other) = (device(level, threads), device(same, 1));
            let report = check(&case, &mut one, &mut other, &exact);
            assert!(report.failures.is_empty(), "{level:?}, {threads} threads: {report}");
        }
    }
}

#[test]
fn bytes_are_copied_and_put_aside_by_both_sets_of_kernels() {
    for device in [&mut device(Level::Portable, 2) as &mut dyn Backend, &mut plain()] {
        let report = check_copies(device);
        assert!(report.checks > 0 && report.failures.is_empty(), "{report}");
    }
}
