//! Products are batch-invariant, the same for any number of threads, and near the reference. Instruction sets agree on
//! the bits in families: those that sum f32 in lanes, those that sum integers exactly, and AMX where it takes wide
//! limbs or bf16.

use forerun_backend::conform::{
    ConformStage, Rng, all_formats, cases, fitting_columns, random_matrix, typical_formats,
};
use forerun_backend::op::{Activation, Embed, GatedLinear, Linear, Softcap};
use forerun_backend::{Backend, BufferRole, BufferSpec, HostData, HostDataMut, Op, View};
use forerun_backend_cpu::{Cpu, Level, Tuned, plain};
use forerun_base::{Codes, DType, Format, Matrix, ScaleKind};

fn device(level: Level, threads: usize) -> Cpu<Tuned> {
    Cpu::with_kernels(Tuned::with_isa(level, Some(threads)).expect("the level is available"))
}

fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.available())
}

fn alloc(device: &mut dyn Backend, len: usize) -> View {
    let spec = BufferSpec { label: "test", dtype: DType::F32, len, role: BufferRole::State };
    View::head(device.alloc(spec).expect("memory"), len)
}

fn read(device: &mut dyn Backend, view: View) -> Vec<f32> {
    let mut out = vec![0.0; view.len];
    device.read(view, HostDataMut::F32(&mut out)).expect("a view of floats");
    out
}

fn product(device: &mut dyn Backend, weight: &Matrix, x: &[f32]) -> Vec<f32> {
    let (at, out) =
        (alloc(device, x.len()), alloc(device, x.len() / weight.cols() * weight.rows()));
    device.write(at, HostData::F32(x)).expect("a view of floats");
    let id = device.upload("test", weight.clone()).expect("memory");
    device.linear(Linear::set(at, id, out)).expect("operands fit");
    read(device, out)
}

/// The rows of `x` in batches of `batch`.
fn by(device: &mut dyn Backend, weight: &Matrix, x: &[f32], batch: usize) -> Vec<u32> {
    let parts = x.chunks(batch * weight.cols()).flat_map(|x| product(device, weight, x));
    parts.map(f32::to_bits).collect()
}

/// The level whose bits a level has for a format.
fn family(level: Level, format: Format) -> Level {
    let Format::Grouped { codes, scale, .. } = format else {
        let halves = matches!(format, Format::Dense(DType::BF16));
        return if halves && level == Level::Amx { Level::Amx } else { Level::Portable };
    };
    let bits = match codes {
        Codes::Uint { bits } | Codes::Int { bits } => Some(bits),
        Codes::Table { .. } | Codes::E4m3 => None,
    };
    let nested = scale == ScaleKind::Nested;
    match (level, codes) {
        (Level::Avx512 | Level::Neon | Level::Portable, _) => Level::Portable,
        (Level::I8mm | Level::Dotprod, Codes::E4m3) => Level::Portable,
        (Level::I8mm | Level::Dotprod, _) => Level::Dotprod,
        (Level::Amx, Codes::E4m3) => Level::Amx,
        (_, Codes::E4m3) => Level::Portable,
        // AMX multiplies narrow codes by wide limbs.
        (Level::Amx, _) if bits.is_some_and(|bits| bits <= 5) && !nested => Level::Amx,
        (_, _) if bits.is_some_and(|bits| bits <= 6) => Level::Avx2,
        (Level::Amx | Level::Vnni, _) => Level::Vnni,
        (Level::AvxVnni, _) => Level::AvxVnni,
        (Level::Avx2, _) => Level::Portable,
    }
}

#[test]
fn products_are_batch_invariant() {
    let (n, rows) = (37, 64);
    for format in all_formats() {
        let k = fitting_columns(format, 208);
        let mut rng = Rng::named("batch");
        let weight = random_matrix(&mut rng, [n, k], format).expect("a format");
        let x = rng.values(rows * k);
        for (level, threads) in levels().flat_map(|l| [(l, 1), (l, 2), (l, 3)]) {
            let expected = by(&mut device(family(level, format), 1), &weight, &x, 1);
            let mut device = device(level, threads);
            for batch in [1, 2, 3, 5, 8, 9, 17, 64] {
                let same = by(&mut device, &weight, &x, batch) == expected;
                assert!(same, "{} {level:?} {threads} threads by {batch}", format.name());
            }
        }
    }
}

