// One token for each row of logits.
//
// Math: forerun_backend::op::Sample.
// Layout: rows and history are words as SampleRow and HistoryEntry have them; `room` is [rows, candidates].
// Numerics: noise and the weights of filters are the definition's, to the bit: f32 without fused operations, weights as integers, whose
//   sums have no order. A product that a sum follows is an `fma` with a zero that the compiler does not know, so it cannot be fused.
// Shape of the launch: a workgroup of 256 invocations for each row. Filters find the least key that is kept, bit by bit: a key orders
//   logits, ties by the lower token.

struct Sizes {
  logits: u32, rows: u32, history: u32, ids: u32, masks: u32, out: u32, candidates: u32, vocabulary: u32,
  entries: u32, id_count: u32, mask_count: u32, site: u32, first: u32, minus_zero: f32,
}
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> rows: array<u32>;
@group(0) @binding(3) var<storage, read> history: array<u32>;
@group(0) @binding(4) var<storage, read> ids: array<u32>;
@group(0) @binding(5) var<storage, read> masks: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<u32>;
@group(0) @binding(7) var<storage, read_write> room: array<f32>;

const WIDTH: u32 = 256u;
const NO_TOKEN: u32 = 0xffffffffu;
var<workgroup> pairs: array<vec2<u32>, 256>;
var<workgroup> bad: atomic<u32>;

struct Row {
  temperature: f32, top_k: u32, top_p: f32, min_p: f32, repetition: f32, presence: f32, frequency: f32, seed_low: u32,
  seed_high: u32, position: u32, history_first: u32, history_len: u32, ids_first: u32, ids_len: u32, ids_prompt: u32, mask: u32,
}

fn row_at(at: u32) -> Row {
  return Row(
    bitcast<f32>(rows[at]), rows[at + 1u], bitcast<f32>(rows[at + 2u]), bitcast<f32>(rows[at + 3u]), bitcast<f32>(rows[at + 4u]),
    bitcast<f32>(rows[at + 5u]), bitcast<f32>(rows[at + 6u]), rows[at + 7u], rows[at + 8u], rows[at + 9u], rows[at + 10u],
    rows[at + 11u], rows[at + 12u], rows[at + 13u], rows[at + 14u], rows[at + 15u],
  );
}

// A product, rounded.
fn times(a: f32, b: f32) -> f32 { return fma(a, b, p.minus_zero); }

