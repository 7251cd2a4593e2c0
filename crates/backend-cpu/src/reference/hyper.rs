use super::norm::norm_row;
use super::{sigmoid, silu};
use crate::Memory;
use forerun_backend::op::{
    CollapseStreams, GroupNorm, MixStreams, SiluRows, StreamMixing, StreamUpdate, UpdateStreams,
};
use forerun_backend::{BackendError, View};

pub(crate) fn group_norm(memory: &mut Memory, op: GroupNorm) -> Result<(), BackendError> {
    let mut weight = vec![0.0; op.dim];
    memory.vector(op.weight, &mut weight);
    memory.lend([op.out], |memory, [out]| {
        let groups = memory.f32(op.x).chunks_exact(op.group);
        let weights = weight.chunks_exact(op.group).cycle();
        let outs = out.f32_mut(op.out).chunks_exact_mut(op.group);
        for ((x, weight), out) in groups.zip(weights).zip(outs) {
            norm_row(x, (weight, op.eps), out);
        }
        Ok(())
    })
}

pub(crate) fn silu_rows(memory: &mut Memory, op: SiluRows) -> Result<(), BackendError> {
    memory.lend([op.x], |_, [x]| {
        x.f32_mut(op.x).iter_mut().for_each(|x| *x = silu(*x));
        Ok(())
    })
}

pub(crate) fn mix_streams(memory: &mut Memory, op: MixStreams) -> Result<(), BackendError> {
    memory.lend([op.out], |memory, [out]| {
        let wide = op.streams * op.dim;
        let rows = memory.f32(op.x).chunks_exact(wide).zip(memory.f32(op.gates).chunks_exact(wide));
        for ((x, gates), out) in rows.zip(out.f32_mut(op.out).chunks_exact_mut(op.dim)) {
            out.fill(0.0);
            let streams = x.chunks_exact(op.dim).zip(gates.chunks_exact(op.dim));
            for (x, gates) in streams {
                let pairs = x.iter().zip(gates).zip(&mut *out);
                pairs.for_each(|((x, gate), out)| *out += sigmoid(*gate) * x);
            }
        }
        Ok(())
    })
}

pub(crate) fn update_streams(memory: &mut Memory, op: UpdateStreams) -> Result<(), BackendError> {
    memory.lend([op.x], |memory, [x]| {
        let update = UpdateRows::new(memory, &op);
        let wide = op.streams * op.dim;
        let rows = x.f32_mut(op.x).chunks_exact_mut(wide);
        rows.enumerate().for_each(|(row, x)| update.row(row, x));
        Ok(())
    })
}

/// The operands of an update, row by row.
pub(crate) struct UpdateRows<'a> {
    pub(crate) update: StreamUpdate,
    streams: usize,
    dim: usize,
    y: &'a [f32],
    /// Gates, or what `y` is multiplied by.
    shares: &'a [f32],
    comb: &'a [f32],
}

impl<'a> UpdateRows<'a> {
    pub(crate) fn new(memory: &'a Memory, op: &UpdateStreams) -> Self {
        let none = op.y.part(0, 0);
        let (shares, comb): (View, View) = match op.update {
            StreamUpdate::Set | StreamUpdate::Add => (none, none),
            StreamUpdate::Gated { gates } => (gates, none),
            StreamUpdate::Mixed { post, comb } => (post, comb),
        };
        Self {
            update: op.update,
            streams: op.streams,
            dim: op.dim,
            y: memory.f32(op.y),
            shares: memory.f32(shares),
            comb: memory.f32(comb),
        }
    }

    /// What one row's streams are mixed of: `y`, its shares, and theirs.
    pub(crate) fn mixed(&self, row: usize) -> [&'a [f32]; 3] {
        let Self { streams, dim, .. } = *self;
        let part = |all: &'a [f32], width: usize| &all[row * width..(row + 1) * width];
        [part(self.y, dim), part(self.shares, streams), part(self.comb, streams * streams)]
    }

