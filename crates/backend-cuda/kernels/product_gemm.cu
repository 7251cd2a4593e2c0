// Products with many columns (sm_90a), with the bits of the others.
//
// Compiled for one kind of weight and a number of SEGMENTS; a tile has COLUMNS columns.
//
// # Shape of the launch
// One block a multiprocessor takes tiles in turn: 128 rows by COLUMNS. Two groups of four warps own 64 rows each, with the
// weights in registers and the columns in shared memory; of a pair of weights one group has the gate, the other has up.
// One more warp keeps a ring of stages filled: 64 columns of bfloat16 weights, 128 of others.

#define ROWS 64
#define DEPTH (FAMILY == BF16 ? 64 : 128)
#define SLICE (FAMILY == BF16 ? 2048 : BLOCK_BYTES)  // of 16 rows
#define AT_X ((8 * SLICE + 1023) / 1024 * 1024)
#define X_BYTES (COLUMNS * DEPTH * 2)
#define SUM_BYTES (OFFSET ? DEPTH / GROUP * COLUMNS * 4 : 0)
#define STAGE_BYTES ((AT_X + X_BYTES + SUM_BYTES + 1023) / 1024 * 1024)
#define SPLIT_SUMS (FAMILY != BF16 && SEGMENTS > 1)  // segments' sums wait in shared memory
#define HELD (COLUMNS / 2)                            // sums of a thread
#define OUT_STRIDE 65

struct GemmArgs {
  Product p;
  u32 slots;
  u32 columns;      // of a tile that are used: whole tokens, in runs of eight columns
  u32 row_tiles;
  u32 ahead;        // tiles of columns that are taken before the next rows, so that both stay in the cache
};

struct Place {
  u32 part, row, column;
};

__device__ __forceinline__ Place place_of(const GemmArgs& a, u32 tile, u32 column_tiles) {
  const u32 run = min(column_tiles, a.ahead), group = tile / (run * a.row_tiles), rest = tile - group * run * a.row_tiles;
  const u32 width = min(run, column_tiles - group * run), rows = a.p.pair ? ROWS : 2 * ROWS;
  Place place = {0, rest / width, (group * run + rest % width) * a.columns};
  if (!a.p.pair)
    while (place.row >= (a.p.part[place.part].rows + rows - 1) / rows) {
      place.row -= (a.p.part[place.part].rows + rows - 1) / rows;
      place.part++;
    }
  place.row *= rows;
  return place;
}

// The 16-row slice `i` of a stage, or null where the weight has ended.
__device__ __forceinline__ const u8* slice_of(const GemmArgs& a, const Place& place, u32 i) {
  const WeightPart& part = a.p.part[a.p.pair ? i / 4 : place.part];
  const u32 row = place.row + (a.p.pair ? i % 4 : i) * 16;
  if (row >= part.rows) return nullptr;
  return part.at + (u64)((part.first + row) / 16) * (a.p.depth >> 7) * BLOCK_BYTES;
}

__device__ __forceinline__ void produce(const GemmArgs& a, u32 base, u32 tiles, u32 column_tiles) {
  const u32 full = base, empty = base + 8 * a.slots, stages = a.p.depth / DEPTH;
  u32 slot = 0, parity = 1;
  for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Place place = place_of(a, tile, column_tiles);
    const u8* slices[8];
    u32 there = 0;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
      slices[i] = slice_of(a, place, i);
      there += slices[i] != nullptr;
    }
    for (u32 s = 0; s < stages; s++) {
      barrier_wait(empty + 8 * slot, parity);
      const u32 to = base + 1024 + slot * STAGE_BYTES, bar = full + 8 * slot;
      barrier_expect(bar, there * SLICE + X_BYTES + SUM_BYTES);
#pragma unroll
      for (u32 i = 0; i < 8; i++)
        if (slices[i]) copy_async(to + i * SLICE, slices[i] + (u64)s * SLICE, SLICE, bar);
#pragma unroll
      for (u32 h = 0; h < DEPTH / 64; h++) {
        const u8* from = (const u8*)a.p.x + ((u64)(s * (DEPTH / 64) + h) * a.p.ld + place.column) * 128;
        copy_async(to + AT_X + h * COLUMNS * 128, from, COLUMNS * 128, bar);
      }
      if (OFFSET)
        for (u32 h = 0; h < DEPTH / GROUP; h++) {
          const float* from = a.p.sums + (u64)(s * (DEPTH / GROUP) + h) * a.p.ld + place.column;
          copy_async(to + AT_X + X_BYTES + h * COLUMNS * 4, from, COLUMNS * 4, bar);
        }
      if (++slot == a.slots) slot = 0, parity ^= 1;
    }
  }
}

