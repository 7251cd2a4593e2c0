// GEMV: products with few columns, bound by the bandwidth of reading the weights (sm_90).
//
// Compiled for one packed format: FAMILY, GROUP, SCALES, OFFSET, BIAS; STAGE blocks of 128 columns a copy; TILES of 8 columns;
// BESIDE: with a warp that multiplies a few rows of bfloat16 by the same activations.
//
// # Shape of the launch
// About one block a multiprocessor, each of groups of warps, a warp for each segment. A group makes units of 16 rows, one
// after another. Each warp has a ring of stages that bulk copies fill ahead of it, across units, before the kernel ahead has
// ended. Activations of the segments stay in shared memory; where they do not fit they come in pages, and unfinished sums
// wait in shared memory. Each block may make the columns of a row itself, while its rings fill: that saves the kernel that
// makes them for all. Rows of bfloat16 are a chain over all columns, too long to follow the rest: one more warp in some
// blocks makes them meanwhile.
//
// # Limits
// Weights begin with a tile; the tokens' columns are at most 8 · TILES. Beside others goes bfloat16 of one segment.

struct GemvArgs {
  Product p;
  WeightPart side[2];
  const float* rows;                       // null, or [tokens, dim]: what p.x would be made of
  const float* norm;                       // null, or [dim]
  u32 dim;
  float eps;
  u16* next;                               // null, or [tokens * split, next_depth]: results as the columns of the next product
  u32 next_depth;
  u32 side_units;                          // of 16 rows
  u32 units;                               // of 16 rows
  u32 slots, page, batch;                  // stages of a ring; stages of activations at a time; items between pages
  u32 at_ring, at_x, at_sums, at_total, at_side, at_saved;  // in shared memory
};

#define SIDE_SLOTS 8
#define SIDE_BLOCK 4096
#define LEVEL (GROUP == 16 ? 0 : GROUP == 32 ? 1 : GROUP == 64 ? 2 : 3)

// Makes the columns of the rows and their sums in shared memory; all threads of the block together, each of which has two
// times eight numbers of a row. Everything is loaded as soon as it is there: one wait for memory is all there is time for.
template <int T> __device__ __forceinline__ void make_columns(const GemvArgs& a, u8* shared, u32 stride) {
  constexpr u32 UNITS = 2;
  const u32 depth = a.p.depth, of_segment = depth / a.p.segments, columns = a.p.tokens * a.p.split, t = threadIdx.x % 4;
  auto load = [&](const float* from, float (&to)[UNITS][2][4]) {
#pragma unroll
    for (u32 u = 0; u < UNITS; u++)
#pragma unroll
      for (u32 i = 0; i < 2; i++) {
        const u32 unit = threadIdx.x + u * blockDim.x;
        columns_of(from, (unit / 4 * 2 + i) * 16 + t * 2, unit < depth / 8 ? a.dim : 0, to[u][i]);
      }
  };
  float w[UNITS][2][4];
  if (a.norm) load(a.norm, w);
  wait_for_previous();
  for (u32 token = 0; token < a.p.tokens; token++) {
    const float* x = a.rows + (u64)token * a.dim;
    float values[UNITS][2][4];
    load(x, values);
    const float factor = a.norm ? inverse_rms(x, a.dim, a.eps) : 1.0f;
#pragma unroll
    for (u32 u = 0; u < UNITS; u++) {
      const u32 unit = threadIdx.x + u * blockDim.x, block = unit / 4, segment = block * 32 / of_segment;
      const bool real = unit < depth / 8;
      float(&v)[2][4] = values[u];
      if (a.norm)
#pragma unroll
        for (u32 i = 0; i < 2; i++)
#pragma unroll
          for (u32 j = 0; j < 4; j++) v[i][j] = v[i][j] * factor * w[u][i][j];
      for (u32 h = 0; h < a.p.split; h++) {
        const u32 column = token * a.p.split + h;
        u32 words[4];
        float sum[2];
        limbs_of_eight(v, words, sum);
        if (real)
          *(uint4*)(shared + a.at_x + (segment * columns + column) * stride + (block * 32 - segment * of_segment) * 2 + t * 16) =
              make_uint4(words[0], words[1], words[2], words[3]);
        if (OFFSET)
          sums_of_groups(sum, block, real, 1u << LEVEL, [&](u32, u32 group, float total) {
            ((float*)(shared + a.at_sums))[group * 8 * T + column] = total;
          });
      }
    }
  }
  __syncthreads();
}

