//! Comparing what two runs left behind.

use super::stage::{BufferContents, BufferOutcome, Expect};

/// How far a candidate may be from the reference, relative to the largest number in the buffer.
#[derive(Clone, Debug)]
pub struct Tolerances {
    general: f32,
    special: Vec<(&'static str, f32)>,
}

impl Tolerances {
    /// One bound for every operation.
    pub fn general(bound: f32) -> Self {
        Self { general: bound, special: Vec::new() }
    }

    /// For devices that compute in f32 in another order than the reference.
    pub fn f32() -> Self {
        Self::general(1e-5)
    }

    /// Another bound for one operation.
    pub fn with(mut self, op: &'static str, bound: f32) -> Self {
        self.special.push((op, bound));
        self
    }

    /// The bound of an operation; the last one given counts.
    pub fn of(&self, op: &str) -> f32 {
        let special = self.special.iter().rev().find(|(name, _)| *name == op);
        special.map_or(self.general, |(_, bound)| *bound)
    }
}

/// What is wrong with `found` if each buffer must be as close to `expected` as it promises.
pub(super) fn near(
    expected: &[BufferOutcome],
    found: &[BufferOutcome],
    bound: f32,
) -> Option<String> {
    expected.iter().zip(found).find_map(|(expected, found)| {
        let tolerance = if expected.expect == Expect::Near { Some(bound) } else { None };
        buffer(expected, found, tolerance)
    })
}

/// What is wrong with `found` if every bit must be the same.
pub(super) fn same(expected: &[BufferOutcome], found: &[BufferOutcome]) -> Option<String> {
    expected.iter().zip(found).find_map(|(expected, found)| buffer(expected, found, None))
}

/// The largest difference of a computed number, relative to the largest number of its buffer; infinite where only one
/// of the two is a number.
pub(super) fn deviation(expected: &[BufferOutcome], found: &[BufferOutcome]) -> f32 {
    let buffers = expected.iter().zip(found).filter(|(e, _)| e.expect == Expect::Near);
    buffers.map(|(expected, found)| buffer_deviation(expected, found)).fold(0.0, f32::max)
}

fn buffer_deviation(expected: &BufferOutcome, found: &BufferOutcome) -> f32 {
    let (BufferContents::F32(a), BufferContents::F32(b)) = (&expected.numbers, &found.numbers)
    else {
        return 0.0;
    };
    let view = expected.view.clone();
    let size = largest(&a[view.clone()]);
    let relative = |(a, b): (&f32, &f32)| match (a - b).abs() {
        _ if a == b || (a.is_nan() && b.is_nan()) => 0.0,
        difference if difference.is_finite() && size > 0.0 => difference / size,
        _ => f32::INFINITY,
    };
    a[view.clone()].iter().zip(&b[view]).map(relative).fold(0.0, f32::max)
}

/// The largest finite magnitude.
fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().map(|v| v.abs()).filter(|v| v.is_finite()).fold(0.0, f32::max)
}

fn buffer(
    expected: &BufferOutcome,
    found: &BufferOutcome,
    tolerance: Option<f32>,
) -> Option<String> {
    let label = expected.label;
    match (&expected.numbers, &found.numbers) {
        (BufferContents::U32(a), BufferContents::U32(b)) => {
            let at = a.iter().zip(b).position(|(a, b)| a != b)?;
            let place = place(expected, at);
            Some(format!("`{label}` {place}: expected {}, found {}", a[at], b[at]))
        }
        (BufferContents::F32(a), BufferContents::F32(b)) => floats(expected, a, b, tolerance),
        _ => Some(format!("`{label}` changed its type")),
    }
}

fn floats(buffer: &BufferOutcome, a: &[f32], b: &[f32], tolerance: Option<f32>) -> Option<String> {
    let size = largest(&a[buffer.view.clone()]);
    let allowed = tolerance.map_or(0.0, |bound| bound * size);
    let fits = |at: usize| {
        let (a, b) = (a[at], b[at]);
        let inside = buffer.view.contains(&at);
        if inside && buffer.expect == Expect::Whatever {
            return true;
        }
        let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        same || (inside && tolerance.is_some() && (a == b || (a - b).abs() <= allowed))
    };
    let at = (0..a.len()).find(|&at| !fits(at))?;
    Some(format!(
        "`{}` {}: expected {:?}, found {:?}, allowed difference {allowed:e}",
        buffer.label,
        place(buffer, at),
        a[at],
        b[at]
    ))
}

fn place(buffer: &BufferOutcome, at: usize) -> String {
    if buffer.view.contains(&at) {
        format!("element {} of {}", at - buffer.view.start, buffer.view.len())
    } else {
        "outside the view".to_owned()
    }
}
