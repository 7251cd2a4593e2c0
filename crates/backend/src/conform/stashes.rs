//! What is put aside is what views held at that point of the queue, and comes back as it was.

use super::ConformReport;
use super::copies::{buffer, pattern};
use crate::{
    Backend, BackendError, BufferId, Bytes, HostData, HostDataMut, StashId, View, submit_and_wait,
};
use forerun_base::DType;

/// What a check found, or the error it did not expect.
type Found = Result<Option<String>, BackendError>;
type Check = fn(&mut dyn Backend) -> Found;

const DTYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::I8, DType::U32];
/// Elements around the parts that are put aside.
const AROUND: usize = 5;

pub(super) fn check(candidate: &mut dyn Backend) -> ConformReport {
    let mut report = ConformReport::default();
    for dtype in DTYPES {
        for len in [0, 1, 7, 64, 65, 1000] {
            let name = format!("{len} elements of {dtype}");
            report.note(&name, "stash", goes_and_comes_back(candidate, dtype, len));
        }
    }
    let checks: [(&str, Check); 7] = [
        ("several buffers", several_buffers),
        ("nothing", nothing),
        ("bytes of the host", from_the_host),
        ("read while others are queued", read_among_others),
        ("released before it ran", released_in_the_queue),
        ("what makes no sense", refusals),
        ("limit", limit),
    ];
    for (name, check) in checks {
        report.note(name, "stash", balanced(candidate, check));
    }
    report
}

/// Runs a check, which must leave no stash behind.
fn balanced(candidate: &mut dyn Backend, check: Check) -> Found {
    let before = candidate.stash_bytes();
    let found = check(candidate)?;
    let after = candidate.stash_bytes();
    let leak = || format!("{after} bytes of stashes where there were {before}");
    Ok(found.or_else(|| (after != before).then(leak)))
}

fn bytes_of(candidate: &mut dyn Backend, view: View) -> Result<Vec<u8>, BackendError> {
    let size = candidate.buffer(view.buffer).map_or(0, |info| info.dtype.size());
    let mut bytes = vec![0; view.len * size];
    candidate.read(view, HostDataMut::Bytes(&mut bytes))?;
    Ok(bytes)
}

/// The first byte that differs.
fn differs(what: &str, found: &[u8], expected: &[u8]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{what}: {} bytes, expected {}", found.len(), expected.len()));
    }
    let at = (0..found.len()).find(|&i| found[i] != expected[i])?;
    Some(format!("{what}: byte {at} is {}, expected {}", found[at], expected[at]))
}

/// A part of a buffer at an odd place is put aside, overwritten, copied back to where it was and to another odd place.
fn goes_and_comes_back(candidate: &mut dyn Backend, dtype: DType, len: usize) -> Found {
    let size = dtype.size();
    let whole = buffer(candidate, dtype, len + 2 * AROUND)?;
    let other = buffer(candidate, dtype, len + 2 * AROUND)?;
    let (part, elsewhere) = (whole.part(AROUND, len), other.part(3, len));
    let [first, second, third] = [0, 1, 2].map(|salt| pattern(whole.len * size, salt));
    let of = |bytes: &[u8], start: usize| bytes[start * size..(start + len) * size].to_vec();
    let before = candidate.stash_bytes();
    candidate.write(whole, HostData::Bytes(&first))?;
    candidate.write(other, HostData::Bytes(&third))?;
    let stash = candidate.stash(&[part])?;
    candidate.write(whole, HostData::Bytes(&second))?;
    let later = candidate.stash(&[part])?;
    candidate.unstash(stash, &[elsewhere])?;
    submit_and_wait(candidate)?;
    if candidate.stash_bytes() != before + (2 * len * size) as u64 {
        return Ok(Some("the bytes of two stashes are not counted".to_owned()));
    }
    let (mut moved, kept) = (third, of(&first, AROUND));
    moved[3 * size..(3 + len) * size].copy_from_slice(&kept);
    let mut found = differs("elsewhere", &bytes_of(candidate, other)?, &moved);
    found = found.or(differs("overwritten", &bytes_of(candidate, whole)?, &second));
    // What is queued behind a copy comes after it.
    candidate.unstash(stash, &[part])?;
    candidate.unstash(later, &[elsewhere])?;
    candidate.write(other.part(3, len / 2), HostData::Bytes(&kept[..len / 2 * size]))?;
    submit_and_wait(candidate)?;
    let mut restored = second.clone();
    restored[AROUND * size..(AROUND + len) * size].copy_from_slice(&kept);
    found = found.or(differs("restored", &bytes_of(candidate, whole)?, &restored));
    let mut mixed = of(&second, AROUND);
    mixed[..len / 2 * size].copy_from_slice(&kept[..len / 2 * size]);
    found = found.or(differs("written later", &bytes_of(candidate, elsewhere)?, &mixed));
    found = found.or(differs("read", &candidate.read_stash(stash)?, &kept));
    found = found.or(differs("read", &candidate.read_stash(later)?, &of(&second, AROUND)));
    candidate.release_stash(stash)?;
    candidate.release_stash(later)?;
    let leak = candidate.stash_bytes() != before;
    Ok(found.or_else(|| leak.then(|| "released bytes still count".to_owned())))
}