    /// One row's streams.
    pub(crate) fn row(&self, row: usize, x: &mut [f32]) {
        let Self { streams, dim, .. } = *self;
        let y = &self.y[row * dim..(row + 1) * dim];
        let share = |s: usize| self.shares[row * streams + s];
        if let StreamUpdate::Mixed { .. } = self.update {
            let comb = &self.comb[row * streams * streams..][..streams * streams];
            let mut old = [0.0; UpdateStreams::MOST_MIXED];
            for i in 0..dim {
                (0..streams).for_each(|j| old[j] = x[j * dim + i]);
                for s in 0..streams {
                    let mixed: f32 = (0..streams).map(|j| comb[j * streams + s] * old[j]).sum();
                    x[s * dim + i] = share(s) * y[i] + mixed;
                }
            }
            return;
        }
        for (s, x) in x.chunks_exact_mut(dim).enumerate() {
            match self.update {
                StreamUpdate::Set => x.copy_from_slice(y),
                StreamUpdate::Add => x.iter_mut().zip(y).for_each(|(x, y)| *x += y),
                StreamUpdate::Gated { .. } => {
                    let factor = 2.0 * sigmoid(share(s));
                    x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
                }
                StreamUpdate::Mixed { .. } => unreachable!("mixed above"),
            }
        }
    }
}

pub(crate) fn collapse_streams(
    memory: &mut Memory,
    op: CollapseStreams,
) -> Result<(), BackendError> {
    let vector = |id| {
        let mut numbers = vec![0.0; memory.matrix(id).cols()];
        memory.vector(id, &mut numbers);
        numbers
    };
    let (scale, base) = (vector(op.scale), vector(op.base));
    collapse(memory, op, [&scale, &base])
}

/// The operation with its scale and base decoded.
pub(crate) fn collapse(
    memory: &mut Memory,
    op: CollapseStreams,
    [scale, base]: [&[f32]; 2],
) -> Result<(), BackendError> {
    let CollapseStreams { streams: n, dim, eps, mixing, .. } = op;
    let [post, comb] = mixing.map_or([op.out.part(0, 0); 2], |m| [m.post, m.comb]);
    memory.lend([op.out, post, comb], |memory, [out, post_out, comb_out]| {
        let each = CollapseStreams::logits(n, mixing.is_some());
        let (post_out, comb_out) = (post_out.f32_mut(post), comb_out.f32_mut(comb));
        let rows = memory.f32(op.x).chunks_exact(n * dim);
        let rows = rows.zip(memory.f32(op.logits).chunks_exact(each));
        let outs = out.f32_mut(op.out).chunks_exact_mut(dim);
        for (row, ((x, logits), out)) in rows.zip(outs).enumerate() {
            out.fill(0.0);
            for (s, x) in x.chunks_exact(dim).enumerate() {
                let weight = sigmoid(logits[s] * scale[0] + base[s]) + eps;
                out.iter_mut().zip(x).for_each(|(out, x)| *out += weight * x);
            }
            let Some(StreamMixing { iterations, .. }) = mixing else { continue };
            for s in 0..n {
                let logit = logits[n + s] * scale[1] + base[n + s];
                post_out[row * n + s] = 2.0 * sigmoid(logit);
            }
            let comb = &mut comb_out[row * n * n..(row + 1) * n * n];
            for (i, comb) in comb.iter_mut().enumerate() {
                *comb = logits[2 * n + i] * scale[2] + base[2 * n + i];
            }
            balance(comb, n, iterations, eps);
        }
        Ok(())
    })
}

/// A softmax of each row, then columns and rows divided by their sums in turn, columns first and last.
fn balance(comb: &mut [f32], n: usize, iterations: usize, eps: f32) {
    for row in comb.chunks_exact_mut(n) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|x| *x = (*x - max).exp());
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|x| *x = *x / sum + eps);
    }
    for round in 0..iterations {
        if round > 0 {
            for row in comb.chunks_exact_mut(n) {
                let sum = row.iter().sum::<f32>() + eps;
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        for column in 0..n {
            let sum = (0..n).map(|row| comb[row * n + column]).sum::<f32>() + eps;
            (0..n).for_each(|row| comb[row * n + column] /= sum);
        }
    }
}
