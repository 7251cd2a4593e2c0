//! The generator. A word of noise is a function of a key and a counter, so no state is carried from number to number.

use forerun_base::f32_to_bf16;

/// Steps between counters that are far apart in every bit.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// 64 random bits.
pub(crate) fn word(key: u64, counter: u64) -> u64 {
    let mut z = key ^ counter.wrapping_mul(STEP);
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^ (z >> 32)
}

/// The key of a tensor.
pub(crate) fn key(seed: u64, name: &str) -> u64 {
    name.bytes().fold(word(STEP, seed), |key, byte| word(key, u64::from(byte) + 1))
}

/// `N` numbers of about the normal distribution: each the sum of twelve uniform ones, as integers up to the last
/// step, so that all machines make the same.
pub(crate) fn normal<const N: usize>() -> [f32; N] {
    std::array::from_fn(|i| {
        let sum: i64 = (0..3)
            .flat_map(|part| {
                let bits = word(STEP, (3 * i + part) as u64);
                (0..4).map(move |at| (bits >> (16 * at) & 0xffff) as i64)
            })
            .sum();
        // Twelve times the mean of 0..=65535 is taken away; the deviation of one is 65536 / √12.
        (sum - 6 * 65535) as f32 / 65536.0
    })
}

/// A number in 0..1 of the top bits of a word.
pub(crate) fn unit(word: u64) -> f32 {
    (word >> 40) as f32 / (1_u64 << 24) as f32
}

/// The FP8 e4m3 code nearest to a number within its range.
pub(crate) fn e4m3(value: f32) -> u8 {
    let near = |code: &u8| (forerun_base::e4m3_to_f32(*code) - value.abs()).abs();
    let codes = (0..0x7f_u8).min_by(|a, b| near(a).total_cmp(&near(b))).unwrap_or_default();
    codes | if value < 0.0 { 0x80 } else { 0 }
}

/// A number rounded to bf16, as bytes.
pub(crate) fn bf16(value: f32) -> [u8; 2] {
    f32_to_bf16(value).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_mean_and_the_deviation_of_the_normal_distribution() {
        let table = normal::<4096>();
        let mean = table.iter().sum::<f32>() / 4096.0;
        let square = table.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 4096.0;
        assert!(mean.abs() < 0.05 && (square - 1.0).abs() < 0.05, "mean {mean}, square {square}");
        assert!(table.iter().all(|x| x.abs() < 6.0));
    }

    #[test]
    fn words_differ_by_key_and_counter_and_bits_are_even() {
        let (a, b) = (key(0, "a"), key(0, "b"));
        assert_ne!(a, b);
        assert_ne!(a, key(1, "a"));
        let ones: u32 = (0..1000).map(|i| word(a, i).count_ones()).sum();
        assert!((31_500..32_500).contains(&ones), "{ones} of 64000 bits");
    }

    #[test]
    fn codes_of_fp8_are_the_nearest() {
        for (value, code) in [(0.0, 0), (1.0, 0x38), (-1.0, 0xb8), (448.0, 0x7e), (-500.0, 0xfe)] {
            assert_eq!(e4m3(value), code, "{value}");
        }
    }
}
