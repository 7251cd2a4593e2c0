//! The conformance suite finds faults that were put in on purpose.

use forerun_backend::conform::{self, ConformReport, Tolerances};
use forerun_backend::op::{
    AddNorm, Attention, DeltaInputs, DeltaRule, Linear, RmsNorm, Router, Sample, SampleRow,
    ShortConv,
};
use forerun_backend::{BackendError, View};
use forerun_backend_cpu::{Cpu, Kernels, Memory, Plain, plain};

type Done = Result<(), BackendError>;

/// The plain kernels with one fault.
struct FaultyKernels(Fault);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    WidthChangesRounding,
    WritesPastTheView,
    NormForgetsEps,
    LaterTokenWinsTies,
    MaskForgotten,
    LaterExpertWinsTies,
    GroupsForgotten,
    BiasForgotten,
    BiasWeighs,
    AttentionScaleSlightlyOff,
    WindowOneKeyShort,
    WindowOneKeyLong,
    AddNormForgetsScale,
    DraftsForgotten,
    ConvWindowMoved,
    ShortConvWindowMoved,
    ConvGatesForgotten,
}

fn scale(memory: &mut Memory, view: View, factor: f32) {
    memory.lend([view], |_, [storage]| {
        storage.f32_mut(view).iter_mut().for_each(|v| *v *= factor);
    });
}

impl Kernels for FaultyKernels {
    fn name(&self) -> String {
        format!("plain with a fault: {:?}", self.0)
    }

    fn linear(&mut self, memory: &mut Memory, op: Linear) -> Done {
        Plain.linear(memory, op)?;
        if self.0 == Fault::WidthChangesRounding && op.out.len.is_multiple_of(2) {
            scale(memory, op.out, 1.0 + f32::EPSILON);
        }
        if self.0 == Fault::WritesPastTheView {
            scale(memory, View { len: op.out.len + 1, ..op.out }.part(op.out.len, 1), 2.0);
        }
        Ok(())
    }

    fn rms_norm(&mut self, memory: &mut Memory, op: RmsNorm) -> Done {
        let eps = if self.0 == Fault::NormForgetsEps { 0.0 } else { op.eps };
        Plain.rms_norm(memory, RmsNorm { eps, ..op })
    }

    fn sample(&mut self, memory: &mut Memory, op: Sample) -> Done {
        if self.0 == Fault::MaskForgotten {
            let asked = memory.u32(op.rows).to_vec();
            let without = |words: &mut [u32]| words[SampleRow::WORDS - 1] = 0;
            let rows =
                |storage: &mut [u32]| storage.chunks_exact_mut(SampleRow::WORDS).for_each(without);
            memory.lend([op.rows], |_, [storage]| rows(storage.u32_mut(op.rows)));
            let done = Plain.sample(memory, op);
            memory.lend([op.rows], |_, [storage]| storage.u32_mut(op.rows).copy_from_slice(&asked));
            return done;
        }
        Plain.sample(memory, op)?;
        if self.0 == Fault::LaterTokenWinsTies {
            memory.lend([op.out], |memory, [out]| {
                let rows = memory.f32(op.logits).chunks_exact(op.vocabulary);
                let sampled = out.u32_mut(op.out).iter_mut().zip(rows);
                for (token, logits) in sampled.filter(|(token, _)| **token != Sample::NO_TOKEN) {
                    let equal = |other: &f32| *other == logits[*token as usize];
                    let last = logits.iter().rposition(equal).expect("a logit equals itself");
                    *token = last as u32;
                }
            });
        }
        Ok(())
    }

    fn router(&mut self, memory: &mut Memory, mut op: Router) -> Done {
        match self.0 {
            Fault::GroupsForgotten => op.groups = None,
            Fault::BiasForgotten => op.bias = None,
            Fault::BiasWeighs if op.bias.is_some() => op.expert_scale = op.bias,
            _ => {}
        }
        Plain.router(memory, op)?;
        if self.0 == Fault::LaterExpertWinsTies {
            memory.lend([op.chosen], |memory, [chosen]| {
                let weights = memory.f32(op.weights).chunks_exact(op.top_k);
                let rows = chosen.u32_mut(op.chosen).chunks_exact_mut(op.top_k);
                for (chosen, weights) in rows.zip(weights) {
                    if op.top_k > 1 && weights[0] == weights[1] {
                        chosen.swap(0, 1);
                    }
                }
            });
        }
        Ok(())
    }

    fn attention(&mut self, memory: &mut Memory, op: Attention) -> Done {
        let factor = if self.0 == Fault::AttentionScaleSlightlyOff { 1.001 } else { 1.0 };
        let window = op.window.map(|window| match self.0 {
            Fault::WindowOneKeyShort => window.saturating_sub(1).max(1),
            Fault::WindowOneKeyLong => window + 1,
            _ => window,
        });
        Plain.attention(memory, Attention { scale: op.scale * factor, window, ..op })
    }

