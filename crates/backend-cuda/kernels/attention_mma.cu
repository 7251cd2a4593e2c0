// Causal attention over the paged cache by the tensor core: heads of 64, 128 or 256, caches of 16-bit numbers (sm_90).
//
// Compiled for DIM, the width of a head; KIND, 1 for half floats and 2 for bfloat16; LIMBS, 16-bit numbers that a query and a
// weight are the sum of.
//
// # Math
// forerun_backend::op::{Attention, AttentionPart}; first_key and end_key are multiples of CHUNK, or beyond all keys.
//
// # Layout
// Caches are CacheOrder::Swizzled with blocks of 64: keys and values of a head in a block are one run of bytes, which is
// copied to shared memory as it is. Partial results are [row, head, chunk, DIM + 2]: the sums of values, the largest score,
// the sum of weights.
//
// # Numerics
// A row's query is scaled by a power of two, so that its largest number is near 1024, and cut into limbs. Keys are cut at
// absolute multiples of CHUNK, and a chunk into blocks of 64. In a chunk, blocks ascending: scores are chains of k16 steps
// over the width of the head, limbs one after another; weights are powers of two below the largest score so far; sums so far
// shrink to a new largest score. Values are added in k16 steps ascending. Weights of a block are added in a tree over keys
// 8 i + 2 t + (0, 1) for each t, and the four t at the end of the chunk. A key that a row does not see has weight 0, and
// numbers of keys that no row of the tile sees are not used, whatever they are. So a row's bits depend on its own keys alone,
// not on the rows beside it, and not on how rows are dealt to tiles.
//
// # Shape of the launch
// About one block a multiprocessor, of nine warps. A tile is up to `tile_rows` rows of one span; its operand rows are rows
// by query heads of one key head, in up to four times 16. An item is a chunk of keys for a tile and key head; a block takes
// every gridDim.x-th. The ninth warp copies keys and values ahead into a ring, K0 K1 V0 K2 V1 ...; the others make scores
// (keys shared out), weights (two rows a warp) and sums (columns shared out), where scores of the next block are queued
// between the last two.
//
// # Limits
// At most ROWS rows a launch; blocks of 64 positions; at most 64 query heads for a key head.

#define CHUNK 512
#define BLOCK 64
#define ROWS 256
#define HALF (KIND == 1)
#define TILE_BYTES (BLOCK * DIM * 2)
#define STRIDE 72                            // numbers of a line of scores or weights in shared memory
#define COLUMNS (DIM <= 128 ? 2 : 4)         // eights of columns of the sums that a warp has
#define SUM_WARPS (DIM / 8 / COLUMNS)

struct AttentionMma {
  const float* q;
  const u8* k_cache;
  const u8* v_cache;
  const u32* positions;
  const u32* span_of;
  const u32* tables;
  float* partial;
  u32* fault;
  u64 window, first_key, end_key;
  u32 site, rows, heads, kv_heads, blocks, table_width, spans, chunks, tile_rows;
  u32 slots, tiles16;                        // stages of the ring; sixteens of operand rows that shared memory is for
  float scale;
};

// Tiles of the launch, and how many items come before each.
struct Tiles {
  u32 count, items;
  u32 row[ROWS], rows[ROWS], span[ROWS], low[ROWS], high[ROWS], before[ROWS];
  u32 firsts[ROWS], ends[ROWS];              // of each row: the keys that it sees
};

struct Item {
  u32 row, rows, span, kv_head, chunk;
  u32 low, high;                             // the keys that some row of the tile sees in this chunk
};

__device__ inline u64 first_seen(const AttentionMma& a, u64 end) {
  return max(end > a.window ? end - a.window : 0, a.first_key);
}

// Inclusive sums, or maxima, over the block's threads.
template <class Op> __device__ inline u32 scan(u32 x, u32* of_warps) {
  for (u32 by = 1; by < 32; by <<= 1) {
    const u32 other = __shfl_up_sync(ALL_LANES, x, by);
    if (lane() >= by) x = Op::of(x, other);
  }
  __syncthreads();
  if (lane() == 31) of_warps[warp()] = x;
  __syncthreads();
  u32 before = 0;
  for (u32 i = 0; i < warp(); i++) before = Op::of(before, of_warps[i]);
  return Op::of(x, before);
}
struct Sum { static __device__ inline u32 of(u32 a, u32 b) { return a + b; } };
struct Most { static __device__ inline u32 of(u32 a, u32 b) { return max(a, b); } };

