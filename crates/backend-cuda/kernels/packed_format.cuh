// The one kind of weight that a text is compiled for: FAMILY, GROUP, SCALES, OFFSET, BIAS.

#define CODES (FAMILY == BF16 ? 4096 : FAMILY == U4 ? 1024 : 2048)
#define GROUP_BYTES (SCALES < SCALES_BF16 ? 0 : (SCALES == SCALES_F32 ? 64 : 32) * (1 + OFFSET))
#define BLOCK_BYTES (CODES + (SCALES == SCALES_TILE ? 16 : 128 / GROUP * GROUP_BYTES))

__device__ __forceinline__ float narrow(u32 bits) { return SCALES == SCALES_F16 ? f16_to_f32(bits) : bf16_to_f32(bits); }

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

// A group's sum joins the segment's; `x`: sums of the group's activations, of two columns of each eight.
template <int T>
__device__ __forceinline__ void join(float (&sum)[T][4], const float (&group)[T][4], const u8* block, const float (&x)[T][2], u32 which) {
  float s[2], o[2];
  scales_of(block, which, lane() >> 2, s, o);
#pragma unroll
  for (int j = 0; j < T; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      sum[j][i] = fmaf(s[i / 2], group[j][i], sum[j][i]);
      if (OFFSET) sum[j][i] = fmaf(o[i / 2], x[j][i % 2], sum[j][i]);
    }
}

// One block of 128 columns times `v`, a lane's activations of 8 columns each, two steps at a time.
template <int T>
__device__ __forceinline__ void add_block(float (&sum)[T][4], const u8* block, const uint4 (&v)[4][T], const float (&x)[128 / GROUP][T][2], const Constants& k) {
  constexpr int PAIRS = GROUP < 32 ? 1 : GROUP / 32;  // of steps, in a group
  float group[T][4];
  uint4 codes;
#pragma unroll
  for (int two = 0; two < 4; two++) {
    u32 a[4], b[4];
    if (FAMILY == BF16) {
      uint4 p = *(const uint4*)(block + two * 1024 + lane() * 16), q = *(const uint4*)(block + two * 1024 + 512 + lane() * 16);
      a[0] = p.x, a[1] = p.y, a[2] = p.z, a[3] = p.w, b[0] = q.x, b[1] = q.y, b[2] = q.z, b[3] = q.w;
    } else if (FAMILY == U4) {
      if (two % 2 == 0) codes = *(const uint4*)(block + two / 2 * 512 + lane() * 16);
      from_u4<OFFSET>(k, two % 2 ? codes.z : codes.x, a);
      from_u4<OFFSET>(k, two % 2 ? codes.w : codes.y, b);
    } else {
      uint4 w = *(const uint4*)(block + two * 512 + lane() * 16);
      if (FAMILY == I8) {
        from_i8(k, w.x, a[0], a[1]), from_i8(k, w.y, a[2], a[3]), from_i8(k, w.z, b[0], b[1]), from_i8(k, w.w, b[2], b[3]);
      } else {
        from_e4m3(k, w.x, a[0], a[1]), from_e4m3(k, w.y, a[2], a[3]);
        from_e4m3(k, w.z, b[0], b[1]), from_e4m3(k, w.w, b[2], b[3]);
      }
    }
#pragma unroll
    for (int j = 0; j < T; j++) {
      const uint4 c = v[two][j];
      if (FAMILY == BF16) {
        mma(sum[j], a[0], a[1], a[2], a[3], c.x, c.y);
        mma(sum[j], b[0], b[1], b[2], b[3], c.z, c.w);
      } else {
        if (two % PAIRS == 0) mma_from_zero(group[j], a[0], a[1], a[2], a[3], c.x, c.y);
        else mma(group[j], a[0], a[1], a[2], a[3], c.x, c.y);
        if (GROUP != 16) mma(group[j], b[0], b[1], b[2], b[3], c.z, c.w);
      }
    }
    if (FAMILY == BF16) continue;
    if (GROUP == 16) {
      join(sum, group, block, x[two * 2 % (128 / GROUP)], two * 2);
#pragma unroll
      for (int j = 0; j < T; j++) mma_from_zero(group[j], b[0], b[1], b[2], b[3], v[two][j].z, v[two][j].w);
      join(sum, group, block, x[(two * 2 + 1) % (128 / GROUP)], two * 2 + 1);
    } else if ((two + 1) % PAIRS == 0) {
      join(sum, group, block, x[two / PAIRS], two / PAIRS);
    }
  }
}

// Puts a warp's sums of its segment beside those of the other segments' warps, and waits for theirs.
template <int T>
__device__ __forceinline__ void exchange_sums(float4* total, const float (&sum)[T][4], u32 segment, u32 segments, u32 group) {
  if (segments > 1) group_barrier(1 + group, segments * 32);
  else __syncwarp();
#pragma unroll
  for (int j = 0; j < T; j++) total[(segment * T + j) * 32 + lane()] = make_float4(sum[j][0], sum[j][1], sum[j][2], sum[j][3]);
  if (segments > 1) group_barrier(1 + group, segments * 32);
  else __syncwarp();
}

// A row's sum for a token, from the segments' sums as lanes keep them: segments ascending, then the parts of the activation.
template <int T> __device__ __forceinline__ float total_of(const float* total, u32 row, u32 token, u32 split, u32 segments) {
  float v = 0;
  for (i32 h = split - 1; h >= 0; h--) {
    const u32 c = token * split + h, from = (c / 8 * 32 + row % 8 * 4 + c % 8 / 2) * 4 + row / 8 * 2 + c % 2;
    float one = total[from];
    for (u32 s = 1; s < segments; s++) one = one + total[s * T * 128 + from];
    v = h == (i32)split - 1 ? one : v + one;
  }
  return v;
}
