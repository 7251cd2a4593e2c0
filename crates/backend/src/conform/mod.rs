//! What any device must pass.
//!
//! [`cases`] is one table over every operation, weight format, cache type and awkward size. Each case
//! is held to seven things, all over the same data:
//!
//! 1. **Reference**: the candidate's buffers are the reference's, within [`Tolerances`] for computed
//!    numbers and bit for bit for copies, indices, inputs and the memory around every view.
//! 2. **Rows**: an operation that works by rows gives the same bits when its rows are run one by
//!    one or a few at a time.
//! 3. **Spans**: a recurrent operation gives the same bits when each span's rows are run one after
//!    another, and when accepted drafts are fed as confirmed rows instead.
//! 4. **Keys and channels**: where a device cuts single rows, attention over some keys at a time and a product of some
//!    channels at a time give the bits of the whole.
//! 5. **Copies**: bytes of a buffer come to the host and go back unchanged, whatever the type of its
//!    elements, and nothing around them moves. What a device puts aside is what was there at that point of the queue.
//! 6. **Uploads**: a weight that is handed over in parts is the weight that it is as a whole.
//! 7. **Refusals**: wrong lengths, types, shared buffers, missing weights and indices that point
//!    nowhere are errors, and the device works afterwards.
//!
//! Of an operation that a device says it does not have ([`Backend::missing`]), each case has to be answered so; the
//! report lists them.
//!
//! The table also drives benchmarks: a [`ConformCase`] can set a stage on any device and hand out its
//! operation.

mod cases;
mod commit;
mod compare;
mod copies;
mod invariance;
mod matrices;
mod operands;
mod posts;
mod refusals;
mod rng;
mod stage;
mod stashes;
mod uploads;

pub use cases::{ConformCase, cases};
pub use compare::Tolerances;
pub use matrices::{all_formats, fitting_columns, random_matrix, typical_formats};
pub use rng::Rng;
pub use stage::ConformStage;

use crate::{Backend, BackendError};
use std::fmt;

/// A promise that was not kept.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The case's name.
    pub case: String,
    /// Which of the checks.
    pub check: &'static str,
    /// What was found.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]: {}", self.case, self.check, self.what)
    }
}

/// How far an operation was from the reference, over all cases that ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deviation {
    /// The operation.
    pub op: &'static str,
    /// Cases that ran.
    pub cases: usize,
    /// The largest difference, relative to the largest number in its buffer; infinite where one is no number.
    pub worst: f32,
    /// What the tolerances allow.
    pub allowed: f32,
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct ConformReport {
    /// Checks made.
    pub checks: usize,
    /// Those that failed.
    pub failures: Vec<Failure>,
    /// By operation, in order of first case.
    pub deviations: Vec<Deviation>,
    /// Operations that the device does not have.
    pub missing: Vec<&'static str>,
}

impl ConformReport {
    /// Adds what another run found.
    pub fn merge(&mut self, other: Self) {
        self.checks += other.checks;
        self.failures.extend(other.failures);
        other.deviations.into_iter().for_each(|deviation| self.note_deviation(deviation));
        other.missing.into_iter().for_each(|op| self.note_missing(op));
    }

    fn note_missing(&mut self, op: &'static str) {
        if !self.missing.contains(&op) {
            self.missing.push(op);
        }
    }

    fn note_deviation(&mut self, new: Deviation) {
        match self.deviations.iter_mut().find(|known| known.op == new.op) {
            Some(known) => {
                known.cases += new.cases;
                known.worst = known.worst.max(new.worst);
            }
            None => self.deviations.push(new),
        }
    }

    /// Notes one check; `Ok(None)` is a pass.
    fn note(
        &mut self,
        case: &str,
        check: &'static str,
        found: Result<Option<String>, BackendError>,
    ) {
        self.checks += 1;
        let what = match found {
            Ok(None) => return,
            Ok(Some(what)) => what,
            Err(error) => format!("unexpected error: {error}"),
        };
        self.failures.push(Failure { case: case.to_owned(), check, what });
    }
}

