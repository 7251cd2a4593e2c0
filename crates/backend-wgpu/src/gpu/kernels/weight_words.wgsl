// The words of a weight of some number: `$` is the number, and the text is repeated for each weight that a kernel
// binds.
//
// Layout: see weight.wgsl.

@group(0) @binding(WEIGHT$) var<storage, read> weight$: array<u32>;

// A column's number in a plane of scales that begins at word `at` for this channel's lane.
fn plane_number$(at: u32, column: u32, cols: u32, style: u32) -> f32 {
  let kind = (style >> SCALE_AT) & 3u;
  let group = group_of(column, style);
  // f32 has a word for a group; halves lie two a word, and nested scales have one for 256 columns.
  let half = select(group, column >> 8u, kind == 3u);
  let word = weight$[at + select(half >> 1u, group, kind == 0u) * 16u];
  if (kind == 0u) { return bitcast<f32>(word); }
  let bits = (word >> ((half & 1u) * 16u)) & 0xffffu;
  if (kind == 2u) { return bf16_to_f32(bits); }
  if (kind == 1u) { return f16_to_f32(bits); }
  let byte = weight$[at + (((cols >> 8u) + 1u) / 2u + (group >> 2u)) * 16u] >> ((group & 3u) * 8u);
  return f16_to_f32(bits) * f32(bitcast<i32>(byte << 24u) >> 24u);
}

// Scale and offset of a column.
fn scale_of$(at: vec3<u32>, column: u32, cols: u32, style: u32) -> vec2<f32> {
  if (is_plain()) { return vec2(1.0, 0.0); }
  let scale = plane_number$(at.y, column, cols, style);
  if ((style & OFFSET) != 0u) { return vec2(scale, plane_number$(at.z, column, cols, style)); }
  return vec2(scale, 0.0);
}

// At least `count` bits of a channel's stream.
fn stream$(at: u32, bit: u32, count: u32) -> u32 {
  let word = at + (bit >> 5u) * 16u;
  let shift = bit & 31u;
  var bits = weight$[word] >> shift;
  if ((32u % BITS) != 0u && shift + count > 32u) { bits |= weight$[word + 16u] << (32u - shift); }
  return bits;
}

// The code of a column.
fn code_at$(at: u32, column: u32) -> u32 {
  let bits = stream$(at, column * BITS, BITS);
  if (BITS == 32u) { return bits; }
  return bits & ((1u << (BITS & 31u)) - 1u);
}

// The numbers of four columns from a multiple of four on.
fn four_at$(at: u32, column: u32, scale: vec2<f32>) -> vec4<f32> {
  if (BITS <= 8u) { return four_of(stream$(at, column * BITS, 4u * BITS), scale); }
  if (BITS == 16u) {
    let word = at + (column >> 1u) * 16u;
    let bits = vec2(weight$[word], weight$[word + 16u]);
    let low = bits & vec2(0xffffu);
    let high = bits >> vec2(16u);
    return vec4(number_of(low.x, scale), number_of(high.x, scale), number_of(low.y, scale), number_of(high.y, scale));
  }
  return vec4(
    number_of(code_at$(at, column), scale), number_of(code_at$(at, column + 1u), scale),
    number_of(code_at$(at, column + 2u), scale), number_of(code_at$(at, column + 3u), scale),
  );
}