// What the warp beside the others does: `x0` are a lane's columns of the first segment, `stride` bytes from one column to the
// next and `per` blocks in a segment.
template <int T>
__device__ __forceinline__ void gemv_side(const GemvArgs& a, u8* shared, u32 bars, u32 x_bar, const u8* (&x0)[T], u32 stride, u32 per) {
  const u32 blocks = a.p.depth >> 7, l = lane(), columns = a.p.tokens * a.p.split;
  const u8* ring = shared + a.at_side;
  const u32 ring_at = shared_address(ring);
  float4* total = (float4*)(ring + SIDE_SLOTS * SIDE_BLOCK);
  auto part_of = [&](u32 unit) { return unit >= a.side[1].unit && a.side[1].rows ? 1 : 0; };
  u32 next_unit = blockIdx.x, next_block = 0;
  auto issue = [&](u32 slot) {
    if (next_unit >= a.side_units) return;
    if (l == 0) {
      const WeightPart& part = a.side[part_of(next_unit)];
      barrier_expect(bars + 8 * slot, SIDE_BLOCK);
      copy_async(ring_at + slot * SIDE_BLOCK, part.at + ((u64)(next_unit - part.unit) * blocks + next_block) * SIDE_BLOCK, SIDE_BLOCK, bars + 8 * slot);
    }
    if (++next_block == blocks) next_block = 0, next_unit += gridDim.x;
  };
  for (u32 s = 0; s < SIDE_SLOTS; s++) issue(s);
  if (a.rows) {
    make_columns<T>(a, shared, stride);
  } else {
    wait_for_previous();
    barrier_wait(x_bar, 0);
  }
  u32 slot = 0, parity = 0;
  for (u32 unit = blockIdx.x; unit < a.side_units; unit += gridDim.x) {
    float sum[T][4];
#pragma unroll
    for (int j = 0; j < T; j++) sum[j][0] = sum[j][1] = sum[j][2] = sum[j][3] = 0;
    for (u32 b = 0; b < blocks; b++) {
      barrier_wait(bars + 8 * slot, parity);
      const u8* block = ring + slot * SIDE_BLOCK;
      const u32 at = b / per * columns * stride + b % per * 256;
#pragma unroll
      for (u32 two = 0; two < 4; two++) {
        const uint4 v = *(const uint4*)(block + two * 1024 + l * 16), w = *(const uint4*)(block + two * 1024 + 512 + l * 16);
#pragma unroll
        for (int j = 0; j < T; j++) {
          const uint4 c = *(const uint4*)(x0[j] + at + two * 64);
          mma(sum[j], v.x, v.y, v.z, v.w, c.x, c.y);
          mma(sum[j], w.x, w.y, w.z, w.w, c.z, c.w);
        }
      }
      __syncwarp();
      issue(slot);
      if (++slot == SIDE_SLOTS) slot = 0, parity ^= 1;
    }
    exchange_sums(total, sum, 0, 1, 0);
    const WeightPart& part = a.side[part_of(unit)];
    const u32 row0 = (unit - part.unit) * 16;
    for (u32 i = l; i < 16 * a.p.tokens; i += 32)
      if (row0 + i % 16 < part.rows) store(a.p, part, row0 + i % 16, i / 16, total_of<T>((const float*)total, i % 16, i / 16, a.p.split, 1));
    __syncwarp();
  }
}