/// One stash of parts of buffers of every type, copied back in another order of the same sizes.
fn several_buffers(candidate: &mut dyn Backend) -> Found {
    let mut views = Vec::new();
    let mut expected = Vec::new();
    for (salt, dtype) in DTYPES.into_iter().enumerate() {
        let whole = buffer(candidate, dtype, 40)?;
        let bytes = pattern(40 * dtype.size(), salt);
        candidate.write(whole, HostData::Bytes(&bytes))?;
        for (start, len) in [(1, 11), (0, 0), (16, 24)] {
            views.push(whole.part(start, len));
            expected.extend_from_slice(&bytes[start * dtype.size()..(start + len) * dtype.size()]);
        }
    }
    let stash = candidate.stash(&views)?;
    for view in views.iter().filter(|view| view.len > 0) {
        let size = candidate.buffer(view.buffer).map_or(0, |info| info.dtype.size());
        candidate.write(*view, HostData::Bytes(&vec![0; view.len * size]))?;
    }
    candidate.unstash(stash, &views)?;
    submit_and_wait(candidate)?;
    let mut found = Vec::new();
    for view in &views {
        found.extend(bytes_of(candidate, *view)?);
    }
    let read = candidate.read_stash(stash)?;
    candidate.release_stash(stash)?;
    Ok(differs("copied back", &found, &expected).or(differs("read", &read, &expected)))
}

fn nothing(candidate: &mut dyn Backend) -> Found {
    let empty = buffer(candidate, DType::F32, 8)?.part(3, 0);
    for views in [&[][..], &[empty]] {
        let stash = candidate.stash(views)?;
        candidate.unstash(stash, &[])?;
        candidate.unstash(stash, &[empty])?;
        submit_and_wait(candidate)?;
        if !candidate.read_stash(stash)?.is_empty() {
            return Ok(Some("a stash of nothing has bytes".to_owned()));
        }
        candidate.release_stash(stash)?;
    }
    Ok(None)
}

fn from_the_host(candidate: &mut dyn Backend) -> Found {
    let bytes = Bytes::from(pattern(100, 3));
    let inner = bytes.slice(7..7 + 66).ok_or(BackendError::Protocol("no slice".to_owned()))?;
    let stash = candidate.stash_host(inner.clone())?;
    let view = buffer(candidate, DType::F16, 40)?;
    candidate.unstash(stash, &[view.part(20, 13), view.part(0, 20)])?;
    submit_and_wait(candidate)?;
    let read = candidate.read_stash(stash)?;
    candidate.release_stash(stash)?;
    let found = [bytes_of(candidate, view.part(20, 13))?, bytes_of(candidate, view.part(0, 20))?];
    Ok(differs("copied", &found.concat(), &inner).or(differs("read", &read, &inner)))
}

fn read_among_others(candidate: &mut dyn Backend) -> Found {
    let view = buffer(candidate, DType::F32, 64)?;
    let [first, second] = [4, 5].map(|salt| pattern(256, salt));
    candidate.write(view, HostData::Bytes(&first))?;
    let stash = candidate.stash(&[view])?;
    let ticket = candidate.submit()?;
    candidate.write(view, HostData::Bytes(&second))?;
    let early = candidate.read_stash(stash)?;
    let last = candidate.submit()?;
    let late = candidate.read_stash(stash)?;
    candidate.wait(ticket)?;
    candidate.wait(last)?;
    candidate.release_stash(stash)?;
    let now = bytes_of(candidate, view)?;
    let found = differs("read while a write is queued", &early, &first);
    let found = found.or(differs("read while it is in flight", &late, &first));
    Ok(found.or(differs("written", &now, &second)))
}

