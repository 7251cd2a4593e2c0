// The words of a weight of some number: `$` is the number, and the text is repeated for each weight that a kernel
// binds.
//
// Layout: see weight.wgsl.

@group(0) @binding(WEIGHT$) var<storage, read> weight$: array<u32>;

// Number of group `group` in a plane of scales that begins at word `at` for this channel's lane.
fn plane_number$(at: u32, group: u32, cols: u32) -> f32 {
  if (SCALE == 0u) { return bitcast<f32>(weight$[at + group * 16u]); }
  if (SCALE == 3u) {
    let blocks = cols >> 8u;
    let block = group * GROUP >> 8u;
    let half = weight$[at + (block >> 1u) * 16u] >> ((block & 1u) * 16u);
    let byte = weight$[at + ((blocks + 1u) / 2u + (group >> 2u)) * 16u] >> ((group & 3u) * 8u);
    return f16_to_f32(half & 0xffffu) * f32(bitcast<i32>(byte << 24u) >> 24u);
  }
  let half = (weight$[at + (group >> 1u) * 16u] >> ((group & 1u) * 16u)) & 0xffffu;
  if (SCALE == 1u) { return f16_to_f32(half); }
  return bf16_to_f32(half);
}

// The code at a bit of a channel's stream.
fn code_at$(at: u32, bit: u32) -> u32 {
  let word = at + (bit >> 5u) * 16u;
  let shift = bit & 31u;
  var code = weight$[word] >> shift;
  if (shift + BITS > 32u) { code |= weight$[word + 16u] << (32u - shift); }
  if (BITS < 32u) { code &= (1u << (BITS & 31u)) - 1u; }
  return code;
}

// Scale and offset of a column.
fn scale_of$(at: vec3<u32>, column: u32, cols: u32) -> vec2<f32> {
  if (SCALE == 4u) { return vec2(1.0, 0.0); }
  let group = column / GROUP;
  let scale = plane_number$(at.y, group, cols);
  if (OFFSET) { return vec2(scale, plane_number$(at.z, group, cols)); }
  return vec2(scale, 0.0);
}

