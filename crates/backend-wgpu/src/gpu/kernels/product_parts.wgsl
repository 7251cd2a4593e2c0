// The same rows with up to four weights of one format, side by side.
//
// Math: forerun_backend::op::Linears.
// Shape of the launch: see product.wgsl; the channels of a weight follow those of the weight before it, each padded to
// 16.

struct Sizes {
  x: u32, rows: u32, cols: u32, codes: u32, scales: u32, flags: u32, eps: f32, cap: f32,
  parts: array<Part, COPIES>,
  share: u32, channel: u32, row: u32,
}
var<immediate> p: Sizes;
