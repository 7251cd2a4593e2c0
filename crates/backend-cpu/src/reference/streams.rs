use crate::Memory;
use forerun_backend::op::{CorrectStreams, MatchRms, PredictStreams, Store, Streams, Threshold};
use forerun_backend::{BackendError, View, WeightId};

/// The numbers by which the streams of a row are mixed, from what its router says.
#[derive(Clone, Copy)]
pub(crate) struct Coefficients<'a> {
    /// `[outputs, streams]`.
    pub(crate) weight: &'a [f32],
    /// Added to each.
    pub(crate) one: f32,
}

impl Coefficients<'_> {
    /// Those of one row.
    pub(crate) fn of_row(&self, router: &[f32], out: &mut [f32]) {
        let mut tangents = [0.0; Streams::MOST];
        let tangents = &mut tangents[..router.len()];
        tangents.iter_mut().zip(router).for_each(|(m, x)| *m = x.tanh());
        for (out, weight) in out.iter_mut().zip(self.weight.chunks_exact(router.len())) {
            *out = self.one + weight.iter().zip(&*tangents).map(|(w, m)| w * m).sum::<f32>();
        }
    }
}

/// All rows of a small weight.
fn numbers(memory: &Memory, id: WeightId) -> Vec<f32> {
    let matrix = memory.matrix(id);
    let mut all = vec![0.0; matrix.rows() * matrix.cols()];
    for (row, line) in all.chunks_exact_mut(matrix.cols()).enumerate() {
        matrix.decode_row(row, line);
    }
    all
}

/// What an operation on streams takes out of memory: the streams, empty where there is none, and its result.
pub(crate) fn lent(streams: &Streams, router: View, out: View) -> [View; Streams::MOST + 1] {
    std::array::from_fn(|i| match streams.views.get(i) {
        Some(view) => view.unwrap_or(router.part(0, 0)),
        None => out,
    })
}

pub(crate) fn predict_streams(memory: &mut Memory, op: PredictStreams) -> Result<(), BackendError> {
    let (count, dim) = (op.streams.count(), op.streams.dim);
    let weight = numbers(memory, op.weight);
    let coefficients = Coefficients { weight: &weight, one: 0.0 };
    let views = lent(&op.streams, op.router, op.out);
    memory.lend(views, |memory, lent| {
        let mut mix = vec![0.0; count * count];
        let mut old = vec![0.0; count];
        for (row, router) in memory.f32(op.router).chunks_exact(count).enumerate() {
            coefficients.of_row(router, &mut mix);
            for column in row * dim..(row + 1) * dim {
                for j in 0..count {
                    old[j] = lent[j].f32_mut(views[j])[column];
                }
                for i in 0..count {
                    let terms = mix[i * count..(i + 1) * count].iter().zip(&old);
                    let new = old[i] + terms.map(|(p, s)| p * s).sum::<f32>();
                    lent[i].f32_mut(views[i])[column] = new;
                    if i == op.streams.active {
                        lent[Streams::MOST].f32_mut(op.out)[column] = new;
                    }
                }
            }
        }
        Ok(())
    })
}

pub(crate) fn correct_streams(memory: &mut Memory, op: CorrectStreams) -> Result<(), BackendError> {
    let Streams { dim, active, .. } = op.streams;
    let count = op.streams.count();
    let weight = numbers(memory, op.weight);
    let coefficients = Coefficients { weight: &weight, one: 1.0 };
    let mut scale = vec![1.0; dim];
    if let Some(id) = op.scale {
        memory.vector(id, &mut scale);
    }
    let views = lent(&op.streams, op.router, op.out);
    memory.lend(views, |memory, lent| {
        let (x, mut mix) = (memory.f32(op.x), vec![0.0; count]);
        for (row, router) in memory.f32(op.router).chunks_exact(count).enumerate() {
            coefficients.of_row(router, &mut mix);
            for (column, scale) in (row * dim..(row + 1) * dim).zip(&scale) {
                let news = x[column] - lent[active].f32_mut(views[active])[column];
                for i in 0..count {
                    lent[i].f32_mut(views[i])[column] += mix[i] * news;
                }
                let new = lent[active].f32_mut(views[active])[column];
                lent[Streams::MOST].f32_mut(op.out)[column] = new * scale;
            }
        }
        Ok(())
    })
}

fn mean_square(x: &[f32]) -> f32 {
    x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32
}

pub(crate) fn match_rms(memory: &mut Memory, op: MatchRms) -> Result<(), BackendError> {
    memory.lend([op.out], |memory, [out]| {
        let rows = memory.f32(op.x).chunks_exact(op.dim);
        let rows = rows.zip(memory.f32(op.like).chunks_exact(op.dim));
        for ((x, like), out) in rows.zip(out.f32_mut(op.out).chunks_exact_mut(op.dim)) {
            let factor = (mean_square(like) / mean_square(x).max(op.floor)).sqrt() * op.scale;
            for (out, x) in out.iter_mut().zip(x) {
                match op.store {
                    Store::Set => *out = x * factor,
                    Store::Add => *out += x * factor,
                }
            }
        }
        Ok(())
    })
}

pub(crate) fn threshold(memory: &mut Memory, op: Threshold) -> Result<(), BackendError> {
    memory.lend([op.x], |_, [x]| {
        for x in x.f32_mut(op.x).chunks_exact_mut(op.dim) {
            // One sum of many numbers that all have one sign would lose digits in f32.
            let numbers = || x.iter().map(|v| f64::from(*v));
            let mean = numbers().sum::<f64>() / op.dim as f64;
            let spread = numbers().map(|v| (v - mean) * (v - mean)).sum::<f64>();
            let far = f64::from(op.deviations) * (spread / op.dim as f64).sqrt();
            let least = (mean + far) as f32;
            // Not `max`, which would turn a NaN into zero.
            x.iter_mut().for_each(|x| *x = if *x <= least { 0.0 } else { *x - least });
        }
        Ok(())
    })
}
