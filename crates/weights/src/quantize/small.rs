//! Rounding to the small float types of codes and scales.

use forerun_base::{ScaleType, f32_to_bf16, f32_to_f16};

/// Stores the nearest number of a type.
#[inline]
pub(super) fn store(float: ScaleType, x: f32, out: &mut [u8]) {
    match float {
        ScaleType::F32 => out.copy_from_slice(&x.to_le_bytes()),
        ScaleType::F16 => out.copy_from_slice(&f32_to_f16(x).to_le_bytes()),
        ScaleType::BF16 => out.copy_from_slice(&f32_to_bf16(x).to_le_bytes()),
    }
}

/// The code of the nearest E2M1 number, halfway cases towards zero; zero has no sign.
pub(super) fn e2m1(x: f32) -> u8 {
    /// Halfway between neighbours of 0, 0.5, 1, 1.5, 2, 3, 4, 6.
    const BETWEEN: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let size = x.abs();
    let code: u8 = BETWEEN.iter().map(|&limit| u8::from(size > limit)).sum();
    if x < 0.0 && code > 0 { code | 8 } else { code }
}

/// The code of the nearest e4m3 number, ties to even; beyond 448 stays 448.
pub(super) fn e4m3(x: f32) -> u8 {
    const LARGEST: u32 = 0x43e0_0000;
    /// 2^-6, the least number with a full mantissa.
    const LEAST_NORMAL: u32 = 121 << 23;
    /// 2^14: its last bit is worth 2^-9, the step of the numbers below `LEAST_NORMAL`.
    const ALIGN: f32 = 16384.0;
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    let size = x.abs().to_bits();
    let code = if size >= LARGEST {
        0x7e
    } else if size < LEAST_NORMAL {
        (f32::from_bits(size) + ALIGN).to_bits() - ALIGN.to_bits()
    } else {
        (size - (120 << 23) + 0x7_ffff + ((size >> 20) & 1)) >> 20
    };
    sign | code as u8
}

/// The exponent of the least power of two that is not below `scale`; zero for zero. Kept inside
/// what E8M0 can say.
pub(super) fn exponent(scale: f32) -> i32 {
    if scale == 0.0 {
        return 0;
    }
    (scale.log2().ceil() as i32).clamp(-127, 127)
}

/// `2^exponent` for exponents from -127 to 127.
pub(super) fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(if exponent == -127 { 1 << 22 } else { ((exponent + 127) as u32) << 23 })
}

/// The largest magnitude of a group; `None` when something in it is not finite.
pub(super) fn magnitude(values: &[f32]) -> Option<f32> {
    let largest = values.iter().fold(0.0f32, |most, x| if x.abs() > most { x.abs() } else { most });
    let finite = values.iter().map(|x| x * 0.0).sum::<f32>() == 0.0;
    finite.then_some(largest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_base::e4m3_to_f32;

    #[test]
    fn every_e4m3_number_keeps_its_code_and_the_middle_goes_to_the_even_one() {
        for code in 0..=0x7e_u8 {
            let value = e4m3_to_f32(code);
            assert_eq!(e4m3(value), code);
            assert_eq!(e4m3(-value), code | 0x80);
            if code < 0x7e {
                let middle = (value + e4m3_to_f32(code + 1)) / 2.0;
                assert_eq!(e4m3(middle), code + (code & 1), "{middle}");
            }
        }
        assert_eq!(e4m3(1e9), 0x7e);
        assert_eq!(e4m3(-1e9), 0xfe);
    }

    #[test]
    fn e2m1_takes_the_nearest_and_zero_has_no_sign() {
        for (x, code) in [(0.0, 0), (-0.0, 0), (-0.2, 0), (0.25, 0), (0.26, 1), (-0.3, 9)] {
            assert_eq!(e2m1(x), code, "{x}");
        }
        for (x, code) in [(2.5, 4), (2.6, 5), (5.0, 6), (5.1, 7), (1e30, 7), (-1e30, 15)] {
            assert_eq!(e2m1(x), code, "{x}");
        }
    }

    #[test]
    fn exponents_stay_inside_e8m0() {
        assert_eq!(exponent(f32::from_bits(1)), -127);
        assert_eq!(exponent(f32::MAX), 127);
        assert_eq!(exponent(0.0), 0);
        for n in -127..=127 {
            assert_eq!(power_of_two(n), 2f32.powi(n), "{n}");
            assert_eq!(exponent(2f32.powi(n)), n);
        }
    }
}
