// Causal attention over the paged cache, for any width of head and any type of cache; and the merging of chunks.
//
// Math: forerun_backend::op::Attention.
// Some keys at a time: forerun_backend::op::AttentionPart; first_key and end_key are multiples of CHUNK, or beyond all keys.
// Layout: forerun_backend::op::CacheOrder::Swizzled. KIND says what the caches hold: 0 f32, 1 f16, 2 bf16, 3 codes with scales.
//   Partial results are [row, head, chunk, head_dim + 2]: the sums of values, the maximum, the sum of weights.
// Numerics: f32, weights as powers of two. Keys are cut at absolute multiples of CHUNK. Within a chunk: scores, their maximum,
//   weights and sums of values, keys in ascending order within each of some groups that depend on head_dim alone. Chunks are
//   merged in ascending order, as they come or from partial results: the same operations. So a row's bits depend on its own
//   keys alone.
// Shape of the launch: a block of 256 threads for each row, key head and up to HEADS of its query heads, and
//   for each chunk where chunks are spread over blocks (gridDim.z > 1).
// Limits: head_dim up to 512.

#define CHUNK 512

struct Attention {
  const float* q;
  const u8* k_cache;
  const u8* v_cache;
  const u32* positions;
  const u32* span_of;
  const u32* tables;
  float* out;
  float* partial;
  float* state;
  u32* fault;
  u64 window, first_key, end_key;
  u32 begins, ends;
  u32 site, heads, kv_heads, head_dim, blocks, block, table_width, spans, chunks;
  float scale;  // of scores as powers of two
};

// The largest score of no keys.
#define NO_SCORE -3e38f

// What a row sees: keys first..end of one line of the tables.
struct Sight {
  bool ok;
  u64 first, end;
  const u32* line;
};

__device__ inline Sight sight_of(const Attention& a, u32 row, u32* fault) {
  Sight sight = {false, 0, 0, 0};
  u64 end = (u64)a.positions[row] + 1, most = (u64)a.table_width * a.block;
  u32 span = a.span_of[row];
  if (fault) {
    if (!inside(fault, a.site, span, a.spans)) return sight;
    if (!inside(fault, a.site + 1, end - 1, most)) return sight;
  } else if (span >= a.spans || end > most) {
    return sight;
  }
  sight.ok = true;
  sight.first = max(end > a.window ? end - a.window : 0, a.first_key);
  sight.end = min(end, a.end_key);
  sight.line = a.tables + (u64)span * a.table_width;
  return sight;
}

__device__ inline u64 stored(const Attention& a) {
#if KIND == 3
  return a.head_dim + 2 * ((a.head_dim + 31) / 32);
#else
  return a.head_dim;
#endif
}

// Where element `element` of the key or value at place `at` of a part lies.
__device__ __forceinline__ u64 place_in_part(const Attention& a, u32 at, u32 element) {
  if (a.head_dim % 64) return (u64)at * a.head_dim + element;
  return ((u64)(element / 64) * a.block + at) * 64 + ((element % 64 / 8) ^ (at % 8)) * 8 + element % 8;
}

// That element, of a part that begins at `part`.
__device__ __forceinline__ float number(const Attention& a, const u8* cache, u64 part, u32 at, u32 element) {
  const u64 place = part + place_in_part(a, at, element);
#if KIND == 0
  return ((const float*)cache)[place];
#elif KIND == 1
  return f16_to_f32(((const u16*)cache)[place]);
#elif KIND == 2
  return bf16_to_f32(((const u16*)cache)[place]);
#else
  u64 scale = part + (u64)a.block * a.head_dim + 2 * ((u64)(element / 32) * a.block + at);
  return (float)(i8)cache[place] * bf16_to_f32((u16)(cache[scale] | cache[scale + 1] << 8));
#endif
}