// Which rows are tiles, and which chunks they see. Rows of a span stand together.
__device__ inline void deal(const AttentionMma& a, Tiles& tiles, u32* of_warps) {
  const u32 r = threadIdx.x;
  const bool there = r < a.rows;
  const u32 span = there ? a.span_of[r] : 0;
  const u32 start = scan<Most>(there && (r == 0 || a.span_of[r - 1] != span) ? r : 0, of_warps);
  const bool begins = there && (r - start) % a.tile_rows == 0;
  if (there) {
    const u64 end = (u64)a.positions[r] + 1;
    const bool known = inside(a.fault, a.site, span, a.spans) && inside(a.fault, a.site + 1, end - 1, (u64)a.table_width * BLOCK);
    // A row that is wrong sees nothing.
    tiles.firsts[r] = known ? (u32)first_seen(a, end) : 0, tiles.ends[r] = known ? (u32)min(end, a.end_key) : 0;
  }
  __syncthreads();
  u32 count = 0, chunks = 0, low = ~0u, high = 0;
  if (begins) {
    for (; count < a.tile_rows && r + count < a.rows && a.span_of[r + count] == span; count++)
      if (tiles.ends[r + count] > tiles.firsts[r + count])
        low = min(low, tiles.firsts[r + count]), high = max(high, tiles.ends[r + count]);
    if (high > low) chunks = (high - 1) / CHUNK + 1 - low / CHUNK;
  }
  const u32 number = scan<Sum>(chunks > 0, of_warps), items = scan<Sum>(chunks, of_warps);
  if (chunks > 0) {
    tiles.row[number - 1] = r, tiles.rows[number - 1] = count, tiles.span[number - 1] = span;
    tiles.low[number - 1] = low, tiles.high[number - 1] = high;
    tiles.before[number - 1] = (items - chunks) * a.kv_heads;
    // Whoever needs these blocks of the table finds them nearby.
    prefetch(a.tables + (u64)span * a.table_width + low / BLOCK);
    prefetch(a.tables + (u64)span * a.table_width + (high - 1) / BLOCK);
  }
  if (r == blockDim.x - 1) tiles.count = number, tiles.items = items * a.kv_heads;
  __syncthreads();
}

__device__ inline Item item_of(const AttentionMma& a, const Tiles& tiles, u32 number) {
  u32 low = 0, high = tiles.count;
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    if (tiles.before[middle] <= number) low = middle;
    else high = middle;
  }
  const u32 rest = number - tiles.before[low], chunk = tiles.low[low] / CHUNK + rest / a.kv_heads;
  return {tiles.row[low], tiles.rows[low], tiles.span[low], rest % a.kv_heads, chunk, max(tiles.low[low], chunk * CHUNK),
          min(tiles.high[low], (chunk + 1) * CHUNK)};
}

// Shared memory behind the ring; sizes follow from the operand rows.
struct Places {
  u32 ring, queries, scores, weights, factors, units, ends, firsts;
};

__device__ __forceinline__ Places places_of(const AttentionMma& a) {
  const u32 rows = a.tiles16 * 16;
  Places at;
  at.ring = 1024;
  at.queries = at.ring + a.slots * TILE_BYTES;
  at.scores = at.queries + LIMBS * rows * DIM * 2;
  at.weights = at.scores + 2 * rows * STRIDE * 4;
  at.factors = at.weights + LIMBS * rows * STRIDE * 2;
  at.units = at.factors + rows * 4;
  at.ends = at.units + rows * 4;
  at.firsts = at.ends + rows * 4;
  return at;
}

struct Ring {
  u32 slot, parity;
  __device__ __forceinline__ void next(u32 slots) {
    if (++slot == slots) slot = 0, parity ^= 1;
  }
};

// Copies an item's keys and values to the ring.
__device__ inline void produce(const AttentionMma& a, const Item& item, u32 base, Ring& ring) {
  const u32 full = base, empty = base + 8 * a.slots;
  auto put = [&](const u8* cache, u64 part) {
    barrier_wait(empty + 8 * ring.slot, ring.parity ^ 1);
    barrier_expect(full + 8 * ring.slot, TILE_BYTES);
    copy_async(base + 1024 + ring.slot * TILE_BYTES, cache + part * TILE_BYTES, TILE_BYTES, full + 8 * ring.slot);
    ring.next(a.slots);
  };
  u64 before = 0;
  const u32 first = item.low / BLOCK, last = (item.high - 1) / BLOCK;
  for (u32 b = first; b <= last; b++) {
    const u32 id = a.tables[(u64)item.span * a.table_width + b];
    const bool known = inside(a.fault, a.site + 2, id, a.blocks);
    const u64 part = (u64)(known ? id : 0) * a.kv_heads + item.kv_head;
    put(a.k_cache, part);
    if (b > first) put(a.v_cache, before);
    before = part;
  }
  put(a.v_cache, before);
}

