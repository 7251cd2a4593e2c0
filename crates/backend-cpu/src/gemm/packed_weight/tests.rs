//! What one processor can test of kernels for others.

use super::*;
use crate::gemm::product::{ChannelMap, GemmOutput, RowMap};
use crate::pool::SharedSlice;
use crate::simd::Level;
use forerun_backend::conform::{Rng, all_formats, fitting_columns, random_matrix};
use forerun_backend::op::Store;

/// All rows of `x`, `together` at a time, by vectors.
fn products(weight: &PackedWeight, x: &[f32], together: usize) -> Vec<f32> {
    let (n, k) = (weight.rows(), weight.cols());
    let some = x.chunks(together * k).flat_map(|data| {
        let rows = data.len() / k;
        let (mut out, mut scratch) = (vec![0.0; rows * n], HugePageBuf::new(1 << 16));
        let input = GemmInput { data, row_map: RowMap::Identity, packed: None };
        let (data, row_map) = (SharedSlice::new(&mut out), RowMap::Identity);
        let output =
            GemmOutput { data, row_map, stride: n, first: 0, store: Store::Set, bias: &[] };
        let channel_map = ChannelMap::Offset(0);
        let (rows, channels) = (0..rows, 0..n);
        let product = Product { matrix: weight, channel_map, input, output, rows, channels };
        let len = weight.scratch_len(product.rows.len(), true);
        // SAFETY: a line is sixteen f32; the output and the scratch belong to this thread, and rows and channels are
        // all there are.
        unsafe {
            let scratch = scratch.all_mut();
            let floats = std::slice::from_raw_parts_mut(
                scratch.as_mut_ptr().cast::<f32>(),
                scratch.len() * LANES,
            );
            PackedWeight::product(&product, &mut floats[..len]);
        }
        out
    });
    some.collect()
}

/// Wide limbs are for processors with AMX, whose few rows go by vectors all the same: any processor with VNNI can test
/// those.
#[test]
fn gemv_with_wide_limbs_is_close_and_batch_invariant() {
    let Some(mut ctx) = crate::simd::ExecCtx::new(Level::Vnni, Some(1)) else { return };
    let (n, k, rows) = (37, 192, 7);
    for group in [16, 32, 64] {
        for codes in
            [2, 3, 4].map(|bits| Codes::Uint { bits }).into_iter().chain([Codes::Int { bits: 4 }])
        {
            let scale = ScaleKind::Float(ScaleType::F32);
            let offset = matches!(codes, Codes::Uint { .. });
            let format = Format::Grouped { codes, group, scale, offset };
            let mut rng = Rng::named("wide limbs");
            let matrix = random_matrix(&mut rng, [n, k], format).expect("a format");
            let x = rng.values(rows * k);
            let mut weight =
                PackedWeight::keep(&mut ctx, &matrix.clone().into()).expect("integers");
            let Multiplier::Int8(units, _) = weight.by else { unreachable!("integers") };
            let short = products(&weight, &x, 1);
            let long = units.layout_with_amx(format, k).expect("integers");
            weight.by = Multiplier::Int8(units, long);
            let alone = products(&weight, &x, 1);
            for (a, b) in alone.iter().zip(&short) {
                assert!((a - b).abs() < 1e-4, "{}: {a} {b}", format.name());
            }
            for together in [2, 3, 4] {
                assert_eq!(
                    products(&weight, &x, together),
                    alone,
                    "{} by {together}",
                    format.name()
                );
            }
        }
    }
}

/// AVX-VNNI has the instruction of AVX-512 VNNI in another encoding; the kernels around it are tested in that.
#[test]
fn dot_products_of_ymm_registers_have_the_bits_of_zmm_ones() {
    let (Some(mut ctx), Some(half)) =
        (crate::simd::ExecCtx::new(Level::Vnni, Some(1)), Int8Gemm::as_avx_vnni())
    else {
        return;
    };
    let (n, rows) = (37, 7);
    for format in all_formats() {
        let k = fitting_columns(format, 208);
        let mut rng = Rng::named("half vectors");
        let matrix = random_matrix(&mut rng, [n, k], format).expect("a format");
        let x = rng.values(rows * k);
        let Some(mut weight) = PackedWeight::keep(&mut ctx, &matrix.clone().into()) else {
            continue;
        };
        let expected = products(&weight, &x, 1);
        weight.by = Multiplier::Int8(half, half.layout(format, k).expect("integers"));
        for together in [1, 2, 3, 4, 7] {
            let found = products(&weight, &x, together);
            assert_eq!(found, expected, "{} by {together}", format.name());
        }
    }
}
