// The causal convolution with its window and log.
//
// Math: forerun_backend::op::ShortConv.
// Numerics: f32, taps ascending.
// Shape of the launch: an invocation for each channel of each span, which goes through the span's rows and then moves
// window and
//   log on: nobody else touches a channel of a slot.

struct Sizes {
  x: u32, window: u32, log: u32, spans: u32, out: u32, rows: u32, count: u32, slots: u32,
  log_rows: u32, channels: u32, taps: u32, flags: u32, gate_in: u32, gate_out: u32, site: u32, channel: u32,
}
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> spans: array<u32>;
@group(0) @binding(5) var<storage, read_write> window: array<f32>;
@group(0) @binding(6) var<storage, read_write> log: array<f32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;
@group(0) @binding(8) var<storage, read> gate_in: array<f32>;
@group(0) @binding(9) var<storage, read> gate_out: array<f32>;

// Bits of `flags`.
const SILU: u32 = 1u;
const HAS_BIAS: u32 = 2u;
const HAS_GATES: u32 = 4u;

// A row's own number, as the convolution takes it.
fn taken(row: u32, channel: u32) -> f32 {
  let at = row * p.channels + channel;
  if ((p.flags & HAS_GATES) != 0u) { return x[p.x + at] * gate_in[p.gate_in + at]; }
  return x[p.x + at];
}

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
  return taken(span.first_row + i - kept - span.pending, channel);
}

@compute @workgroup_size(64)
fn conv(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let channel = p.channel + wg.x * 64u + lane;
  if (channel >= p.channels) { return; }
  let span = span_at(p.spans, wg.y, p.rows, p.slots, p.log_rows, p.site);
  if (!span.ok) { return; }
  let kept = p.taps - 1u;
  for (var i = 0u; i < span.rows; i++) {
    var sum = 0.0;
    for (var j = 0u; j < p.taps; j++) {
      sum = fma(weight[channel * p.taps + j], seen(span, channel, span.pending + i + j), sum);
    }
    if ((p.flags & HAS_BIAS) != 0u) { sum += bias[channel]; }
    if ((p.flags & SILU) != 0u) { sum = silu(sum); }
    let at = (span.first_row + i) * p.channels + channel;
    if ((p.flags & HAS_GATES) != 0u) { sum *= gate_out[p.gate_out + at]; }
    out[p.out + at] = sum;
  }
  // Ascending, so a place is read before it is written.
  for (var i = 0u; i < kept; i++) {
    let next = seen(span, channel, span.pending + span.confirmed + i);
    window[p.window + (span.slot * kept + i) * p.channels + channel] = next;
  }
  for (var i = span.confirmed; i < span.rows; i++) {
    let to = p.log + (span.slot * p.log_rows + i - span.confirmed) * p.channels + channel;
    log[to] = taken(span.first_row + i, channel);
  }
}

