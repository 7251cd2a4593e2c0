//! Single rows of a weight.

use super::stage::{ProductStage, bits};
use forerun_backend_cuda::products::{GatheredRows, Precision};
use forerun_base::{Codes, DType, Format, ScaleKind};

#[test]
fn rows_of_a_weight_give_the_bits_of_the_whole_product() {
    let mut stage = ProductStage::new(9);
    let (codes, scale) = (Codes::Uint { bits: 4 }, ScaleKind::BF16);
    let u4 = Format::Grouped { codes, group: 64, scale, offset: true };
    for format in [Format::Dense(DType::BF16), u4] {
        let (rows, cols, channels, share) = (2, 192, 40, 5);
        let (weight, _) = stage.weight([channels, cols], format);
        let x = stage.rng.values(rows * cols);
        let (x, output) = (stage.input(&x, cols), stage.output(weight, rows));
        let pairs = rows * share;
        let chosen: Vec<usize> = (0..pairs).map(|i| i * 17 % channels).collect();
        let runs: Vec<u32> =
            chosen.iter().enumerate().flat_map(|(i, &c)| [c as u32, i as u32, 1, 0]).collect();
        let numbers: Vec<u32> = (0..pairs as u32).collect();
        let call = GatheredRows {
            x,
            weight,
            pairs,
            share,
            tiles: stage.put_words(&runs),
            count: stage.put_words(&[pairs as u32]),
            list: stage.put_words(&numbers),
            out: stage.scratch(pairs),
        };
        // SAFETY: the stage made the memory for these sizes.
        unsafe {
            let (products, driver) = (&mut stage.products, &mut stage.driver);
            products.linears(driver, x, &[output], Precision::Exact).unwrap();
            assert!(products.gathered(driver, &call, Precision::Exact).unwrap());
        }
        let all = bits(&stage.get(output.at, rows * channels));
        let expected: Vec<u32> =
            chosen.iter().enumerate().map(|(i, c)| all[i / share * channels + c]).collect();
        assert_eq!(bits(&stage.get(call.out, pairs)), expected, "{}", weight.form());
    }
}
