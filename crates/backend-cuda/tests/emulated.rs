//! The emulated driver does what CUDA promises.

use forerun_backend::op::{gumbel, weight};
use forerun_backend_cuda::driver::{Args, Driver, Emulated, KernelSource, Launch};
use forerun_backend_cuda::{PRELUDE, families};
use std::path::Path;

fn driver() -> Emulated {
    Emulated::new(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated"))
}

const EXCHANGE: KernelSource = KernelSource::new(
    "exchange",
    &[
        PRELUDE,
        r"
struct Reverse { float* x; };

// Reverses each block's numbers, through shared memory and then through shuffles within warps.
KERNEL(reverse, Reverse, 256) {
  __shared__ float shared[256];
  float* x = a.x + blockIdx.x * blockDim.x;
  shared[blockDim.x - 1 - threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = shared[threadIdx.x];
}

KERNEL(total, Reverse, 256) {
  float sum = a.x[threadIdx.x];
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, by);
  a.x[threadIdx.x] = sum;
}

KERNEL(stuck, Reverse, 256) {
  if (threadIdx.x != 3) __syncwarp();
}
",
    ],
);

const NOISE: KernelSource = KernelSource::new(
    "noise",
    &[
        PRELUDE,
        include_str!("../kernels/sample.cu"),
        r"
struct Noise { float* x; };

// Of token and position i the noise, and of -i / 500 the weight, which has 40 bits.
KERNEL(noise, Noise, 256) {
  u32 i = blockIdx.x * 256 + threadIdx.x;
  Row row = {};
  row.seed_low = 0x9abcdef0;
  row.seed_high = 0x12345678;
  row.position = i;
  u64 weight = weight_of((float)i * -0.002f);
  a.x[3 * i] = gumbel(row, i);
  a.x[3 * i + 1] = (float)(u32)(weight >> 20);
  a.x[3 * i + 2] = (float)(u32)(weight & 0xfffff);
}
",
    ],
);

#[test]
fn noise_and_weights_of_filters_have_the_bits_of_their_definitions() {
    const COUNT: usize = 1 << 14;
    let mut x = vec![0.0; 3 * COUNT];
    run_of(&NOISE, "noise", &mut x, (COUNT / 256) as u32, 256).expect("runs");
    for (i, x) in x.chunks_exact(3).enumerate() {
        let token = i as u32;
        let noise = gumbel(0x1234_5678_9abc_def0, token, token);
        assert_eq!(x[0].to_bits(), noise.to_bits(), "noise of {i}");
        let found = (x[1] as u64) << 20 | x[2] as u64;
        assert_eq!(found, weight(i as f32 * -0.002), "weight of {i}");
    }
}

fn run(name: &str, x: &mut [f32], blocks: u32, threads: u32) -> Result<(), String> {
    run_of(&EXCHANGE, name, x, blocks, threads)
}

fn run_of(
    source: &KernelSource,
    name: &str,
    x: &mut [f32],
    blocks: u32,
    threads: u32,
) -> Result<(), String> {
    let mut driver = driver();
    let module = driver.load(source).map_err(|e| e.to_string())?;
    let kernel = driver.kernel(module, name).map_err(|e| e.to_string())?;
    let mut bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let memory = driver.alloc(bytes.len() as u64).map_err(|e| e.to_string())?;
    let args = Args::new().with(memory);
    // SAFETY: one f32 was allocated for each thread.
    unsafe {
        driver.copy_in(memory, &bytes).map_err(|e| e.to_string())?;
        driver.launch(&Launch::line(kernel, blocks, threads, &args)).map_err(|e| e.to_string())?;
        driver.copy_out(memory, &mut bytes).map_err(|e| e.to_string())?;
    }
    for (x, bytes) in x.iter_mut().zip(bytes.chunks_exact(4)) {
        *x = f32::from_le_bytes(bytes.try_into().expect("four bytes"));
    }
    Ok(())
}

#[test]
fn threads_of_a_block_meet_at_barriers() {
    let mut x: Vec<f32> = (0..192).map(|i| i as f32).collect();
    run("reverse", &mut x, 3, 64).expect("runs");
    let expected: Vec<f32> =
        (0..3).flat_map(|b| (0..64).rev().map(move |i| (b * 64 + i) as f32)).collect();
    assert_eq!(x, expected);
}

#[test]
fn lanes_of_a_warp_exchange_numbers() {
    let mut x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    run("total", &mut x, 1, 64).expect("runs");
    assert_eq!((x[0], x[31], x[32]), (496.0, 496.0, 1520.0));
}

const SUM: &str = r"
struct Reverse { float* x; };

KERNEL(total, Reverse, 256) {
  for (int i = 0; i < 64; i++) {
    float sum = block_sum(a.x[blockIdx.x * blockDim.x + threadIdx.x]);
    __syncthreads();
    a.x[blockIdx.x * blockDim.x + threadIdx.x] = sum / blockDim.x;
  }
}
";

#[test]
fn modules_that_run_side_by_side_share_no_memory() {
    const SOURCES: [KernelSource; 2] =
        [KernelSource::new("one", &[PRELUDE, SUM]), KernelSource::new("other", &[PRELUDE, SUM])];
    std::thread::scope(|scope| {
        for (source, value) in SOURCES.iter().zip([1.0, 2.0]) {
            scope.spawn(move || {
                for _ in 0..50 {
                    let mut x = [value; 1024];
                    run_of(source, "total", &mut x, 4, 256).expect("runs");
                    assert_eq!(x, [value; 1024]);
                }
            });
        }
    });
}

#[test]
fn threads_that_wait_for_nobody_are_an_error() {
    let why = run("stuck", &mut [0.0; 32], 1, 32).expect_err("lane 3 never comes");
    assert!(why.contains("wait for each other"), "{why}");
}

#[test]
fn every_family_compiles_for_the_emulation() {
    let mut driver = driver();
    for family in families() {
        driver.load(&family).unwrap_or_else(|why| panic!("{}: {why}", family.name));
    }
}
