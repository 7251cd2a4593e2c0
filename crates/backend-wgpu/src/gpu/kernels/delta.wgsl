// The gated delta rule over spans.
//
// Math: forerun_backend::op::DeltaRule.
// Layout: state [value_heads, dk, dv] of a slot; a log row is [k | v | decay | beta].
// Numerics: f32, sequential over rows, sums over dk ascending. Columns of a state are independent, so any cut of them
// has the same bits.
// Shape of the launch: a workgroup for COLUMNS columns of each head and span; an invocation has a column, which lies in
// workgroup
//   memory while the span runs: the slot gets it back after the last confirmed row, so drafts never reach it. What
//   takes long is several
//   launches, of some heads or of confirmed rows `from_row..to_row` of each span. Drafts go to the log afterwards
//   (delta_log.wgsl), since
//   all heads read the log before any row of it is replaced.
// Limits: dk · COLUMNS is at most 4096.

struct Sizes {
  qkv: u32, decay: u32, beta: u32, state: u32, log: u32, spans: u32, out: u32, rows: u32,
  count: u32, slots: u32, log_rows: u32, key_heads: u32, value_heads: u32, dk: u32, dv: u32, site: u32,
  head: u32, from_row: u32, to_row: u32,
}
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> decay: array<f32>;
@group(0) @binding(3) var<storage, read> beta: array<f32>;
@group(0) @binding(4) var<storage, read> spans: array<u32>;
@group(0) @binding(5) var<storage, read_write> state: array<f32>;
@group(0) @binding(6) var<storage, read> log: array<f32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;

override COLUMNS: u32 = 32u;
var<workgroup> columns: array<f32, 4096>;

@compute @workgroup_size(COLUMNS)
fn rule(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let column = wg.x * COLUMNS + lane;
  let head = p.head + wg.y;
  if (column >= p.dv) { return; }
  let span = span_at(p.spans, wg.z, p.rows, p.slots, p.log_rows, p.site);
  if (!span.ok) { return; }
  // The last rows of a span, drafts among them, are one call's, which begins before the last confirmed row ends.
  if (p.from_row > 0u && p.from_row >= span.confirmed) { return; }
  var end = span.rows;
  var last = span.confirmed;
  if (p.to_row < span.confirmed) {
    end = p.to_row;
    last = end;
  }
  let channels = 2u * p.key_heads * p.dk + p.value_heads * p.dv;
  let log_len = p.key_heads * p.dk + p.value_heads * (p.dv + 2u);
  let key = head / (p.value_heads / p.key_heads) * p.dk;
  let slot_at = p.state + (span.slot * p.value_heads + head) * p.dk * p.dv + column;
  for (var i = 0u; i < p.dk; i++) {
    var s = 0.0;
    if (span.start != 0u || p.from_row > 0u) { s = state[slot_at + i * p.dv]; }
    columns[i * COLUMNS + lane] = s;
  }
  for (var r = 0u; r < select(span.pending, 0u, p.from_row > 0u); r++) {
    let at = p.log + (span.slot * p.log_rows + r) * log_len;
    let gates = at + p.key_heads * p.dk + p.value_heads * p.dv;
    let fade = log[gates + head];
    var recall = 0.0;
    for (var i = 0u; i < p.dk; i++) {
      let s = columns[i * COLUMNS + lane] * fade;
      columns[i * COLUMNS + lane] = s;
      recall = fma(s, log[at + key + i], recall);
    }
    let write = log[gates + p.value_heads + head] * (log[at + p.key_heads * p.dk + head * p.dv + column] - recall);
    for (var i = 0u; i < p.dk; i++) {
      columns[i * COLUMNS + lane] = fma(log[at + key + i], write, columns[i * COLUMNS + lane]);
    }
  }
  for (var r = p.from_row; r <= end; r++) {
    if (r == last) {
      for (var i = 0u; i < p.dk; i++) { state[slot_at + i * p.dv] = columns[i * COLUMNS + lane]; }
    }
    if (r == end) { break; }
    let row = span.first_row + r;
    let q_at = p.qkv + row * channels + key;
    let k_at = q_at + p.key_heads * p.dk;
    let fade = decay[p.decay + row * p.value_heads + head];
    var recall = 0.0;
    for (var i = 0u; i < p.dk; i++) {
      let s = columns[i * COLUMNS + lane] * fade;
      columns[i * COLUMNS + lane] = s;
      recall = fma(s, qkv[k_at + i], recall);
    }
    let v = qkv[p.qkv + row * channels + 2u * p.key_heads * p.dk + head * p.dv + column];
    let write = beta[p.beta + row * p.value_heads + head] * (v - recall);
    var mixed = 0.0;
    for (var i = 0u; i < p.dk; i++) {
      let s = fma(qkv[k_at + i], write, columns[i * COLUMNS + lane]);
      columns[i * COLUMNS + lane] = s;
      mixed = fma(s, qkv[q_at + i], mixed);
    }
    out[p.out + (row * p.value_heads + head) * p.dv + column] = mixed;
  }
}

