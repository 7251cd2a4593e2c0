//! What the device makes of operations whose weights have no kernel in common.

use forerun_backend::conform::{Rng, random_matrix};
use forerun_backend::op::{Activation, ExpertRows, Experts, GatedLinear, Store};
use forerun_backend::submit_and_wait;
use forerun_backend::{
    Backend, BufferRole, BufferSpec, Catalog, HostData, HostDataMut, View, WeightId,
};
use forerun_backend_cpu::plain;
use forerun_backend_cuda::Cuda;
use forerun_backend_cuda::driver::Emulated;
use forerun_base::{Codes, DType, Format, ScaleKind};
use std::path::Path;

/// A device with random operands.
pub(crate) struct DeviceStage<'a> {
    device: &'a mut dyn Backend,
    rng: Rng,
}

impl<'a> DeviceStage<'a> {
    pub(crate) fn new(device: &'a mut dyn Backend, name: &str) -> Self {
        Self { device, rng: Rng::named(name) }
    }

    fn view(&mut self, dtype: DType, len: usize) -> View {
        let spec = BufferSpec { label: "stage", dtype, len, role: BufferRole::Scratch };
        View::head(self.device.alloc(spec).unwrap(), len)
    }

    pub(crate) fn numbers(&mut self, len: usize) -> View {
        let view = self.view(DType::F32, len);
        self.device.write(view, HostData::F32(&self.rng.values(len))).unwrap();
        view
    }

    pub(crate) fn weight(&mut self, shape: [usize; 2], format: Format) -> WeightId {
        let matrix = random_matrix(&mut self.rng, shape, format).unwrap();
        self.device.upload("weight", matrix).unwrap()
    }

    pub(crate) fn read(&mut self, view: View) -> Vec<f32> {
        let mut out = vec![0.0; view.len];
        submit_and_wait(self.device).unwrap();
        self.device.read(view, HostDataMut::F32(&mut out)).unwrap();
        out
    }
}

/// Experts and a gated product with gate and up in different formats.
fn mixed(device: &mut dyn Backend) -> Vec<f32> {
    let mut stage = DeviceStage::new(device, "mixed");
    let (rows, experts, top_k, ffn, dim) = (3, 3, 2, 19, 33);
    let bf16 = Format::Dense(DType::BF16);
    let (codes, scale) = (Codes::Uint { bits: 4 }, ScaleKind::BF16);
    let u4 = Format::Grouped { codes, group: 32, scale, offset: true };
    let gate = stage.weight([2 + experts * ffn, dim], bf16);
    let up = stage.weight([experts * ffn, dim], u4);
    let down = stage.weight([experts * dim, ffn], u4);
    let chosen = stage.view(DType::U32, rows * top_k);
    stage.device.write(chosen, HostData::U32(&[0, 2, 1, 0, 2, 1])).unwrap();
    let (x, weights) = (stage.numbers(rows * dim), stage.numbers(rows * top_k));
    let at = |weight, first, stride| ExpertRows { weight, first, stride };
    let op = Experts {
        x,
        chosen,
        weights,
        gate: at(gate, 2, ffn),
        up: at(up, 0, ffn),
        down: at(down, 0, dim),
        experts,
        top_k,
        ffn,
        dim,
        hidden: stage.view(DType::F32, rows * top_k * ffn),
        partial: stage.view(DType::F32, rows * top_k * dim),
        out: stage.view(DType::F32, rows * dim),
        store: Store::Set,
        activation: Activation::Silu,
    };
    stage.device.experts(op).unwrap();
    let mut found = stage.read(op.out);
    let n = experts * ffn;
    let gate = stage.weight([n, dim], bf16);
    let (scratch, out) = (stage.view(DType::F32, rows * n), stage.view(DType::F32, rows * n));
    let activation = Activation::GeluTanh;
    let op = GatedLinear { x, norm: None, gate, up, scratch, out, activation };
    stage.device.gated_linear(op).unwrap();
    found.extend(stage.read(out));
    found
}

pub(crate) fn emulated() -> Cuda {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
    Cuda::with_driver(Box::new(Emulated::new(&folder))).unwrap()
}

#[test]
fn a_weight_has_the_size_that_it_takes_in_device_memory() {
    let (mut device, mut rng) = (emulated(), Rng::named("sizes"));
    // Vectors and narrow matrices are f32; others are tiles of 16 rows in blocks of 128 columns.
    for (shape, bytes) in [([1, 40], 40 * 4), ([64, 16], 64 * 16 * 4), ([17, 130], 2 * 2 * 4096)] {
        let matrix = random_matrix(&mut rng, shape, Format::Dense(DType::BF16)).unwrap();
        let id = device.upload("weight", matrix).unwrap();
        assert_eq!(device.weight(id).unwrap().bytes, bytes, "{shape:?}");
    }
}

#[test]
fn weights_of_different_kinds_are_multiplied_apart() {
    let mut device = emulated();
    let (found, expected) = (mixed(&mut device), mixed(&mut plain()));
    let largest = expected.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() <= 1e-5 * largest, "{found}, not {expected}");
    }
}