__device__ __forceinline__ u32 narrow_of(float x) { return HALF ? f32_to_f16(x) : f32_to_bf16(x); }
__device__ __forceinline__ float wide_of(u32 bits) { return HALF ? f16_to_f32(bits) : bf16_to_f32(bits); }

// The next limbs of two numbers as a word, and what is left of them.
__device__ __forceinline__ u32 limbs_of(float& x, float& y) {
  const u32 low = narrow_of(x), high = narrow_of(y);
  x = x - wide_of(low), y = y - wide_of(high);
  return low | high << 16;
}

// Queries as operands of the tensor core; what a score is worth in powers of two; and which keys rows see.
__device__ inline void stage_queries(const AttentionMma& a, const Tiles& tiles, const Item& item, u8* shared, const Places& at, u32 rows) {
  const u32 group = a.heads / a.kv_heads, all = item.rows * group, l = lane();
  constexpr u32 EACH = DIM / 32;             // numbers of a lane
  for (u32 i = warp(); i < rows; i += 8) {
    const bool real = i < all;
    float x[EACH], most = 0;
#pragma unroll
    for (u32 j = 0; j < EACH; j++) x[j] = 0;
    if (real) {
      const float* q = a.q + ((u64)(item.row + i / group) * a.heads + item.kv_head * group + i % group) * DIM + l * EACH;
#pragma unroll
      for (u32 j = 0; j < EACH; j += 2) {
        const float2 v = *(const float2*)(q + j);
        x[j] = v.x, x[j + 1] = v.y;
      }
    }
#pragma unroll
    for (u32 j = 0; j < EACH; j++) most = fmaxf(most, fabsf(x[j]));
    most = warp_max(most);
    // The power of two by which the largest number comes to at least 1024 and less than 2048.
    const i32 exponent = max((i32)(__float_as_uint(most) >> 23) - 127, -100);
    const float up = pow2((float)(10 - exponent)), down = pow2((float)(exponent - 10));
#pragma unroll
    for (u32 j = 0; j < EACH; j++) x[j] = x[j] * up;
    const u32 column = l * EACH, piece = (column % 64 / 8) ^ (i & 7);
    for (u32 limb = 0; limb < LIMBS; limb++) {
      u8* to = shared + at.queries + limb * rows * DIM * 2 + (column / 64 * rows + i) * 128 + piece * 16 + column % 8 * 2;
#pragma unroll
      for (u32 j = 0; j < EACH; j += 2) *(u32*)(to + 2 * j) = limbs_of(x[j], x[j + 1]);
    }
    if (l == 0) {
      *(float*)(shared + at.units + 4 * i) = a.scale * 1.4426950408889634f * down;
      *(u32*)(shared + at.ends + 4 * i) = real ? tiles.ends[item.row + i / group] : 0;
      *(u32*)(shared + at.firsts + 4 * i) = real ? tiles.firsts[item.row + i / group] : 0;
    }
  }
}