impl fmt::Display for ConformReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of {} checks failed", self.failures.len(), self.checks)?;
        if !self.missing.is_empty() {
            writeln!(f, "the device does not have {}", self.missing.join(", "))?;
        }
        self.failures.iter().try_for_each(|failure| writeln!(f, "  {failure}"))
    }
}

/// Runs everything. A device that runs out of room can be given one part at a time instead:
/// [`check`] for each case, then [`check_commits`], [`check_copies`], [`check_uploads`] and [`check_refusals`].
pub fn run(
    candidate: &mut dyn Backend,
    reference: &mut dyn Backend,
    tolerances: &Tolerances,
) -> ConformReport {
    let mut report = ConformReport::default();
    for case in cases() {
        report.merge(check(&case, candidate, reference, tolerances));
    }
    report.merge(check_commits(candidate));
    report.merge(check_copies(candidate));
    report.merge(check_uploads(candidate));
    report.merge(check_refusals(candidate));
    report
}

/// Holds a candidate to the reference and to itself on one case; the report also says how far from the reference it
/// was.
pub fn check(
    case: &ConformCase,
    candidate: &mut dyn Backend,
    reference: &mut dyn Backend,
    tolerances: &Tolerances,
) -> ConformReport {
    let mut report = ConformReport::default();
    if candidate.missing().contains(&case.op) {
        report.note_missing(case.op);
        report.note(&case.name, "missing", answered_as_missing(case, candidate));
        return report;
    }
    let allowed = tolerances.of(case.op);
    let compared = against_reference(case, candidate, reference, allowed);
    if let Ok((worst, _)) = compared {
        report.note_deviation(Deviation { op: case.op, cases: 1, worst, allowed });
    }
    report.note(&case.name, "reference", compared.map(|(_, what)| what));
    // Powers of two, so that the parts begin where views may.
    for width in [1, 4] {
        report.note(&case.name, "rows", invariance::by_rows(case, candidate, width));
    }
    report.note(&case.name, "keys", invariance::by_keys(case, candidate));
    report.note(&case.name, "channels", invariance::by_channels(case, candidate));
    report.note(&case.name, "spans", invariance::by_spans(case, candidate));
    report
}

/// What is wrong with the answer to an operation that the device does not have.
fn answered_as_missing(
    case: &ConformCase,
    candidate: &mut dyn Backend,
) -> Result<Option<String>, BackendError> {
    let op = case.op;
    Ok(match case.play(candidate) {
        Err(BackendError::Missing { op: named }) if named == op => None,
        Err(other) => Some(format!("answered with: {other}")),
        Ok(_) => Some("done, though the device says it does not have it".to_owned()),
    })
}

fn against_reference(
    case: &ConformCase,
    candidate: &mut dyn Backend,
    reference: &mut dyn Backend,
    bound: f32,
) -> Result<(f32, Option<String>), BackendError> {
    let expected = case.play(reference)?;
    let found = case.play(candidate)?;
    Ok((compare::deviation(&expected, &found), compare::near(&expected, &found, bound)))
}

/// Holds a candidate to the rule of commits: see the module's text.
pub fn check_commits(candidate: &mut dyn Backend) -> ConformReport {
    commit::check(candidate)
}

/// Holds a candidate to copying bytes out of a buffer and into it, and to putting them aside.
pub fn check_copies(candidate: &mut dyn Backend) -> ConformReport {
    let mut report = copies::check(candidate);
    report.merge(stashes::check(candidate));
    report.merge(posts::check(candidate));
    report
}

/// Holds a candidate to taking weights in parts, in every format.
pub fn check_uploads(candidate: &mut dyn Backend) -> ConformReport {
    uploads::check(candidate)
}

/// Holds a candidate to refusing what makes no sense.
pub fn check_refusals(candidate: &mut dyn Backend) -> ConformReport {
    refusals::check(candidate)
}