    fn add_norm(&mut self, memory: &mut Memory, op: AddNorm) -> Done {
        let scale = if self.0 == Fault::AddNormForgetsScale { 1.0 } else { op.scale };
        Plain.add_norm(memory, AddNorm { scale, ..op })
    }

    fn delta_rule(&mut self, memory: &mut Memory, op: DeltaRule) -> Done {
        Plain.delta_rule(memory, op)?;
        if self.0 == Fault::DraftsForgotten {
            scale(memory, op.log, 0.0);
        }
        Ok(())
    }

    fn short_conv(&mut self, memory: &mut Memory, op: ShortConv) -> Done {
        let gates = if self.0 == Fault::ConvGatesForgotten { None } else { op.gates };
        Plain.short_conv(memory, ShortConv { gates, ..op })?;
        if self.0 == Fault::ShortConvWindowMoved {
            scale(memory, op.window, 1.0 + f32::EPSILON);
        }
        Ok(())
    }

    fn delta_inputs(&mut self, memory: &mut Memory, op: DeltaInputs) -> Done {
        Plain.delta_inputs(memory, op)?;
        if self.0 == Fault::ConvWindowMoved {
            scale(memory, op.window, 1.0 + f32::EPSILON);
        }
        Ok(())
    }
}

/// The suite over the cases of one operation, and the commits when it is recurrent.
fn report(fault: Fault, op: &str) -> ConformReport {
    let mut report = ConformReport::default();
    for case in conform::cases().into_iter().filter(|case| case.op == op) {
        let mut candidate = Cpu::with_kernels(FaultyKernels(fault));
        report.merge(conform::check(&case, &mut candidate, &mut plain(), &Tolerances::f32()));
    }
    report.merge(conform::check_commits(&mut Cpu::with_kernels(FaultyKernels(fault))));
    report
}

#[test]
fn each_fault_is_found_by_the_check_meant_for_it() {
    struct CaughtCase {
        fault: Fault,
        op: &'static str,
        check: &'static str,
    }
    let cases = [
        CaughtCase { fault: Fault::WidthChangesRounding, op: "linear", check: "rows" },
        CaughtCase { fault: Fault::WritesPastTheView, op: "linear", check: "reference" },
        CaughtCase { fault: Fault::NormForgetsEps, op: "rms_norm", check: "reference" },
        CaughtCase { fault: Fault::LaterTokenWinsTies, op: "sample", check: "reference" },
        CaughtCase { fault: Fault::MaskForgotten, op: "sample", check: "reference" },
        CaughtCase { fault: Fault::LaterExpertWinsTies, op: "router", check: "reference" },
        CaughtCase { fault: Fault::GroupsForgotten, op: "router", check: "reference" },
        CaughtCase { fault: Fault::BiasForgotten, op: "router", check: "reference" },
        CaughtCase { fault: Fault::BiasWeighs, op: "router", check: "reference" },
        CaughtCase { fault: Fault::AttentionScaleSlightlyOff, op: "attention", check: "reference" },
        CaughtCase { fault: Fault::WindowOneKeyShort, op: "attention", check: "reference" },
        CaughtCase { fault: Fault::WindowOneKeyLong, op: "attention", check: "reference" },
        CaughtCase { fault: Fault::AddNormForgetsScale, op: "add_norm", check: "reference" },
        CaughtCase { fault: Fault::ConvGatesForgotten, op: "short_conv", check: "reference" },
        CaughtCase { fault: Fault::ShortConvWindowMoved, op: "short_conv", check: "reference" },
        CaughtCase { fault: Fault::DraftsForgotten, op: "delta_rule", check: "commit" },
        CaughtCase { fault: Fault::ConvWindowMoved, op: "delta_inputs", check: "spans" },
    ];
    for CaughtCase { fault, op, check } in cases {
        let report = report(fault, op);
        assert!(
            report.failures.iter().any(|failure| failure.check == check),
            "{fault:?} was not found by `{check}`: {report}"
        );
    }
}

#[test]
fn small_differences_in_rounding_pass_the_reference_check() {
    let report = report(Fault::WidthChangesRounding, "linear");
    assert!(report.failures.iter().all(|failure| failure.check != "reference"), "{report}");
}

#[test]
fn the_report_says_how_far_a_wrong_operation_is_off() {
    let worst = |fault, op: &str| {
        let report = report(fault, op);
        report.deviations.iter().find(|deviation| deviation.op == op).expect("it ran").worst
    };
    let off = worst(Fault::AttentionScaleSlightlyOff, "attention");
    assert!((1e-5..1e-1).contains(&off), "{off}");
    // What differs from the reference in no number, but from itself, is not off.
    assert_eq!(worst(Fault::MaskForgotten, "linear"), 0.0);
}