// One chunk for one tile and key head, with 16 M operand rows.
template <int M>
__device__ __forceinline__ void consume(const AttentionMma& a, const Tiles& tiles, const Item& item, u8* shared, Ring& ring) {
  constexpr u32 ROWS16 = M == 3 ? 4 : M;     // groups of warps that share out the rows, and eights of keys of a warp
  constexpr u32 ROWS_ALL = 16 * M;
  const Places at = places_of(a);
  const u32 w = warp(), l = lane(), g = l >> 2, t = l & 3, base = shared_address(shared);
  const u32 full = base, empty = base + 8 * a.slots, mine = w / (8 / ROWS16), key0 = w % (8 / ROWS16) * 8 * ROWS16;
  float* scores = (float*)(shared + at.scores);
  float* factors = (float*)(shared + at.factors);
  const float* units = (const float*)(shared + at.units);
  const u32* ends = (const u32*)(shared + at.ends);
  const u32* firsts = (const u32*)(shared + at.firsts);
  group_barrier(1, 256);
  stage_queries(a, tiles, item, shared, at, ROWS_ALL);
  group_barrier(1, 256);

  float most[M], sum[M], out[M][COLUMNS][4];
#pragma unroll
  for (int m = 0; m < M; m++) {
    most[m] = -3e38f, sum[m] = 0;
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) out[m][n][0] = out[m][n][1] = out[m][n][2] = out[m][n][3] = 0;
  }
  auto give_back = [&]() {
    __syncwarp();
    if (l == 0) barrier_arrive(empty + 8 * ring.slot);
    ring.next(a.slots);
  };
  // Scores of the keys from `b` on.
  auto score = [&](u32 b, u32 buffer) {
    barrier_wait(full + 8 * ring.slot, ring.parity);
    if (mine < M) {
      float sums[ROWS16][4];
#pragma unroll
      for (int n = 0; n < ROWS16; n++) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
      const u32 keys = base + at.ring + ring.slot * TILE_BYTES + (key0 + (l & 7)) * 128;
      const u32 row = mine * 16 + (l & 15);
#pragma unroll
      for (int two = 0; two < DIM / 32; two++)
#pragma unroll
        for (int limb = 0; limb < LIMBS; limb++) {
          const u32 queries = base + at.queries + limb * ROWS_ALL * DIM * 2 + (two / 2 * ROWS_ALL + row) * 128;
          u32 x[2][4];
#pragma unroll
          for (int i = 0; i < 2; i++) load_matrices<false>(queries + (((two % 2 * 4 + 2 * i + (l >> 4)) ^ (row & 7)) << 4), x[i]);
#pragma unroll
          for (int n = 0; n < ROWS16; n++) {
            u32 k[4];
            load_matrices<false>(keys + n * 1024 + two / 2 * 8192 + (((two % 2 * 4 + (l >> 3)) ^ (l & 7)) << 4), k);
            mma_of<HALF>(sums[n], x[0][0], x[0][1], x[0][2], x[0][3], k[0], k[1]);
            mma_of<HALF>(sums[n], x[1][0], x[1][1], x[1][2], x[1][3], k[2], k[3]);
          }
        }
      float* lines = scores + buffer * ROWS_ALL * STRIDE;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u32 r = mine * 16 + half * 8 + g, end = ends[r], first = firsts[r];
#pragma unroll
        for (int n = 0; n < ROWS16; n++) {
          const u32 k = key0 + 8 * n + 2 * t, key = b + k;
          *(float2*)(lines + r * STRIDE + k) = make_float2(key >= first && key < end ? sums[n][2 * half] : -INFINITE,
                                                           key + 1 >= first && key + 1 < end ? sums[n][2 * half + 1] : -INFINITE);
        }
      }
    }
    give_back();
  };
  u32 buffer = 0;
  const u32 from = item.low / BLOCK * BLOCK;
  score(from, 0);
  for (u32 b = from; b < item.high; b += BLOCK) {
    group_barrier(1, 256);
    const float* lines = scores + buffer * ROWS_ALL * STRIDE;
    const u32 q = (l >> 2) & 3;
#pragma unroll
    for (int m = 0; m < M; m++) {
      const u32 r = m * 16 + 2 * w + (l >> 4);
      const float unit = units[r];
      float2 x = *(const float2*)(lines + r * STRIDE + 16 * q + 2 * t), y = *(const float2*)(lines + r * STRIDE + 16 * q + 8 + 2 * t);
      float largest = fmaxf(fmaxf(x.x, x.y), fmaxf(y.x, y.y));
      for (u32 by = 1; by < 16; by <<= 1) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, by));
      // NaN is not lost: it comes back in the weights.
      largest = fmaxf(most[m], largest * unit);
      const float shrink = exp2_down(most[m] - largest);
      most[m] = largest;
      x.x = exp2_down(fmaf(x.x, unit, -largest)), x.y = exp2_down(fmaf(x.y, unit, -largest));
      y.x = exp2_down(fmaf(y.x, unit, -largest)), y.y = exp2_down(fmaf(y.y, unit, -largest));
      float u = (x.x + x.y) + (y.x + y.y);
      u = u + __shfl_xor_sync(ALL_LANES, u, 4);
      u = u + __shfl_xor_sync(ALL_LANES, u, 8);
      sum[m] = fmaf(sum[m], shrink, u);
      for (int limb = 0; limb < LIMBS; limb++) {
        u8* to = shared + at.weights + (limb * ROWS_ALL + r) * STRIDE * 2;
        *(u32*)(to + (16 * q + 2 * t) * 2) = limbs_of(x.x, x.y);
        *(u32*)(to + (16 * q + 8 + 2 * t) * 2) = limbs_of(y.x, y.y);
      }
      if ((l & 15) == 0) factors[r] = shrink;
    }
    if (b + BLOCK < item.high) score(b + BLOCK, buffer ^ 1);
    buffer ^= 1;
    group_barrier(1, 256);
    barrier_wait(full + 8 * ring.slot, ring.parity);
    if (w < SUM_WARPS) {
#pragma unroll
      for (int m = 0; m < M; m++) {
        const float one = factors[m * 16 + g], two = factors[m * 16 + g + 8];
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) out[m][n][0] *= one, out[m][n][1] *= one, out[m][n][2] *= two, out[m][n][3] *= two;
      }
      const u32 column = w * COLUMNS;        // of eights
      const bool edge = b < item.low || b + BLOCK > item.high;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const u32 key = 16 * j + (l & 15), values = base + at.ring + ring.slot * TILE_BYTES + column / 8 * 8192 + key * 128;
        u32 v[COLUMNS / 2][4];
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 2) load_matrices<true>(values + (((column % 8 + n + (l >> 4)) ^ (key & 7)) << 4), v[n / 2]);
        if (edge)
