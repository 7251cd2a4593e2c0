//! Choosing tokens. See [`forerun_backend::op::Sample`] for the rules.
//!
//! Plain greedy rows are a maximum, partitioned over all threads. Any other row, and any with a mask, is one task: its
//! logits are copied, adjusted and divided by the temperature; filters select instead of sorting the vocabulary, and
//! Gumbel noise is drawn only for candidates that could still win.
//!
//! # Numerics
//! Weights of filters are integers, so the tokens kept do not depend on the order of summation.

use super::Scratch;
use super::isa::{Isa, Kernel, LANES, Task};
use crate::pool::SharedSlice;
use crate::reference::{Before, adjust};
use crate::simd::exec_ctx::{ExecCtx, part_of};
use forerun_backend::BackendError;
use forerun_backend::op::{Sample, SampleRow, gumbel, passes, reaches, uniform, weight};
use std::cmp::Ordering;
use std::sync::{Mutex, PoisonError};

/// A task with fewer logits costs more to dispatch than it saves.
const SMALLEST: usize = 1 << 14;
/// Up to this many candidates everything is sorted.
const SORTED: usize = 1 << 10;
/// The largest Gumbel noise there is: `u ≥ 2⁻³³`.
const MOST_NOISE: f32 = 23.0;

/// Operands that are read; their sizes were checked against the operation's declaration.
pub(crate) struct SampleArgs<'a> {
    pub(crate) logits: &'a [f32],
    pub(crate) candidates: usize,
    pub(crate) rows: &'a [u32],
    pub(crate) before: Before<'a>,
}

impl SampleArgs<'_> {
    fn row(&self, i: usize) -> SampleRow {
        SampleRow::from_words(&self.rows[i * SampleRow::WORDS..(i + 1) * SampleRow::WORDS])
    }

    /// How many of the rows are the largest of the logits they may sample; what they point into is checked.
    pub(crate) fn greedy_rows(&self, rows: usize) -> Result<usize, BackendError> {
        self.rows_that(is_greedy, rows)
    }

    fn rows_that(&self, are: fn(&SampleRow) -> bool, rows: usize) -> Result<usize, BackendError> {
        let mut count = 0;
        for row in (0..rows).map(|i| self.row(i)).filter(are) {
            adjust(&mut [], &row, self.before)?;
            count += 1;
        }
        Ok(count)
    }

    /// The mask of a row, if it has one.
    pub(crate) fn mask(&self, i: usize) -> Option<&[u32]> {
        self.before.mask(&self.row(i)).expect("rows are counted, and so checked, first")
    }

    fn logits(&self, i: usize) -> &[f32] {
        &self.logits[i * self.candidates..(i + 1) * self.candidates]
    }
}

/// Whether a row is no more than the largest of the logits it may sample.
fn is_greedy(row: &SampleRow) -> bool {
    row.temperature == 0.0 && row.history_len == 0 && !row.has_penalties()
}

/// Whether a row is no more than the largest of its logits.
fn is_plain(row: &SampleRow) -> bool {
    is_greedy(row) && row.mask == 0
}

/// The largest number and where it first stands; −∞ where there is none. What is not a number is passed over.
pub(crate) struct Largest<'a>(pub(crate) &'a [f32]);

impl Kernel for Largest<'_> {
    type Out = (f32, usize);
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) -> (f32, usize) {
        let lowest = simd.splat(f32::NEG_INFINITY);
        let mut best = [lowest; 4];
        let chunks = self.0.chunks_exact(4 * LANES);
        let rest = chunks.remainder().iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for chunk in chunks {
            for (i, best) in best.iter_mut().enumerate() {
                // SAFETY: a chunk is four vectors.
                let x = unsafe { simd.load(chunk[i * LANES..].as_ptr()) };
                *best = simd.max(x, *best);
            }
        }
        let [a, b, c, d] = best;
        let best = simd.largest(simd.max(simd.max(a, b), simd.max(c, d))).max(rest);
        (best, self.0.iter().position(|&x| x == best).unwrap_or(0))
    }
}

