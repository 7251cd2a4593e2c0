// Weights in the canonical layout (forerun_base::Matrix), and any element of them.

struct Weight {
  const u8* codes;
  const u8* scales;
  const u8* offsets;
  u64 row_bytes, scale_bytes;
  u64 table[2];
  u32 rows, cols, form, bits, group, scale;
};

#define FORM_F32 0
#define FORM_F16 1
#define FORM_BF16 2
#define FORM_UINT 3
#define FORM_INT 4
#define FORM_TABLE 5
#define FORM_E4M3 6

__device__ inline u32 half_at(const u8* bytes, u64 at) { return bytes[at] | (u32)bytes[at + 1] << 8; }

// Number `i` of a row's scales or offsets; scale: 0 f32, 1 f16, 2 bf16, 3 nested.
__device__ inline float group_number(const Weight& w, const u8* plane, u64 row, u32 i) {
  const u8* line = plane + row * w.scale_bytes;
  if (w.scale == 0) return __uint_as_float(half_at(line, 4 * i) | half_at(line, 4 * i + 2) << 16);
  if (w.scale == 1) return f16_to_f32(half_at(line, 2 * i));
  if (w.scale == 2) return bf16_to_f32(half_at(line, 2 * i));
  u32 groups = 256 / w.group, block = i / groups;
  float d = f16_to_f32(half_at(line, block * groups + 2 * block));
  return d * (float)(i8)line[i + 2 * (block + 1)];
}

// Element [row, col].
__device__ inline float element(const Weight& w, u64 row, u32 col) {
  const u8* line = w.codes + row * w.row_bytes;
  if (w.form == FORM_F32)
    return __uint_as_float(half_at(line, 4 * (u64)col) | half_at(line, 4 * (u64)col + 2) << 16);
  if (w.form == FORM_F16) return f16_to_f32(half_at(line, 2 * (u64)col));
  if (w.form == FORM_BF16) return bf16_to_f32(half_at(line, 2 * (u64)col));
  u64 bit = (u64)col * w.bits, first = bit / 8;
  u32 word = line[first] | (first + 1 < w.row_bytes ? (u32)line[first + 1] << 8 : 0);
  u32 code = word >> (bit % 8) & ((1u << w.bits) - 1);
  float value = (float)code;
  if (w.form == FORM_INT) value = value - (float)(1u << (w.bits - 1));
  if (w.form == FORM_TABLE) value = (float)(i8)(w.table[code / 8] >> (8 * (code % 8)));
  if (w.form == FORM_E4M3) value = e4m3_to_f32((u8)code);
  float shift = w.offsets ? group_number(w, w.offsets, row, col / w.group) : 0.0f;
  return group_number(w, w.scales, row, col / w.group) * value + shift;
}