// Four steps' operands of a half of a stage.
__device__ __forceinline__ void operands_of(const Constants& k, const u8* slice, u32 half, u32 (&w)[4][4]) {
  if (FAMILY == BF16) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      uint4 v = *(const uint4*)(slice + i * 512 + lane() * 16);
      w[i][0] = v.x, w[i][1] = v.y, w[i][2] = v.z, w[i][3] = v.w;
    }
  } else if (FAMILY == U4) {
    uint4 v = *(const uint4*)(slice + half * 512 + lane() * 16);
    from_u4<OFFSET>(k, v.x, w[0]), from_u4<OFFSET>(k, v.y, w[1]);
    from_u4<OFFSET>(k, v.z, w[2]), from_u4<OFFSET>(k, v.w, w[3]);
  } else {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      uint4 v = *(const uint4*)(slice + (half * 2 + i) * 512 + lane() * 16);
      if (FAMILY == I8) {
        from_i8(k, v.x, w[2 * i][0], w[2 * i][1]), from_i8(k, v.y, w[2 * i][2], w[2 * i][3]);
        from_i8(k, v.z, w[2 * i + 1][0], w[2 * i + 1][1]), from_i8(k, v.w, w[2 * i + 1][2], w[2 * i + 1][3]);
      } else {
        from_e4m3(k, v.x, w[2 * i][0], w[2 * i][1]), from_e4m3(k, v.y, w[2 * i][2], w[2 * i][3]);
        from_e4m3(k, v.z, w[2 * i + 1][0], w[2 * i + 1][1]), from_e4m3(k, v.w, w[2 * i + 1][2], w[2 * i + 1][3]);
      }
    }
  }
}

struct Ring {
  u32 slot, parity;
};

__device__ __forceinline__ void give_back(u32 empty, u32 slot) {
  __syncwarp();
  if (lane() == 0) barrier_arrive(empty + 8 * slot);
}

// A tile of bfloat16 weights.
__device__ __forceinline__ void sum_plain(const GemmArgs& a, const u8* shared, Ring& ring, u32 slice, float (&sum)[HELD], float (&total)[HELD]) {
  const u32 base = shared_address(shared), full = base, empty = base + 8 * a.slots;
  const u32 stages = a.p.depth / 64, of_segment = stages / SEGMENTS;
  const Constants k = {0, 0};
  u32 w[2][4][4], done = 0, before = ~0u;
  bool first = true;
#pragma unroll 1
  for (u32 s = 0; s < stages; s += 2) {
#pragma unroll
    for (u32 u = 0; u < 2; u++) {
      barrier_wait(full + 8 * ring.slot, ring.parity);
      operands_of(k, shared + 1024 + ring.slot * STAGE_BYTES + slice * SLICE, 0, w[u]);
      const u32 x = base + 1024 + ring.slot * STAGE_BYTES + AT_X;
      wgmma_fence();
#pragma unroll
      for (u32 i = 0; i < 4; i++) Wgmma<COLUMNS>::step(sum, w[u][i], x + 32 * i, i || done);
      wgmma_commit();
      // The stage ahead has been read once its steps are done.
      wgmma_wait<1>();
      if (before != ~0u) give_back(empty, before);
      before = ring.slot;
      if (++ring.slot == a.slots) ring.slot = 0, ring.parity ^= 1;
      done++;
      if (SEGMENTS > 1 && done == of_segment) {
        wgmma_wait<0>();
        keep(sum);
        give_back(empty, before);
        before = ~0u, done = 0;
#pragma unroll
        for (u32 i = 0; i < HELD; i++) total[i] = first ? sum[i] : total[i] + sum[i];
        first = false;
      }
    }
  }
  if (SEGMENTS > 1) return;
  wgmma_wait<0>();
  keep(sum);
  give_back(empty, before);
#pragma unroll
  for (u32 i = 0; i < HELD; i++) total[i] = sum[i];
}