/// Integer sums are exact, so their bits depend neither on the kernel nor on the architecture: the hash below was found
/// on x86-64 and holds on aarch64.
#[test]
fn integer_sums_have_the_same_bits_on_every_architecture() {
    let sets = [Level::Vnni, Level::AvxVnni, Level::Avx2, Level::I8mm, Level::Dotprod];
    let few_bits = |format: &Format| match format {
        Format::Grouped { codes: Codes::Uint { bits } | Codes::Int { bits }, .. } => *bits <= 6,
        _ => false,
    };
    for level in sets.into_iter().filter(|level| level.available()) {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for format in all_formats().into_iter().filter(few_bits) {
            let k = fitting_columns(format, 208);
            let mut rng = Rng::named("architectures");
            let weight = random_matrix(&mut rng, [37, k], format).expect("a format");
            let found = product(&mut device(level, 1), &weight, &rng.values(7 * k));
            for bits in found.into_iter().map(f32::to_bits) {
                hash = (hash ^ u64::from(bits)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        assert_eq!(hash, 0xfa67_4f7a_dc54_8e8f, "{level:?}: {hash:#x}");
    }
}

fn rounding(level: Level, threads: usize) -> Option<Cpu<Tuned>> {
    Some(Cpu::with_kernels(Tuned::with_isa(level, Some(threads))?.rounding()?))
}

#[test]
fn products_of_int8_activations_are_batch_invariant_too() {
    let (n, rows) = (37, 17);
    for format in all_formats() {
        let k = fitting_columns(format, 208);
        let mut rng = Rng::named("rounded batch");
        let weight = random_matrix(&mut rng, [n, k], format).expect("a format");
        let x = rng.values(rows * k);
        for level in levels() {
            let Some(mut one) = rounding(level, 1) else { continue };
            let expected = by(&mut one, &weight, &x, 1);
            let codes = matches!(format,
                Format::Grouped { codes: Codes::Uint { bits } | Codes::Int { bits }, .. } if bits <= 6);
            let exact = by(&mut device(level, 1), &weight, &x, 1);
            assert!(!codes || expected != exact, "{} {level:?} was not rounded", format.name());
            for (threads, batch) in [(1, 2), (1, 3), (2, 5), (3, 17)] {
                let mut device = rounding(level, threads).expect("as before");
                let same = by(&mut device, &weight, &x, batch) == expected;
                assert!(same, "{} {level:?} {threads} threads by {batch}", format.name());
            }
        }
    }
}

/// An activation is off by at most half a step, a 254th of the largest of its unit or superblock.
#[test]
fn int8_activations_are_off_by_no_more_than_half_a_step() {
    let n = 37;
    for (format, k) in all_formats().into_iter().flat_map(|f| [(f, 96), (f, 304)]) {
        let k = fitting_columns(format, k);
        let mut rng = Rng::named("rounded");
        let weight = random_matrix(&mut rng, [n, k], format).expect("a format");
        let x = rng.values(3 * k);
        let expected = product(&mut plain(), &weight, &x);
        for mut device in levels().filter_map(|level| rounding(level, 2)) {
            let found = product(&mut device, &weight, &x);
            let mut line = vec![0.0; k];
            for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
                let row = &x[i / n * k..][..k];
                weight.decode_row(i % n, &mut line);
                let most = row.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                let limit = most / 254.0 * line.iter().map(|w| w.abs()).sum::<f32>() + 1e-4;
                assert!((f - e).abs() <= limit, "{} {}: {f} {e}", format.name(), device.name());
            }
        }
    }
}

/// Packed rows are cached for the next product; writing the rows must invalidate them.
#[test]
fn rows_that_were_overwritten_are_packed_again() {
    let (n, rows) = (37, 3);
    for format in typical_formats() {
        let k = fitting_columns(format, 96);
        let mut rng = Rng::named("written");
        let weight = random_matrix(&mut rng, [n, k], format).expect("a format");
        let inputs = [rng.values(rows * k), rng.values(rows * k)];
        for level in levels() {
            let mut kept = device(level, 2);
            let id = kept.upload("test", weight.clone()).expect("memory");
            let (x, out) = (alloc(&mut kept, rows * k), alloc(&mut kept, rows * n));
            let check = |kept: &mut Cpu<Tuned>, what: &str| {
                kept.linear(Linear::set(x, id, out)).expect("operands fit");
                let (now, found) = (read(kept, x), read(kept, out));
                let fresh = product(&mut device(level, 2), &weight, &now);
                assert!(bits(found) == bits(fresh), "{} {level:?} {what}", format.name());
            };
            for input in &inputs {
                kept.write(x, HostData::F32(input)).expect("a view of floats");
                check(&mut kept, "by the host");
                check(&mut kept, "by no one");
                kept.softcap(Softcap { x, cap: 0.5 }).expect("operands fit");
                check(&mut kept, "by an operation");
            }
        }
    }
}

#[test]
fn a_long_row_crosses_blocks_without_changing_bits() {
    let (n, rows) = (41, 13);
    for format in typical_formats() {
        let k = fitting_columns(format, 2 * 1024 + 24);
        let mut rng = Rng::named("long");
        let weight = random_matrix(&mut rng, [n, k], format).expect("a format");
        let x = rng.values(rows * k);
        for level in levels() {
            let mut device = device(level, 2);
            let alone = by(&mut device, &weight, &x, 1);
            for batch in [2, 4, 7, rows] {
                let same = by(&mut device, &weight, &x, batch) == alone;
                assert!(same, "{} {level:?} by {batch}", format.name());
            }
        }
    }
}

#[test]
fn awkward_sizes_stay_near_the_reference() {
    for format in all_formats() {
        let mut widths: Vec<usize> = [1, 15, 16, 17, 31, 33, 48, 100, 192]
            .into_iter()
            .map(|k| fitting_columns(format, k))
            .collect();
        widths.dedup();
        let sizes = widths.into_iter().flat_map(|k| {
            [[1, 64], [3, 7], [5, 0], [5, 2], [127, 1], [127, 7]].map(|[n, rows]| (k, n, rows))
        });
        for (k, n, rows) in sizes {
            let mut rng = Rng::named("awkward");
            let weight = random_matrix(&mut rng, [n, k], format).expect("a format");
            let x = rng.values(rows * k);
            let expected = product(&mut plain(), &weight, &x);
            for level in levels() {
                let found = product(&mut device(level, 2), &weight, &x);
                for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
                    let limit = limit(level, &weight, i % n, &x[i / n * k..(i / n + 1) * k]);
                    let name = format.name();
                    assert!((f - e).abs() <= limit, "{name} {level:?} {rows}x{n}x{k}: {f} {e}");
                }
            }
        }
    }
}

/// How far two orders of the same sum may differ. Packed weights add offsets apart from codes, and the two may cancel;
/// limbs are as exact as the row's largest value allows.
fn limit(level: Level, weight: &Matrix, row: usize, x: &[f32]) -> f32 {
    let mut line = vec![0.0; x.len()];
    weight.decode_row(row, &mut line);
    let size: f32 = x.iter().zip(&line).map(|(x, w)| (x * w).abs()).sum();
    // Weights of random matrices without their offsets stay below this.
    let largest = line.iter().fold(1.5_f32, |most, w| most.max(w.abs()));
    let total: f32 = x.iter().map(|x| x.abs()).sum();
    let repacked = !matches!(level, Level::Avx512 | Level::Neon | Level::Portable);
    let apart = if repacked { 2e-7 * total * largest } else { 0.0 };
    1e-6 * size * (x.len() as f32).sqrt() + apart
}

#[test]
fn an_embedded_row_is_the_decoded_row_in_every_form_of_a_weight() {
    let n = 37;
    for format in all_formats() {
        let k = fitting_columns(format, 208);
        let mut rng = Rng::named("embed");
        let table = random_matrix(&mut rng, [n, k], format).expect("a format");
        let ids: Vec<u32> = vec![0, 36, 16, 15, 1];
        let mut expected = vec![0.0; ids.len() * k];
        for (&id, out) in ids.iter().zip(expected.chunks_exact_mut(k)) {
            table.decode_row(id as usize, out);
        }
        for level in levels() {
            let mut device = device(level, 2);
            let weight = device.upload("test", table.clone()).expect("memory");
            let spec = BufferSpec {
                label: "ids",
                dtype: DType::U32,
                len: ids.len(),
                role: BufferRole::State,
            };
            let at = View::head(device.alloc(spec).expect("memory"), ids.len());
            device.write(at, HostData::U32(&ids)).expect("a view of words");
            let out = alloc(&mut device, expected.len());
            device.embed(Embed { table: weight, ids: at, scale: 1.0, out }).expect("operands fit");
            let found = bits(read(&mut device, out));
            assert!(found == bits(expected.clone()), "{} {level:?}", format.name());
        }
    }
}

#[test]
fn the_fused_gate_has_the_bits_of_its_definition() {
    let n = 45;
    for (format, activation) in all_formats()
        .into_iter()
        .flat_map(|format| [(format, Activation::Silu), (format, Activation::GeluTanh)])
    {
        let k = fitting_columns(format, 96);
        let mut rng = Rng::named("gate");
        let weights = [0; 2].map(|_| random_matrix(&mut rng, [n, k], format).expect("a format"));
        for (level, rows) in levels().flat_map(|level| [(level, 1), (level, 3), (level, 20)]) {
            let mut device = device(level, 2);
            let [gate, up] = weights.clone().map(|w| device.upload("test", w).expect("memory"));
            let x = alloc(&mut device, rows * k);
            device.write(x, HostData::F32(&rng.values(rows * k))).expect("a view of floats");
            let [out, scratch, fused] = [0; 3].map(|_| alloc(&mut device, rows * n));
            let op = GatedLinear { x, norm: None, gate, up, scratch, out, activation };
            device.gated_linear(GatedLinear { out: fused, ..op }).expect("operands fit");
            let (_, products, join) = op.parts();
            for product in products {
                device.linear(product).expect("operands fit");
            }
            device.glu(join).expect("operands fit");
            let (found, expected) = (read(&mut device, fused), read(&mut device, out));
            assert!(bits(found) == bits(expected), "{} {level:?} {rows} rows", format.name());
        }
    }
}

fn bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn the_logits_of_chosen_clusters_have_the_bits_of_the_whole_product() {
    for case in cases().iter().filter(|case| case.op == "cluster_head" && case.rows > 0) {
        for level in levels() {
            let mut device = device(level, 2);
            let op = case.set(&mut ConformStage::new(&mut device, &case.name)).expect("a stage");
            let Op::ClusterHead(op) = op else { panic!("{} is another operation", case.name) };
            device.cluster_head(op).expect("operands fit");
            let whole = alloc(&mut device, op.out.len);
            device.linear(Linear::set(op.x, op.head, whole)).expect("operands fit");
            let vocabulary = op.out.len / case.rows;
            let (found, whole) = (read(&mut device, op.out), read(&mut device, whole));
            for (found, whole) in found.chunks(vocabulary).zip(whole.chunks(vocabulary)) {
                let both = found.iter().zip(whole);
                let (kept, rest): (Vec<_>, Vec<_>) =
                    both.partition(|(found, whole)| found.to_bits() == whole.to_bits());
                assert_eq!(kept.len(), vocabulary / op.clusters * op.top_k, "{}", case.name);
                let least = kept.iter().map(|(logit, _)| **logit).fold(f32::INFINITY, f32::min);
                assert!(rest.iter().all(|(floor, _)| **floor == least - 1.0), "{}", case.name);
            }
        }
    }
}
