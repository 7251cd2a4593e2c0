// A head's key (`$` is 0) or value (`$` is 1) to its place in the cache; the text is repeated for both.
//
// Layout: see attention_inputs.wgsl.

@group(0) @binding(FROM$) var<storage, read> from_rows$: array<f32>;
@group(0) @binding(CACHE$) var<storage, read_write> cache$: array<atomic<u32>>;

fn put_bits$(byte: u32, bits: u32, width: u32) {
  let shift = (byte & 3u) * 8u;
  let mask = ((1u << width) - 1u) << shift;
  atomicAnd(&cache$[byte >> 2u], ~mask);
  atomicOr(&cache$[byte >> 2u], (bits << shift) & mask);
}

fn put$(at: u32, x: f32) {
  if (KIND$ == 0u) { atomicStore(&cache$[p.cache_at[$] + at], bitcast<u32>(x)); }
  if (KIND$ == 1u) { put_bits$(2u * (p.cache_at[$] + at), f32_to_f16(x), 16u); }
  if (KIND$ == 2u) { put_bits$(2u * (p.cache_at[$] + at), f32_to_bf16(x), 16u); }
}

// Element `i` of the key or value at place `at` of a part.
fn element$(at: u32, i: u32) -> u32 {
  if ($u == 0u) { return i * p.block + at; }
  return at * p.dim + i;
}

// A group of codes and its scale; an invocation has a group of 32.
fn put_codes$(part: u32, at: u32, group: u32) {
  let end = min(group * 32u + 32u, p.dim);
  var most = 0u;
  for (var i = group * 32u; i < end; i++) { most = max(most, bitcast<u32>(head_row[i]) & 0x7fffffffu); }
  var bits = f32_to_bf16(bitcast<f32>(most) / 127.0);
  let scale = bf16_to_f32(bits);
  var inverse = 1.0 / scale;
  if ((bits & 0x7fffu) < 0x80u) {
    bits = 0u;
    inverse = 0.0;
  }
  let scale_at = p.cache_at[$] + part + p.block * p.dim + 2u * (group * p.block + at);
  put_bits$(scale_at, bits & 255u, 8u);
  put_bits$(scale_at + 1u, bits >> 8u, 8u);
  for (var i = group * 32u; i < end; i++) {
    let scaled = head_row[i] * inverse;
    var code = 0;
    if (!is_nan(scaled)) { code = i32(clamp(round(scaled), -128.0, 127.0)); }
    put_bits$(p.cache_at[$] + part + element$(at, i), bitcast<u32>(code) & 255u, 8u);
  }
}

// What `head_row` holds to a place.
fn keep$(lane: u32, place: u32, head: u32) {
  let at = place % p.block;
  let groups = (p.dim + 31u) / 32u;
  let stored = p.dim + select(0u, 2u * groups, KIND$ == 3u);
  let part = ((place / p.block) * p.kv_heads + head) * p.block * stored;
  if (KIND$ == 3u) {
    for (var group = lane; group < groups; group += LANES) { put_codes$(part, at, group); }
    return;
  }
  for (var i = lane; i < p.dim; i += LANES) { put$(part + element$(at, i), head_row[i]); }
}
