// What every kernel shares: the word for bad indices, reductions of a workgroup, and functions with bits of their own.
//
// Numerics: WGSL leaves the last bits of exp, ln, tanh, sin and cos to the driver, some of which are as bad as 1e-5. These are
//   polynomials (Cephes) in f32, so accuracy is known and no driver's tables take part. Where bits matter, a product that is followed
//   by a sum is written `fma`, which no compiler splits or joins in one place and not in another.
// Limits: a workgroup has LANES invocations where it reduces.

// The first bad index of a submission: site, index, limit.
@group(0) @binding(0) var<storage, read_write> fault: array<atomic<u32>, 4>;

// Whether an index is below its limit; one that is not is noted, and its invocation leaves memory alone.
fn inside(site: u32, index: u32, limit: u32) -> bool {
  if (index < limit) { return true; }
  loop {
    let found = atomicCompareExchangeWeak(&fault[0], 0u, site);
    if (found.exchanged) {
      atomicStore(&fault[1], index);
      atomicStore(&fault[2], limit);
      break;
    }
    if (found.old_value != 0u) { break; }
  }
  return false;
}

fn saturating_add(a: u32, b: u32) -> u32 {
  let sum = a + b;
  return select(sum, 0xffffffffu, sum < a);
}

// The number of a workgroup in a grid that is folded into two dimensions.
fn flat(wg: vec3<u32>, count: vec3<u32>) -> u32 { return wg.x + wg.y * count.x; }

const MINUS_INFINITY_BITS: u32 = 0xff800000u;
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

// 2^n for -126 <= n <= 127.
fn pow2(n: i32) -> f32 { return bitcast<f32>(u32(n + 127) << 23u); }

fn exp_of(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (x > 88.72) { return bitcast<f32>(0x7f800000u); }
  if (x < -87.33) { return 0.0; }
  let n = floor(x * 1.44269504 + 0.5);
  let r = (x - n * 0.693359375) + n * 2.12194440e-4;
  var p = 1.9875691500e-4;
  p = fma(p, r, 1.3981999507e-3);
  p = fma(p, r, 8.3334519073e-3);
  p = fma(p, r, 4.1665795894e-2);
  p = fma(p, r, 1.6666665459e-1);
  p = fma(p, r, 5.0000001201e-1);
  let e = fma(p, r * r, r) + 1.0;
  // In two steps: 2^128 is no number.
  let half = i32(n) / 2;
  return e * pow2(half) * pow2(i32(n) - half);
}

// ln(1 + x) for x >= 0.
fn ln_1p_of(x: f32) -> f32 {
  let u = 1.0 + x;
  if (u == 1.0) { return x; }
  let bits = bitcast<u32>(u) - 0x3f3504f3u;
  let e = f32(bitcast<i32>(bits) >> 23u);
  let z = bitcast<f32>((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0;
  var p = 7.0376836292e-2;
  p = fma(p, z, -1.1514610310e-1);
  p = fma(p, z, 1.1676998740e-1);
  p = fma(p, z, -1.2420140846e-1);
  p = fma(p, z, 1.4249322787e-1);
  p = fma(p, z, -1.6668057665e-1);
  p = fma(p, z, 2.0000714765e-1);
  p = fma(p, z, -2.4999993993e-1);
  p = fma(p, z, 3.3333331174e-1);
  let square = z * z;
  let y = p * z * square - e * 2.12194440e-4 - 0.5 * square;
  // What rounding took from 1 + x.
  let lost = x - (u - 1.0);
  return (z + y) + e * 0.693359375 + lost / u;
}

// ln(1 + e^x), the identity where that is exact.
fn softplus(x: f32) -> f32 {
  if (x > 20.0) { return x; }
  return ln_1p_of(exp_of(x));
}

fn sigmoid(x: f32) -> f32 { return 1.0 / (1.0 + exp_of(-x)); }
fn silu(x: f32) -> f32 { return x * sigmoid(x); }

fn tanh_of(x: f32) -> f32 {
  let size = abs(x);
  if (size < 0.625) {
    let z = x * x;
    var p = -5.70498872745e-3;
    p = fma(p, z, 2.06390887954e-2);
    p = fma(p, z, -5.37397155531e-2);
    p = fma(p, z, 1.33314422036e-1);
    p = fma(p, z, -3.33332819422e-1);
    return fma(p * z, x, x);
  }
  let most = 1.0 - 2.0 / (exp_of(2.0 * size) + 1.0);
  return select(most, -most, x < 0.0);
}

// f16 by its bits: a driver may flush small ones that it converts itself.
fn f16_to_f32(h: u32) -> f32 {
  let sign = (h & 0x8000u) << 16u;
  let rest = h & 0x7fffu;
  if (rest < 0x400u) { return bitcast<f32>(bitcast<u32>(f32(rest) * 5.9604644775390625e-8) | sign); }
  let bits = select((rest << 13u) + 0x38000000u, (rest << 13u) | 0x7f800000u, rest >= 0x7c00u);
  return bitcast<f32>(bits | sign);
}

fn bf16_to_f32(h: u32) -> f32 { return bitcast<f32>(h << 16u); }

// To the nearest, ties to even.
fn f32_to_f16(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 16u) & 0x8000u;
  let rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) { return sign | 0x7e00u; }
  if (rest >= 0x47800000u) { return sign | 0x7c00u; }
  if (rest < 0x38800000u) {
    return sign | ((bitcast<u32>(bitcast<f32>(rest) + 0.5) - 0x3f000000u) & 0xffffu);
  }
  return sign | (((rest - 0x38000000u + 0xfffu + ((rest >> 13u) & 1u)) >> 13u) & 0xffffu);
}

fn f32_to_bf16(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  if (is_nan(x)) { return (bits >> 16u) | 0x40u; }
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

// The order of numbers as integers: larger ones have larger keys.
fn order_of(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}
fn of_order(key: u32) -> f32 {
  return bitcast<f32>(select(~key, key & 0x7fffffffu, (key >> 31u) == 1u));
}
