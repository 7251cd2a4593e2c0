// Causal attention over the cache.
//
// Math: forerun_backend::op::Attention.
// Layout: forerun_backend::op::CacheLayout.
// Numerics: f32. Keys are taken in chunks of 64 at absolute positions, chunks in partitions of 1024. Within a partition
// a chunk's maximum
//   and sum join those of the chunks before it; partitions are merged ascending. A key that the row does not see takes
//   no part, whatever is
//   stored there. The order depends on the row's position alone: one workgroup for all partitions and one for each give
//   the same bits.
// Shape of the launch: `attention`: a workgroup of 64 invocations for each row and head, with SPLIT for each partition
// of them, which then
//   leaves maximum, sum and mixed values in `out`. An invocation has a key of the chunk, then elements of the output.
//   `merge`, after a
//   split one: a workgroup for each row and head, whose `q` is what the partitions left. Calls of some rows begin at
//   pair `number`,
//   those of some partitions at partition `which`; partitions of what is left are counted from the first key of the
//   call.
// Limits: heads of at most 1024 elements.

struct Sizes {
  q: u32, k: u32, v: u32, positions: u32, span_of: u32, tables: u32, out: u32, rows: u32,
  heads: u32, kv_heads: u32, dim: u32, block: u32, blocks: u32, table_width: u32, lines: u32, window: u32,
  scale: f32, site: u32, partitions: u32, first: u32, end: u32, flags: u32, state: u32, gate: u32, number: u32, which: u32,
}
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> k_cache: array<u32>;
@group(0) @binding(3) var<storage, read> v_cache: array<u32>;
@group(0) @binding(4) var<storage, read> positions: array<u32>;
@group(0) @binding(5) var<storage, read> span_of: array<u32>;
@group(0) @binding(6) var<storage, read> tables: array<u32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;
@group(0) @binding(8) var<storage, read_write> state: array<f32>;
@group(0) @binding(9) var<storage, read> gate: array<f32>;

// 0 f32, 1 f16, 2 bf16, 3 codes.
override KIND: u32 = 0u;
override SPLIT: bool = false;

// Bits of `flags`: no keys come before the first partition, none come after the last one, a gate multiplies what comes
// out.
const BEGINS: u32 = 1u;
const ENDS: u32 = 2u;
const GATED: u32 = 4u;

// Keys of a partition, which has 16 chunks.
const PARTITION: u32 = 1024u;

var<workgroup> query: array<f32, 1024>;
var<workgroup> mixed: array<f32, 1024>;
var<workgroup> total: array<f32, 1024>;
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

// The keys that a row sees, as the first and one past the last; none where an index points nowhere.
struct Seen { line: u32, first: u32, keys: u32 }

fn seen_by(row: u32) -> Seen {
  if (row >= p.rows) { return Seen(0u, 0u, 0u); }
  let line = span_of[p.span_of + row];
  let last = positions[p.positions + row];
  if (!(inside(p.site, line, p.lines) && inside(p.site + 1u, last, p.table_width * p.block))) { return Seen(0u, 0u, 0u); }
  return Seen(line, last + 1u - min(last + 1u, p.window), last + 1u);
}

// What all invocations of a workgroup agree on, so that they go through the same loops.
var<workgroup> bounds: vec2<u32>;
fn agreed(lane: u32, x: vec2<u32>) -> vec2<u32> {
  if (lane == 0u) { bounds = x; }
  return workgroupUniformLoad(&bounds);
}

