//! Attention over contexts of several chunks of keys, which threads may share.

use forerun_backend::conform::Rng;
use forerun_backend::op::{Attention, AttentionInputs, CacheLayout, NewKeys};
use forerun_backend::{Backend, BufferRole, BufferSpec, HostData, HostDataMut, View};
use forerun_backend_cpu::{Cpu, Level, Tuned, plain};
use forerun_base::DType;
use std::ops::Range;

const WINDOWS: [Option<usize>; 4] = [None, Some(70), Some(256), Some(300)];

/// Rows of one sequence.
#[derive(Clone, Copy, Debug)]
struct ChunkShape {
    layout: CacheLayout,
    heads: usize,
    dtype: DType,
}

/// Full vectors of keys and of elements; of one of them; of neither.
const SHAPES: [ChunkShape; 6] = [
    ChunkShape { layout: layout(11, 2, 64, 32), heads: 6, dtype: DType::F16 },
    ChunkShape { layout: layout(11, 1, 64, 40), heads: 4, dtype: DType::BF16 },
    ChunkShape { layout: layout(30, 1, 24, 16), heads: 7, dtype: DType::F16 },
    ChunkShape { layout: layout(101, 1, 7, 9), heads: 2, dtype: DType::F32 },
    ChunkShape { layout: coded(11, 2, 64, 96), heads: 6, dtype: DType::I8 },
    ChunkShape { layout: coded(30, 1, 24, 42), heads: 7, dtype: DType::I8 },
];

const fn layout(blocks: usize, kv_heads: usize, block: usize, head_dim: usize) -> CacheLayout {
    CacheLayout { blocks, kv_heads, block, head_dim, ..CacheLayout::NONE }
}

const fn coded(blocks: usize, kv_heads: usize, block: usize, head_dim: usize) -> CacheLayout {
    CacheLayout { coded: true, ..layout(blocks, kv_heads, block, head_dim) }
}

/// Positions at both sides of the edges of chunks, whether they are 256 keys or whole blocks near that.
fn positions() -> Vec<u32> {
    let edges = [240, 252, 256, 480, 504, 512];
    let near = edges.into_iter().flat_map(|edge| edge - 2..edge + 2);
    [3].into_iter().chain(near).chain([699, 20]).collect()
}

fn alloc(device: &mut dyn Backend, dtype: DType, len: usize) -> View {
    let spec = BufferSpec { label: "test", dtype, len, role: BufferRole::State };
    View::head(device.alloc(spec).expect("memory"), len)
}

fn floats(device: &mut dyn Backend, data: &[f32]) -> View {
    let view = alloc(device, DType::F32, data.len());
    device.write(view, HostData::F32(data)).expect("a view of floats");
    view
}

fn words(device: &mut dyn Backend, data: &[u32]) -> View {
    let view = alloc(device, DType::U32, data.len());
    device.write(view, HostData::U32(data)).expect("a view of words");
    view
}

/// What attention reads. Keys and values are `[position][head][element]`.
struct AttentionRows {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    positions: Vec<u32>,
}

impl AttentionRows {
    fn new(shape: ChunkShape, positions: Vec<u32>) -> Self {
        let mut rng = Rng::named("chunks");
        let CacheLayout { blocks, kv_heads, block, head_dim, .. } = shape.layout;
        let [k, v] = [(); 2].map(|()| rng.values(blocks * kv_heads * block * head_dim));
        // Sharp enough that some keys dominate, so a wrong one shows.
        let q = rng.values(positions.len() * shape.heads * shape.layout.head_dim);
        Self { q: q.iter().map(|x| 4.0 * x).collect(), k, v, positions }
    }
}

const SCALE: f32 = 0.25;

/// Attention of some of the rows.
fn attend(
    device: &mut dyn Backend,
    shape: ChunkShape,
    inputs: &AttentionRows,
    rows: Range<usize>,
    window: Option<usize>,
) -> Vec<f32> {
    let ChunkShape { layout, heads, dtype } = shape;
    let [k_cache, v_cache] = [0; 2].map(|_| alloc(device, dtype, layout.len()));
    let (k, v) = (floats(device, &inputs.k), floats(device, &inputs.v));
    let places: Vec<u32> = (0..(layout.blocks * layout.block) as u32).collect();
    let places = words(device, &places);
    let (k_norm, v_norm) = (None, None);
    let keys = NewKeys { k, v, k_norm, v_norm, places, k_cache, v_cache, layout };
    device.attention_inputs(AttentionInputs::plain(keys)).expect("they fit");
    let width = heads * layout.head_dim;
    let op = Attention {
        q: floats(device, &inputs.q[rows.start * width..rows.end * width]),
        k_cache,
        v_cache,
        layout,
        positions: words(device, &inputs.positions[rows.clone()]),
        span_of: words(device, &vec![0; rows.len()]),
        tables: words(device, &(0..layout.blocks as u32).collect::<Vec<_>>()),
        table_width: layout.blocks,
        heads,
        scale: SCALE,
        window,
        out: alloc(device, DType::F32, rows.len() * width),
    };
    device.attention(op).expect("operands fit");
    let mut out = vec![0.0; op.out.len];
    device.read(op.out, HostDataMut::F32(&mut out)).expect("a view of floats");
    out
}

