use super::silu;
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{GatedNorm, JoinNorm, RmsNorm};

/// `1 / sqrt(mean(x²) + eps)`.
pub(crate) fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let squares: f32 = x.iter().map(|v| v * v).sum();
    1.0 / (squares / x.len() as f32 + eps).sqrt()
}

pub(crate) fn rms_norm(memory: &mut Memory, op: RmsNorm) -> Result<(), BackendError> {
    let mut weight = vec![0.0; op.dim];
    memory.vector(op.weight, &mut weight);
    memory.lend([op.out], |memory, [out]| {
        let rows = memory.f32(op.x).chunks_exact(op.dim);
        for (x, out) in rows.zip(out.f32_mut(op.out).chunks_exact_mut(op.dim)) {
            let scale = inverse_rms(x, op.eps);
            for ((o, &x), &w) in out.iter_mut().zip(x).zip(&weight) {
                *o = x * scale * w;
            }
        }
        Ok(())
    })
}

pub(crate) fn join_norm(memory: &mut Memory, op: JoinNorm) -> Result<(), BackendError> {
    let mut weights = [vec![0.0; op.dim], vec![0.0; op.dim]];
    memory.vector(op.a_weight, &mut weights[0]);
    memory.vector(op.b_weight, &mut weights[1]);
    memory.lend([op.out], |memory, [out]| {
        let sources = [memory.f32(op.a), memory.f32(op.b)];
        join_rows(sources, weights.each_ref().map(|w| &w[..]), op.eps, out.f32_mut(op.out));
        Ok(())
    })
}

/// Normed rows of both sources in turn.
pub(crate) fn join_rows(sources: [&[f32]; 2], weights: [&[f32]; 2], eps: f32, out: &mut [f32]) {
    let dim = weights[0].len();
    for (i, out) in out.chunks_exact_mut(dim).enumerate() {
        let (row, side) = (i / 2, i % 2);
        let x = &sources[side][row * dim..(row + 1) * dim];
        let scale = inverse_rms(x, eps);
        for ((o, &x), &w) in out.iter_mut().zip(x).zip(weights[side]) {
            *o = x * scale * w;
        }
    }
}

pub(crate) fn gated_norm(memory: &mut Memory, op: GatedNorm) -> Result<(), BackendError> {
    let mut weight = vec![0.0; op.dim];
    memory.vector(op.weight, &mut weight);
    memory.lend([op.x], |memory, [x]| {
        let gates = memory.f32(op.gate).chunks_exact(op.dim);
        for (x, gate) in x.f32_mut(op.x).chunks_exact_mut(op.dim).zip(gates) {
            let scale = inverse_rms(x, op.eps);
            for ((x, &gate), &w) in x.iter_mut().zip(gate).zip(&weight) {
                *x = *x * scale * w * silu(gate);
            }
        }
        Ok(())
    })
}
