//! Bandwidth of memory, and GEMM and GEMV in the formats people use.
//!
//! Times are the host's, from the call to its end, and the best of several: interference only ever makes a run slower.
//! A GEMV goes through several copies of its weight one after another, so that a large cache does not stand in for
//! memory; in the short form there is one copy, and a rate above the read bandwidth means that it stayed in cache.

use forerun_backend::conform::{Rng, random_matrix};
use forerun_backend::op::{GatherRows, Linear};
use forerun_backend::{
    Backend, BackendError, BufferRole, BufferSpec, HostData, Op, View, WeightId, submit_and_wait,
};
use forerun_base::{Codes, DType, Format, ScaleKind};
use forerun_devices::{DeviceName, DeviceOptions};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The values of 4-bit floats, doubled.
const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// Formats by the names that people know them by.
const FORMATS: [(&str, Format); 10] = [
    ("bf16", Format::Dense(DType::BF16)),
    ("f16", Format::Dense(DType::F16)),
    ("fp8", grouped(Codes::E4m3, 128, ScaleKind::F32, false)),
    ("q8_0", grouped(Codes::Int { bits: 8 }, 32, ScaleKind::F16, false)),
    ("q4_0", grouped(Codes::Int { bits: 4 }, 32, ScaleKind::F16, false)),
    ("q4_k", grouped(Codes::Uint { bits: 4 }, 32, ScaleKind::Nested, true)),
    ("q6_k", grouped(Codes::Int { bits: 6 }, 16, ScaleKind::Nested, false)),
    ("mlx 8 bit", grouped(Codes::Uint { bits: 8 }, 64, ScaleKind::BF16, true)),
    ("mlx 4 bit", grouped(Codes::Uint { bits: 4 }, 64, ScaleKind::BF16, true)),
    ("mxfp4", grouped(Codes::Table { values: FP4 }, 32, ScaleKind::F32, false)),
];
/// How often [`measure`] tells what it does.
pub(crate) const PARTS: usize = FORMATS.len() + 1;

const fn grouped(codes: Codes, group: usize, scale: ScaleKind, offset: bool) -> Format {
    Format::Grouped { codes, group, scale, offset }
}

/// How fast a device is.
#[derive(Debug, Serialize)]
pub struct RateReport {
    /// Null where it could not be measured.
    pub bandwidth: Option<Bandwidth>,
    /// By format.
    pub products: Vec<ProductRate>,
}

/// Bytes a second of memory.
#[derive(Debug, Serialize)]
pub struct Bandwidth {
    /// Reading; null where only products read (then the best GEMV says it).
    pub read_gb_per_s: Option<f64>,
    /// Copying, each byte counted once read and once written.
    pub copy_gb_per_s: f64,
    /// f32 multiply-adds in registers; null where the device has no such test.
    pub peak_f32_gflop_per_s: Option<f64>,
}

