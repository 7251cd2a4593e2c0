//! Gates and caps: `elementwise.wgsl`.

use super::Lowered;
use crate::gpu::kernels::{ADD_GATED, GATE_MUL, GLU, Kernel, SOFTCAP};
use crate::gpu::launch::{Call, Words, invocations};
use crate::gpu::lowering::{Lowering, bound, bound_or_absent};
use forerun_backend::View;
use forerun_backend::op::{Activation, AddGated, GateMul, Glu, Softcap};

/// `Sizes` of the kernel's text.
struct Elements {
    x: View,
    y: Option<View>,
    z: Option<View>,
    /// `dim`, `width`, `first`, `mode`.
    sizes: [usize; 4],
    number: f32,
}

fn call(to: &mut Lowering<'_>, kernel: &'static Kernel, elements: Elements) -> Lowered {
    let Elements { x, y, z, sizes: [dim, width, first, mode], number } = elements;
    let start = |view: Option<View>| view.map_or(0, |view| view.start);
    let count = x.len;
    let words = Words::of(&[x.start, start(y), start(z), count, dim, width, first, mode]);
    to.calls.push(Call {
        kernel,
        constants: Vec::new(),
        operands: vec![bound(x), bound_or_absent(y), bound_or_absent(z)],
        words: words.map(|words| words.float(number)),
        grid: invocations(count),
        work: to.elements(count),
    });
    Ok(())
}

/// The number of a function on gates.
pub(super) fn mode(activation: Activation) -> usize {
    match activation {
        // Clamped gates were refused.
        Activation::Silu | Activation::ClampedSilu { .. } => 0,
        Activation::GeluTanh => 1,
        Activation::Relu => 2,
    }
}

pub(super) fn glu(to: &mut Lowering<'_>, op: Glu) -> Lowered {
    let Glu { gate, up, dim, up_width, up_first, activation } = op;
    let sizes = [dim, up_width, up_first, mode(activation)];
    call(to, &GLU, Elements { x: gate, y: Some(up), z: None, sizes, number: 0.0 })
}

pub(super) fn softcap(to: &mut Lowering<'_>, op: Softcap) -> Lowered {
    let (x, number) = (op.x, op.cap);
    call(to, &SOFTCAP, Elements { x, y: None, z: None, sizes: [0; 4], number })
}

pub(super) fn gate_mul(to: &mut Lowering<'_>, op: GateMul) -> Lowered {
    let (x, y) = (op.x, Some(op.gate));
    call(to, &GATE_MUL, Elements { x, y, z: None, sizes: [0; 4], number: 0.0 })
}

pub(super) fn add_gated(to: &mut Lowering<'_>, op: AddGated) -> Lowered {
    let AddGated { x, gate, out } = op;
    let dim = x.len / gate.len.max(1);
    let elements =
        Elements { x: out, y: Some(x), z: Some(gate), sizes: [dim, 0, 0, 0], number: 0.0 };
    call(to, &ADD_GATED, elements)
}
