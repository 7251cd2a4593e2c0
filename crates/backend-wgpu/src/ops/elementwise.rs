//! Gates and caps: `elementwise.wgsl`.

use super::Lowered;
use crate::device::Device;
use crate::kernels::{ADD_GATED, GATE_MUL, GLU, Kernel, SOFTCAP};
use crate::launch::{Words, invocations};
use crate::pipelines::Call;
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

fn launch(device: &mut Device, kernel: &'static Kernel, elements: Elements) -> Lowered {
    let Elements { x, y, z, sizes: [dim, width, first, mode], number } = elements;
    let start = |view: Option<View>| view.map_or(0, |view| view.start);
    let count = x.len;
    let words = Words::of(&[x.start, start(y), start(z), count, dim, width, first, mode]);
    let memory = &device.memory;
    let operands = [Some(x), y, z].map(|view| view.and_then(|view| memory.buffer(view)));
    let call = Call {
        kernel,
        constants: &[],
        operands: &operands,
        words: words.map(|words| words.float(number)),
        grid: invocations(count),
    };
    Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)
}

/// The number of a function on gates.
pub(super) fn mode(activation: Activation) -> usize {
    match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
    }
}

pub(super) fn glu(device: &mut Device, op: Glu) -> Lowered {
    let Glu { gate, up, dim, up_width, up_first, activation } = op;
    let sizes = [dim, up_width, up_first, mode(activation)];
    launch(device, &GLU, Elements { x: gate, y: Some(up), z: None, sizes, number: 0.0 })
}

pub(super) fn softcap(device: &mut Device, op: Softcap) -> Lowered {
    let (x, number) = (op.x, op.cap);
    launch(device, &SOFTCAP, Elements { x, y: None, z: None, sizes: [0; 4], number })
}

pub(super) fn gate_mul(device: &mut Device, op: GateMul) -> Lowered {
    let (x, y) = (op.x, Some(op.gate));
    launch(device, &GATE_MUL, Elements { x, y, z: None, sizes: [0; 4], number: 0.0 })
}

pub(super) fn add_gated(device: &mut Device, op: AddGated) -> Lowered {
    let AddGated { x, gate, out } = op;
    let dim = x.len / gate.len.max(1);
    let elements =
        Elements { x: out, y: Some(x), z: Some(gate), sizes: [dim, 0, 0, 0], number: 0.0 };
    launch(device, &ADD_GATED, elements)
}
