// The causal convolution before the delta rule, with its window, and heads of unit length.
//
// Math: forerun_backend::op::DeltaInputs.
// Numerics: f32, taps ascending.
// Shape of the launch: `conv`: an invocation for each channel of each span, which goes through the span's rows and then moves window and
//   log on: nobody else touches a channel of a slot. `unit`: a workgroup for each row and head of q and k.

struct Sizes {
  x: u32, window: u32, log: u32, spans: u32, qkv: u32, rows: u32, count: u32, slots: u32,
  log_rows: u32, channels: u32, taps: u32, key_heads: u32, dk: u32, site: u32,
}
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> spans: array<u32>;
@group(0) @binding(4) var<storage, read_write> window: array<f32>;
@group(0) @binding(5) var<storage, read_write> log: array<f32>;
@group(0) @binding(6) var<storage, read_write> qkv: array<f32>;

// Number `i` of what the span sees of a channel, oldest first: window, pending rows of the log, its own rows.
fn seen(span: Span, channel: u32, i: u32) -> f32 {
  let kept = p.taps - 1u;
  if (i < kept) {
    if (span.start == 0u) { return 0.0; }
    return window[p.window + (span.slot * kept + i) * p.channels + channel];
  }
  if (i < kept + span.pending) {
    return log[p.log + (span.slot * p.log_rows + i - kept) * p.channels + channel];
  }
  return x[p.x + (span.first_row + i - kept - span.pending) * p.channels + channel];
}

@compute @workgroup_size(64)
fn conv(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let channel = wg.x * 64u + lane;
  if (channel >= p.channels) { return; }
  let span = span_at(p.spans, wg.y, p.rows, p.slots, p.log_rows, p.site);
  if (!span.ok) { return; }
  let kept = p.taps - 1u;
  for (var i = 0u; i < span.rows; i++) {
    var sum = 0.0;
    for (var j = 0u; j < p.taps; j++) {
      sum = fma(weight[channel * p.taps + j], seen(span, channel, span.pending + i + j), sum);
    }
    qkv[p.qkv + (span.first_row + i) * p.channels + channel] = silu(sum);
  }
  // Ascending, so a place is read before it is written.
  for (var i = 0u; i < kept; i++) {
    let next = seen(span, channel, span.pending + span.confirmed + i);
    window[p.window + (span.slot * kept + i) * p.channels + channel] = next;
  }
  for (var i = span.confirmed; i < span.rows; i++) {
    let draft = x[p.x + (span.first_row + i) * p.channels + channel];
    log[p.log + (span.slot * p.log_rows + i - span.confirmed) * p.channels + channel] = draft;
  }
}

@compute @workgroup_size(64)
fn unit(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let number = flat(wg, n);
  let row = number / (2u * p.key_heads);
  let head = number % (2u * p.key_heads);
  var here = row < p.rows;
  if (here) { here = span_of_row(row, p.spans, p.count, p.rows, p.slots, p.log_rows, p.site).ok; }
  let at = p.qkv + row * p.channels + head * p.dk;
  var squares = 0.0;
  if (here) {
    for (var i = lane; i < p.dk; i += LANES) { squares = fma(qkv[at + i], qkv[at + i], squares); }
  }
  var scale = 1.0 / sqrt(workgroup_sum(lane, squares) + 1e-6);
  if (head < p.key_heads) { scale *= 1.0 / sqrt(f32(p.dk)); }
  if (here) {
    for (var i = lane; i < p.dk; i += LANES) { qkv[at + i] = qkv[at + i] * scale; }
  }
}