// Eight elements that follow each other in memory, too, from a multiple of eight on.
__device__ __forceinline__ void eight(const Attention& a, const u8* cache, u64 part, u32 at, u32 element, float (&v)[8]) {
#if KIND == 0
  const float4* from = (const float4*)((const float*)cache + part + place_in_part(a, at, element));
  const float4 x = from[0], y = from[1];
  v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w, v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
#elif KIND == 3
  for (u32 i = 0; i < 8; i++) v[i] = number(a, cache, part, at, element + i);
#else
  const uint4 x = *(const uint4*)((const u16*)cache + part + place_in_part(a, at, element));
  const u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    const u16 bits = (u16)(words[i / 2] >> i % 2 * 16);
    v[i] = KIND == 1 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
#endif
}

// Chunks that a row sees, as the first and one past the last; none where the call's keys are others.
__device__ inline void chunks_of(const Sight& sight, u64& from, u64& to) {
  from = sight.first / CHUNK;
  to = sight.end > sight.first ? (sight.end - 1) / CHUNK + 1 : from;
}

// Merges a chunk into what came before it.
__device__ inline void merge(float m, float l, float& most, float& sum, float& before,
                             float& here) {
  float new_most = fmaxf(most, m);
  before = exp2_down(most - new_most);
  here = exp2_down(m - new_most);
  sum = fmaf(sum, before, l * here);
  most = new_most;
}