/// The token of the largest of some logits, given as bits and token, lower tokens first.
pub(crate) fn first_largest<'a>(found: impl Iterator<Item = &'a [u32]>) -> u32 {
    let found = found.map(|words| (words[1], f32::from_bits(words[0])));
    let best = found.reduce(|a, b| if b.1 > a.1 { b } else { a });
    best.map_or(Sample::NO_TOKEN, |(token, logit)| or_none(token, logit))
}

/// The token of the largest logit, where that is any.
fn or_none(token: u32, logit: f32) -> u32 {
    if logit > f32::NEG_INFINITY { token } else { Sample::NO_TOKEN }
}

struct GreedyTask<'a> {
    op: &'a SampleArgs<'a>,
    parts: usize,
    /// Per row and part: the largest logit's bits and its token.
    found: SharedSlice<'a, u32>,
}

impl Task for GreedyTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let (row, part) = (index / self.parts, index % self.parts);
        if is_plain(&self.op.row(row)) {
            let tokens = part_of(self.op.candidates, self.parts, LANES, part);
            let (best, at) = simd.call(Largest(&self.op.logits(row)[tokens.clone()]));
            // SAFETY: a task has its own two words.
            let found = unsafe { self.found.part(2 * index, 2) };
            found.copy_from_slice(&[best.to_bits(), (tokens.start + at) as u32]);
        }
    }
}

struct RowTask<'a> {
    op: &'a SampleArgs<'a>,
    out: SharedSlice<'a, u32>,
    error: Mutex<Option<BackendError>>,
}

impl Task for RowTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let row = self.op.row(index);
        if is_plain(&row) {
            return;
        }
        let (floats, words) = scratch.parts();
        let logits = &mut floats[..self.op.candidates];
        logits.copy_from_slice(self.op.logits(index));
        match adjust(logits, &row, self.op.before) {
            Ok(()) => {
                let token = choose_token(simd, logits, &row, &mut words[..self.op.candidates]);
                // SAFETY: a row belongs to one task.
                unsafe { self.out.part(index, 1) }.copy_from_slice(&[token]);
            }
            Err(error) => {
                self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    }
}

/// Steps 2 to 5 of the rules. `tokens` is scratch with a word per token.
fn choose_token<S: Isa>(simd: S, logits: &mut [f32], row: &SampleRow, tokens: &mut [u32]) -> u32 {
    if row.temperature == 0.0 {
        let (max, best) = simd.call(Largest(logits));
        return or_none(best as u32, max);
    }
    let scaled = |l: f32| if l.is_nan() { f32::NEG_INFINITY } else { l / row.temperature };
    logits.iter_mut().for_each(|l| *l = scaled(*l));
    let (max, best) = simd.call(Largest(logits));
    let best = or_none(best as u32, max);
    if best == Sample::NO_TOKEN {
        return best;
    }
    if row.top_k == 0 && row.top_p >= 1.0 && row.min_p <= 0.0 {
        return gumbel_max(logits, row, best, 0..logits.len() as u32);
    }
    let kept = filter(logits, (max, best), row, tokens);
    gumbel_max(logits, row, if kept.is_empty() { best } else { kept[0] }, kept.iter().copied())
}

/// The candidate whose logit plus noise is largest, ties to the lower id; `first` is one of them.
fn gumbel_max(
    scaled: &[f32],
    row: &SampleRow,
    first: u32,
    candidates: impl Iterator<Item = u32>,
) -> u32 {
    let noisy = |t: u32| scaled[t as usize] + gumbel(row.seed, row.position, t);
    let mut best = (first, noisy(first));
    for t in candidates {
        // The sum is rounded, so a little less than what is missing may do.
        let missing = best.1 - scaled[t as usize] - 1e-6 * best.1.abs();
        // −ln(−ln(1−u)) reaches `missing` only for u ≤ e^−missing, which saves the logarithms.
        let hopeless = missing > 0.0
            && (missing > MOST_NOISE
                || uniform(row.seed, row.position, t) > 1.001 * (-missing).exp());
        if !hopeless {
            let sum = noisy(t);
            if sum > best.1 || (sum == best.1 && t < best.0) {
                best = (t, sum);
            }
        }
    }
    best.0
}

