//! Norms: `norm.wgsl`.

use super::Lowered;
use crate::gpu::kernels::{GATED_NORM, Kernel, NORM};
use crate::gpu::launch::{Call, Words, folded};
use crate::gpu::lowering::{Lowering, bound, plain};
use forerun_backend::op::{AddNorm, GatedNorm, JoinNorm, RmsNorm};
use forerun_backend::{View, WeightId};

/// How rows are stored.
#[derive(Clone, Copy)]
enum NormMode {
    Set = 0,
    Add = 1,
    Copy = 2,
}

/// Rows of a norm and where they go.
struct Rows {
    kernel: &'static Kernel,
    x: View,
    weight: Option<WeightId>,
    out: View,
    dim: usize,
    /// Row `i` goes to row `i · place[0] + place[1]`.
    place: [usize; 2],
    mode: NormMode,
    eps: f32,
    scale: f32,
}

fn call(to: &mut Lowering<'_>, rows: Rows) -> Lowered {
    let Rows { kernel, x, weight, out, dim, place: [stride, side], mode, eps, scale } = rows;
    let count = x.len / dim;
    let words = Words::of(&[x.start, out.start, 0, count, dim, stride, side, mode as usize]);
    to.calls.push(Call {
        kernel,
        constants: Vec::new(),
        operands: vec![bound(x), plain(weight), bound(out)],
        words: words.map(|words| words.float(eps).float(scale)),
        grid: folded(count),
        work: to.elements(x.len),
    });
    Ok(())
}

pub(super) fn rms_norm(to: &mut Lowering<'_>, op: RmsNorm) -> Lowered {
    let RmsNorm { x, weight, out, dim, eps } = op;
    let (weight, place) = (Some(weight), [1, 0]);
    let (kernel, mode, scale) = (&NORM, NormMode::Set, 1.0);
    call(to, Rows { kernel, x, weight, out, dim, place, mode, eps, scale })
}

pub(super) fn add_norm(to: &mut Lowering<'_>, op: AddNorm) -> Lowered {
    let AddNorm { x, weight, out, dim, eps, scale } = op;
    let (weight, place) = (Some(weight), [1, 0]);
    let (kernel, mode) = (&NORM, NormMode::Add);
    call(to, Rows { kernel, x, weight, out, dim, place, mode, eps, scale })
}

pub(super) fn join_norm(to: &mut Lowering<'_>, op: JoinNorm) -> Lowered {
    let JoinNorm { a, b, norms, out, dim, eps } = op;
    for (side, x) in [a, b].into_iter().enumerate() {
        let weight = norms.map(|norms| norms[side]);
        let mode = if weight.is_some() { NormMode::Set } else { NormMode::Copy };
        let (kernel, place, scale) = (&NORM, [2, side], 1.0);
        call(to, Rows { kernel, x, weight, out, dim, place, mode, eps, scale })?;
    }
    Ok(())
}

pub(super) fn gated_norm(to: &mut Lowering<'_>, op: GatedNorm) -> Lowered {
    let GatedNorm { x, gate, weight, dim, eps } = op;
    let (weight, place) = (Some(weight), [1, 0]);
    let (kernel, mode, scale) = (&GATED_NORM, NormMode::Set, 1.0);
    call(to, Rows { kernel, x: gate, weight, out: x, dim, place, mode, eps, scale })
}
