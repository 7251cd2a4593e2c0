// A product of any weight with any columns: the definition that the faster kernels are tested against.
//
// # Shape of the launch
// A block makes 16 rows (`x` of the grid: units over all parts) of 8 T columns (`y`); its warps are the segments. Weights
// and activations come straight from memory. Rows that do not begin with a tile are made from two tiles.

template <int F>
__device__ __forceinline__ void fragment(const Constants& k, const u8* block, u32 step, bool offset, u32 (&w)[4]) {
  if (F == BF16) {
    uint4 v = *(const uint4*)(block + step * 512 + lane() * 16);
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
  } else if (F == U4) {
    u32 v = *(const u32*)(block + step / 4 * 512 + lane() * 16 + step % 4 * 4);
    if (offset) from_u4<true>(k, v, w); else from_u4<false>(k, v, w);
  } else {
    uint2 v = *(const uint2*)(block + step / 2 * 512 + lane() * 16 + step % 2 * 8);
    if (F == I8) from_i8(k, v.x, w[0], w[1]), from_i8(k, v.y, w[2], w[3]);
    else from_e4m3(k, v.x, w[0], w[1]), from_e4m3(k, v.y, w[2], w[3]);
  }
}

// Sums of a tile's segment for 8 T columns; `col`: this lane's of x, `pair`: those it has sums of.
template <int F, int T>
__device__ void segment(const Product& a, const u8* tile, u32 from, u32 blocks, const u64 (&col)[T], const u64 (&pair)[T][2], float (&sum)[T][4]) {
  const u32 bytes = block_bytes(F, a.scales, a.offset, a.group), g = lane() / 4, t = lane() % 4, steps = a.group / 16;
  const Constants k = constants<F>(a.bias, a.offset);
  float group[T][4];
#pragma unroll
  for (int j = 0; j < T; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) sum[j][i] = group[j][i] = 0;
  for (u32 b = from; b < from + blocks; b++) {
    const u8* block = tile + (u64)b * bytes;
    for (u32 step = 0; step < 8; step++) {
      u32 w[4];
      fragment<F>(k, block, step, a.offset, w);
#pragma unroll
      for (int j = 0; j < T; j++) {
        uint2 v = *(const uint2*)(a.x + col[j] * a.depth + b * 128 + step / 2 * 32 + t * 8 + step % 2 * 4);
        mma(F == BF16 ? sum[j] : group[j], w[0], w[1], w[2], w[3], v.x, v.y);
      }
      if (F == BF16 || (step + 1) % steps) continue;
      const u8* scales = block + code_bytes(F);
      u32 which = step / steps;
      float s[2], o[2] = {0, 0};
      if (a.scales == SCALES_TILE) {
        s[0] = s[1] = *(const float*)scales;
      } else {
        scales += which * group_bytes(a.scales, a.offset);
        for (u32 h = 0; h < 2; h++) {
          s[h] = scale_at(scales, a.scales, (g * 2 + h) * (1 + a.offset));
          if (a.offset) o[h] = fmaf(offset_bias<F>(a.bias), s[h], scale_at(scales, a.scales, (g * 2 + h) * 2 + 1));
        }
      }
      const float* sums = a.sums + (u64)(b * (8 / steps) + which) * a.ld;
#pragma unroll
      for (int j = 0; j < T; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          sum[j][i] = fmaf(s[i / 2], group[j][i], sum[j][i]);
          if (a.offset) sum[j][i] = fmaf(o[i / 2], sums[pair[j][i % 2]], sum[j][i]);
          group[j][i] = 0;
        }
    }
  }
}