template <int T> __device__ __forceinline__ void gemv(const GemvArgs& a) {
  DYNAMIC_SHARED(u8, shared);
  constexpr u32 STAGE_BYTES = STAGE * BLOCK_BYTES, SUMS = 128 / GROUP * 8 * T;  // of a block's groups
  const Product& p = a.p;
  const u32 warps = (blockDim.x >> 5) - BESIDE, w = warp(), l = lane(), g = l >> 2, t = l & 3;
  const u32 segs = p.segments, groups = warps / segs, seg = w % segs, wm = w / segs;
  const u32 blocks = p.depth >> 7, stages = blocks / segs / STAGE, columns = p.tokens * p.split;
  const u32 subs = p.pair ? 2 : 1, per = gridDim.x * groups, own = wm * gridDim.x + blockIdx.x;
  // Items: a unit's tiles, one or two. `most`: of the block's group with the most.
  const u32 items = (a.units > own ? (a.units - own + per - 1) / per : 0) * subs;
  const u32 most = (a.units > blockIdx.x ? (a.units - blockIdx.x + per - 1) / per : 0) * subs;
  const u32 pages = (stages + a.page - 1) / a.page, batches = (most + a.batch - 1) / a.batch;
  const u32 base = shared_address(shared), bars = base + w * a.slots * 8, x_bar = base + warps * a.slots * 8;
  const u32 ring = base + a.at_ring + w * a.slots * STAGE_BYTES;
  const u8* ring_at = shared + a.at_ring + w * a.slots * STAGE_BYTES;
  const bool beside = BESIDE && w == warps;
  if (l == 0) {
    for (u32 s = 0; s < (beside ? SIDE_SLOTS : a.slots); s++) barrier_init((beside ? x_bar + 8 : bars) + 8 * s, 1);
    if (w == 0) barrier_init(x_bar, 1);
    barrier_init_done();
  }
  __syncthreads();
  let_next_start();
  const u32 stride = a.page * 256 * STAGE + 64;  // of a column's activations
  const u8* x0[T];
#pragma unroll
  for (int j = 0; j < T; j++)  // lanes without a column repeat the first; what they get is never stored
    x0[j] = shared + a.at_x + ((beside ? 0 : seg) * columns + (g + 8 * j < columns ? g + 8 * j : 0)) * stride + t * 16;
  if (beside) return gemv_side<T>(a, shared, x_bar + 8, x_bar, x0, stride, blocks / segs);

  // The part and the first row of an item.
  auto part_of = [&](u32 item, u32& row) -> const WeightPart& {
    u32 unit = item / subs * per + own, i = 0;
    if (p.pair) i = item % subs;
    else
      while (i + 1 < p.parts && unit >= p.part[i + 1].unit) i++;
    row = (unit - (p.pair ? 0 : p.part[i].unit)) * 16;
    return p.part[i];
  };
  // The producer walks items and stages in the order of the loops below.
  u32 item = 0, page = 0, from = 0, to = min(items, a.batch), left = 0;
  bool on = to > 0;
  const u8* next = nullptr;
  auto seek = [&]() {
    u32 row;
    const WeightPart& part = part_of(item, row);
    next = part.at + ((u64)((part.first + row) / 16) * blocks + (seg * stages + page * a.page) * STAGE) * BLOCK_BYTES;
    left = min(stages - page * a.page, a.page);
  };
  if (on) seek();
  auto issue = [&](u32 slot) {
    if (!on) return;
    if (l == 0) {
      barrier_expect(bars + 8 * slot, STAGE_BYTES);
      copy_async(ring + slot * STAGE_BYTES, next, STAGE_BYTES, bars + 8 * slot);
    }
    next += STAGE_BYTES;
    if (--left) return;
    if (++item == to) {
      if (++page == pages) {
        page = 0, from = to, to = min(items, to + a.batch);
        on = from < to;
      }
      item = from;
    }
    if (on) seek();
  };
  for (u32 s = 0; s < a.slots; s++) issue(s);
  if (a.rows) make_columns<T>(a, shared, stride);
  else wait_for_previous();

  const Constants k = constants<FAMILY>(BIAS, OFFSET);
  const float* sums0 = (const float*)(shared + a.at_sums) + seg * a.page * STAGE * SUMS;
  float4* total = (float4*)(shared + a.at_total) + wm * segs * T * 32;
  float4* saved = (float4*)(shared + a.at_saved);
  float gate[T * 4];
  u32 slot = 0, parity = 0, x_parity = 0;
  for (u32 batch = 0; batch < batches; batch++)
    for (u32 pg = 0; pg < pages; pg++) {
      const u32 s0 = pg * a.page, s1 = min(stages, s0 + a.page), n = s1 - s0;
      if (!a.rows && (pages > 1 || batch == 0)) {
        if (batch || pg) __syncthreads();
        if (threadIdx.x == 0) barrier_expect(x_bar, segs * columns * n * 256 * STAGE + (OFFSET ? segs * n * STAGE * SUMS * 4 : 0));
        for (u32 i = threadIdx.x; i < segs * columns; i += warps * 32) {
          u32 s = i / columns, c = i % columns;
          copy_async(base + a.at_x + i * stride, p.x + (u64)c * p.depth + (s * stages + s0) * 128 * STAGE, n * 256 * STAGE, x_bar);
        }
        if (OFFSET)
          for (u32 s = threadIdx.x; s < segs; s += warps * 32)
            copy_async(base + a.at_sums + s * a.page * STAGE * SUMS * 4, p.sums + (u64)(s * stages + s0) * STAGE * SUMS, n * STAGE * SUMS * 4, x_bar);
        barrier_wait(x_bar, x_parity);
        x_parity ^= 1;
      }
      const u32 end = min(items, (batch + 1) * a.batch);
      for (u32 i = batch * a.batch; i < end; i++) {
        float sum[T][4];
        float4* mine = saved + ((i - batch * a.batch) * warps + w) * T * 32 + l;
#pragma unroll
        for (int j = 0; j < T; j++) {
          float4 v = make_float4(0, 0, 0, 0);
          if (pg) v = mine[j * 32];
          sum[j][0] = v.x, sum[j][1] = v.y, sum[j][2] = v.z, sum[j][3] = v.w;
        }
        const u8* x[T];
        const float* sums = sums0;
#pragma unroll
        for (int j = 0; j < T; j++) x[j] = x0[j];
        for (u32 s = s0; s < s1; s++) {
          barrier_wait(bars + 8 * slot, parity);
#pragma unroll
          for (int q = 0; q < STAGE; q++) {
            uint4 v[4][T];
            float x_sums[128 / GROUP][T][2];
#pragma unroll
            for (int two = 0; two < 4; two++)
#pragma unroll
              for (int j = 0; j < T; j++) v[two][j] = *(const uint4*)(x[j] + two * 64);
            if (OFFSET)
#pragma unroll
              for (int h = 0; h < 128 / GROUP; h++)
#pragma unroll
                for (int j = 0; j < T; j++) {
                  float2 v = *(const float2*)(sums + h * (8 * T) + j * 8 + 2 * t);
                  x_sums[h][j][0] = v.x, x_sums[h][j][1] = v.y;
                }
            add_block<T>(sum, ring_at + slot * STAGE_BYTES + q * BLOCK_BYTES, v, x_sums, k);
#pragma unroll
            for (int j = 0; j < T; j++) x[j] += 256;
            sums += SUMS;
          }
          __syncwarp();
          issue(slot);
          if (++slot == a.slots) slot = 0, parity ^= 1;
        }
        if (pg + 1 < pages) {
#pragma unroll
          for (int j = 0; j < T; j++) mine[j * 32] = make_float4(sum[j][0], sum[j][1], sum[j][2], sum[j][3]);
          continue;
        }
        exchange_sums(total, sum, seg, segs, wm);
        u32 row0;
        const WeightPart& part = part_of(i, row0);
#pragma unroll
        for (int q = 0; q < T * 4; q++) {
          const u32 at = (q * segs + seg) * 32 + l, r = at % 16, token = at / 16;
          if (token >= p.tokens) continue;
          const float v = total_of<T>((const float*)total, r, token, p.split, segs);
          if (p.pair && i % 2 == 0) gate[q] = v;
          else if (row0 + r < part.rows) {
            const float result = p.pair ? activate(p.pair, gate[q]) * v : v;
            store(p, p.pair ? p.part[0] : part, row0 + r, token, result);
            if (a.next) store_column(a.next, a.next_depth, p.split, row0 + r, token, result);
          }
        }
      }
    }
}

// One block is enough for a multiprocessor: registers are its warps'.
#define GEMV_THREADS 512, 1
OVERLAPPED_KERNEL(product_gemv, GemvArgs, GEMV_THREADS) { gemv<TILES>(a); }
