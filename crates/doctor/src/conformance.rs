//! The conformance suite on one device, by operation.

use forerun_backend::Backend;
use forerun_backend::conform::{self, ConformCase, ConformReport, Tolerances};
use serde::Serialize;
use std::collections::BTreeMap;

/// Every so many cases of an operation are run when time is short.
const QUICK_STRIDE: usize = 10;
/// Failures that are kept in full; the others are only counted.
const KEPT_FAILURES: usize = 20;
/// The suites besides the table of cases.
const SUITES: usize = 4;

/// What the suite found.
#[derive(Debug, Serialize)]
pub struct ConformanceReport {
    /// Checks made.
    pub checks: usize,
    /// Those that failed.
    pub failed: usize,
    /// By operation.
    pub operations: Vec<OperationReport>,
    /// The first failures, each with its case.
    pub failures: Vec<String>,
}

/// One operation over all its cases.
#[derive(Debug, Serialize)]
pub struct OperationReport {
    /// The operation.
    pub operation: &'static str,
    /// Cases that ran.
    pub cases: usize,
    /// Checks of it that failed.
    pub failed: usize,
    /// The largest difference from the reference, relative to the largest number of the buffer; null where a number
    /// met none.
    pub worst_error: Option<f32>,
    /// What is allowed.
    pub allowed_error: f32,
}

/// The cases to run: all, or some of every operation.
fn selected(quick: bool) -> Vec<ConformCase> {
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut is_selected = |case: &ConformCase| {
        let number = seen.entry(case.op).or_default();
        *number += 1;
        !quick || (*number - 1).is_multiple_of(QUICK_STRIDE)
    };
    conform::cases().into_iter().filter(|case| is_selected(case)).collect()
}

/// How often [`run`] tells what it does: once for each operation and suite.
pub(crate) fn parts(quick: bool) -> usize {
    runs(&selected(quick)).count() + SUITES
}

/// Cases of one operation that follow each other.
fn runs(cases: &[ConformCase]) -> impl Iterator<Item = &[ConformCase]> {
    cases.chunk_by(|a, b| a.op == b.op)
}

/// Holds a device to the reference.
pub(crate) fn run(
    candidate: &mut dyn Backend,
    reference: &mut dyn Backend,
    quick: bool,
    watch: &mut dyn FnMut(&str),
) -> ConformanceReport {
    let (mut report, tolerances) = (ConformReport::default(), Tolerances::f32());
    for cases in runs(&selected(quick)) {
        watch(&format!("conformance: {}", cases[0].op));
        for case in cases {
            report.merge(conform::check(case, candidate, reference, &tolerances));
        }
    }
    type Suite = fn(&mut dyn Backend) -> ConformReport;
    let suites: [(&str, Suite); SUITES] = [
        ("commits", conform::check_commits),
        ("copies", conform::check_copies),
        ("uploads", conform::check_uploads),
        ("refusals", conform::check_refusals),
    ];
    for (name, suite) in suites {
        watch(&format!("conformance: {name}"));
        report.merge(suite(candidate));
    }
    summarize(&report)
}

fn summarize(report: &ConformReport) -> ConformanceReport {
    let failed = |op: &str| {
        let of_op = |case: &str| case.split(':').next() == Some(op);
        report.failures.iter().filter(|failure| of_op(&failure.case)).count()
    };
    let operations = report.deviations.iter().map(|deviation| OperationReport {
        operation: deviation.op,
        cases: deviation.cases,
        failed: failed(deviation.op),
        worst_error: Some(deviation.worst).filter(|worst| worst.is_finite()),
        allowed_error: deviation.allowed,
    });
    ConformanceReport {
        checks: report.checks,
        failed: report.failures.len(),
        operations: operations.collect(),
        failures: report.failures.iter().take(KEPT_FAILURES).map(ToString::to_string).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_backend::BackendError;
    use forerun_backend::op::Softcap;
    use forerun_backend_cpu::{Cpu, Kernels, Memory, Plain, plain, tuned};

    fn quick(candidate: &mut dyn Backend) -> ConformanceReport {
        run(candidate, &mut plain(), true, &mut |_| {})
    }

    #[test]
    fn the_processor_passes_and_every_operation_has_its_worst_error() {
        let mut told = 0;
        let report = run(&mut tuned(Some(2)), &mut plain(), true, &mut |_| told += 1);
        assert_eq!(report.failed, 0, "{report:?}");
        assert_eq!(told, parts(true));
        let names: Vec<&str> = report.operations.iter().map(|o| o.operation).collect();
        let mut all: Vec<&str> = conform::cases().iter().map(|case| case.op).collect();
        all.dedup();
        assert!(all.iter().all(|op| names.contains(op)), "{names:?}");
        let error = |op: &str| {
            let found = report.operations.iter().find(|o| o.operation == op).unwrap();
            assert!(found.worst_error.unwrap() <= found.allowed_error, "{found:?}");
            found.worst_error.unwrap()
        };
        assert!(error("linear") > 0.0, "sums of another order");
        assert_eq!(error("gather_rows"), 0.0, "a copy");
    }

    /// Right but for one operation, which is off by a thousandth.
    struct OffByAThousandth;

    impl Kernels for OffByAThousandth {
        fn name(&self) -> String {
            "faulty".to_owned()
        }

        fn softcap(&mut self, memory: &mut Memory, op: Softcap) -> Result<(), BackendError> {
            Plain.softcap(memory, Softcap { cap: op.cap * 1.001, ..op })
        }
    }

    #[test]
    fn one_wrong_operation_fails_by_name_and_no_other_does() {
        let report = quick(&mut Cpu::with_kernels(OffByAThousandth));
        assert!(report.failed > 0 && !report.failures.is_empty());
        for operation in &report.operations {
            let wrong = ["softcap", "head_sample"].contains(&operation.operation);
            assert!(wrong || operation.failed == 0, "{operation:?}");
        }
        let softcap = report.operations.iter().find(|o| o.operation == "softcap").unwrap();
        assert!(softcap.failed > 0, "{softcap:?}");
        let worst = softcap.worst_error.unwrap();
        assert!((1e-5..1e-2).contains(&worst), "{worst}");
    }
}
