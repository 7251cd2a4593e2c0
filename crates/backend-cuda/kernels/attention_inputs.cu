// Rotary position embedding of queries in place; keys and values to their slots of the cache.
//
// Math: forerun_backend::op::AttentionInputs.
// Layout: forerun_backend::op::CacheOrder::Swizzled; with codes, the scales [group, block] after a head's part of a block.
// Numerics: f32. The squares of a head are summed by 128 threads, each over every 128th element, then by a tree.
// Shape of the launch: a block of 128 threads for each row and head; heads of queries, then of keys, then of values.
// Limits: none.

struct Side {
  const float* weight;  // Norm, or null.
  float eps;
  u32 heads;
};

struct AttentionInputs {
  const float* table;
  float* q;
  const float* k;
  const float* v;
  const u32* places;
  u8* k_cache;
  u8* v_cache;
  u32* fault;
  Side queries, keys, values;
  u32 site, rotary, head_dim, blocks, block, kind;
};

// What a cache holds.
#define CACHE_F32 0
#define CACHE_F16 1
#define CACHE_BF16 2
#define CACHE_CODES 3

__device__ inline float scale_of(const float* x, u32 dim, Side side) {
  float sum = 0.0f;
  for (u32 i = threadIdx.x; i < dim; i += 128) sum = fmaf(x[i], x[i], sum);
  sum = block_sum(sum);
  return 1.0f / sqrtf(sum / (float)dim + side.eps);
}

// An element after the norm.
__device__ inline float normed(const float* x, u32 i, float scale, const float* weight) {
  return weight ? x[i] * scale * weight[i] : x[i];
}

// An element after norm and turn.
__device__ inline float rotated(const float* x, u32 i, float scale, const float* weight,
                               const float* angles, u32 rotary) {
  float own = normed(x, i, scale, weight);
  u32 half = rotary / 2;
  if (i >= rotary) return own;
  if (i < half) return own * angles[i] - normed(x, i + half, scale, weight) * angles[half + i];
  return own * angles[i - half] + normed(x, i - half, scale, weight) * angles[i];
}

// Where element `element` of the key or value at place `at` of a part lies.
__device__ inline u64 place_in_part(const AttentionInputs& a, u32 at, u32 element) {
  if (a.head_dim % 64) return (u64)at * a.head_dim + element;
  return ((u64)(element / 64) * a.block + at) * 64 + ((element % 64 / 8) ^ (at % 8)) * 8 + element % 8;
}

// Writes one element of a cache of floats.
__device__ inline void put(u8* cache, u32 kind, u64 at, float x) {
  if (kind == CACHE_F32) ((float*)cache)[at] = x;
  if (kind == CACHE_F16) ((u16*)cache)[at] = f32_to_f16(x);
  if (kind == CACHE_BF16) ((u16*)cache)[at] = f32_to_bf16(x);
}

KERNEL(attention_inputs, AttentionInputs, 128) {
  u32 row = blockIdx.x, head = blockIdx.y, dim = a.head_dim;
  const float* angles = a.table + (u64)row * a.rotary;
  if (head < a.queries.heads) {
    float* x = a.q + ((u64)row * a.queries.heads + head) * dim;
    const float* weight = a.queries.weight;
    float scale = weight ? scale_of(x, dim, a.queries) : 1.0f;
    u32 half = a.rotary / 2;
    // Both elements of a pair belong to one thread, so no thread reads what another one wrote.
    for (u32 i = threadIdx.x; i < half; i += 128) {
      float one = rotated(x, i, scale, weight, angles, a.rotary);
      float other = rotated(x, i + half, scale, weight, angles, a.rotary);
      x[i] = one;
      x[i + half] = other;
    }
    for (u32 i = a.rotary + threadIdx.x; i < dim; i += 128) x[i] = normed(x, i, scale, weight);
    return;
  }
  u32 place = a.places[row];
  if (!inside(a.fault, a.site, place, (u64)a.blocks * a.block)) return;
  u32 id = place / a.block, at = place % a.block;
  head -= a.queries.heads;
  bool key = head < a.keys.heads;
  Side side = key ? a.keys : a.values;
  if (!key) head -= a.keys.heads;
  const float* x = (key ? a.k : a.v) + ((u64)row * side.heads + head) * dim;
  u8* cache = key ? a.k_cache : a.v_cache;
  float scale = side.weight ? scale_of(x, dim, side) : 1.0f;
  u32 rotary = key ? a.rotary : 0, groups = (dim + 31) / 32;
  u64 stored = dim + (a.kind == CACHE_CODES ? 2 * groups : 0);
  u64 part = ((u64)id * side.heads + head) * a.block * stored;
  if (a.kind != CACHE_CODES) {
    for (u32 i = threadIdx.x; i < dim; i += 128) {
      put(cache, a.kind, part + place_in_part(a, at, i), rotated(x, i, scale, side.weight, angles, rotary));
    }
    return;
  }
  // A warp has the 32 elements of a scale.
  for (u32 group = warp(); group < groups; group += 4) {
    u32 i = group * 32 + lane();
    float y = i < dim ? rotated(x, i, scale, side.weight, angles, rotary) : 0.0f;
    u32 most = __float_as_uint(y) & 0x7fffffff;
    for (u32 by = 16; by > 0; by >>= 1) most = max(most, __shfl_xor_sync(ALL_LANES, most, by));
    u16 bits = f32_to_bf16(__uint_as_float(most) / 127.0f);
    float back = bf16_to_f32(bits), inverse = 1.0f / back;
    // Below this the inverse overflows.
    if (back < 1.17549435e-38f) bits = 0, inverse = 0.0f;
    u64 codes = (u64)a.block * dim, scales = part + codes + 2 * ((u64)group * a.block + at);
    if (lane() == 0) cache[scales] = (u8)bits, cache[scales + 1] = (u8)(bits >> 8);
    if (i >= dim) continue;
    float code = rintf(y * inverse);
    // As the host converts: what is no number is 0, what is too large the largest.
    code = code != code ? 0.0f : clamp(-128.0f, 127.0f, code);
    cache[part + place_in_part(a, at, i)] = (u8)(i8)(int)code;
  }
}