/// Products with one weight.
#[derive(Debug, Serialize)]
pub struct ProductRate {
    /// By its usual name.
    pub format: &'static str,
    /// Rows and columns of the weight.
    pub shape: [usize; 2],
    /// Bytes of the weight, which a GEMV reads.
    pub weight_bytes: usize,
    /// Of one row.
    pub gemv_us: f64,
    /// Weight bytes a second of one row.
    pub gemv_gb_per_s: f64,
    /// Of one row.
    pub gemv_gflop_per_s: f64,
    /// Rows of the GEMM.
    pub gemm_rows: usize,
    /// Of so many rows.
    pub gemm_gflop_per_s: f64,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateSizes {
    /// Rows and columns of a weight.
    side: usize,
    /// Rows of a GEMM.
    rows: usize,
    /// Bytes of the copies of a weight that a GEMV goes through.
    working_set: usize,
    /// Bytes that are copied.
    copied: usize,
    /// Time for each measurement, of which there are two at least.
    time: Duration,
}

impl RateSizes {
    /// Sizes that fit a machine with so much free memory.
    pub(crate) fn new(quick: bool, available: Option<u64>) -> Self {
        if quick {
            let (side, rows, time) = (1024, 64, Duration::from_millis(20));
            return Self { side, rows, working_set: 0, copied: 16 << 20, time };
        }
        let share =
            available.map_or(usize::MAX, |bytes| usize::try_from(bytes / 8).unwrap_or(usize::MAX));
        let working_set = share.min(512 << 20);
        let time = Duration::from_millis(300);
        Self { side: 4096, rows: 512, working_set, copied: share.min(256 << 20), time }
    }
}

/// Measures a device; also says what could not be measured and why.
pub(crate) fn measure(
    device: &DeviceOptions,
    sizes: RateSizes,
    watch: &mut dyn FnMut(&str),
) -> (RateReport, Vec<String>) {
    let mut problems = Vec::new();
    watch("bandwidth");
    let bandwidth = bandwidth(device, sizes);
    let bandwidth = bandwidth.map_err(|why| problems.push(format!("bandwidth: {why}"))).ok();
    let mut products = Vec::new();
    for (name, format) in FORMATS {
        watch(&format!("products: {name}"));
        match product(device, name, format, sizes) {
            Ok(rate) => products.push(rate),
            Err(why) => problems.push(format!("products with {name}: {why}")),
        }
    }
    (RateReport { bandwidth, products }, problems)
}

fn open(device: &DeviceOptions) -> Result<Box<dyn Backend>, String> {
    forerun_devices::open(device).map(|opened| opened.backend).map_err(|why| why.to_string())
}

/// The processor has tests of its own; a GPU copies by the operation that copies.
fn bandwidth(device: &DeviceOptions, sizes: RateSizes) -> Result<Bandwidth, String> {
    if device.device == DeviceName::Cpu {
        let machine = forerun_devices::measure(device.threads).map_err(|why| why.to_string())?;
        return Ok(Bandwidth {
            read_gb_per_s: Some(machine.read_bytes_per_s / 1e9),
            copy_gb_per_s: machine.copy_bytes_per_s / 1e9,
            peak_f32_gflop_per_s: Some(machine.flops_per_s / 1e9),
        });
    }
    let mut backend = open(device)?;
    let copied = copy_rate(&mut *backend, sizes).map_err(|why| why.to_string())?;
    Ok(Bandwidth { read_gb_per_s: None, copy_gb_per_s: copied / 1e9, peak_f32_gflop_per_s: None })
}

/// Bytes a second of `gather_rows` in order.
fn copy_rate(backend: &mut dyn Backend, sizes: RateSizes) -> Result<f64, BackendError> {
    const DIM: usize = 4096;
    let rows = (sizes.copied / size_of::<f32>() / DIM).max(1);
    let x = floats(backend, &vec![1.0; rows * DIM])?;
    let out = floats(backend, &vec![0.0; rows * DIM])?;
    let numbers: Vec<u32> = (0..rows as u32).collect();
    let spec =
        BufferSpec { label: "rows", dtype: DType::U32, len: rows, role: BufferRole::Scratch };
    let order = View::head(backend.alloc(spec)?, rows);
    backend.write(order, HostData::U32(&numbers))?;
    let copy = GatherRows { x, rows: order, out, dim: DIM };
    let seconds = best(backend, sizes.time, &[copy.into()])?;
    Ok((2 * rows * DIM * size_of::<f32>()) as f64 / seconds)
}

fn product(
    device: &DeviceOptions,
    name: &'static str,
    format: Format,
    sizes: RateSizes,
) -> Result<ProductRate, String> {
    let mut backend = open(device)?;
    product_on(&mut *backend, name, format, sizes)
}

fn product_on(
    backend: &mut dyn Backend,
    name: &'static str,
    format: Format,
    sizes: RateSizes,
) -> Result<ProductRate, String> {
    let RateSizes { side, rows, .. } = sizes;
    let mut rng = Rng::named(name);
    let matrix = random_matrix(&mut rng, [side, side], format).map_err(|why| why.to_string())?;
    let mut run = || -> Result<ProductRate, BackendError> {
        let first = backend.upload("weight", matrix.clone())?;
        let weight_bytes = backend.weight(first).map_or(0, |info| info.bytes);
        let copies = (sizes.working_set / weight_bytes.max(1)).max(1);
        let mut weights: Vec<WeightId> = vec![first];
        for _ in 1..copies {
            weights.push(backend.upload("weight", matrix.clone())?);
        }
        let x = floats(backend, &rng.values(rows * side))?;
        let out = floats(backend, &vec![0.0; rows * side])?;
        let (row, line) = (x.part(0, side), out.part(0, side));
        let gemvs: Vec<Op> = weights.iter().map(|&w| Linear::set(row, w, line).into()).collect();
        let gemv = best(backend, sizes.time, &gemvs)? / copies as f64;
        let gemm = best(backend, sizes.time, &[Linear::set(x, first, out).into()])?;
        let flops = (2 * side * side) as f64;
        Ok(ProductRate {
            format: name,
            shape: [side, side],
            weight_bytes,
            gemv_us: gemv * 1e6,
            gemv_gb_per_s: weight_bytes as f64 / gemv / 1e9,
            gemv_gflop_per_s: flops / gemv / 1e9,
            gemm_rows: rows,
            gemm_gflop_per_s: flops * rows as f64 / gemm / 1e9,
        })
    };
    run().map_err(|why| why.to_string())
}

fn floats(backend: &mut dyn Backend, values: &[f32]) -> Result<View, BackendError> {
    let (dtype, len) = (DType::F32, values.len());
    let spec = BufferSpec { label: "measured", dtype, len, role: BufferRole::Scratch };
    let view = View::head(backend.alloc(spec)?, len);
    backend.write(view, HostData::F32(values))?;
    Ok(view)
}

/// Seconds of the fastest run of all these operations; at least two runs after one that warms.
fn best(backend: &mut dyn Backend, time: Duration, ops: &[Op]) -> Result<f64, BackendError> {
    let mut once = || -> Result<f64, BackendError> {
        let start = Instant::now();
        ops.iter().try_for_each(|op| op.apply(backend))?;
        submit_and_wait(backend)?;
        Ok(start.elapsed().as_secs_f64())
    };
    once()?;
    let started = Instant::now();
    let mut fastest = once()?;
    loop {
        fastest = fastest.min(once()?);
        if started.elapsed() >= time {
            return Ok(fastest.max(f64::MIN_POSITIVE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_backend_cpu::tuned;

    const TINY: RateSizes = RateSizes {
        side: 256,
        rows: 8,
        working_set: 1 << 20,
        copied: 1 << 20,
        time: Duration::ZERO,
    };

    #[test]
    fn every_format_is_a_weight_and_has_positive_rates() {
        for (name, format) in FORMATS {
            let rate = product_on(&mut tuned(Some(1)), name, format, TINY).unwrap();
            assert!(rate.weight_bytes >= 256 * 256 / 2, "{rate:?}");
            for rate in [rate.gemv_gb_per_s, rate.gemv_gflop_per_s, rate.gemm_gflop_per_s] {
                assert!(rate.is_finite() && rate > 0.0, "{name}: {rate}");
            }
        }
    }

    #[test]
    fn a_device_without_a_test_of_its_own_copies_by_its_operation() {
        let rate = copy_rate(&mut tuned(Some(1)), TINY).unwrap();
        assert!(rate.is_finite() && rate > 1e6, "{rate}");
    }

    #[test]
    fn a_machine_with_little_memory_is_measured_with_little() {
        let small = RateSizes::new(false, Some(64 << 20));
        assert_eq!((small.working_set, small.copied), (8 << 20, 8 << 20));
        assert_eq!(RateSizes::new(false, None).working_set, 512 << 20);
        assert!(RateSizes::new(true, None).side < small.side);
    }
}
