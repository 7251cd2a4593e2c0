// Causal attention over the cache.
//
// Math: forerun_backend::op::Attention.
// Layout: forerun_backend::op::CacheLayout.
// Numerics: f32. Keys are taken in chunks of 64 at absolute positions, ascending; a chunk's maximum and sum join those before it. A key
//   that the row does not see takes no part, whatever is stored there. The order depends on the row's position alone.
// Shape of the launch: a workgroup of 64 invocations for each row and head. An invocation has a key of the chunk, then elements of the
//   output.
// Limits: heads of at most 1024 elements.

struct Sizes {
  q: u32, k: u32, v: u32, positions: u32, span_of: u32, tables: u32, out: u32, rows: u32,
  heads: u32, kv_heads: u32, dim: u32, block: u32, blocks: u32, table_width: u32, lines: u32, window: u32,
  scale: f32, site: u32,
}
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> k_cache: array<u32>;
@group(0) @binding(3) var<storage, read> v_cache: array<u32>;
@group(0) @binding(4) var<storage, read> positions: array<u32>;
@group(0) @binding(5) var<storage, read> span_of: array<u32>;
@group(0) @binding(6) var<storage, read> tables: array<u32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

// 0 f32, 1 f16, 2 bf16, 3 codes.
override KIND: u32 = 0u;

var<workgroup> query: array<f32, 1024>;
var<workgroup> mixed: array<f32, 1024>;
var<workgroup> weights: array<f32, 64>;
var<workgroup> parts: array<u32, 64>;

fn key_number(at: u32) -> f32 {
  if (KIND == 0u) { return bitcast<f32>(k_cache[at]); }
  if (KIND == 3u) { return f32(bitcast<i32>((k_cache[at >> 2u] >> ((at & 3u) * 8u)) << 24u) >> 24u); }
  let half = (k_cache[at >> 1u] >> ((at & 1u) * 16u)) & 0xffffu;
  if (KIND == 1u) { return f16_to_f32(half); }
  return bf16_to_f32(half);
}

fn value_number(at: u32) -> f32 {
  if (KIND == 0u) { return bitcast<f32>(v_cache[at]); }
  if (KIND == 3u) { return f32(bitcast<i32>((v_cache[at >> 2u] >> ((at & 3u) * 8u)) << 24u) >> 24u); }
  let half = (v_cache[at >> 1u] >> ((at & 1u) * 16u)) & 0xffffu;
  if (KIND == 1u) { return f16_to_f32(half); }
  return bf16_to_f32(half);
}

fn key_byte(at: u32) -> u32 { return (k_cache[at >> 2u] >> ((at & 3u) * 8u)) & 255u; }
fn value_byte(at: u32) -> u32 { return (v_cache[at >> 2u] >> ((at & 3u) * 8u)) & 255u; }

// The scale of element `i` of the key or value at place `at` of a part.
fn key_scale(part: u32, at: u32, i: u32) -> f32 {
  let byte = p.k + part + p.block * p.dim + 2u * ((i >> 5u) * p.block + at);
  return bf16_to_f32(key_byte(byte) | (key_byte(byte + 1u) << 8u));
}
fn value_scale(part: u32, at: u32, i: u32) -> f32 {
  let byte = p.v + part + p.block * p.dim + 2u * ((i >> 5u) * p.block + at);
  return bf16_to_f32(value_byte(byte) | (value_byte(byte + 1u) << 8u));
}

fn score_of(part: u32, at: u32) -> f32 {
  var dot = 0.0;
  for (var i = 0u; i < p.dim; i++) {
    var key = key_number(p.k + part + i * p.block + at);
    if (KIND == 3u) { key *= key_scale(part, at, i); }
    dot = fma(query[i], key, dot);
  }
  return dot * p.scale;
}

@compute @workgroup_size(64)
fn attention(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let number = flat(wg, n);
  let row = number / p.heads;
  let head = number % p.heads / (p.heads / p.kv_heads);
  var here = row < p.rows;
  var line = 0u;
  var last = 0u;
  if (here) {
    line = span_of[p.span_of + row];
    last = positions[p.positions + row];
    here = inside(p.site, line, p.lines) && inside(p.site + 1u, last, p.table_width * p.block);
  }
  let keys = select(0u, last + 1u, here);
  let first = select(0u, keys - min(keys, p.window), here);
  if (here) {
    for (var i = lane; i < p.dim; i += LANES) {
      query[i] = q[p.q + number * p.dim + i];
      mixed[i] = 0.0;
    }
  }
  let stored = p.dim + select(0u, 2u * ((p.dim + 31u) / 32u), KIND == 3u);
  var most = bitcast<f32>(MINUS_INFINITY_BITS);
  var sum = 0.0;
  workgroupBarrier();
  // Every invocation of a workgroup goes through the same chunks.
  let chunks = workgroup_uniform_chunks(lane, (keys + 63u) / 64u);
  for (var chunk = first / 64u; chunk < chunks; chunk++) {
    let key = chunk * 64u + lane;
    var seen = key >= first && key < keys;
    var score = bitcast<f32>(MINUS_INFINITY_BITS);
    if (seen) {
      let id = tables[p.tables + line * p.table_width + key / p.block];
      seen = inside(p.site + 2u, id, p.blocks);
      if (seen) {
        let part = (id * p.kv_heads + head) * p.block * stored;
        parts[lane] = part;
        score = score_of(part, key % p.block);
      }
    }
    let larger = max(most, workgroup_max(lane, score));
    let weight = select(0.0, exp_of(score - larger), seen);
    weights[lane] = weight;
    let shrink = select(0.0, exp_of(most - larger), sum > 0.0);
    sum = fma(sum, shrink, workgroup_sum(lane, weight));
    most = larger;
    let begin = max(first, chunk * 64u) - chunk * 64u;
    let end = min(keys, chunk * 64u + 64u) - chunk * 64u;
    for (var i = lane; i < p.dim; i += LANES) {
      var mix = mixed[i] * shrink;
      for (var j = begin; j < end; j++) {
        let at = (chunk * 64u + j) % p.block;
        var value = value_number(p.v + parts[j] + at * p.dim + i);
        if (KIND == 3u) { value *= value_scale(parts[j], at, i); }
        mix = fma(weights[j], value, mix);
      }
      mixed[i] = mix;
    }
    workgroupBarrier();
  }
  if (here) {
    for (var i = lane; i < p.dim; i += LANES) { out[p.out + number * p.dim + i] = mixed[i] / sum; }
  }
}

var<workgroup> chunk_count: u32;
fn workgroup_uniform_chunks(lane: u32, chunks: u32) -> u32 {
  if (lane == 0u) { chunk_count = chunks; }
  return workgroupUniformLoad(&chunk_count);
}
