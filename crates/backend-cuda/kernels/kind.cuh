// The one kind of weight that a text is compiled for: FAMILY, GROUP, SCALES, OFFSET, BIAS.

#define CODES (FAMILY == BF16 ? 4096 : FAMILY == U4 ? 1024 : 2048)
#define GROUP_BYTES (SCALES < SCALES_BF16 ? 0 : (SCALES == SCALES_F32 ? 64 : 32) * (1 + OFFSET))
#define BLOCK_BYTES (CODES + (SCALES == SCALES_TILE ? 16 : 128 / GROUP * GROUP_BYTES))

__device__ __forceinline__ float narrow(u32 bits) { return SCALES == SCALES_F16 ? f16_value(bits) : bf16_value(bits); }

// Scales of rows g and g + 8, and their offsets.
__device__ __forceinline__ void scales_of(const u8* block, u32 which, u32 g, float (&s)[2], float (&o)[2]) {
  const u8* at = block + CODES + which * GROUP_BYTES;
  if (SCALES == SCALES_TILE) {
    s[0] = s[1] = *(const float*)(block + CODES);
  } else if (SCALES == SCALES_F32) {
    if (OFFSET) {
      float4 v = *(const float4*)(at + g * 16);
      s[0] = v.x, o[0] = v.y, s[1] = v.z, o[1] = v.w;
    } else {
      float2 v = *(const float2*)(at + g * 8);
      s[0] = v.x, s[1] = v.y;
    }
  } else if (OFFSET) {
    uint2 v = *(const uint2*)(at + g * 8);
    s[0] = narrow(v.x & 0xffff), o[0] = narrow(v.x >> 16), s[1] = narrow(v.y & 0xffff), o[1] = narrow(v.y >> 16);
  } else {
    u32 v = *(const u32*)(at + g * 4);
    s[0] = narrow(v & 0xffff), s[1] = narrow(v >> 16);
  }
  if (OFFSET) {
    o[0] = fmaf(offset_bias<FAMILY>(BIAS), s[0], o[0]);
    o[1] = fmaf(offset_bias<FAMILY>(BIAS), s[1], o[1]);
  }
}
