//! Operands of single operations on an adapter.

use forerun_backend::{
    Backend, BufferRole, BufferSpec, HostData, HostDataMut, View, submit_and_wait,
};
use forerun_backend_wgpu::Wgpu;
use forerun_base::DType;

/// Numbers between minus one and one.
pub(crate) fn numbers(len: usize, salt: u32) -> Vec<f32> {
    let mut state = salt;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn floats(device: &mut Wgpu, values: &[f32]) -> View {
    let (dtype, len) = (DType::F32, values.len());
    let spec = BufferSpec { label: "floats", dtype, len, role: BufferRole::Scratch };
    let view = View::head(device.alloc(spec).expect("memory"), len);
    device.write(view, HostData::F32(values)).expect("written");
    view
}

pub(crate) fn integers(device: &mut Wgpu, values: &[u32]) -> View {
    let (dtype, len) = (DType::U32, values.len());
    let spec = BufferSpec { label: "integers", dtype, len, role: BufferRole::Scratch };
    let view = View::head(device.alloc(spec).expect("memory"), len);
    device.write(view, HostData::U32(values)).expect("written");
    view
}

/// What a view holds once everything queued is done.
pub(crate) fn contents(device: &mut Wgpu, view: View) -> Vec<f32> {
    submit_and_wait(device).expect("done");
    let mut found = vec![0.0; view.len];
    device.read(view, HostDataMut::F32(&mut found)).expect("read");
    found
}
