// GEMV for the experts that rows chose, bound by the bandwidth of reading the weights (sm_90).
//
// Compiled for one packed format: FAMILY, GROUP, SCALES, OFFSET, BIAS; STAGE blocks of 128 columns a copy; TILES of 8 columns.
//
// # Shape of the launch
// As product_gemv.cu, but a unit is 16 rows of one expert and a tile of the pairs that chose it; activations come straight
// from the cache. Without a list of tiles every pair is a tile: for a few rows that saves the sorting.
//
// # Limits
// Experts begin with a tile of rows.

struct ExpertGemvArgs {
  Product p;           // tokens: pairs of a row and an expert
  const u32* chosen;   // the pairs' experts, where there are no tiles
  u16* columns;        // null, or [pairs * split, next_depth]: results as the columns of the next product
  u32* fault;
  u32 site, experts, next_depth;
  u32 row_units;       // of 16 rows, of an expert
  u32 slots;
  u32 at_total;        // in shared memory, behind the rings
  u32 early;           // 1: what the units follow from was known before the kernel ahead began
};

#define STAGE_BYTES (STAGE * BLOCK_BYTES)

template <int T> __device__ __forceinline__ void expert_gemv(const ExpertGemvArgs& a) {
  DYNAMIC_SHARED(u8, shared);
  const Product& p = a.p;
  const u32 warps = blockDim.x >> 5, w = warp(), l = lane(), g = l >> 2, t = l & 3;
  const u32 segs = p.segments, groups = warps / segs, seg = w % segs, wm = w / segs;
  const u32 blocks = p.depth >> 7, stages = blocks / segs / STAGE, subs = p.pair ? 2 : 1;
  const u32 base = shared_address(shared), bars = base + w * a.slots * 8;
  const u32 rings = (warps * a.slots * 8 + 1023) / 1024 * 1024 + w * a.slots * STAGE_BYTES, ring = base + rings;
  if (l == 0) {
    for (u32 s = 0; s < a.slots; s++) barrier_init(bars + 8 * s, 1);
    barrier_init_done();
  }
  __syncwarp();
  if (!a.early) wait_for_previous();
  let_next_start();

  const u32 units = (p.tiles ? *p.tile_count : p.tokens) * a.row_units, own = wm * gridDim.x + blockIdx.x;
  const u32 per = gridDim.x * groups;
  auto tile_of = [&](u32 unit) -> PairTile {
    const u32 i = unit / a.row_units;
    if (p.tiles) return p.tiles[i];
    const u32 e = a.chosen[i];
    // A pair whose expert is out of range computes with expert 0; the host reports the fault.
    return {inside(a.fault, a.site, e, a.experts) ? e : 0, i, 1, 0};
  };
  // The producer walks units, their one or two weights, and stages.
  u32 unit = own, sub = 0, left = 0;
  const u8* next = nullptr;
  auto seek = [&]() {
    const WeightPart& part = p.part[sub];
    const u32 row = part.first + tile_of(unit).expert * part.stride + unit % a.row_units * 16;
    next = part.at + ((u64)(row / 16) * blocks + seg * stages * STAGE) * BLOCK_BYTES;
    left = stages;
  };
  auto issue = [&](u32 slot) {
    if (unit >= units) return;
    if (left == 0) seek();
    if (l == 0) {
      barrier_expect(bars + 8 * slot, STAGE_BYTES);
      copy_async(ring + slot * STAGE_BYTES, next, STAGE_BYTES, bars + 8 * slot);
    }
    next += STAGE_BYTES;
    if (--left == 0 && ++sub == subs) sub = 0, unit += per;
  };
  for (u32 s = 0; s < a.slots; s++) issue(s);
  if (a.early) wait_for_previous();

  const Constants k = constants<FAMILY>(BIAS, OFFSET);
  float4* total = (float4*)(shared + a.at_total) + wm * segs * T * 32;
  float gate[T * 4];
  u32 slot = 0, parity = 0;
  for (u32 u = own; u < units; u += per) {
    const PairTile some = tile_of(u);
    auto token = [&](u32 i) -> u32 { return p.tiles ? p.list[some.first + i] : some.first + i; };
    // Columns that are not there repeat the first; what they get is never stored.
    auto column = [&](u32 c) -> u64 {
      const bool there = c / p.split < some.count;
      return (u64)(token(there ? c / p.split : 0) / p.share) * p.split + (there ? c % p.split : 0);
    };
    u64 x[T], pair[T][2];
#pragma unroll
    for (int j = 0; j < T; j++) {
      x[j] = column(8 * j + g) * p.depth + seg * stages * STAGE * 128 + t * 8;
      if (OFFSET) pair[j][0] = column(8 * j + 2 * t), pair[j][1] = column(8 * j + 2 * t + 1);
    }
    for (u32 half = 0; half < subs; half++) {
      float sum[T][4];
#pragma unroll
      for (int j = 0; j < T; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[j][i] = 0;
      for (u32 s = 0; s < stages; s++) {
        uint4 v[STAGE][4][T];
#pragma unroll
        for (int q = 0; q < STAGE; q++)
#pragma unroll
          for (int two = 0; two < 4; two++)
#pragma unroll
            for (int j = 0; j < T; j++) v[q][two][j] = *(const uint4*)(p.x + x[j] + (s * STAGE + q) * 128 + two * 32);
        barrier_wait(bars + 8 * slot, parity);
#pragma unroll
        for (int q = 0; q < STAGE; q++) {
          const u8* block = shared + rings + slot * STAGE_BYTES + q * BLOCK_BYTES;
          float x_sums[128 / GROUP][T][2];
          if (OFFSET) {
            const u32 from = ((seg * stages + s) * STAGE + q) * (128 / GROUP);
#pragma unroll
            for (int h = 0; h < 128 / GROUP; h++)
#pragma unroll
              for (int j = 0; j < T; j++) {
                x_sums[h][j][0] = p.sums[(u64)(from + h) * p.ld + pair[j][0]];
                x_sums[h][j][1] = p.sums[(u64)(from + h) * p.ld + pair[j][1]];
              }
          }
          add_block<T>(sum, block, v[q], x_sums, k);
        }
        __syncwarp();
        issue(slot);
        if (++slot == a.slots) slot = 0, parity ^= 1;
      }
      exchange_sums(total, sum, seg, segs, wm);
      const WeightPart& part = p.part[half];
      const u32 row0 = u % a.row_units * 16;
#pragma unroll
      for (u32 q = 0; q < T * 4; q++) {
        const u32 at = (q * segs + seg) * 32 + l, r = at % 16, i = at / 16;
        if (i >= some.count) continue;
        const float v = total_of<T>((const float*)total, r, i, p.split, segs);
        if (p.pair && half == 0) {
          gate[q] = v;
        } else if (row0 + r < part.rows) {
          const float result = p.pair ? activate(p.pair, gate[q]) * v : v;
          if (!a.columns) {
            store(p, p.part[0], row0 + r, token(i), result);
            continue;
          }
          store_column(a.columns, a.next_depth, p.split, row0 + r, token(i), result);
        }
      }
    }
  }
}

#define EXPERT_GEMV_THREADS 384, 1
OVERLAPPED_KERNEL(product_expert_gemv, ExpertGemvArgs, EXPERT_GEMV_THREADS) { expert_gemv<TILES>(a); }
