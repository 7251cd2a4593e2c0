//! Exact widening of the small float types, and round-to-nearest-even narrowing.

/// Widens a bfloat16: it is the top half of an f32.
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Narrows to bfloat16, ties to even; a NaN stays a NaN.
#[inline]
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Widens an f16.
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff);
    if rest >= 0x7c00 {
        return f32::from_bits(sign | 0x7f80_0000 | ((rest & 0x3ff) << 13));
    }
    // Shifted into f32 fields the exponent is short by 127 − 15; a multiply by 2^112
    // repairs it and handles subnormals at once.
    let magnitude = f32::from_bits(rest << 13) * f32::from_bits(0x7780_0000);
    f32::from_bits(sign | magnitude.to_bits())
}

/// Narrows to an f16, ties to even; overflow becomes infinity.
#[inline]
pub fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let rest = bits & 0x7fff_ffff;
    if rest > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    if rest >= 0x4780_0000 {
        return sign | 0x7c00;
    }
    if rest < 0x3880_0000 {
        // Subnormal: adding 0.5 aligns the mantissa so that the FPU rounds for us.
        let rounded = f32::from_bits(rest) + f32::from_bits(0x3f00_0000);
        return sign | (rounded.to_bits() - 0x3f00_0000) as u16;
    }
    let rounded = rest - 0x3800_0000 + 0xfff + ((rest >> 13) & 1);
    sign | (rounded >> 13) as u16
}

/// Decodes FP8 e4m3fn: bias 7, no infinity, only `S.1111.111` is NaN.
#[inline]
pub fn e4m3_to_f32(code: u8) -> f32 {
    if code & 0x7f == 0x7f {
        return f32::NAN;
    }
    let magnitude = f32::from_bits(u32::from(code & 0x7f) << 20) * f32::from_bits(0x7b80_0000);
    f32::from_bits((u32::from(code & 0x80) << 24) | magnitude.to_bits())
}

/// Decodes FP8 e5m2: the top half of an f16.
#[inline]
pub fn e5m2_to_f32(code: u8) -> f32 {
    f16_to_f32(u16::from(code) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_survive_a_round_trip() {
        for bits in 0..=u16::MAX {
            let wide = f16_to_f32(bits);
            if wide.is_nan() {
                assert!(f16_to_f32(f32_to_f16(wide)).is_nan());
            } else {
                assert_eq!(f32_to_f16(wide), bits, "{bits:#06x}");
            }
            let wide = bf16_to_f32(bits);
            if !wide.is_nan() {
                assert_eq!(f32_to_bf16(wide), bits, "{bits:#06x}");
            }
        }
    }

    #[test]
    fn narrowing_rounds_ties_to_even() {
        let cases = [
            (1.0 + 2f32.powi(-11), 0x3c00),
            (1.0 + 3.0 * 2f32.powi(-11), 0x3c02),
            (65519.0, 0x7bff),
            (65520.0, 0x7c00),
            (2f32.powi(-25), 0x0000),
            (1.5 * 2f32.powi(-24), 0x0002),
        ];
        for (x, bits) in cases {
            assert_eq!(f32_to_f16(x), bits, "{x}");
        }
    }

    #[test]
    fn fp8_landmarks() {
        assert_eq!(e4m3_to_f32(0x7e), 448.0);
        assert_eq!(e4m3_to_f32(0x01), 2f32.powi(-9));
        assert_eq!(e4m3_to_f32(0xb8), -1.0);
        assert!(e4m3_to_f32(0xff).is_nan());
        assert_eq!(e5m2_to_f32(0x3c), 1.0);
    }
}
