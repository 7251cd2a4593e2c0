// Rows of f32 as columns of bfloat16: what the kernel that makes them for others and the kernels that make their own share.
//
// A thread has eight numbers of 32: those of one lane's `B` operand of two steps of the tensor core. Four threads side by side
// have the 32.

// Columns k and k + 1, zero where there are none.
__device__ __forceinline__ float2 pair_at(const float* x, u32 k, u32 dim) {
  if (dim % 2 == 0) return k < dim ? *(const float2*)(x + k) : make_float2(0, 0);
  return make_float2(k < dim ? x[k] : 0.0f, k + 1 < dim ? x[k + 1] : 0.0f);
}

// A thread's four columns of a step, from `k` on, of rows `dim` wide: two, and the two that are 8 further on.
__device__ __forceinline__ void columns_of(const float* x, u32 k, u32 dim, float (&v)[4]) {
  const float2 one = pair_at(x, k, dim), two = pair_at(x, k + 8, dim);
  v[0] = one.x, v[1] = one.y, v[2] = two.x, v[3] = two.y;
}

// Two limbs of bfloat16 in a word, and what is left of the numbers.
__device__ __forceinline__ u32 next_limbs(float& x, float& y) {
  const u32 low = f32_to_bf16(x), high = f32_to_bf16(y);
  x = x - bf16_to_f32(low), y = y - bf16_to_f32(high);
  return low | high << 16;
}

// The next limbs of a thread's eight numbers, and for each step the sum of its four: a tree.
__device__ __forceinline__ void limbs_of_eight(float (&v)[2][4], u32 (&words)[4], float (&sum)[2]) {
#pragma unroll
  for (u32 i = 0; i < 2; i++) {
    words[2 * i] = next_limbs(v[i][0], v[i][1]), words[2 * i + 1] = next_limbs(v[i][2], v[i][3]);
    const u32 one = words[2 * i], two = words[2 * i + 1];
    sum[i] = (bf16_to_f32(one & 0xffff) + bf16_to_f32(one >> 16)) + (bf16_to_f32(two & 0xffff) + bf16_to_f32(two >> 16));
  }
}

// Sums of groups of 16, 32, 64 and 128 columns, levels 0 to 3, of which a thread has those of its block of 32. `put` is called
// with level, the number of the group and its sum, once for each group.
template <class Put> __device__ __forceinline__ void sums_of_groups(float (&sum)[2], u32 block, bool real, u32 levels, Put put) {
  const bool first_of_four = threadIdx.x % 4 == 0;
#pragma unroll
  for (u32 i = 0; i < 2; i++) {
    sum[i] = sum[i] + __shfl_xor_sync(ALL_LANES, sum[i], 1);
    sum[i] = sum[i] + __shfl_xor_sync(ALL_LANES, sum[i], 2);
    if (real && first_of_four && (levels & 1)) put(0u, block * 2 + i, sum[i]);
  }
  float all = sum[0] + sum[1];
  for (u32 level = 1; level < 4; level++) {
    const bool first = (block & ((1u << (level - 1)) - 1)) == 0;
    if (real && first_of_four && first && (levels >> level & 1)) put(level, block * 2 >> level, all);
    all = all + __shfl_xor_sync(ALL_LANES, all, 2 << level);
  }
}
