// Queries turned in place; keys and values to their places in the cache.
//
// Math: forerun_backend::op::AttentionInputs.
// Layout: forerun_backend::op::CacheLayout: keys [head_dim, block] and values [block, head_dim] of a head's part of a block; with
//   codes, the scales [group, block] after them. Elements smaller than a word share it with others', so they are put in by atomics, which
//   change the element's own bits alone.
// Numerics: f32. The squares of a head are summed by 64 invocations, each over every 64th element, then by a tree.
// Shape of the launch: a workgroup for each row and head.
// Limits: heads of at most 1024 elements.

struct Sizes {
  table: u32, x: u32, places: u32, cache: u32, rows: u32, heads: u32, dim: u32, rotary: u32,
  has_norm: u32, eps: f32, blocks: u32, block: u32, is_key: u32, site: u32,
}
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> table: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> from_rows: array<f32>;
@group(0) @binding(4) var<storage, read> places: array<u32>;
@group(0) @binding(5) var<storage, read_write> q: array<f32>;
@group(0) @binding(6) var<storage, read_write> cache: array<atomic<u32>>;

// 0 f32, 1 f16, 2 bf16, 3 codes.
override KIND: u32 = 0u;

var<workgroup> head_row: array<f32, 1024>;

// Norms and turns the head in `head_row`.
fn norm_and_turn(row: u32, lane: u32) {
  var squares = 0.0;
  for (var i = lane; i < p.dim; i += LANES) { squares = fma(head_row[i], head_row[i], squares); }
  let scale = 1.0 / sqrt(workgroup_sum(lane, squares) / f32(p.dim) + p.eps);
  if (p.has_norm == 1u) {
    for (var i = lane; i < p.dim; i += LANES) { head_row[i] = head_row[i] * scale * weight[i]; }
  }
  workgroupBarrier();
  let half = p.rotary / 2u;
  for (var i = lane; i < half; i += LANES) {
    let cosine = table[p.table + row * p.rotary + i];
    let sine = table[p.table + row * p.rotary + half + i];
    let a = head_row[i];
    let b = head_row[i + half];
    head_row[i] = a * cosine - b * sine;
    head_row[i + half] = b * cosine + a * sine;
  }
  workgroupBarrier();
}

@compute @workgroup_size(64)
fn queries(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let number = flat(wg, n);
  let here = number < p.rows * p.heads;
  let at = p.x + number * p.dim;
  if (here) {
    for (var i = lane; i < p.dim; i += LANES) { head_row[i] = q[at + i]; }
  }
  workgroupBarrier();
  norm_and_turn(number / p.heads, lane);
  if (here) {
    for (var i = lane; i < p.dim; i += LANES) { q[at + i] = head_row[i]; }
  }
}

fn put_bits(byte: u32, bits: u32, width: u32) {
  let shift = (byte & 3u) * 8u;
  let mask = ((1u << width) - 1u) << shift;
  atomicAnd(&cache[byte >> 2u], ~mask);
  atomicOr(&cache[byte >> 2u], (bits << shift) & mask);
}

fn put(at: u32, x: f32) {
  if (KIND == 0u) { atomicStore(&cache[p.cache + at], bitcast<u32>(x)); }
  if (KIND == 1u) { put_bits(2u * (p.cache + at), f32_to_f16(x), 16u); }
  if (KIND == 2u) { put_bits(2u * (p.cache + at), f32_to_bf16(x), 16u); }
}

// Element `i` of the key or value at place `at` of a part.
fn element(at: u32, i: u32) -> u32 {
  if (p.is_key == 1u) { return i * p.block + at; }
  return at * p.dim + i;
}

// A group of codes and its scale; an invocation has a group of 32.
fn put_codes(part: u32, at: u32, group: u32) {
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
  let scale_at = p.cache + part + p.block * p.dim + 2u * (group * p.block + at);
  put_bits(scale_at, bits & 255u, 8u);
  put_bits(scale_at + 1u, bits >> 8u, 8u);
  for (var i = group * 32u; i < end; i++) {
    let scaled = head_row[i] * inverse;
    var code = 0;
    if (!is_nan(scaled)) { code = i32(clamp(round(scaled), -128.0, 127.0)); }
    put_bits(p.cache + part + element(at, i), bitcast<u32>(code) & 255u, 8u);
  }
}

@compute @workgroup_size(64)
fn keep(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let number = flat(wg, n);
  var here = number < p.rows * p.heads;
  let row = number / p.heads;
  let head = number % p.heads;
  if (here) {
    for (var i = lane; i < p.dim; i += LANES) { head_row[i] = from_rows[p.x + number * p.dim + i]; }
  }
  workgroupBarrier();
  norm_and_turn(row, lane);
  if (!here) { return; }
  let place = places[p.places + row];
  if (!inside(p.site, place, p.blocks * p.block)) { return; }
  let at = place % p.block;
  let groups = (p.dim + 31u) / 32u;
  let stored = p.dim + select(0u, 2u * groups, KIND == 3u);
  let part = ((place / p.block) * p.heads + head) * p.block * stored;
  if (KIND == 3u) {
    for (var group = lane; group < groups; group += LANES) { put_codes(part, at, group); }
    return;
  }
  for (var i = lane; i < p.dim; i += LANES) { put(part + element(at, i), head_row[i]); }
}