template <int HEADS>
__device__ inline void attend(const Attention& a) {
  DYNAMIC_SHARED(float, shared);
  __shared__ u64 parts[CHUNK];
  __shared__ u32 places[CHUNK];
  __shared__ float groups[HEADS][256], chunk_most[HEADS], chunk_sum[HEADS];
  __shared__ u32 bad;
  u32 dim = a.head_dim, row = blockIdx.x, t = threadIdx.x;
  u32 per_key = a.heads / a.kv_heads, sets = (per_key + HEADS - 1) / HEADS;
  u32 kv_head = blockIdx.y / sets, first_head = blockIdx.y % sets * HEADS;
  u32 count = min((u32)HEADS, per_key - first_head);
  first_head += kv_head * per_key;
  float* q = shared;
  float* scores = shared + HEADS * dim;
  Sight sight = sight_of(a, row, a.fault);
  if (!sight.ok) return;
  u64 from, to;
  chunks_of(sight, from, to);
  bool spread = gridDim.z > 1;
  if (spread) {
    if (blockIdx.z < from || blockIdx.z >= to) return;
    from = blockIdx.z;
    to = from + 1;
  }
  if (t == 0) bad = 0;
  for (u32 i = t; i < HEADS * dim; i += 256)
    q[i] = i < count * dim ? a.q[((u64)row * a.heads + first_head) * dim + i] : 0.0f;

  // Threads share the elements of a value, and what is left of them the keys.
  u32 width = 32;
  while (width < dim && width < 256) width *= 2;
  u32 stride = 256 / width, group = t / width, column = t % width;
  float most[HEADS], sum[HEADS], values[HEADS][2];
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    most[h] = NO_SCORE;
    sum[h] = 0.0f;
    values[h][0] = values[h][1] = 0.0f;
    if (a.begins || spread || h >= count) continue;
    const float* state = a.state + ((u64)row * a.heads + first_head + h) * (dim + 2);
    most[h] = state[dim];
    sum[h] = state[dim + 1];
    for (u32 pass = 0; pass < 2; pass++)
      if (pass * 256 + column < dim) values[h][pass] = state[pass * 256 + column];
  }

  for (u64 chunk = from; chunk < to; chunk++) {
    u64 base = chunk * CHUNK;
    u32 low = sight.first > base ? (u32)(sight.first - base) : 0;
    u32 high = (u32)min((u64)CHUNK, sight.end - base);
    __syncthreads();
    for (u32 j = t; j < CHUNK; j += 256) {
      if (j < low || j >= high) continue;
      u64 key = base + j;
      u32 page = (u32)(key / a.block), at = (u32)(key - (u64)page * a.block), id = sight.line[page];
      if (!inside(a.fault, a.site + 2, id, a.blocks)) {
        bad = 1;
        continue;
      }
      u64 part = ((u64)id * a.kv_heads + kv_head) * a.block * stored(a);
      parts[j] = part;
      places[j] = at;
      float dots[HEADS];
      for (int h = 0; h < HEADS; h++) dots[h] = 0.0f;
      if (dim % 8 == 0) {
#pragma unroll 4
        for (u32 e = 0; e < dim; e += 8) {
          float k[8];
          eight(a, a.k_cache, part, at, e, k);
#pragma unroll
          for (int i = 0; i < 8; i++)
#pragma unroll
            for (int h = 0; h < HEADS; h++) dots[h] = fmaf(q[h * dim + e + i], k[i], dots[h]);
        }
      } else {
        for (u32 e = 0; e < dim; e++) {
          float k = number(a, a.k_cache, part, at, e);
#pragma unroll
          for (int h = 0; h < HEADS; h++) dots[h] = fmaf(q[h * dim + e], k, dots[h]);
        }
      }
#pragma unroll
      for (int h = 0; h < HEADS; h++) scores[h * CHUNK + j] = dots[h] * a.scale;
    }
    __syncthreads();
    if (bad) return;
    // A warp has the scores of a head.
    for (u32 h = warp(); h < count; h += 8) {
      float m = -INFINITE, l = 0.0f;
      for (u32 j = lane(); j < high; j += 32)
        if (j >= low) m = fmaxf(m, scores[h * CHUNK + j]);
      m = warp_max(m);
      for (u32 j = lane(); j < high; j += 32) {
        if (j < low) continue;
        float p = exp2_down(scores[h * CHUNK + j] - m);
        scores[h * CHUNK + j] = p;
        l += p;
      }
      l = warp_sum(l);
      if (lane() == 0) chunk_most[h] = m, chunk_sum[h] = l;
    }
    __syncthreads();
    float before[HEADS], here[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      before[h] = here[h] = 0.0f;
      if (h < count) merge(chunk_most[h], chunk_sum[h], most[h], sum[h], before[h], here[h]);
    }
#pragma unroll
    for (u32 pass = 0; pass < 2; pass++) {
      if (pass * 256 >= dim) break;
      u32 d = pass * 256 + column;
      float mixed[HEADS];
      for (int h = 0; h < HEADS; h++) mixed[h] = 0.0f;
      u32 start = low <= group ? group : group + (low - group + stride - 1) / stride * stride;
      if (d < dim) {
#pragma unroll 4
        for (u32 j = start; j < high; j += stride) {
          float v = number(a, a.v_cache, parts[j], places[j], d);
#pragma unroll
          for (int h = 0; h < HEADS; h++) mixed[h] = fmaf(scores[h * CHUNK + j], v, mixed[h]);
        }
      }
      if (stride > 1) {
#pragma unroll
        for (int h = 0; h < HEADS; h++) groups[h][t] = mixed[h];
        __syncthreads();
        if (group == 0)
#pragma unroll
          for (int h = 0; h < HEADS; h++)
            for (u32 g = 1; g < stride; g++) mixed[h] += groups[h][g * width + column];
      }
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
        if (spread) {
          values[h][pass] = mixed[h];
        } else {
          values[h][pass] = fmaf(values[h][pass], before[h], mixed[h] * here[h]);
        }
      }
    }
  }

#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    if (h >= count || group > 0) continue;
    u64 head = (u64)row * a.heads + first_head + h;