template <int F, int T> __device__ void unit(const Product& a) {
  __shared__ float sums[4][16][8 * T];
  __shared__ float gate[16][8 * T];
  const u32 seg = warp(), blocks = a.depth / 128 / a.segments, per_tile = 8 * T / a.split;
  const u32 bytes = block_bytes(F, a.scales, a.offset, a.group);
  u32 p = 0;
  while (!a.pair && p + 1 < a.parts && blockIdx.x >= a.part[p + 1].unit) p++;
  const u32 row0 = (blockIdx.x - a.part[p].unit) * 16;
  const u32 tiles = a.tiles ? *a.tile_count : (a.tokens + per_tile - 1) / per_tile;
  for (u32 tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    PairTile some = {0, tile * per_tile, 0, 0};
    if (a.tiles) some = a.tiles[tile];
    else some.count = min(per_tile, a.tokens - some.first);
    // The number of a column's token or pair; columns that are not there repeat the first.
    auto token = [&](u32 c) -> u64 {
      u32 i = c / a.split < some.count ? c / a.split : 0;
      return a.tiles ? a.list[some.first + i] : some.first + i;
    };
    auto column = [&](u32 c) -> u64 { return token(c) / a.share * a.split + c % a.split; };
    u64 col[T], pair[T][2];
#pragma unroll
    for (int j = 0; j < T; j++) {
      col[j] = column(8 * j + lane() / 4);
      pair[j][0] = column(8 * j + lane() % 4 * 2), pair[j][1] = column(8 * j + lane() % 4 * 2 + 1);
    }
    for (u32 sub = 0; sub < (a.pair ? 2 : 1); sub++) {
      const WeightPart& part = a.part[a.pair ? sub : p];
      const u32 first = part.first + some.expert * part.stride + row0;
      const u32 last = min(part.rows - row0, 16u);
      for (u32 t = first / 16; t * 16 < first + last; t++) {
        float sum[T][4];
        segment<F, T>(a, part.at + (u64)t * (a.depth / 128) * bytes, seg * blocks, blocks, col, pair, sum);
#pragma unroll
        for (int j = 0; j < T; j++)
#pragma unroll
          for (int i = 0; i < 4; i++) sums[seg][lane() / 4 + i / 2 * 8][8 * j + lane() % 4 * 2 + i % 2] = sum[j][i];
        __syncthreads();
        for (u32 i = threadIdx.x; i < 16 * some.count; i += blockDim.x) {
          const u32 r = i % 16, c = i / 16;
          const i32 row = (i32)(t * 16 + r) - (i32)first;
          if (row < 0 || row >= (i32)last) continue;
          float total = 0;
          for (i32 q = a.split - 1; q >= 0; q--) {
            float v = sums[0][r][c * a.split + q];
            for (u32 s = 1; s < a.segments; s++) v = v + sums[s][r][c * a.split + q];
            total = q == (i32)a.split - 1 ? v : total + v;
          }
          if (a.pair && sub == 0) gate[row][c] = total;
          else if (a.pair) store(a, a.part[0], row0 + row, token(c * a.split), activate(a.pair, gate[row][c]) * total);
          else store(a, part, row0 + row, token(c * a.split), total);
        }
        __syncthreads();
      }
    }
  }
}

template <int T> __device__ __forceinline__ void any(const Product& a) {
  if (a.family == BF16) unit<BF16, T>(a);
  else if (a.family == E4M3) unit<E4M3, T>(a);
  else if (a.family == I8) unit<I8, T>(a);
  else unit<U4, T>(a);
}

KERNEL(product_general_8, Product, 128) { any<1>(a); }
KERNEL(product_general_32, Product, 128) { any<4>(a); }

// A product with a plain f32 weight: few columns or a single row. One warp an element, 32 partial sums and a tree.
struct Plain {
  const float* w;
  const float* bias;
  const float* x;
  float* out;
  u32 rows, cols, tokens, add;
};

KERNEL(product_plain, Plain, 128) {
  u64 i = (u64)blockIdx.x * 4 + warp();
  if (i >= (u64)a.rows * a.tokens) return;
  u32 row = i % a.rows, token = i / a.rows;
  const float *w = a.w + (u64)row * a.cols, *x = a.x + (u64)token * a.cols;
  float sum = dot_of(w, x, a.cols);
  if (lane()) return;
  if (a.bias) sum = sum + a.bias[row];
  a.out[i] = a.add ? a.out[i] + sum : sum;
}