fn tuned(threads: usize) -> Cpu<Tuned> {
    Cpu::with_kernels(Tuned::new(Some(threads)))
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits()))
}

#[test]
fn several_chunks_have_the_same_bits_on_every_level_and_number_of_threads() {
    for shape in SHAPES {
        let inputs = AttentionRows::new(shape, positions());
        let all = 0..inputs.positions.len();
        for window in WINDOWS {
            let one = attend(&mut tuned(1), shape, &inputs, all.clone(), window);
            for level in Level::ALL.into_iter().filter(|level| level.available()) {
                for threads in [1, 2, 5] {
                    let tuned = Tuned::with_isa(level, Some(threads)).expect("it is available");
                    let mut device = Cpu::with_kernels(tuned);
                    let found = attend(&mut device, shape, &inputs, all.clone(), window);
                    assert!(
                        same(&found, &one),
                        "{level:?}, {threads} threads, {shape:?} {window:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn rows_have_the_same_bits_however_they_are_cut() {
    for shape in SHAPES {
        let inputs = AttentionRows::new(shape, positions());
        let rows = inputs.positions.len();
        for window in WINDOWS {
            let all = attend(&mut tuned(1), shape, &inputs, 0..rows, window);
            for size in [1, 2, 3, 5, 11] {
                let mut device = tuned(1 + size % 3);
                let mut cut = Vec::new();
                for first in (0..rows).step_by(size) {
                    let part = first..(first + size).min(rows);
                    cut.extend(attend(&mut device, shape, &inputs, part, window));
                }
                assert!(same(&cut, &all), "parts of {size}, {shape:?} {window:?}");
            }
        }
    }
}

#[test]
fn several_chunks_stay_near_the_reference() {
    for shape in SHAPES {
        let inputs = AttentionRows::new(shape, positions());
        let rows = 0..inputs.positions.len();
        for window in WINDOWS {
            let found = attend(&mut tuned(2), shape, &inputs, rows.clone(), window);
            let expected = attend(&mut plain(), shape, &inputs, rows.clone(), window);
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() <= 1e-5,
                    "{found} {expected} {shape:?} {window:?}"
                );
            }
        }
    }
}

/// `out` of one query head at full precision, and the same of sizes, which is what an error is compared with.
fn exact(shape: ChunkShape, inputs: &AttentionRows, row: usize, head: usize) -> Vec<[f64; 2]> {
    let (dim, keys) = (shape.layout.head_dim, inputs.positions[row] as usize + 1);
    let q = &inputs.q[(row * shape.heads + head) * dim..][..dim];
    let dot = |k: &[f32]| -> f64 {
        q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * f64::from(SCALE)
    };
    let scores: Vec<f64> = inputs.k.chunks(dim).take(keys).map(dot).collect();
    let max = scores.iter().copied().fold(f64::MIN, f64::max);
    let mut sums = vec![[0.0; 2]; dim];
    let mut total = 0.0;
    for (score, v) in scores.iter().zip(inputs.v.chunks(dim)) {
        let weight = (score - max).exp();
        total += weight;
        for ([sum, size], v) in sums.iter_mut().zip(v) {
            *sum += weight * f64::from(*v);
            *size += weight * f64::from(v.abs());
        }
    }
    sums.iter().map(|sum| sum.map(|x| x / total)).collect()
}

#[test]
fn a_very_long_context_is_as_exact_as_a_short_one() {
    // As many query heads as make the states of all chunks too large to be kept at a time.
    let (layout, heads) = (layout(2048, 1, 64, 16), 32);
    let shape = ChunkShape { layout, heads, dtype: DType::F32 };
    let inputs = AttentionRows::new(shape, vec![0, 255, 256, 20_000, 65_536, 131_071]);
    let rows = inputs.positions.len();
    let found = attend(&mut tuned(2), shape, &inputs, 0..rows, None);
    let alone = attend(&mut tuned(1), shape, &inputs, 0..rows, None);
    assert!(same(&found, &alone), "two threads and one");
    for row in 0..rows {
        for head in [0, 13, 31] {
            let found = &found[(row * heads + head) * layout.head_dim..][..layout.head_dim];
            for (found, [exact, size]) in found.iter().zip(exact(shape, &inputs, row, head)) {
                let error = (f64::from(*found) - exact).abs();
                assert!(error <= 3e-6 * size, "{found} {exact} row {row} head {head}");
            }
        }
    }
}