// A tile of weights with scales.
__device__ __forceinline__ void sum_scaled(const GemmArgs& a, u8* shared, Ring& ring, u32 slice, float* held, float (&sum)[HELD], float (&total)[HELD]) {
  const u32 base = shared_address(shared), full = base, empty = base + 8 * a.slots, g = lane() >> 2, t = lane() & 3;
  const u32 stages = a.p.depth / 128, of_segment = stages / SEGMENTS;
  constexpr u32 STEPS = GROUP / 16 < 4 ? GROUP / 16 : 4;  // between two commits
  const Constants k = constants<FAMILY>(BIAS, OFFSET);
  u32 w[2][4][4], done = 0;
  bool first = true;
#pragma unroll
  for (u32 i = 0; i < HELD; i++) total[i] = 0;
  barrier_wait(full + 8 * ring.slot, ring.parity);
  operands_of(k, shared + 1024 + ring.slot * STAGE_BYTES + slice * SLICE, 0, w[0]);
#pragma unroll 1
  for (u32 s = 0; s < stages; s++) {
    const u8* stage = shared + 1024 + ring.slot * STAGE_BYTES;
    const u8* block = stage + slice * SLICE;
    const u32 x = base + 1024 + ring.slot * STAGE_BYTES + AT_X;
    const u32 next = ring.slot + 1 == a.slots ? 0 : ring.slot + 1, next_parity = next ? ring.parity : ring.parity ^ 1;
#pragma unroll
    for (u32 h = 0; h < 2; h++)
#pragma unroll
      for (u32 c = 0; c < 4 / STEPS; c++) {
        wgmma_fence();
#pragma unroll
        for (u32 i = c * STEPS; i < (c + 1) * STEPS; i++)
          Wgmma<COLUMNS>::step(sum, w[h][i], x + h * COLUMNS * 128 + 32 * i, i != c * STEPS || (GROUP == 128 && h));
        wgmma_commit();
        if (c == 0) {
          // The half before this one is done with its operands.
          if (GROUP == 128) wgmma_wait<1>();
          if (h == 0) {
            operands_of(k, block, 1, w[1]);
          } else if (s + 1 < stages) {
            barrier_wait(full + 8 * next, next_parity);
            operands_of(k, shared + 1024 + next * STAGE_BYTES + slice * SLICE, 0, w[0]);
          }
        }
        if (GROUP == 128 && h == 0) continue;
        const u32 which = GROUP == 128 ? 0 : (h * 4 + c * STEPS) / (GROUP / 16);
        float f[2], o[2];
        scales_of(block, which, g, f, o);
        const float* x_sums = (const float*)(stage + AT_X + X_BYTES) + which * COLUMNS;
        wgmma_wait<0>();
        keep(sum);
#pragma unroll
        for (u32 j = 0; j < COLUMNS / 8; j++) {
          float2 v = make_float2(0, 0);
          if (OFFSET) v = *(const float2*)(x_sums + j * 8 + 2 * t);
#pragma unroll
          for (u32 i = 0; i < 4; i++) {
            total[4 * j + i] = fmaf(f[i / 2], sum[4 * j + i], total[4 * j + i]);
            if (OFFSET) total[4 * j + i] = fmaf(o[i / 2], i % 2 ? v.y : v.x, total[4 * j + i]);
          }
        }
      }
    give_back(empty, ring.slot);
    ring.slot = next, ring.parity = next_parity;
    if (SEGMENTS > 1 && ++done == of_segment) {
      const bool last = s + 1 == stages;
      done = 0;
#pragma unroll
      for (u32 i = 0; i < HELD; i++) {
        float v = first ? total[i] : held[i * 128] + total[i];
        if (last) total[i] = v;
        else held[i * 128] = v, total[i] = 0;
      }
      first = false;
    }
  }
}

