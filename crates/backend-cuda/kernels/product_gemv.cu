// GEMV: products with few columns, bound by the bandwidth of reading the weights (sm_90).
//
// Compiled for one packed format: FAMILY, GROUP, SCALES, OFFSET, BIAS; STAGE blocks of 128 columns a copy; TILES of 8 columns.
//
// # Shape of the launch
// About one block a multiprocessor, each of groups of warps, a warp for each segment. A group makes units of 16 rows, one
// after another. Each warp has a ring of stages that bulk copies fill ahead of it, across units, before the kernel ahead has
// ended. Activations of the segments stay in shared memory; where they do not fit they come in pages, and unfinished sums
// wait in shared memory.
//
// # Limits
// Weights begin with a tile; the tokens' columns are at most 8 · TILES.

struct GemvArgs {
  Product p;
  u32 units;                               // of 16 rows
  u32 slots, page, batch;                  // stages of a ring; stages of activations at a time; items between pages
  u32 at_ring, at_x, at_sums, at_total, at_saved;  // in shared memory
};

template <int T> __device__ __forceinline__ void gemv(const GemvArgs& a) {
  DYNAMIC_SHARED(u8, shared);
  constexpr u32 STAGE_BYTES = STAGE * BLOCK_BYTES, SUMS = 128 / GROUP * 8 * T;  // of a block's groups
  const Product& p = a.p;
  const u32 warps = blockDim.x >> 5, w = warp(), l = lane(), g = l >> 2, t = l & 3;
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
  if (l == 0) {
    for (u32 s = 0; s < a.slots; s++) barrier_init(bars + 8 * s, 1);
    if (w == 0) barrier_init(x_bar, 1);
    barrier_init_done();
  }
  __syncthreads();
  let_next_start();

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
  wait_for_previous();

  const Constants k = constants<FAMILY>(BIAS, OFFSET);
  const u32 stride = a.page * 256 * STAGE + 64;  // of a column's activations
  const u8* x0[T];
#pragma unroll
  for (int j = 0; j < T; j++)  // lanes without a column repeat the first; what they get is never stored
    x0[j] = shared + a.at_x + (seg * columns + (g + 8 * j < columns ? g + 8 * j : 0)) * stride + t * 16;
  const float* sums0 = (const float*)(shared + a.at_sums) + seg * a.page * STAGE * SUMS;
  float4* total = (float4*)(shared + a.at_total) + wm * segs * T * 32;
  float4* saved = (float4*)(shared + a.at_saved);
  float gate[T * 4];
  u32 slot = 0, parity = 0, x_parity = 0;
  for (u32 batch = 0; batch < batches; batch++)
    for (u32 pg = 0; pg < pages; pg++) {
      const u32 s0 = pg * a.page, s1 = min(stages, s0 + a.page), n = s1 - s0;
      if (pages > 1 || batch == 0) {
        if (batch || pg) __syncthreads();
        if (threadIdx.x == 0) barrier_expect(x_bar, segs * columns * n * 256 * STAGE + (OFFSET ? segs * n * STAGE * SUMS * 4 : 0));
        for (u32 i = threadIdx.x; i < segs * columns; i += blockDim.x) {
          u32 s = i / columns, c = i % columns;
          copy_async(base + a.at_x + i * stride, p.x + (u64)c * p.depth + (s * stages + s0) * 128 * STAGE, n * 256 * STAGE, x_bar);
        }
        if (OFFSET)
          for (u32 s = threadIdx.x; s < segs; s += blockDim.x)
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
            if (p.pair) store(p, p.part[0], row0 + r, token, activate(p.pair, gate[q]) * v);
            else store(p, part, row0 + r, token, v);
          }
        }
      }
    }
}

// One block is enough for a multiprocessor: registers are its warps'.
#define GEMV_THREADS 384, 1
KERNEL(product_gemv, GemvArgs, GEMV_THREADS) { gemv<TILES>(a); }
