use super::silu;
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{AddNorm, GatedNorm, JoinNorm, RmsNorm};

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
            norm_row(x, (&weight, op.eps), out);
        }
        Ok(())
    })
}

pub(crate) fn join_norm(memory: &mut Memory, op: JoinNorm) -> Result<(), BackendError> {
    let weights = op.norms.map(|norms| {
        norms.map(|id| {
            let mut weight = vec![0.0; op.dim];
            memory.vector(id, &mut weight);
            weight
        })
    });
    memory.lend([op.out], |memory, [out]| {
        let sources = [memory.f32(op.a), memory.f32(op.b)];
        let norms = weights.as_ref().map(|weights| weights.each_ref().map(|w| (&w[..], op.eps)));
        join_rows(sources, norms, op.dim, out.f32_mut(op.out));
        Ok(())
    })
}

/// Interleaves rows of both sources, normed if there are norms.
pub(crate) fn join_rows(
    sources: [&[f32]; 2],
    norms: Option<[(&[f32], f32); 2]>,
    dim: usize,
    out: &mut [f32],
) {
    for (i, out) in out.chunks_exact_mut(dim).enumerate() {
        let (row, side) = (i / 2, i % 2);
        let x = &sources[side][row * dim..(row + 1) * dim];
        match norms {
            None => out.copy_from_slice(x),
            Some(norms) => norm_row(x, norms[side], out),
        }
    }
}

pub(super) fn norm_row(x: &[f32], (weight, eps): (&[f32], f32), out: &mut [f32]) {
    let scale = inverse_rms(x, eps);
    for ((o, &x), &w) in out.iter_mut().zip(x).zip(weight) {
        *o = x * scale * w;
    }
}

pub(crate) fn add_norm(memory: &mut Memory, op: AddNorm) -> Result<(), BackendError> {
    let mut weight = vec![0.0; op.dim];
    memory.vector(op.weight, &mut weight);
    memory.lend([op.out], |memory, [out]| {
        let rows = memory.f32(op.x).chunks_exact(op.dim);
        for (x, out) in rows.zip(out.f32_mut(op.out).chunks_exact_mut(op.dim)) {
            let scale = inverse_rms(x, op.eps);
            for ((o, &x), &w) in out.iter_mut().zip(x).zip(&weight) {
                *o = (*o + x * scale * w) * op.scale;
            }
        }
        Ok(())
    })
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
