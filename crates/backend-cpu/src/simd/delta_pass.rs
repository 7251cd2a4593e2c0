//! A pass of one row over one head's memory in the gated delta rule. `C` says that each key channel, a line of the
//! state, has a decay of its own.

use super::isa::{Isa, LANES};

/// What one row writes into one head's state, and its query.
#[derive(Clone, Copy)]
pub(crate) struct DeltaRow<'a> {
    pub(crate) k: &'a [f32],
    /// The task's channels.
    pub(crate) v: &'a [f32],
    /// One number, or one for each line.
    pub(crate) decay: &'a [f32],
    pub(crate) beta: f32,
}

/// `count` lines of state, `stride` f32 apart.
#[derive(Clone, Copy)]
pub(crate) struct StateRows {
    pub(crate) at: *mut f32,
    pub(crate) stride: usize,
    pub(crate) count: usize,
    /// How many f32 behind each line lies the one to prefetch meanwhile; 0 for none.
    pub(crate) prefetch_bytes: usize,
}

/// Elements of vector `w` that a line has.
#[inline(always)]
pub(crate) fn lanes(line: &[f32], w: usize) -> usize {
    line.len().saturating_sub(w * LANES).min(LANES)
}

/// A row's key and query, one element for every line.
pub(crate) struct DeltaKeys<'a> {
    pub(crate) row: DeltaRow<'a>,
    pub(crate) q: &'a [f32],
    /// The next row, whose key is recalled.
    pub(crate) next: DeltaRow<'a>,
}

impl DeltaRow<'_> {
    /// What line `i` is multiplied by in a recall: its decay is part of it, unless all lines have the same.
    #[inline(always)]
    fn recalled<const C: bool>(&self, i: usize) -> f32 {
        if C { self.k[i] * self.decay[i] } else { self.k[i] }
    }
}

/// How a row updates every line.
pub(crate) struct DeltaUpdate<F, const W: usize> {
    decay: F,
    error: [F; W],
}

/// Sums over the even and the odd lines.
pub(crate) type Chains<F, const W: usize> = [[F; W]; 2];

/// What the state `[dk][16·W]` recalls for a key.
///
/// # Safety
/// `state.at` is readable for `state.count` lines of `W` vectors, `state.stride` f32 apart, which no other thread
/// writes.
#[inline(always)]
pub(crate) unsafe fn recall<S: Isa, const W: usize, const C: bool>(
    simd: S,
    state: StateRows,
    row: &DeltaRow<'_>,
) -> Chains<S::F, W> {
    let count = state.count;
    assert_eq!(count, row.k.len(), "the state has a line for each key");
    assert!(!C || row.decay.len() == count, "a decay for each line");
    let mut recall = [[simd.splat(0.0); W]; 2];
    for i in (0..count).step_by(2) {
        let line = state.at.wrapping_add(i * state.stride);
        // SAFETY: the lines are readable (contract above), and there is one for each element of the key (asserted).
        unsafe {
            recall_line(simd, line, row.recalled::<C>(i), &mut recall[0]);
            if i + 1 < count {
                let odd = line.wrapping_add(state.stride);
                recall_line(simd, odd, row.recalled::<C>(i + 1), &mut recall[1]);
            }
        }
    }
    recall
}

/// `recall += line · k`.
///
/// # Safety
/// `line` is readable for `W` vectors.
#[inline(always)]
unsafe fn recall_line<S: Isa, const W: usize>(
    simd: S,
    line: *const f32,
    k: f32,
    recall: &mut [S::F; W],
) {
    let k = simd.splat(k);
    for w in 0..W {
        // SAFETY: the line has `W` vectors (contract above), and `w < W`.
        let s = unsafe { simd.load(line.add(w * LANES)) };
        recall[w] = simd.fma(s, k, recall[w]);
    }
}

