//! Bits of products.

use crate::formats::{self, formats};
use forerun_backend::conform::Rng;
use forerun_backend::op::Activation;
use forerun_backend_cuda::driver::{Address, Driver};
use forerun_backend_cuda::products::{
    DeviceWeight, KernelChoice, Precision, ProductInput, ProductOutput, Products,
};
use forerun_base::Matrix;
use std::error::Error;

const SHAPES: [[usize; 2]; 4] = [[100, 256], [64, 5120], [36, 15360], [272, 2048]];
const WIDTHS: [usize; 10] = [1, 2, 3, 5, 8, 13, 16, 24, 64, 150];

fn put(driver: &mut dyn Driver, numbers: &[f32]) -> Result<Address, Box<dyn Error>> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
    let at = driver.alloc(bytes.len() as u64)?;
    // SAFETY: the memory was just made with this size.
    unsafe { driver.copy_in(at, &bytes)? };
    Ok(at)
}

fn get(driver: &mut dyn Driver, at: Address, len: usize) -> Result<Vec<f32>, Box<dyn Error>> {
    let mut bytes = vec![0; len * 4];
    // SAFETY: every caller passes the address and length of what it allocated.
    unsafe { driver.copy_out(at, &mut bytes)? };
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

fn hash(numbers: &[f32]) -> u64 {
    let bytes = numbers.iter().flat_map(|v| v.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// Rows of a hash: all that the CPU has time for.
const HASHED: usize = 24;

/// The largest difference from f64, in parts of the largest number.
fn error(found: &[f32], x: &[f32], matrix: &Matrix) -> f64 {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let (mut line, mut off, mut largest) = (vec![0.0; cols], 0.0_f64, 0.0_f64);
    for row in 0..rows {
        matrix.decode_row(row, &mut line);
        for (token, x) in x.chunks_exact(cols).enumerate() {
            let terms = x.iter().zip(&line).map(|(a, b)| f64::from(*a) * f64::from(*b));
            let exact: f64 = terms.sum();
            let difference = (f64::from(found[token * rows + row]) - exact).abs();
            // What is not a number is as far off as can be.
            off = if difference.is_nan() { f64::INFINITY } else { off.max(difference) };
            largest = largest.max(exact.abs());
        }
    }
    off / largest
}

struct CheckRun<'a> {
    driver: &'a mut dyn Driver,
    products: Products,
    out: [Address; 2],
}

impl CheckRun<'_> {
    /// The product of the first rows of `x`, or with a second weight what a gate makes of both.
    fn product(
        &mut self,
        x: ProductInput,
        weights: &[DeviceWeight],
        precision: Precision,
        choice: KernelChoice,
    ) -> Result<Vec<f32>, Box<dyn Error>> {
        self.products.choice = choice;
        let numbers = x.rows * weights[0].rows;
        let output = |(weight, at): (&DeviceWeight, Address)| ProductOutput {
            weight: *weight,
            bias: None,
            channels: weight.rows,
            at,
            add: false,
        };
        let outputs: Vec<ProductOutput> = weights.iter().zip(self.out).map(output).collect();
        // SAFETY: the outputs were allocated for the most rows of the largest weight.
        unsafe {
            self.driver.fill(self.out[0], 0xff, numbers as u64 * 4)?;
            if let [gate, up] = outputs[..] {
                let how = (precision, None);
                self.products.gated(self.driver, x, [gate, up], Activation::Silu, how)?;
            } else {
                self.products.linears(self.driver, x, &outputs, precision)?;
            }
        }
        get(self.driver, self.out[0], numbers)
    }
}

/// Hashes of the general kernel's products; with `widths`, whether the others have their bits at every number of rows.
pub(crate) fn run(driver: &mut dyn Driver, widths: bool) -> Result<(), Box<dyn Error>> {
    let most = if widths { WIDTHS.into_iter().max().unwrap_or(1) } else { HASHED };
    let out = [most * 272; 2].map(|numbers| driver.alloc(numbers as u64 * 4));
    let [first, second] = out;
    let mut run = CheckRun { driver, products: Products::default(), out: [first?, second?] };
    let mut unequal = 0;
    for (name, format) in formats() {
        for [rows, cols] in SHAPES {
            let mut rng = Rng::named(&format!("{name} {rows} {cols}"));
            let matrix = formats::matrix(&mut rng, [rows, cols], (name, format))?;
            let other = formats::matrix(&mut rng, [rows, cols], (name, format))?;
            let weight = DeviceWeight::upload(run.driver, &matrix.clone().into())?;
            let pair = [weight, DeviceWeight::upload(run.driver, &other.clone().into())?];
            let x = rng.values(most * cols);
            let at = put(run.driver, &x)?;
            let input = |rows| ProductInput::plain(at, rows, cols);
            for precision in [Precision::Half, Precision::Exact] {
                for weights in [&pair[..1], &pair[..]] {
                    let all =
                        run.product(input(most), weights, precision, KernelChoice::General)?;
                    let mut line = String::new();
                    for n in WIDTHS.into_iter().filter(|_| widths) {
                        let found =
                            run.product(input(n), weights, precision, KernelChoice::Fastest)?;
                        let same = found.iter().zip(&all).all(|(a, b)| a.to_bits() == b.to_bits());
                        unequal += usize::from(!same);
                        line += if same { " =" } else { " UNEQUAL" };
                    }
                    let gated = if weights.len() == 2 { " gated" } else { "" };
                    println!(
                        "{name} {rows}x{cols} {precision:?}{gated} {:016x}",
                        hash(&all[..HASHED * rows])
                    );
                    if widths {
                        println!("widths{line}");
                    }
                    if weights.len() == 1 && precision == Precision::Exact {
                        println!("{name} {rows}x{cols} error {:.1e}", error(&all, &x, &matrix));
                    }
                }
            }
        }
    }
    println!("{unequal} unequal");
    if unequal == 0 {
        Ok(())
    } else {
        Err("a row's bits depend on the other rows of its batch".into())
    }
}