fn released_in_the_queue(candidate: &mut dyn Backend) -> Found {
    let view = buffer(candidate, DType::F32, 64)?;
    let to = buffer(candidate, DType::F32, 64)?;
    let [first, second] = [6, 7].map(|salt| pattern(256, salt));
    candidate.write(view, HostData::Bytes(&first))?;
    let stash = candidate.stash(&[view])?;
    candidate.unstash(stash, &[to])?;
    candidate.release_stash(stash)?;
    // May lie where the first one was.
    candidate.write(view, HostData::Bytes(&second))?;
    let next = candidate.stash(&[view])?;
    let host = candidate.stash_host(Bytes::from(second.clone()))?;
    submit_and_wait(candidate)?;
    let found = differs("copied before the release", &bytes_of(candidate, to)?, &first);
    let found = found.or(differs("the next one", &candidate.read_stash(next)?, &second));
    candidate.release_stash(next)?;
    candidate.release_stash(host)?;
    Ok(found)
}

fn refusals(candidate: &mut dyn Backend) -> Found {
    let view = buffer(candidate, DType::F32, 8)?;
    candidate.write(view, HostData::Bytes(&pattern(32, 8)))?;
    let stash = candidate.stash(&[view])?;
    submit_and_wait(candidate)?;
    let mut wrong = Vec::new();
    let mut refused = |what: &str, as_expected: bool| {
        if !as_expected {
            wrong.push(what.to_owned());
        }
    };
    let size = |result| matches!(result, Err(BackendError::StashSize { .. }));
    refused("fewer bytes", size(candidate.unstash(stash, &[view.part(0, 7)])));
    refused("more bytes", size(candidate.unstash(stash, &[view, view.part(0, 1)])));
    refused("no bytes", size(candidate.unstash(stash, &[])));
    let far = [View { start: 1, ..view }, View { start: usize::MAX, ..view }];
    for bad in far.into_iter().chain([View { buffer: BufferId(u32::MAX), ..view }]) {
        let outside = |result| matches!(result, Err(BackendError::OutOfRange { .. }));
        refused("a stash from outside", outside(candidate.stash(&[bad]).map(drop)));
        refused("a copy to outside", outside(candidate.unstash(stash, &[bad])));
    }
    candidate.release_stash(stash)?;
    let none = |result| matches!(result, Err(BackendError::NoStash { .. }));
    refused("a second release", none(candidate.release_stash(stash)));
    refused("a copy after the release", none(candidate.unstash(stash, &[view])));
    refused("a read after the release", none(candidate.read_stash(stash).map(drop)));
    let never = StashId(u64::MAX);
    refused("a release of none", none(candidate.release_stash(never)));
    refused("a copy of none", none(candidate.unstash(never, &[view])));
    submit_and_wait(candidate)?;
    let unchanged = differs("after refusals", &bytes_of(candidate, view)?, &pattern(32, 8));
    Ok(unchanged.or_else(|| (!wrong.is_empty()).then(|| format!("taken: {}", wrong.join(", ")))))
}

fn limit(candidate: &mut dyn Backend) -> Found {
    let view = buffer(candidate, DType::F32, 100)?;
    candidate.write(view, HostData::Bytes(&pattern(400, 9)))?;
    candidate.limit_stashes(candidate.stash_bytes() + 1000);
    let two = [candidate.stash(&[view])?, candidate.stash_host(Bytes::from(pattern(400, 9)))?];
    let full =
        |result| matches!(result, Err(BackendError::StashLimit { limit: _, bytes: 400, .. }));
    let third = full(candidate.stash(&[view]).map(drop))
        && full(candidate.stash_host(Bytes::from(pattern(400, 9))).map(drop));
    let half = candidate.stash(&[view.part(0, 50)])?;
    candidate.release_stash(two[0])?;
    let again = candidate.stash(&[view])?;
    submit_and_wait(candidate)?;
    for stash in [two[1], half, again] {
        candidate.release_stash(stash)?;
    }
    candidate.limit_stashes(u64::MAX);
    Ok((!third).then(|| "more than the limit was taken".to_owned()))
}