/// What a row writes, given what the state recalled for its key.
#[inline(always)]
pub(crate) fn error<S: Isa, const W: usize, const C: bool>(
    simd: S,
    row: &DeltaRow<'_>,
    recall: &Chains<S::F, W>,
) -> DeltaUpdate<S::F, W> {
    let (decay, beta) = (simd.splat(row.decay[0]), simd.splat(row.beta));
    let mut error = [simd.splat(0.0); W];
    for w in 0..W {
        let recalled = simd.add(recall[0][w], recall[1][w]);
        let recalled = if C { recalled } else { simd.mul(decay, recalled) };
        let from = row.v.as_ptr().wrapping_add(w * LANES);
        // SAFETY: `lanes` elements are left in `v`.
        let v = unsafe { simd.load_part(from, lanes(row.v, w)) };
        error[w] = simd.mul(beta, simd.sub(v, recalled));
    }
    DeltaUpdate { decay, error }
}

/// Decays the state `[dk][16·W]`, writes the row, answers its query from the new state, and recalls for the next row's
/// key.
///
/// # Safety
/// `state.at` is readable and writable for `state.count` lines of `W` vectors, `state.stride` f32 apart, which no other
/// thread accesses.
#[inline(always)]
pub(crate) unsafe fn advance<S: Isa, const W: usize, const C: bool>(
    simd: S,
    state: StateRows,
    DeltaKeys { row, q, next }: DeltaKeys<'_>,
    change: &DeltaUpdate<S::F, W>,
) -> (Chains<S::F, W>, Chains<S::F, W>) {
    let count = state.count;
    let k = row.k;
    assert!(!C || row.decay.len() == count && next.decay.len() == count, "a decay for each line");
    assert!(
        [k, q, next.k].iter().all(|keys| keys.len() == count),
        "the state has a line for each key"
    );
    let mut answer = [[simd.splat(0.0); W]; 2];
    let mut recall = [[simd.splat(0.0); W]; 2];
    for i in (0..count).step_by(2) {
        let line = state.at.wrapping_add(i * state.stride);
        if state.prefetch_bytes > 0 {
            for w in 0..2 * W {
                let line = line.wrapping_add(state.prefetch_bytes + w / W * state.stride);
                simd.prefetch(line.wrapping_add(w % W * LANES).cast());
            }
        }
        // SAFETY: the lines are this thread's (contract above), and there is one for each element of the keys
        // (asserted).
        unsafe {
            let sums = (&mut answer[0], &mut recall[0]);
            let decay = if C { simd.splat(row.decay[i]) } else { change.decay };
            let keys = [k[i], q[i], next.recalled::<C>(i)];
            write_line(simd, line, keys, (decay, &change.error), sums);
            if i + 1 < count {
                let sums = (&mut answer[1], &mut recall[1]);
                let odd = line.wrapping_add(state.stride);
                let decay = if C { simd.splat(row.decay[i + 1]) } else { change.decay };
                let keys = [k[i + 1], q[i + 1], next.recalled::<C>(i + 1)];
                write_line(simd, odd, keys, (decay, &change.error), sums);
            }
        }
    }
    (answer, recall)
}

/// `line ← decay·line + k·error`, then `answer += line · q` and `recall += line · next`.
///
/// # Safety
/// `line` is readable and writable for `W` vectors, which no other thread accesses.
#[inline(always)]
unsafe fn write_line<S: Isa, const W: usize>(
    simd: S,
    line: *mut f32,
    keys: [f32; 3],
    (decay, error): (S::F, &[S::F; W]),
    (answer, recall): (&mut [S::F; W], &mut [S::F; W]),
) {
    let [k, q, next] = [simd.splat(keys[0]), simd.splat(keys[1]), simd.splat(keys[2])];
    for w in 0..W {
        let at = line.wrapping_add(w * LANES);
        // SAFETY: the line has `W` vectors (contract above), and `w < W`.
        unsafe {
            let new = simd.fma(k, error[w], simd.mul(decay, simd.load(at)));
            simd.store(at, new);
            answer[w] = simd.fma(new, q, answer[w]);
            recall[w] = simd.fma(new, next, recall[w]);
        }
    }
}
