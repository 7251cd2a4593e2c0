// Integers of 64 bits as vec2(low, high), and comparisons that the host makes in f64: WGSL has neither.

fn wide(a: u32, b: u32) -> vec2<u32> {
  let al = a & 0xffffu; let ah = a >> 16u;
  let bl = b & 0xffffu; let bh = b >> 16u;
  let mid = ah * bl + ((al * bl) >> 16u);
  let low = (mid & 0xffffu) + al * bh;
  return vec2(a * b, ah * bh + (mid >> 16u) + (low >> 16u));
}

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn at_least(a: vec2<u32>, b: vec2<u32>) -> bool { return a.y > b.y || (a.y == b.y && a.x >= b.x); }

fn length64(a: vec2<u32>) -> u32 {
  return select(32u - countLeadingZeros(a.x), 64u - countLeadingZeros(a.y), a.y != 0u);
}

// To 53 bits, ties to even: what f64 keeps of an integer below 2^63.
fn as_f64(a: vec2<u32>) -> vec2<u32> {
  let length = length64(a);
  if (length <= 53u) { return a; }
  let shift = length - 53u;
  let unit = 1u << shift;
  let rest = a.x & (unit - 1u);
  let even = vec2(a.x & ~(unit - 1u), a.y);
  let half = unit >> 1u;
  let up = rest > half || (rest == half && (a.x & unit) != 0u);
  if (up) { return add64(even, vec2(unit, 0u)); }
  return even;
}

// The least integer that is not below `factor · total`, a product of f64 rounded as f64; 0 <= factor < 1.
fn share_of(factor: f32, total: vec2<u32>) -> vec2<u32> {
  let bits = bitcast<u32>(factor);
  let field = bits >> 23u;
  let mantissa = select((bits & 0x7fffffu) | 0x800000u, bits & 0x7fffffu, field == 0u);
  let exponent = max(field, 1u);
  let t = as_f64(total);
  let a = wide(mantissa, t.x);
  let b = wide(mantissa, t.y);
  var r0 = a.x;
  var r1 = a.y + b.x;
  var r2 = b.y + select(0u, 1u, r1 < a.y);
  let length = select(length64(vec2(r0, r1)), 96u - countLeadingZeros(r2), r2 != 0u);
  if (length > 53u) {
    let shift = length - 53u;
    let unit = 1u << shift;
    let rest = r0 & (unit - 1u);
    let half = unit >> 1u;
    let up = rest > half || (rest == half && (r0 & unit) != 0u);
    r0 = r0 & ~(unit - 1u);
    if (up) {
      let next = add64(vec2(r0, r1), vec2(unit, 0u));
      r2 += select(0u, 1u, next.y < r1);
      r0 = next.x;
      r1 = next.y;
    }
  }
  // Times 2^(exponent - 150), up.
  var left = 150u - exponent;
  var lost = false;
  while (left >= 32u) {
    lost = lost || r0 != 0u;
    r0 = r1;
    r1 = r2;
    r2 = 0u;
    left -= 32u;
  }
  if (left > 0u) {
    lost = lost || (r0 & ((1u << left) - 1u)) != 0u;
    r0 = (r0 >> left) | (r1 << (32u - left));
    r1 = (r1 >> left) | (r2 << (32u - left));
  }
  return add64(vec2(r0, r1), vec2(select(0u, 1u, lost), 0u));
}

// The least integer that is not below `factor · 2^40`; factor > 0.
fn share_of_whole(factor: f32) -> vec2<u32> {
  let bits = bitcast<u32>(factor);
  let exponent = bits >> 23u;
  let mantissa = (bits & 0x7fffffu) | 0x800000u;
  if (exponent > 127u) { return vec2(0xffffffffu); }
  if (exponent >= 110u) {
    let shift = exponent - 110u;
    if (shift == 0u) { return vec2(mantissa, 0u); }
    return vec2(mantissa << shift, mantissa >> (32u - shift));
  }
  let shift = 110u - exponent;
  if (shift > 24u) { return vec2(1u, 0u); }
  return vec2((mantissa + (1u << shift) - 1u) >> shift, 0u);
}
