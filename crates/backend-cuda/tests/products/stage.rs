//! Matrices, rows and calls on the emulated device.

use forerun_backend::conform::{Rng, random_matrix};
use forerun_backend_cuda::driver::{Address, Driver, Emulated};
use forerun_backend_cuda::products::{
    DeviceWeight, ProductInput, ProductNorm, ProductOutput, Products,
};
use forerun_base::{Format, Matrix};
use std::path::Path;

pub(crate) struct ProductStage {
    pub(crate) driver: Emulated,
    pub(crate) products: Products,
    pub(crate) rng: Rng,
}

impl ProductStage {
    pub(crate) fn new(seed: u64) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
        let driver = Emulated::new(&folder);
        Self { driver, products: Products::default(), rng: Rng::named(&format!("products {seed}")) }
    }

    pub(crate) fn put(&mut self, numbers: &[f32]) -> Address {
        let bytes: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.put_bytes(&bytes)
    }

    pub(crate) fn put_words(&mut self, words: &[u32]) -> Address {
        let bytes: Vec<u8> = words.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.put_bytes(&bytes)
    }

    fn put_bytes(&mut self, bytes: &[u8]) -> Address {
        let at = self.driver.alloc(bytes.len() as u64).unwrap();
        // SAFETY: the memory was just made with this size.
        unsafe { self.driver.copy_in(at, bytes).unwrap() };
        at
    }

    pub(crate) fn scratch(&mut self, numbers: usize) -> Address {
        self.driver.alloc(numbers as u64 * 4).unwrap()
    }

    pub(crate) fn get(&mut self, at: Address, numbers: usize) -> Vec<f32> {
        let mut bytes = vec![0; numbers * 4];
        // SAFETY: every caller passes the address and length of what it allocated.
        unsafe { self.driver.copy_out(at, &mut bytes).unwrap() };
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    pub(crate) fn weight(&mut self, shape: [usize; 2], format: Format) -> (DeviceWeight, Matrix) {
        let matrix = random_matrix(&mut self.rng, shape, format).unwrap();
        (DeviceWeight::upload(&mut self.driver, &matrix.clone().into()).unwrap(), matrix)
    }

    pub(crate) fn input(&mut self, x: &[f32], dim: usize) -> ProductInput {
        ProductInput::plain(self.put(x), x.len() / dim, dim)
    }

    pub(crate) fn norm(&mut self, dim: usize) -> (ProductNorm, Vec<f32>) {
        let weight: Vec<f32> = self.rng.values(dim).iter().map(|v| 1.0 + 0.3 * v).collect();
        (ProductNorm { weight: self.put(&weight), eps: 1e-5 }, weight)
    }

    pub(crate) fn output(&mut self, weight: DeviceWeight, rows: usize) -> ProductOutput {
        let at = self.scratch(rows * weight.rows);
        ProductOutput { weight, bias: None, channels: weight.rows, at, add: false }
    }
}

/// `x Wᵀ` in f64.
pub(crate) fn product(x: &[f32], matrix: &Matrix) -> Vec<f64> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let mut line = vec![0.0; cols];
    let mut out = vec![0.0; x.len() / cols * rows];
    for row in 0..rows {
        matrix.decode_row(row, &mut line);
        for (token, x) in x.chunks_exact(cols).enumerate() {
            let terms = x.iter().zip(&line).map(|(a, b)| f64::from(*a) * f64::from(*b));
            out[token * rows + row] = terms.sum();
        }
    }
    out
}

/// Refuses a result that is further from the expected one than `bound` of its largest number.
pub(crate) fn check(name: &str, found: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let largest = expected.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(*found) - expected).abs();
        assert!(
            off <= bound * largest,
            "{name}: number {i} is {found}, not {expected} (of {largest})"
        );
    }
}

pub(crate) fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|v| v.to_bits()).collect()
}