// Maximum and sum of a partition's chunks; their mixed values are left in `mixed`.
fn partition_of(lane: u32, seen: Seen, head: u32, which: u32) -> vec2<f32> {
  let stored = p.dim + select(0u, 2u * ((p.dim + 31u) / 32u), KIND == 3u);
  let range = agreed(lane, vec2(
    max(seen.first, which * PARTITION) / 64u,
    min((seen.keys + 63u) / 64u, (which + 1u) * (PARTITION / 64u)),
  ));
  var most = bitcast<f32>(MINUS_INFINITY_BITS);
  var sum = 0.0;
  for (var i = lane; i < p.dim; i += LANES) { mixed[i] = 0.0; }
  for (var chunk = range.x; chunk < range.y; chunk++) {
    let key = chunk * 64u + lane;
    var visible = key >= seen.first && key < seen.keys;
    var score = bitcast<f32>(MINUS_INFINITY_BITS);
    if (visible) {
      let id = tables[p.tables + seen.line * p.table_width + key / p.block];
      visible = inside(p.site + 2u, id, p.blocks);
      if (visible) {
        let part = (id * p.kv_heads + head) * p.block * stored;
        parts[lane] = part;
        score = score_of(part, key % p.block);
      }
    }
    let larger = max(most, workgroup_max(lane, score));
    var weight = 0.0;
    if (visible) { weight = exp_of(score - larger); }
    weights[lane] = weight;
    let shrink = exp_of(most - larger);
    sum = fma(sum, shrink, workgroup_sum(lane, weight));
    most = larger;
    let begin = max(seen.first, chunk * 64u) - chunk * 64u;
    let end = min(seen.keys, chunk * 64u + 64u) - chunk * 64u;
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
  return vec2(most, sum);
}

// The partitions of the call that a row sees.
fn partitions_of(seen: Seen) -> vec2<u32> {
  return vec2(max(seen.first, p.first) / PARTITION, (min(seen.keys, p.end) + PARTITION - 1u) / PARTITION);
}

// Where what is carried from call to call lies for a row and head: the mixed values, the largest score, the sum of
// weights.
fn state_of(number: u32) -> u32 { return p.state + number * (p.dim + 2u); }

fn finished(number: u32, i: u32, mix: f32, sum: f32) {
  let at = number * p.dim + i;
  let value = mix / sum;
  if ((p.flags & GATED) != 0u) { out[p.out + at] = value * sigmoid(gate[p.gate + at]); } else { out[p.out + at] = value; }
}

// What partitions so far are multiplied by, and the next one, and the larger maximum.
fn factors(most: f32, next: f32) -> vec3<f32> {
  let larger = max(most, next);
  return vec3(exp_of(most - larger), exp_of(next - larger), larger);
}

@compute @workgroup_size(64)
fn attention(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  var number = p.number + flat(wg, n);
  if (SPLIT) { number = p.number + wg.x; }
  let row = number / p.heads;
  let head = number % p.heads / (p.heads / p.kv_heads);
  let seen = seen_by(row);
  let here = seen.keys > 0u;
  let resumes = here && !SPLIT && (p.flags & BEGINS) == 0u;
  let kept = state_of(number);
  if (here) {
    for (var i = lane; i < p.dim; i += LANES) {
      query[i] = q[p.q + number * p.dim + i];
      total[i] = 0.0;
      if (resumes) { total[i] = state[kept + i]; }
    }
  }
  var range = partitions_of(seen);
  if (SPLIT) { range = vec2(max(range.x, p.which + wg.y), min(range.y, p.which + wg.y + 1u)); }
  range = agreed(lane, range);
  var most = bitcast<f32>(MINUS_INFINITY_BITS);
  var sum = 0.0;
  if (resumes) {
    most = state[kept + p.dim];
    sum = state[kept + p.dim + 1u];
  }
  for (var which = range.x; which < range.y; which++) {
    let next = partition_of(lane, seen, head, which);
    if (SPLIT) {
      let to = p.out + (number * p.partitions + which - p.first / PARTITION) * (p.dim + 2u);
      if (lane == 0u) {
        out[to] = next.x;
        out[to + 1u] = next.y;
      }
      for (var i = lane; i < p.dim; i += LANES) { out[to + 2u + i] = mixed[i]; }
    } else {
      let by = factors(most, next.x);
      for (var i = lane; i < p.dim; i += LANES) { total[i] = fma(total[i], by.x, mixed[i] * by.y); }
      sum = fma(sum, by.x, next.y * by.y);
      most = by.z;
    }
    workgroupBarrier();
  }
  if (SPLIT || !here) { return; }
  if ((p.flags & ENDS) != 0u) {
    for (var i = lane; i < p.dim; i += LANES) { finished(number, i, total[i], sum); }
  } else {
    for (var i = lane; i < p.dim; i += LANES) { state[kept + i] = total[i]; }
    if (lane == 0u) {
      state[kept + p.dim] = most;
      state[kept + p.dim + 1u] = sum;
    }
  }
}

@compute @workgroup_size(64)
fn merge(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let number = p.number + wg.x;
  let seen = seen_by(number / p.heads);
  let here = seen.keys > 0u;
  let range = partitions_of(seen);
  let kept = state_of(number);
  var most_before = bitcast<f32>(MINUS_INFINITY_BITS);
  var sum_before = 0.0;
  if (here && (p.flags & BEGINS) == 0u) {
    most_before = state[kept + p.dim];
    sum_before = state[kept + p.dim + 1u];
  }
  // Every invocation has read them before the last one writes.
  storageBarrier();
  for (var i = lane; i < select(0u, p.dim, here); i += LANES) {
    var most = most_before;
    var sum = sum_before;
    var mix = 0.0;
    if ((p.flags & BEGINS) == 0u) { mix = state[kept + i]; }
    for (var which = range.x; which < range.y; which++) {
      let at = p.q + (number * p.partitions + which - p.first / PARTITION) * (p.dim + 2u);
      let by = factors(most, q[at]);
      mix = fma(mix, by.x, q[at + 2u + i] * by.y);
      sum = fma(sum, by.x, q[at + 1u] * by.y);
      most = by.z;
    }
    if ((p.flags & ENDS) != 0u) {
      finished(number, i, mix, sum);
    } else {
      state[kept + i] = mix;
      if (i == 0u) {
        state[kept + p.dim] = most;
        state[kept + p.dim + 1u] = sum;
      }
    }
  }
}
