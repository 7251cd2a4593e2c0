// The packed layout of weights: tiles of 16 rows, blocks of 16 x 128, codes first, then scales.
// The layout is that of src/products/layout.rs; `element` is the definition of a number.

#define BF16 0
#define E4M3 1
#define I8 2
#define U4 3
#define PLAIN 4  // f32, row-major

#define SCALES_NONE 0
#define SCALES_TILE 1
#define SCALES_BF16 2
#define SCALES_F16 3
#define SCALES_F32 4

__device__ __forceinline__ u32 rotate_right(u32 w, u32 by) { return w >> (by & 31) | w << (-by & 31); }

struct Weight {
  const u8* at;
  u32 rows, cols;
  u32 depth;  // columns with planes and filling, a multiple of 128
  u32 family, planes, group, scales, offset;
  i32 bias;  // the value of code 0
  u32 none;  // fills the struct to a multiple of 8 bytes, so that its layout is the same inside other structs
};

// A tile of the columns that a list of pairs (row, expert) is cut into: `count` pairs from `first` on, all of one expert.
struct PairTile { u32 expert, first, count, none; };

__device__ __forceinline__ u32 code_bytes(u32 family) { return family == BF16 ? 4096 : family == U4 ? 1024 : 2048; }
__device__ __forceinline__ u32 group_bytes(u32 scales, u32 offset) {
  return scales < SCALES_BF16 ? 0 : (scales == SCALES_F32 ? 64 : 32) * (1 + offset);
}
__device__ __forceinline__ u32 block_bytes(u32 family, u32 scales, u32 offset, u32 group) {
  return code_bytes(family) + (scales == SCALES_TILE ? 16 : 128 / group * group_bytes(scales, offset));
}


// Scale (which = 0) or offset (1) number `at` of a group's, with `each` bytes.
__device__ __forceinline__ float scale_at(const u8* group, u32 scales, u32 at) {
  if (scales == SCALES_F32) return ((const float*)group)[at];
  u32 bits = ((const u16*)group)[at];
  return scales == SCALES_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

// Element [row, col].
__device__ inline float element(const Weight& w, u64 row, u32 col) {
  if (w.family == PLAIN) return ((const float*)w.at)[(u64)row * w.cols + col];
  u32 bytes = block_bytes(w.family, w.scales, w.offset, w.group), r = row & 15;
  const u8* tile = w.at + (u64)(row >> 4) * (w.depth >> 7) * bytes;
  u32 lane = (r & 7) * 4 + (col & 7) / 2, odd = col & 1, pair = r / 8 + (col & 8) / 4;
  if (w.family == BF16) {
    float sum = 0;
    for (u32 plane = 0; plane < w.planes; plane++) {
      u32 step = col / 16 * w.planes + plane;
      u32 at = (step & 7) * 512 + lane * 16 + pair * 4 + odd * 2;
      float term = bf16_to_f32(*(const u16*)(tile + (u64)(step >> 3) * bytes + at));
      sum = plane ? sum + term : term;
    }
    return sum;
  }
  const u8* block = tile + (u64)(col >> 7) * bytes;
  u32 step = col / 16 & 7;
  float value;
  if (w.family == U4) {
    u32 word = *(const u32*)(block + step / 4 * 512 + lane * 16 + step % 4 * 4), bit = (3 + pair * 4 + odd * 16) & 31;
    value = (float)(i32)((rotate_right(word, bit) & 15) + w.bias);
  } else {
    const u8* half = block + step / 2 * 512 + lane * 16 + step % 2 * 8 + pair / 2 * 4 + odd * 2;
    if (w.family == I8) {
      value = (float)((i32)(i8)half[pair & 1] + w.bias);
    } else {
      u32 bits = *(const u16*)half;
      u32 a = (bits >> 4 & 127) | (bits >> 15) << 7, b = (bits & 15) | (bits >> 12 & 7) << 4 | (bits >> 11 & 1) << 7;
      value = e4m3_to_f32(pair & 1 ? b : a);
    }
  }
  const u8* scales = block + code_bytes(w.family);
  if (w.scales == SCALES_TILE) return *(const float*)scales * value + 0.0f;
  scales += (col & 127) / w.group * group_bytes(w.scales, w.offset);
  u32 at = ((r & 7) * 2 + r / 8) * (1 + w.offset);
  float offset = w.offset ? scale_at(scales, w.scales, at + 1) : 0.0f;
  return scale_at(scales, w.scales, at) * value + offset;
}
