//! Named random tensors.

use super::file::StoredTensor;
use forerun_backend::conform::Rng;
use forerun_base::{DType, f32_to_bf16};

/// How a norm's weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormInit {
    /// The factor itself, around one.
    Plain,
    /// The factor less one, around zero.
    Offset,
}

/// Collects tensors in the model's own element type.
pub(super) struct TinyWeights {
    prefix: String,
    dtype: DType,
    /// Whether tensors have shapes and no numbers.
    hollow: bool,
    tensors: Vec<StoredTensor>,
}

impl TinyWeights {
    /// Tensors of `dtype`, drawn by `seed` and the model's name.
    pub(super) fn new(seed: u64, model: &str, dtype: DType) -> Self {
        Self { prefix: format!("{seed}/{model}"), dtype, hollow: false, tensors: Vec::new() }
    }

    /// Tensors that have shapes and no numbers.
    pub(super) fn hollow(dtype: DType) -> Self {
        Self { prefix: String::new(), dtype, hollow: true, tensors: Vec::new() }
    }

    pub(super) fn into_tensors(self) -> Vec<StoredTensor> {
        self.tensors
    }

    /// A projection `[outputs, inputs]` that keeps the size of its input times `gain`.
    pub(super) fn projection(&mut self, name: String, shape: [usize; 2], gain: f32) {
        self.normal(name, &shape, gain / (shape[1] as f32).sqrt());
    }

    /// A stack of projections `[experts, outputs, inputs]`.
    pub(super) fn stack(&mut self, name: String, shape: [usize; 3], gain: f32) {
        self.normal(name, &shape, gain / (shape[2] as f32).sqrt());
    }

    pub(super) fn normal(&mut self, name: String, shape: &[usize], spread: f32) {
        let dtype = self.dtype;
        self.put(name, shape, dtype, |rng| spread * normal(rng));
    }

    pub(super) fn norm(&mut self, name: String, len: usize, kind: NormInit) {
        let dtype = self.dtype;
        self.norm_as(name, len, kind, dtype);
    }

    pub(super) fn norm_as(&mut self, name: String, len: usize, kind: NormInit, dtype: DType) {
        let centre = if kind == NormInit::Plain { 1.0 } else { 0.0 };
        self.put(name, &[len], dtype, |rng| centre + 0.15 * normal(rng));
    }

    /// Numbers around `centre`.
    pub(super) fn near(&mut self, name: String, len: usize, centre: f32, spread: f32) {
        let dtype = self.dtype;
        self.put(name, &[len], dtype, |rng| centre + spread * normal(rng));
    }

    /// The numbers below `len` in some order, as 64-bit integers.
    pub(super) fn order(&mut self, name: String, len: usize) {
        let mut rng = Rng::named(&format!("{}/{name}", self.prefix));
        let mut places: Vec<(u32, i64)> =
            (0..len as i64).map(|i| (rng.signed().to_bits(), i)).collect();
        places.sort_unstable();
        let bytes = places.iter().flat_map(|(_, i)| i.to_le_bytes()).collect();
        self.tensors.push(StoredTensor { name, dtype: DType::I64, shape: vec![len], bytes });
    }

    /// Numbers made from a uniform draw out of `low..high`.
    pub(super) fn uniform(
        &mut self,
        name: String,
        len: usize,
        dtype: DType,
        [low, high]: [f32; 2],
        make: fn(f32) -> f32,
    ) {
        self.put(name, &[len], dtype, |rng| make(low + (high - low) * 0.5 * (rng.signed() + 1.0)));
    }

    fn put(&mut self, name: String, shape: &[usize], dtype: DType, draw: impl Fn(&mut Rng) -> f32) {
        let mut rng = Rng::named(&format!("{}/{name}", self.prefix));
        let count = if self.hollow { 0 } else { shape.iter().product::<usize>() };
        let values = (0..count).map(|_| draw(&mut rng));
        let bytes = match dtype {
            DType::F32 => values.flat_map(f32::to_le_bytes).collect(),
            _ => values.flat_map(|v| f32_to_bf16(v).to_le_bytes()).collect(),
        };
        self.tensors.push(StoredTensor { name, dtype, shape: shape.to_vec(), bytes });
    }
}

/// Three uniform numbers have variance one together: close enough to a normal number.
fn normal(rng: &mut Rng) -> f32 {
    rng.signed() + rng.signed() + rng.signed()
}
