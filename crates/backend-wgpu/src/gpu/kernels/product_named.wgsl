// One product, or a gate and what it gates, with channels in order, those of chosen experts, or those in a list.
//
// Math: forerun_backend::op::{Linear, GatedLinear, Experts, ClusterHead}.
// Shape of the launch: see product.wgsl; `first` and `count` are the channels of the piece that is bound.

struct Sizes {
  x: u32, rows: u32, cols: u32, codes: u32, scales: u32, flags: u32, eps: f32, cap: f32,
  parts: array<Part, COPIES>,
  names: u32, share: u32, base0: u32, stride0: u32, base1: u32, stride1: u32, limit: u32, site: u32,
  first: u32, count: u32, channel: u32, row: u32,
}
var<immediate> p: Sizes;
@group(0) @binding(3) var<storage, read> names: array<u32>;

// How channels are named. 0: channel n is channel `base + n`. 1: it is channel `base + names[row]·stride + n`. 2: it is
// channel `names[row·height + n]`.
fn naming() -> u32 { return (p.flags >> NAMING_AT) & 3u; }

// The channel of the weight that channel `n` of a row is, or NONE.
fn channel_of(n: u32, row: u32, height: u32, base: u32, stride: u32) -> u32 {
  if (n >= height || row == NONE) { return NONE; }
  if (naming() == 1u) {
    let name = names[p.names + row];
    if (!inside(p.site, name, p.limit)) { return NONE; }
    return base + name * stride + n;
  }
  if (naming() == 2u) { return names[p.names + row * height + n]; }
  return base + n;
}

fn is_bound(channel: u32) -> bool { return channel >= p.first && channel - p.first < p.count; }