#pragma unroll
          for (int i = 0; i < 2; i++) {
            const u32 k = b + 16 * j + 8 * i + 2 * t;
            const u32 kept = (k >= item.low && k < item.high ? 0xffff : 0) | (k + 1 >= item.low && k + 1 < item.high ? 0xffff0000 : 0);
#pragma unroll
            for (int n = 0; n < COLUMNS / 2; n++) v[n][i] &= kept, v[n][2 + i] &= kept;
          }
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int limb = 0; limb < LIMBS; limb++) {
            u32 p[4];
            load_matrices<false>(base + at.weights + (limb * ROWS_ALL + m * 16 + (l & 15)) * STRIDE * 2 + (2 * j + (l >> 4)) * 16, p);
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) mma_of<HALF>(out[m][n], p[0], p[1], p[2], p[3], v[n / 2][n % 2 * 2], v[n / 2][n % 2 * 2 + 1]);
          }
      }
    }
    give_back();
  }

  const u32 group = a.heads / a.kv_heads, all = item.rows * group;
  auto line_of = [&](u32 r) {
    const u64 head = (u64)(item.row + r / group) * a.heads + item.kv_head * group + r % group;
    return a.partial + (head * a.chunks + item.chunk) * (DIM + 2);
  };
#pragma unroll
  for (int m = 0; m < M; m++) {
    const u32 r = m * 16 + 2 * w + (l >> 4);
    float total = sum[m] + __shfl_xor_sync(ALL_LANES, sum[m], 1);
    total = total + __shfl_xor_sync(ALL_LANES, total, 2);
    if ((l & 15) == 0 && r < all) *(float2*)(line_of(r) + DIM) = make_float2(most[m], total);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const u32 row = m * 16 + half * 8 + g;
      if (row >= all || w >= SUM_WARPS) continue;
      float* line = line_of(row) + w * COLUMNS * 8 + 2 * t;
#pragma unroll
      for (int n = 0; n < COLUMNS; n++) *(float2*)(line + 8 * n) = make_float2(out[m][n][2 * half], out[m][n][2 * half + 1]);
    }
  }
}

#define ATTENTION_THREADS 288, 1
OVERLAPPED_KERNEL(attention_mma, AttentionMma, ATTENTION_THREADS) {
  DYNAMIC_SHARED(u8, shared);
  __shared__ Tiles tiles;
  __shared__ u32 of_warps[9];
  const u32 base = shared_address(shared), w = warp();
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < a.slots; i++) barrier_init(base + 8 * i, 1), barrier_init(base + 8 * (a.slots + i), 8);
    barrier_init_done();
  }
  let_next_start();
  deal(a, tiles, of_warps);
  wait_for_previous();
  const u32 group = a.heads / a.kv_heads;
  Ring ring = {0, 0};
  for (u32 number = blockIdx.x; number < tiles.items; number += gridDim.x) {
    const Item item = item_of(a, tiles, number);
    if (w == 8) {
      if (lane() == 0) produce(a, item, base, ring);
      __syncwarp();
      continue;
    }
    const u32 sixteens = (item.rows * group + 15) / 16;
    if (sixteens == 1) consume<1>(a, tiles, item, shared, ring);
    else if (sixteens == 2) consume<2>(a, tiles, item, shared, ring);
#if LIMBS == 1
    else if (sixteens == 3) consume<3>(a, tiles, item, shared, ring);
    else consume<4>(a, tiles, item, shared, ring);
#endif
  }
}
