// Numbers of a weight, whatever its format.
//
// Math: forerun_base::Matrix: scale · value(code) + offset, in f32 by one `fma`.
// Layout: a piece has whole panels of 16 channels; the words of a panel lie channel beside channel, so that
// neighbouring invocations
//   read neighbouring words. Word w of plane words per channel is `at + (panel · words + w) · 16 + lane`. Three planes:
//   codes (a
//   stream of bits, rows padded to 32 columns), scales, offsets. Nested scales are f16, two a word, then i8, four a
//   word.
// Pipelines: codes are constants, which unpacking turns into shifts; scales, which are read once for 16 columns, are told
// by a word, `style`, so that formats of the same codes share a pipeline.
// Limits: groups are multiples of 16 columns.

override CODES: u32 = 0u;   // 0 uint, 1 int, 2 table, 3 e4m3, 4 f32, 5 f16, 6 bf16; the last three have no scales
override BITS: u32 = 4u;
override TABLE0: u32 = 0u;
override TABLE1: u32 = 0u;
override TABLE2: u32 = 0u;
override TABLE3: u32 = 0u;
// Columns of a group that is no power of two.
override ODD_GROUP: u32 = 0u;

// Bits of `style`: the type of a scale in two (0 f32, 1 f16, 2 bf16, 3 nested), whether there are offsets, and the logarithm
// of a group's columns.
const SCALE_AT: u32 = 8u;
const OFFSET: u32 = 1024u;
const GROUP_AT: u32 = 12u;

// Where the planes of a piece lie: words per channel of codes and of scales, and where scales and offsets begin.
struct Planes { codes: u32, scales: u32, scales_at: u32, offsets_at: u32 }

fn is_plain() -> bool { return CODES >= 4u; }

fn group_of(column: u32, style: u32) -> u32 {
  if (ODD_GROUP != 0u) { return column / max(ODD_GROUP, 1u); }
  return column >> ((style >> GROUP_AT) & 15u);
}

// A code's number before scale and offset.
fn value_of(code: u32) -> f32 {
  if (CODES == 0u) { return f32(code); }
  if (CODES == 1u) { return f32(code) - f32(1u << (BITS - 1u)); }
  if (CODES == 2u) {
    var word = TABLE0;
    let quarter = code >> 2u;
    if (quarter == 1u) { word = TABLE1; }
    if (quarter == 2u) { word = TABLE2; }
    if (quarter == 3u) { word = TABLE3; }
    return f32(bitcast<i32>((word >> ((code & 3u) * 8u)) << 24u) >> 24u);
  }
  if (CODES == 3u) {
    let rest = code & 0x7fu;
    let sign = (code & 0x80u) << 24u;
    let small = f32(rest) * 0.001953125;
    let large = bitcast<f32>((rest << 20u) + 0x3c000000u);
    return bitcast<f32>(bitcast<u32>(select(large, small, rest < 8u)) | sign);
  }
  if (CODES == 5u) { return f16_to_f32(code); }
  if (CODES == 6u) { return bf16_to_f32(code); }
  return bitcast<f32>(code);
}

// Where a channel's words begin in the planes of codes, scales and offsets.
fn channel_at(channel: u32, planes: Planes) -> vec3<u32> {
  let panel = channel >> 4u;
  let lane = channel & 15u;
  let scales = panel * planes.scales * 16u + lane;
  return vec3(panel * planes.codes * 16u + lane, planes.scales_at + scales, planes.offsets_at + scales);
}

fn number_of(code: u32, scale: vec2<f32>) -> f32 {
  if (is_plain()) { return value_of(code); }
  return fma(scale.x, value_of(code), scale.y);
}

// Numbers of the four codes that some bits begin with.
fn four_of(bits: u32, scale: vec2<f32>) -> vec4<f32> {
  let mask = (1u << (BITS & 31u)) - 1u;
  let codes = (vec4(bits) >> (vec4(0u, 1u, 2u, 3u) * BITS % 32u)) & vec4(mask);
  return vec4(number_of(codes.x, scale), number_of(codes.y, scale), number_of(codes.z, scale), number_of(codes.w, scale));
}
