//! A view that was posted is read as it was, and a later `read` of it sees what was written since.

use super::ConformReport;
use super::copies::buffer;
use crate::{Backend, BackendError, HostData, HostDataMut, View, submit_and_wait};
use forerun_base::DType;

/// What a check found, or the error it did not expect.
type Found = Result<Option<String>, BackendError>;

pub(super) fn check(candidate: &mut dyn Backend) -> ConformReport {
    let mut report = ConformReport::default();
    // The last is larger than any mailbox.
    for len in [0, 1, 33, 100_000] {
        let name = format!("{len} words");
        report.note(&name, "post", read_while_more_is_in_flight(candidate, len));
        report.note(&name, "post, left", left_and_written_over(candidate, len));
    }
    report
}

fn words(candidate: &mut dyn Backend, view: View) -> Result<Vec<u32>, BackendError> {
    let mut words = vec![0; view.len];
    candidate.read(view, HostDataMut::U32(&mut words))?;
    Ok(words)
}

fn differs(what: &str, found: &[u32], expected: &[u32]) -> Option<String> {
    let at = (0..expected.len()).find(|&i| found[i] != expected[i])?;
    Some(format!("{what}: word {at} is {}, expected {}", found[at], expected[at]))
}

/// Two posts in two submissions, of which the first is read while the second is in flight.
fn read_while_more_is_in_flight(candidate: &mut dyn Backend, len: usize) -> Found {
    let [a, b] = [(); 2].map(|()| buffer(candidate, DType::U32, len));
    let (a, b) = (a?, b?);
    let [first, second]: [Vec<u32>; 2] =
        [7, 1 << 20].map(|salt| (0..len as u32).map(|i| i * 3 + salt).collect());
    candidate.write(a, HostData::U32(&first))?;
    candidate.post(a)?;
    let one = candidate.submit()?;
    candidate.write(b, HostData::U32(&second))?;
    candidate.post(b)?;
    let two = candidate.submit()?;
    candidate.wait(one)?;
    // What was too large for the device to copy is read when nothing is in flight.
    let small = len <= 64;
    let early = if small { differs("early", &words(candidate, a)?, &first) } else { None };
    candidate.wait(two)?;
    let late = if small { None } else { differs("late", &words(candidate, a)?, &first) };
    Ok(early.or(late).or(differs("second", &words(candidate, b)?, &second)))
}

/// A post that nobody reads hides nothing that comes later.
fn left_and_written_over(candidate: &mut dyn Backend, len: usize) -> Found {
    let view = buffer(candidate, DType::U32, len)?;
    let [first, second] = [5, 6].map(|word| vec![word; len]);
    candidate.write(view, HostData::U32(&first))?;
    candidate.post(view)?;
    submit_and_wait(candidate)?;
    candidate.write(view, HostData::U32(&second))?;
    submit_and_wait(candidate)?;
    Ok(differs("written since", &words(candidate, view)?, &second))
}