/// The tokens that pass `top_k`, `top_p` and `min_p`, in no order. `best` is the token of the largest logit.
fn filter<'a>(
    scaled: &[f32],
    (max, best): (f32, u32),
    row: &SampleRow,
    tokens: &'a mut [u32],
) -> &'a [u32] {
    let before = |a: &u32, b: &u32| -> Ordering {
        scaled[*b as usize].total_cmp(&scaled[*a as usize]).then(a.cmp(b))
    };
    tokens.iter_mut().zip(0..).for_each(|(token, t)| *token = t);
    let mut count = tokens.len();
    if row.top_k > 0 && (row.top_k as usize) < count {
        count = row.top_k as usize;
        tokens.select_nth_unstable_by(count - 1, before);
    }
    let order = &mut tokens[..count];
    let weight = |t: u32| weight(scaled[t as usize] - max);
    if row.top_p < 1.0 {
        if count <= SORTED {
            order.sort_unstable_by(before);
        }
        let total = order.iter().map(|&t| weight(t)).sum();
        count = prefix(order, |sum| reaches(row.top_p, sum, total), weight, before);
    }
    let order = &mut tokens[..count];
    if row.min_p > 0.0 {
        count = 0;
        for i in 0..order.len() {
            if order[i] == best || passes(row.min_p, weight(order[i])) {
                order.swap(count, i);
                count += 1;
            }
        }
    }
    &tokens[..count]
}

/// Sorts as much of `order` as it takes for the weights to be enough; how much that was.
fn prefix(
    order: &mut [u32],
    enough: impl Fn(u64) -> bool,
    weight: impl Fn(u32) -> u64,
    before: impl Fn(&u32, &u32) -> Ordering,
) -> usize {
    let (mut sum, mut sorted, mut more) = (0, 0, SORTED);
    while sorted < order.len() {
        let rest = &mut order[sorted..];
        let next = more.min(rest.len());
        if next < rest.len() {
            rest.select_nth_unstable_by(next, &before);
        }
        rest[..next].sort_unstable_by(&before);
        for (i, &t) in rest[..next].iter().enumerate() {
            sum += weight(t);
            if enough(sum) {
                return sorted + i + 1;
            }
        }
        (sorted, more) = (sorted + next, 4 * more);
    }
    order.len()
}

/// One token per row. `found` is scratch that is kept between calls.
pub(crate) fn sample(
    ctx: &mut ExecCtx,
    op: &SampleArgs<'_>,
    found: &mut Scratch,
    out: &mut [u32],
) -> Result<(), BackendError> {
    let rows = out.len();
    let plain = op.rows_that(is_plain, rows)?;
    if plain > 0 {
        let parts = ctx.parts(op.candidates, SMALLEST, 1);
        found.reserve(0, 2 * rows * parts);
        let words = &mut found.parts().1[..2 * rows * parts];
        ctx.run(rows * parts, &GreedyTask { op, parts, found: SharedSlice::new(words) });
        for i in (0..rows).filter(|&i| is_plain(&op.row(i))) {
            out[i] = first_largest(words[2 * i * parts..2 * (i + 1) * parts].chunks_exact(2));
        }
    }
    if plain == rows {
        return Ok(());
    }
    ctx.reserve(op.candidates, op.candidates);
    let task = RowTask { op, out: SharedSlice::new(out), error: Mutex::new(None) };
    ctx.run(rows, &task);
    let error = task.error.into_inner().unwrap_or_else(PoisonError::into_inner);
    error.map_or(Ok(()), Err)
}
