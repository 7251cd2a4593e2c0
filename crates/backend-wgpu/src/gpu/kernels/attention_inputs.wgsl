// Queries rotated in place; keys and values to their places in the cache.
//
// Math: forerun_backend::op::AttentionInputs.
// Layout: forerun_backend::op::CacheLayout: keys [head_dim, block] and values [block, head_dim] of a head's part of a
// block; with
//   codes, the scales [group, block] after them. Elements smaller than a word share it with others', so they are put in
//   by atomics, which
//   change the element's own bits alone.
// Numerics: f32. The squares of a head are summed by 64 invocations, each over every 64th element, then by a tree.
// Shape of the launch: a workgroup for each row and head of queries, keys and values.
// Limits: heads of at most 1024 elements.

struct Sizes {
  table: u32, q: u32, places: u32, rows: u32, heads: u32, kv_heads: u32, dim: u32, rotary: u32,
  normed: u32, q_eps: f32, k_eps: f32, v_eps: f32, blocks: u32, block: u32, site: u32,
  from_at: array<u32, 2>, cache_at: array<u32, 2>,
}
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> table: array<f32>;
@group(0) @binding(2) var<storage, read> q_norm: array<f32>;
@group(0) @binding(3) var<storage, read> k_norm: array<f32>;
@group(0) @binding(4) var<storage, read> v_norm: array<f32>;
@group(0) @binding(5) var<storage, read> places: array<u32>;
@group(0) @binding(6) var<storage, read_write> q: array<f32>;

// Of the caches: 0 f32, 1 f16, 2 bf16, 3 codes.
override KIND0: u32 = 0u;
override KIND1: u32 = 0u;

var<workgroup> head_row: array<f32, 1024>;

// What a norm multiplies element `i` by, of queries (0), keys (1) or values (2).
fn weight_of(which: u32, i: u32) -> f32 {
  if (which == 0u) { return q_norm[i]; }
  if (which == 1u) { return k_norm[i]; }
  return v_norm[i];
}

// Norms and turns the head in `head_row`.
fn norm_and_turn(row: u32, lane: u32, which: u32) {
  var squares = 0.0;
  for (var i = lane; i < p.dim; i += LANES) { squares = fma(head_row[i], head_row[i], squares); }
  var eps = p.q_eps;
  if (which == 1u) { eps = p.k_eps; }
  if (which == 2u) { eps = p.v_eps; }
  let scale = 1.0 / sqrt(workgroup_sum(lane, squares) / f32(p.dim) + eps);
  if ((p.normed & (1u << which)) != 0u) {
    for (var i = lane; i < p.dim; i += LANES) { head_row[i] = head_row[i] * scale * weight_of(which, i); }
  }
  workgroupBarrier();
  let half = select(p.rotary / 2u, 0u, which == 2u);
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
fn inputs(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let number = flat(wg, n);
  let each = p.heads + 2u * p.kv_heads;
  let row = number / each;
  let head = number % each;
  let here = row < p.rows;
  // Query heads, then key heads, then value heads.
  var which = 0u;
  var kv_head = head - p.heads;
  if (head >= p.heads) { which = 1u; }
  if (head >= p.heads + p.kv_heads) {
    which = 2u;
    kv_head -= p.kv_heads;
  }
  let q_at = p.q + (row * p.heads + head) * p.dim;
  let kv_number = row * p.kv_heads + kv_head;
  for (var i = lane; i < select(0u, p.dim, here); i += LANES) {
    if (which == 0u) { head_row[i] = q[q_at + i]; }
    if (which == 1u) { head_row[i] = from_rows0[p.from_at[0] + kv_number * p.dim + i]; }
    if (which == 2u) { head_row[i] = from_rows1[p.from_at[1] + kv_number * p.dim + i]; }
  }
  workgroupBarrier();
  norm_and_turn(row, lane, which);
  if (!here) { return; }
  if (which == 0u) {
    for (var i = lane; i < p.dim; i += LANES) { q[q_at + i] = head_row[i]; }
    return;
  }
  let place = places[p.places + row];
  if (!inside(p.site, place, p.blocks * p.block)) { return; }
  if (which == 1u) { keep0(lane, place, kv_head); } else { keep1(lane, place, kv_head); }
}
