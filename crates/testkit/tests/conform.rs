//! The conformance suite over the devices of this workspace, and proof that it can fail.

use forerun_backend::conform::{self, ConformReport, Tolerances};
use forerun_backend_cpu::{plain, tuned};
use forerun_testkit::{Budget, Recorder};

#[track_caller]
fn assert_passed(report: &ConformReport) {
    assert!(report.failures.is_empty(), "{report}");
}

/// Same kernels, so nothing may differ.
fn exact() -> Tolerances {
    Tolerances::general(0.0)
}

#[test]
fn the_plain_device_conforms_to_itself() {
    let report = conform::run(&mut plain(), &mut plain(), &exact());
    assert_passed(&report);
    assert!(report.deviations.iter().all(|deviation| deviation.worst == 0.0), "{report:?}");
}

#[test]
fn the_tuned_device_conforms_with_any_number_of_threads() {
    for threads in [1, 2, 3] {
        let report = conform::run(&mut tuned(Some(threads)), &mut plain(), &Tolerances::f32());
        assert!(report.failures.is_empty(), "{threads} threads: {report}");
    }
}

/// A recorder per case, and only short ones: it copies and spoils all memory at every step.
#[test]
fn every_operation_declares_all_memory_it_touches() {
    for case in conform::cases().into_iter().filter(|case| case.rows <= 10) {
        let mut watched = Recorder::new(Box::new(plain())).paranoid();
        assert_passed(&conform::check(&case, &mut watched, &mut plain(), &exact()));
    }
}

#[test]
fn cutting_submissions_at_a_budget_changes_nothing() {
    let budget = Budget { bytes: 20_000, flops: 20_000 };
    for case in conform::cases().into_iter().step_by(5) {
        let mut cut = Recorder::with_budget(Box::new(plain()), budget);
        assert_passed(&conform::check(&case, &mut cut, &mut plain(), &exact()));
    }
    let mut cut = Recorder::with_budget(Box::new(plain()), budget);
    assert_passed(&conform::check_commits(&mut cut));
    assert_passed(&conform::check_copies(&mut cut));
    assert_passed(&conform::check_uploads(&mut cut));
    let mut cut = Recorder::with_budget(Box::new(plain()), budget);
    assert_passed(&conform::check_refusals(&mut cut));
}