fn ln_of(x: f32) -> f32 {
  let bits = bitcast<u32>(x) - 0x3f3504f3u;
  let e = f32(bitcast<i32>(bits) >> 23u);
  let z = bitcast<f32>((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0;
  var q = 0.070376836;
  q = times(q, z) + -0.1151461;
  q = times(q, z) + 0.11676999;
  q = times(q, z) + -0.12420141;
  q = times(q, z) + 0.14249323;
  q = times(q, z) + -0.16668058;
  q = times(q, z) + 0.20000715;
  q = times(q, z) + -0.24999994;
  q = times(q, z) + 0.3333333;
  let square = times(z, z);
  let y = (times(times(q, z), square) + times(e, -2.1219444e-4)) - times(0.5, square);
  return (z + y) + times(e, 0.6933594);
}

fn uniform_of(row: Row, token: u32) -> f32 {
  var v = vec4(row.seed_low, row.seed_high, row.position, token) * 1664525u + 1013904223u;
  for (var round = 0u; round < 2u; round++) {
    v.x += v.y * v.w;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    v.w += v.y * v.z;
    if (round == 0u) { v ^= v >> vec4(16u); }
  }
  return (f32(v.x) + 0.5) * 2.3283064365386963e-10;
}

fn gumbel(row: Row, token: u32) -> f32 {
  let u = uniform_of(row, token);
  let w = 1.0 - u;
  if (w == 0.0) { return bitcast<f32>(MINUS_INFINITY_BITS); }
  var exponential = u;
  if (w != 1.0) { exponential = ((w - 1.0) + u) / w - ln_of(w); }
  return -ln_of(exponential);
}

// e^d for d <= 0 in units of 2^-40.
fn weight_of(d: f32) -> vec2<u32> {
  if (!(d >= -28.0)) { return vec2(0u); }
  let n = (times(d, 1.44269504) + 12582912.0) - 12582912.0;
  let r = (d - times(n, 0.6933594)) - times(n, -2.1219444e-4);
  var q = 1.9875691e-4;
  q = times(q, r) + 1.3981999e-3;
  q = times(q, r) + 8.333452e-3;
  q = times(q, r) + 4.1665796e-2;
  q = times(q, r) + 1.6666665e-1;
  q = times(q, r) + 5e-1;
  let e = (times(q, times(r, r)) + r) + 1.0;
  let bits = bitcast<u32>(e * pow2(i32(n) + 40));
  let exponent = bits >> 23u;
  let mantissa = (bits & 0x7fffffu) | 0x800000u;
  if (exponent < 127u) { return vec2(0u); }
  if (exponent <= 150u) { return vec2(mantissa >> (150u - exponent), 0u); }
  let shift = exponent - 150u;
  return vec2(mantissa << shift, mantissa >> (32u - shift));
}

// (~token, order): larger logits first, of equal ones the lower token.
fn key_of(logit: f32, token: u32) -> vec2<u32> { return vec2(~token, order_of(logit)); }

// Equal for equal numbers, and the lowest for none: the order in which a largest one is looked for.
fn best_key(number: f32, token: u32) -> vec2<u32> {
  var x = number;
  if (is_nan(x)) { x = bitcast<f32>(MINUS_INFINITY_BITS); }
  if (x == 0.0) { x = 0.0; return vec2(~token, 0x80000000u); }
  return key_of(x, token);
}

fn larger(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, at_least(a, b)); }

fn largest_of(lane: u32, x: vec2<u32>) -> vec2<u32> {
  workgroupBarrier();
  pairs[lane] = x;
  for (var by = WIDTH / 2u; by > 0u; by >>= 1u) {
    workgroupBarrier();
    if (lane < by) { pairs[lane] = larger(pairs[lane], pairs[lane + by]); }
  }
  workgroupBarrier();
  return pairs[0];
}

fn sum_of(lane: u32, x: vec2<u32>) -> vec2<u32> {
  workgroupBarrier();
  pairs[lane] = x;
  for (var by = WIDTH / 2u; by > 0u; by >>= 1u) {
    workgroupBarrier();
    if (lane < by) { pairs[lane] = add64(pairs[lane], pairs[lane + by]); }
  }
  workgroupBarrier();
  return pairs[0];
}

fn allowed(mask: u32, token: u32) -> bool {
  if (mask == 0u) { return true; }
  let words = (p.vocabulary + 31u) / 32u;
  return ((masks[p.masks + (mask - 1u) * words + token / 32u] >> (token % 32u)) & 1u) == 1u;
}

fn penalised(row: Row, logit: f32, seen: bool, generated: u32) -> f32 {
  var x = logit;
  if (seen) {
    if (x > 0.0) { x = x / row.repetition; } else { x = times(x, row.repetition); }
  }
  let present = select(0.0, row.presence, generated > 0u);
  return (x - present) - times(row.frequency, f32(generated));
}

fn note_bad(site: u32, token: u32) -> bool {
  if (inside(site, token, p.vocabulary)) { return false; }
  atomicStore(&bad, 1u);
  return true;
}

// What the history asks of the logits in `room`.
fn adjust_history(row: Row, lane: u32, at: u32) {
  let prompt = min(row.ids_prompt, row.ids_len);
  for (var i = lane; i < row.history_len; i += WIDTH) {
    let entry = p.history + 3u * (row.history_first + i);
    let token = history[entry];
    if (note_bad(p.site + 2u, token) || token >= p.candidates) { continue; }
    var generated = history[entry + 1u] >> 1u;
    var seen = (history[entry + 1u] & 1u) == 1u;
    for (var j = 0u; j < row.ids_len; j++) {
      if (ids[p.ids + row.ids_first + j] == token) {
        seen = true;
        generated += select(0u, 1u, j >= prompt);
      }
    }
    room[at + token] = penalised(row, room[at + token], seen, generated) + bitcast<f32>(history[entry + 2u]);
  }
}

// What the span's own tokens ask of them, where the history does not name them.
fn adjust_span(row: Row, lane: u32, at: u32) {
  let prompt = min(row.ids_prompt, row.ids_len);
  for (var i = lane; i < row.ids_len; i += WIDTH) {
    let token = ids[p.ids + row.ids_first + i];
    var known = false;
    for (var j = 0u; j < i; j++) { known = known || ids[p.ids + row.ids_first + j] == token; }
    for (var j = 0u; j < row.history_len; j++) { known = known || history[p.history + 3u * (row.history_first + j)] == token; }
    if (known || note_bad(p.site + 3u, token) || token >= p.candidates) { continue; }
    var generated = 0u;
    for (var j = prompt; j < row.ids_len; j++) {
      generated += select(0u, 1u, ids[p.ids + row.ids_first + j] == token);
    }
    room[at + token] = penalised(row, room[at + token], true, generated);
  }
}

// What the tokens from a key on count, or weigh.
fn from_key(lane: u32, at: u32, key: vec2<u32>, most: f32, weigh: bool) -> vec2<u32> {
  var sum = vec2(0u);
  for (var i = lane; i < p.candidates; i += WIDTH) {
    let x = room[at + i];
    if (at_least(key_of(x, i), key)) {
      if (weigh) { sum = add64(sum, weight_of(x - most)); } else { sum = add64(sum, vec2(1u, 0u)); }
    }
  }
  return sum_of(lane, sum);
}

// The largest key so that the tokens from it on, and from `least` on, are `enough`.
fn select_key(lane: u32, at: u32, least: vec2<u32>, most: f32, weigh: bool, enough: vec2<u32>) -> vec2<u32> {
  var key = vec2(0u);
  for (var i = 0u; i < 64u; i++) {
    var next = key;
    if (i < 32u) { next.y |= 0x80000000u >> i; } else { next.x |= 0x80000000u >> (i - 32u); }
    let sum = from_key(lane, at, larger(next, least), most, weigh);
    if (at_least(as_f64(sum), enough)) { key = next; }
  }
  return larger(key, least);
}

@compute @workgroup_size(256)
fn sample(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let number = p.first + wg.x;
  let row = row_at(p.rows + 16u * number);
  let fits = (row.mask == 0u || inside(p.site, row.mask - 1u, p.mask_count))
    && inside(p.site + 2u, saturating_add(row.history_first, row.history_len), p.entries + 1u)
    && inside(p.site + 3u, saturating_add(row.ids_first, row.ids_len), p.id_count + 1u);
  if (!fits) { return; }
  let from_logits = p.logits + number * p.candidates;
  let at = wg.x * p.candidates;
  let penalties = row.repetition != 1.0 || row.presence != 0.0 || row.frequency != 0.0;
  for (var i = lane; i < p.candidates; i += WIDTH) {
    room[at + i] = select(bitcast<f32>(MINUS_INFINITY_BITS), logits[from_logits + i], allowed(row.mask, i));
  }
  if (lane == 0u) { atomicStore(&bad, 0u); }
  storageBarrier();
  workgroupBarrier();
  adjust_history(row, lane, at);
  storageBarrier();
  workgroupBarrier();
  if (penalties) { adjust_span(row, lane, at); }
  storageBarrier();
  workgroupBarrier();
  if (atomicLoad(&bad) != 0u) { return; }
  let greedy = row.temperature == 0.0;
  var best = vec2(0u);
  var largest = vec2(0u);
  for (var i = lane; i < p.candidates; i += WIDTH) {
    var x = room[at + i];
    if (is_nan(x)) { x = bitcast<f32>(MINUS_INFINITY_BITS); }
    if (!greedy) {
      x = x / row.temperature;
      room[at + i] = x;
    }
    best = larger(best, best_key(x, i));
    largest = larger(largest, key_of(x, i));
  }
  storageBarrier();
  best = largest_of(lane, best);
  largest = largest_of(lane, largest);
  if (!greedy) {
    let most = of_order(largest.y);
    var least = vec2(0u);
    if (row.top_k > 0u && row.top_k < p.candidates) {
      least = select_key(lane, at, least, most, false, vec2(row.top_k, 0u));
    }
    if (row.top_p < 1.0) {
      let total = from_key(lane, at, least, most, true);
      least = select_key(lane, at, least, most, true, share_of(row.top_p, total));
    }
    if (at_least(least, largest)) { least = largest; }
    let lightest = share_of_whole(row.min_p);
    best = vec2(0u);
    for (var i = lane; i < p.candidates; i += WIDTH) {
      let x = room[at + i];
      let key = key_of(x, i);
      let heavy = row.min_p <= 0.0 || all(key == largest) || at_least(weight_of(x - most), lightest);
      if (at_least(key, least) && heavy) { best = larger(best, best_key(x + gumbel(row, i), i)); }
    }
    best = largest_of(lane, best);
  }
  // The token of the largest; none where no logit is above minus infinity.
  if (lane == 0u) {
    let any = largest.y > order_of(bitcast<f32>(MINUS_INFINITY_BITS));
    out[p.out + number] = select(NO_TOKEN, ~best.x, any);
  }
}
