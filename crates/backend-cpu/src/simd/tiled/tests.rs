//! What a processor can see of what others do.

use super::super::Level;
use super::super::product::{Output, Places, Source};
use super::*;
use crate::pool::Shared;
use forerun_backend::conform::{Rng, all_formats, fitting_columns, random_matrix};
use forerun_backend::op::Store;

/// All rows of `x`, `together` at a time, by vectors.
fn products(tiled: &Tiled, x: &[f32], together: usize) -> Vec<f32> {
    let (n, k) = (tiled.rows(), tiled.cols());
    let some = x.chunks(together * k).flat_map(|data| {
        let rows = data.len() / k;
        let (mut out, mut scratch) = (vec![0.0; rows * n], Lines::new(1 << 16));
        let input = Input { data, places: Places::Same, packed: None };
        let (data, places) = (Shared::new(&mut out), Places::Same);
        let output = Output { data, places, stride: n, first: 0, store: Store::Set, bias: &[] };
        let source = Source::From(0);
        let (rows, channels) = (0..rows, 0..n);
        let product = Product { matrix: tiled, source, input, output, rows, channels };
        let len = tiled.scratch_len(product.rows.len(), true);
        // SAFETY: a line is sixteen f32; nobody else has the output.
        unsafe {
            let scratch = scratch.all_mut();
            let floats = std::slice::from_raw_parts_mut(
                scratch.as_mut_ptr().cast::<f32>(),
                scratch.len() * LANES,
            );
            Tiled::product(&product, &mut floats[..len]);
        }
        out
    });
    some.collect()
}

/// Long digits are for processors with tiles, whose few rows go by vectors all the same: those any processor with dot products can try.
#[test]
fn few_rows_of_long_digits_are_near_and_the_same_in_any_company() {
    let Some(mut crew) = super::super::Crew::new(Level::Vnni, Some(1)) else { return };
    let (n, k, rows) = (37, 192, 7);
    for group in [16, 32, 64] {
        for codes in
            [2, 3, 4].map(|bits| Codes::Uint { bits }).into_iter().chain([Codes::Int { bits: 4 }])
        {
            let scale = ScaleKind::Float(ScaleType::F32);
            let offset = matches!(codes, Codes::Uint { .. });
            let format = Format::Grouped { codes, group, scale, offset };
            let mut rng = Rng::named("long digits");
            let matrix = random_matrix(&mut rng, [n, k], format).expect("a format");
            let x = rng.values(rows * k);
            let mut tiled = Tiled::keep(&mut crew, &matrix).expect("whole numbers");
            let Multiplier::Digits(units, _) = tiled.by else { unreachable!("whole numbers") };
            let short = products(&tiled, &x, 1);
            let long = units.recipe_with_tiles(format, k).expect("whole numbers");
            tiled.by = Multiplier::Digits(units, long);
            let alone = products(&tiled, &x, 1);
            for (a, b) in alone.iter().zip(&short) {
                assert!((a - b).abs() < 1e-4, "{}: {a} {b}", format.name());
            }
            for together in [2, 3, 4] {
                assert_eq!(
                    products(&tiled, &x, together),
                    alone,
                    "{} by {together}",
                    format.name()
                );
            }
        }
    }
}

/// AVX-VNNI has the products of AVX-512 under another name; what is around them is tried under that.
#[test]
fn dot_products_of_half_vectors_have_the_bits_of_whole_ones() {
    let (Some(mut crew), Some(half)) =
        (super::super::Crew::new(Level::Vnni, Some(1)), Units::as_avx_vnni())
    else {
        return;
    };
    let (n, rows) = (37, 7);
    for format in all_formats() {
        let k = fitting_columns(format, 208);
        let mut rng = Rng::named("half vectors");
        let matrix = random_matrix(&mut rng, [n, k], format).expect("a format");
        let x = rng.values(rows * k);
        let Some(mut tiled) = Tiled::keep(&mut crew, &matrix) else { continue };
        let expected = products(&tiled, &x, 1);
        tiled.by = Multiplier::Digits(half, half.recipe(format, k).expect("whole numbers"));
        for together in [1, 2, 3, 4, 7] {
            let found = products(&tiled, &x, together);
            assert_eq!(found, expected, "{} by {together}", format.name());
        }
    }
}
