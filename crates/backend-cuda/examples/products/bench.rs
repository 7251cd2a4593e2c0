//! Time of products.

use crate::formats::{self, formats};
use crate::graph::time;
use forerun_backend::conform::Rng;
use forerun_backend_cuda::driver::{Address, Driver, Gpu};
use forerun_backend_cuda::products::layout::{PackedLayout, TILE};
use forerun_backend_cuda::products::pack::pack;
use forerun_backend_cuda::products::{
    DeviceWeight, Precision, ProductInput, ProductOutput, Products,
};
use forerun_base::Format;
use std::error::Error;

/// Layers of a 27B hybrid, its head, and an expert's.
const SHAPES: [[usize; 2]; 6] =
    [[17408, 5120], [5120, 17408], [5120, 5120], [248_320, 5120], [8192, 2048], [2048, 512]];
const WIDTHS: [usize; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 8192];
/// Weights together are larger than any cache.
const ROTATED: usize = 760_000_000;
/// Rows that are made on the host; others repeat them.
const MADE: usize = 256;

/// Copies of one weight in different memory.
struct WeightCopies {
    weights: Vec<DeviceWeight>,
    bytes: usize,
}

fn copies(
    gpu: &mut Gpu,
    (name, format): (&str, Format),
    [rows, cols]: [usize; 2],
) -> Result<WeightCopies, Box<dyn Error>> {
    let made = formats::matrix(&mut Rng::named("bench"), [MADE, cols], (name, format))?;
    let made = made.into();
    let made_layout = PackedLayout::of(&made);
    let layout = PackedLayout { rows, ..made_layout };
    let mut part = vec![0; made_layout.bytes()];
    pack(&made, &made_layout, 0..MADE / TILE, &mut part);
    let bytes = layout.bytes();
    let count = ROTATED.div_ceil(bytes);
    let at = gpu.alloc((bytes * count) as u64)?;
    for to in (0..bytes * count).step_by(part.len()) {
        let part = &part[..part.len().min(bytes * count - to)];
        // SAFETY: the part ends where the memory does.
        unsafe { gpu.copy_in(at.offset(to as u64), part)? };
    }
    let weight = |i: usize| {
        let at = at.offset((i * bytes) as u64);
        DeviceWeight { rows, cols, format, bytes, at, layout: Some(layout) }
    };
    Ok(WeightCopies { weights: (0..count).map(weight).collect(), bytes })
}

/// GB/s of a copy within the device, read and written.
fn copy(gpu: &mut Gpu) -> Result<f64, Box<dyn Error>> {
    let bytes = 2_u64 << 30;
    let [from, to] = [gpu.alloc(bytes)?, gpu.alloc(bytes)?];
    // Not in a graph, whose copies are slower.
    let mut times = Vec::new();
    for _ in 0..9 {
        let begin = gpu.alloc(16)?;
        gpu.begin()?;
        // SAFETY: both have that many bytes, and `begin` has a report's.
        let mark = unsafe {
            gpu.copy(to, from, bytes)?;
            gpu.mark(begin)?
        };
        times.push(gpu.wait(mark)?.busy.as_secs_f64() * 1e6);
        // SAFETY: the memory was allocated here, and its address was given to nobody.
        unsafe { gpu.free(begin)? };
    }
    times.sort_by(f64::total_cmp);
    let us = times[times.len() / 2];
    // SAFETY: the buffers were allocated here, and their addresses were given to nobody.
    unsafe {
        gpu.free(from)?;
        gpu.free(to)?;
    }
    Ok(2.0 * bytes as f64 / us / 1e3)
}

fn put(gpu: &mut Gpu, numbers: &[f32]) -> Result<Address, Box<dyn Error>> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
    let at = gpu.alloc(bytes.len() as u64)?;
    // SAFETY: the memory was just made with this size.
    unsafe { gpu.copy_in(at, &bytes)? };
    Ok(at)
}

fn shape(
    gpu: &mut Gpu,
    (name, format): (&str, Format),
    [rows, cols]: [usize; 2],
) -> Result<(), Box<dyn Error>> {
    let copies = copies(gpu, (name, format), [rows, cols])?;
    let head = rows > 100_000;
    let most = if head { 64 } else { 8192 };
    let x = Rng::named("x").values(64 * cols).repeat(most / 64);
    let x = put(gpu, &x)?;
    let at = gpu.alloc((most * rows * 4) as u64)?;
    let mut products = Products::default();
    for precision in [Precision::Half, Precision::Exact] {
        let mut first = None;
        for n in WIDTHS.into_iter().filter(|&n| n <= most) {
            if precision == Precision::Exact && n > 8 && n != 512 {
                continue;
            }
            let input = ProductInput::plain(x, n, cols);
            let count = if n <= 64 { copies.weights.len() } else { 3.min(copies.weights.len()) };
            let mut queue = |gpu: &mut Gpu| -> Result<(), Box<dyn Error>> {
                for &weight in copies.weights.iter().take(count) {
                    let output =
                        ProductOutput { weight, bias: None, channels: rows, at, add: false };
                    // SAFETY: `x` and the output were allocated for the largest number of rows.
                    unsafe { products.linears(gpu, input, &[output], precision)? };
                }
                Ok(())
            };
            // Kernels are compiled and buffers grown before a graph is captured.
            queue(gpu)?;
            let us = time(gpu, if n <= 64 { 9 } else { 5 }, queue)? / count as f64;
            let one = *first.get_or_insert(us);
            let flops = 2.0 * (n * rows * cols) as f64 / us / 1e6;
            println!(
                "{name} {rows}x{cols} {precision:?} n {n}: {us:.2} us, {:.0} GB/s, {flops:.1} TFLOP/s, {:.2} of one",
                copies.bytes as f64 / us / 1e3,
                us / one,
            );
        }
    }
    // SAFETY: the buffers were allocated here, and their addresses were given to nobody.
    unsafe {
        gpu.free(x)?;
        gpu.free(at)?;
        gpu.free(copies.weights[0].at)?;
    }
    Ok(())
}

pub(crate) fn run(gpu: &mut Gpu, only: &[&str]) -> Result<(), Box<dyn Error>> {
    println!("copy {:.0} GB/s", copy(gpu)?);
    for (name, format) in formats() {
        if !only.is_empty() && !only.contains(&name) {
            continue;
        }
        let all = ["bf16", "fp8", "i8", "u4", "i4"].contains(&name);
        for of in SHAPES.into_iter().take(if all { SHAPES.len() } else { 2 }) {
            shape(gpu, (name, format), of)?;
        }
    }
    println!("copy {:.0} GB/s", copy(gpu)?);
    Ok(())
}
