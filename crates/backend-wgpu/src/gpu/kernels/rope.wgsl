// Cosines and sines of the rows' angles.
//
// Math: forerun_backend::op::RopeTable.
// Numerics: the angle is one product in f32. It is reduced to a quarter turn by integers: the 24 bits of the angle times 96 bits
//   of 2/π, so a position of a million is as good as one of ten. Then polynomials (Cephes).
// Shape of the launch: an invocation for each pair.

struct Sizes { positions: u32, out: u32, count: u32, pairs: u32, shift: u32, scale: f32 }
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read> inv_freq: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

// Low and high word of a product.
fn wide(a: u32, b: u32) -> vec2<u32> {
  let al = a & 0xffffu; let ah = a >> 16u;
  let bl = b & 0xffffu; let bh = b >> 16u;
  let mid = ah * bl + ((al * bl) >> 16u);
  let low = (mid & 0xffffu) + al * bh;
  return vec2(a * b, ah * bh + (mid >> 16u) + (low >> 16u));
}

// Quarter turns, and what is left in radians, of an angle of at least one half and below 2^24.
fn reduce(angle: f32, quarter: ptr<function, u32>) -> f32 {
  let bits = bitcast<u32>(angle);
  let mantissa = (bits & 0x7fffffu) | 0x800000u;
  let shift = 150u - (bits >> 23u);
  let a = wide(mantissa, 0xfc2757d1u);
  let b = wide(mantissa, 0x4e441529u);
  let c = wide(mantissa, 0xa2f9836eu);
  // Words 1 to 3 of the product; word 3 counts whole quarters before the shift.
  let w1 = a.y + b.x;
  let carry1 = select(0u, 1u, w1 < b.x);
  let s2 = b.y + carry1;
  let w2 = s2 + c.x;
  let w3 = c.y + select(0u, 1u, w2 < c.x);
  // The fraction is the 32 bits below bit 96 + shift, and the quarters those above it.
  var fraction = w2;
  var whole = w3;
  if (shift > 0u) {
    fraction = (w2 >> shift) | (w3 << (32u - shift));
    whole = w3 >> shift;
  }
  *quarter = whole + (fraction >> 31u);
  return f32(bitcast<i32>(fraction)) * 3.6572795e-10;
}

fn sin_near(x: f32) -> f32 {
  let z = x * x;
  let q = fma(fma(-1.9515295891e-4, z, 8.3321608736e-3), z, -1.6666654611e-1);
  return fma(q * z, x, x);
}

fn cos_near(x: f32) -> f32 {
  let z = x * x;
  let q = fma(fma(2.443315711809948e-5, z, -1.388731625493765e-3), z, 4.166664568298827e-2);
  return fma(q * z, z, fma(-0.5, z, 1.0));
}

@compute @workgroup_size(64)
fn rope_table(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = flat(wg, n) * 64u + lane;
  if (i >= p.count) { return; }
  let row = i / p.pairs;
  let pair = i % p.pairs;
  let angle = f32(positions[p.positions + row] + p.shift) * inv_freq[pair];
  let size = abs(angle);
  var quarter = 0u;
  var left = size;
  if (size >= 0.5) { left = reduce(size, &quarter); }
  let s = sin_near(left);
  let c = cos_near(left);
  var sine = select(s, c, (quarter & 1u) == 1u);
  var cosine = select(c, s, (quarter & 1u) == 1u);
  if ((quarter & 2u) == 2u) { sine = -sine; }
  if (((quarter + 1u) & 2u) == 2u) { cosine = -cosine; }
  if (angle < 0.0) { sine = -sine; }
  out[p.out + row * 2u * p.pairs + pair] = cosine * p.scale;
  out[p.out + row * 2u * p.pairs + p.pairs + pair] = sine * p.scale;
}
