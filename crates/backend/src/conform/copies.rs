//! Bytes of a buffer come to the host and go back as they are.

use super::ConformReport;
use crate::{
    Backend, BackendError, BufferRole, BufferSpec, HostData, HostDataMut, View, submit_and_wait,
};
use forerun_base::{DType, bf16_to_f32, f16_to_f32};

/// Elements before and after the part that is copied.
const AROUND: usize = 3;

pub(super) fn check(candidate: &mut dyn Backend) -> ConformReport {
    let mut report = ConformReport::default();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::U32] {
        for len in [0, 1, 7, 64, 65] {
            let name = format!("{len} elements of {dtype}");
            report.note(&name, "copies", copied(candidate, dtype, len));
        }
        report.note(&format!("{dtype}"), "copies", wrong_lengths(candidate, dtype));
    }
    report
}

/// Bytes that differ from place to place.
pub(super) fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + salt * 17 + i / 7) as u8).collect()
}

pub(super) fn buffer(
    candidate: &mut dyn Backend,
    dtype: DType,
    len: usize,
) -> Result<View, BackendError> {
    let spec = BufferSpec { label: "copied", dtype, len, role: BufferRole::State };
    Ok(View::head(candidate.alloc(spec)?, len))
}

fn copied(
    candidate: &mut dyn Backend,
    dtype: DType,
    len: usize,
) -> Result<Option<String>, BackendError> {
    let size = dtype.size();
    let whole = buffer(candidate, dtype, len + 2 * AROUND)?;
    let part = whole.part(AROUND, len);
    let mut expected = pattern(whole.len * size, 0);
    let new = pattern(len * size, 1);
    candidate.write(whole, HostData::Bytes(&expected))?;
    candidate.write(part, HostData::Bytes(&new))?;
    expected[AROUND * size..(AROUND + len) * size].copy_from_slice(&new);
    submit_and_wait(candidate)?;
    let mut found = vec![0; whole.len * size];
    candidate.read(whole, HostDataMut::Bytes(&mut found))?;
    if let Some(at) = (0..found.len()).find(|&i| found[i] != expected[i]) {
        return Ok(Some(format!("byte {at} is {}, expected {}", found[at], expected[at])));
    }
    let mut found = vec![0; len * size];
    candidate.read(part, HostDataMut::Bytes(&mut found))?;
    if found != new {
        return Ok(Some("a part differs from the same part of the whole".to_owned()));
    }
    numbers(candidate, part, dtype, &new)
}

/// The same elements as numbers.
fn numbers(
    candidate: &mut dyn Backend,
    part: View,
    dtype: DType,
    bytes: &[u8],
) -> Result<Option<String>, BackendError> {
    let (words, _) = bytes.as_chunks::<4>();
    let (pairs, _) = bytes.as_chunks::<2>();
    let wide = |widen: fn(u16) -> f32| pairs.iter().map(move |h| widen(u16::from_le_bytes(*h)));
    let expected: Vec<u32> = match dtype {
        DType::F16 => wide(f16_to_f32).map(f32::to_bits).collect(),
        DType::BF16 => wide(bf16_to_f32).map(f32::to_bits).collect(),
        _ => words.iter().map(|word| u32::from_le_bytes(*word)).collect(),
    };
    let found: Vec<u32> = if dtype == DType::U32 {
        let mut found = vec![0; part.len];
        candidate.read(part, HostDataMut::U32(&mut found))?;
        found
    } else {
        let mut found = vec![0.0; part.len];
        candidate.read(part, HostDataMut::F32(&mut found))?;
        found.into_iter().map(f32::to_bits).collect()
    };
    // A quiet and a signalling NaN are one number.
    let same = |(&a, &b): (&u32, &u32)| {
        a == b || (dtype != DType::U32 && f32::from_bits(a).is_nan() && f32::from_bits(b).is_nan())
    };
    let at = expected.iter().zip(&found).position(|pair| !same(pair));
    Ok(at.map(|at| format!("element {at} reads as bits {:#x}", found[at])))
}

fn wrong_lengths(
    candidate: &mut dyn Backend,
    dtype: DType,
) -> Result<Option<String>, BackendError> {
    let view = buffer(candidate, dtype, 8)?;
    let bytes = pattern(8 * dtype.size() + 1, 2);
    candidate.write(view, HostData::Bytes(&bytes[1..]))?;
    submit_and_wait(candidate)?;
    for len in [0, 8 * dtype.size() - 1, 8 * dtype.size() + 1] {
        let mut bytes_read = vec![0; len];
        if candidate.read(view, HostDataMut::Bytes(&mut bytes_read)).is_ok()
            || candidate.write(view, HostData::Bytes(&bytes[..len])).is_ok()
        {
            return Ok(Some(format!("{len} bytes were taken for 8 elements")));
        }
    }
    Ok(None)
}