// What is done with a tile's sums: runs of 24 columns go through shared memory, so that parts of an activation meet and
// rows are stored side by side.
__device__ __forceinline__ void finish(const GemmArgs& a, const Place& place, float* out, u32 group, const float (&total)[HELD]) {
  const Product& p = a.p;
  const u32 thread = threadIdx.x & 127, g = lane() >> 2, t = lane() & 3, q = warp() & 3;
  const u32 used = min(a.columns, p.tokens * p.split - place.column);
  float* mine = out + group * 24 * OUT_STRIDE;
#pragma unroll
  for (u32 j = 0; j < COLUMNS / 8; j++) {
    const u32 c = j % 3 * 8 + 2 * t;
#pragma unroll
    for (u32 i = 0; i < 4; i++) mine[(c + i % 2) * OUT_STRIDE + q * 16 + g + i / 2 * 8] = total[4 * j + i];
    if (j % 3 != 2 && j != COLUMNS / 8 - 1) continue;
    const u32 from = j / 3 * 24, columns = used > from ? min(used - from, (j % 3 + 1) * 8) : 0, tokens = columns / p.split;
    const u64 token0 = (place.column + from) / p.split;
    auto sum_of = [&](const float* columns, u32 token, u32 row) {
      const float* at = columns + token * p.split * OUT_STRIDE + row;
      float v = at[(p.split - 1) * OUT_STRIDE];
      for (i32 h = (i32)p.split - 2; h >= 0; h--) v = v + at[h * OUT_STRIDE];
      return v;
    };
    if (p.pair) {
      group_barrier(1, 256);
      for (u32 i = group * 128 + thread; i < tokens * ROWS; i += 256) {
        const u32 row = i % ROWS, token = i / ROWS;
        if (place.row + row >= p.part[0].rows) continue;
        const float gate = sum_of(out, token, row), up = sum_of(out + 24 * OUT_STRIDE, token, row);
        store(p, p.part[0], place.row + row, token0 + token, activate(p.pair, gate) * up);
      }
      group_barrier(1, 256);
    } else {
      group_barrier(2 + group, 128);
      const WeightPart& part = p.part[place.part];
      for (u32 i = thread; i < tokens * ROWS; i += 128) {
        const u32 row = place.row + group * ROWS + i % ROWS, token = i / ROWS;
        if (row < part.rows) store(p, part, row, token0 + token, sum_of(mine, token, i % ROWS));
      }
      group_barrier(2 + group, 128);
    }
  }
}

#define GEMM_THREADS 384, 1
OVERLAPPED_KERNEL(product_gemm, GemmArgs, GEMM_THREADS) {
  DYNAMIC_SHARED(u8, dynamic);
  u8* shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  const u32 base = shared_address(shared), group = warp() / 4;
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < a.slots; i++) {
      barrier_init(base + 8 * i, 1);
      barrier_init(base + 8 * (a.slots + i), 8);
    }
    barrier_init_done();
  }
  __syncthreads();
  let_next_start();
  wait_for_previous();
  const u32 column_tiles = (a.p.tokens * a.p.split + a.columns - 1) / a.columns, tiles = column_tiles * a.row_tiles;
  if (group == 2) {
    fewer_registers();
    if (threadIdx.x == 256) produce(a, base, tiles, column_tiles);
    return;
  }
  more_registers();
  u8* behind = shared + 1024 + a.slots * STAGE_BYTES;
  float* held = (float*)behind + group * HELD * 128 + (threadIdx.x & 127);
  Ring ring = {0, 0};
  for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Place place = place_of(a, tile, column_tiles);
    float sum[HELD], total[HELD];
#pragma unroll
    for (u32 i = 0; i < HELD; i++) sum[i] = 0;
    if (FAMILY == BF16) sum_plain(a, shared, ring, warp(), sum, total);
    else sum_scaled(a, shared, ring, warp(), held, sum, total);
    // Where segments' sums waited, columns now pass through.
    if (SPLIT_SUMS) group_barrier(1, 256);
    finish(a, place, (float*)behind, group, total);
    if (SPLIT_SUMS) group_barrier(1, 256);
  }
}