#pragma unroll
    for (u32 pass = 0; pass < 2; pass++) {
      u32 d = pass * 256 + column;
      if (d >= dim) continue;
      if (spread) {
        a.partial[(head * a.chunks + blockIdx.z) * (dim + 2) + d] = values[h][pass];
      } else if (a.ends) {
        a.out[head * dim + d] = values[h][pass] / sum[h];
      } else {
        a.state[head * (dim + 2) + d] = values[h][pass];
      }
    }
    if (!spread && !a.ends && t == 0) {
      a.state[head * (dim + 2) + dim] = most[h];
      a.state[head * (dim + 2) + dim + 1] = sum[h];
    }
    if (spread && t == 0) {
      float* at = a.partial + (head * a.chunks + blockIdx.z) * (dim + 2) + dim;
      at[0] = chunk_most[h];
      at[1] = chunk_sum[h];
    }
  }
}

KERNEL(attention_1, Attention, 256) { attend<1>(a); }
KERNEL(attention_4, Attention, 256) { attend<4>(a); }
KERNEL(attention_8, Attention, 256) { attend<8>(a); }

// Merges the chunks of a row and head: a block of 256 threads for each. Factors are made for 256 chunks at a time, whose
// largest scores so far are a scan; the sums are chains over the chunks.
KERNEL(attention_merge, Attention, 256) {
  __shared__ float befores[256], heres[256], weights[256], of_warps[8];
  u32 row = blockIdx.x, dim = a.head_dim, t = threadIdx.x;
  u64 head = (u64)row * a.heads + blockIdx.y;
  Sight sight = sight_of(a, row, 0);
  if (!sight.ok) return;
  float most = NO_SCORE, sum = 0.0f, values[2] = {0.0f, 0.0f};
  float* state = a.state + head * (dim + 2);
  if (!a.begins) {
    most = state[dim];
    sum = state[dim + 1];
    for (u32 pass = 0; pass < 2; pass++)
      if (t + 256 * pass < dim) values[pass] = state[t + 256 * pass];
  }
  u64 from, to;
  chunks_of(sight, from, to);
  const float* parts = a.partial + head * a.chunks * (dim + 2);
  for (u64 first = from; first < to; first += 256) {
    const u32 count = (u32)min(to - first, (u64)256);
    float m = NO_SCORE, l = 0.0f;
    if (t < count) {
      const float* part = parts + (first + t) * (dim + 2);
      m = part[dim], l = part[dim + 1];
    }
    float largest = m;
    for (u32 by = 1; by < 32; by <<= 1) {
      float other = __shfl_up_sync(ALL_LANES, largest, by);
      if (lane() >= by) largest = fmaxf(largest, other);
    }
    __syncthreads();
    if (lane() == 31) of_warps[warp()] = largest;
    __syncthreads();
    float earlier = most;
    for (u32 i = 0; i < warp(); i++) earlier = fmaxf(earlier, of_warps[i]);
    float previous = __shfl_up_sync(ALL_LANES, largest, 1);
    previous = lane() == 0 ? earlier : fmaxf(earlier, previous);
    largest = fmaxf(earlier, largest);
    befores[t] = exp2_down(previous - largest);
    heres[t] = exp2_down(m - largest);
    weights[t] = l * heres[t];
    for (u32 i = 0; i < 8; i++) most = fmaxf(most, of_warps[i]);
    __syncthreads();
    for (u32 i = 0; i < count; i++) sum = fmaf(sum, befores[i], weights[i]);
#pragma unroll
    for (u32 pass = 0; pass < 2; pass++) {
      u32 d = t + 256 * pass;
      if (d >= dim) continue;
      const float* part = parts + first * (dim + 2) + d;
#pragma unroll 8
      for (u32 i = 0; i < count; i++) values[pass] = fmaf(values[pass], befores[i], part[(u64)i * (dim + 2)] * heres[i]);
    }
  }
#pragma unroll
  for (u32 pass = 0; pass < 2; pass++) {
    u32 d = t + 256 * pass;
    if (d >= dim) continue;
    if (a.ends) {
      a.out[head * dim + d] = values[pass] / sum;
    } else {
      state[d] = values[pass];
    }
  }
  if (a.ends) return;
  __syncthreads();
  if (t == 0) {
    state[dim] = most;
    state[dim + 1] = sum;
  }
}
