// The tensor core's asynchronous step on Hopper: 64 rows of weights in registers, N columns in shared memory.
// It performs the same chain of k16 steps as `mma`, so it has the same bits.

template <int N> struct Wgmma;
#ifdef FORERUN_EMULATED
template <int N> struct Wgmma {
  // The address of a tile of 128-byte rows, at the columns of the step; pieces of 16 bytes are exchanged by the row's number.
  static void step(float (&c)[N / 2], const u32 (&a)[4], u32 at, bool more) {
    using namespace emulated;
    u32 first = state.current & ~31u, l = ::lane(), g = l / 4, t = l % 4;
    operands[state.current] = {{a[0], a[1], a[2], a[3]}, {0, 0}};
    __syncwarp();
    i32 am[2][16], ae[2][16], bm[16], be[16];
    bool row[2] = {true, true};
    for (u32 q = 0; q < 4; q++) {
      const Operand& x = operands[first + g * 4 + q];
      for (u32 i = 0; i < 4; i++) {
        wide<false>(x.a[i], am[i & 1] + i / 2 * 8 + 2 * q, ae[i & 1] + i / 2 * 8 + 2 * q);
        row[i & 1] &= finite_pair<false>(x.a[i]);
      }
    }
    for (u32 j = 0; j < N / 8; j++)
      for (u32 n = 0; n < 2; n++) {
        bool col = true;
        for (u32 k = 0; k < 16; k += 2) {
          u32 line = at + (8 * j + 2 * t + n) * 128 + k * 2, word;
          memcpy(&word, state.shared + (line ^ (line >> 7 & 7) << 4), 4);
          wide<false>(word, bm + k, be + k);
          col &= finite_pair<false>(word);
        }
        for (u32 h = 0; h < 2; h++) {
          float& sum = c[4 * j + 2 * h + n];
          if (!more) sum = 0;
          bool known = row[h] && col && !isnan(sum) && !isinf(sum);
          sum = known ? emulated::step<false>(am[h], ae[h], bm, be, sum) : __uint_as_float(0x7fffffff);
        }
      }
    __syncwarp();
  }
};
__device__ inline void wgmma_fence() {}
__device__ inline void wgmma_commit() {}
template <int N> __device__ inline void wgmma_wait() {}
template <int N> __device__ inline void keep(float (&c)[N]) {}
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Keeps uses of sums behind the wait for them.
template <int N> __device__ __forceinline__ void keep(float (&c)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
}
// A tile of 128-byte rows with 128-byte swizzling, groups of eight rows 1024 bytes apart.
__device__ __forceinline__ u64 wgmma_tile(u32 at) { return (u64)((at & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
// Of `c`, the numbers of 16 registers in PTX and the registers, from `n` on.
#define WGMMA_SUMS_4(n) "+f"(c[n]), "+f"(c[n + 1]), "+f"(c[n + 2]), "+f"(c[n + 3])
#define WGMMA_SUMS_16(n) WGMMA_SUMS_4(n), WGMMA_SUMS_4(n + 4), WGMMA_SUMS_4(n + 8), WGMMA_SUMS_4(n + 12)
#define WGMMA_SUMS_32(n) WGMMA_SUMS_16(n), WGMMA_SUMS_16(n + 16)
#define WGMMA_SUMS_64(n) WGMMA_SUMS_32(n), WGMMA_SUMS_32(n + 32)
#define WGMMA_SUMS_128(n) WGMMA_SUMS_64(n), WGMMA_SUMS_64(n + 64)
#define WGMMA_NUMBERS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_NUMBERS_32 WGMMA_NUMBERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_NUMBERS_64 WGMMA_NUMBERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_NUMBERS_128 WGMMA_NUMBERS_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95" \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// One instruction for N columns with R = N / 2 sums a lane; the operands behind the sums have the numbers R to R + 5.
#define WGMMA_STEP(N, R, A, TILE, MORE)                                                                                       \
  template <> struct Wgmma<N> {                                                                                               \
    static __device__ __forceinline__ void step(float (&c)[R], const u32 (&a)[4], u32 at, bool more) {                       \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " MORE ", 0;\n"                                                         \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WGMMA_NUMBERS_##R "}, {" A "}, " TILE ", p, 1, 1, 0;\n}" \
          : WGMMA_SUMS_##R(0)                                                                                                 \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(wgmma_tile(at)), "r"((u32)more));                                 \
    }                                                                                                                        \
  };
WGMMA_STEP(32, 16, "%16,%17,%18,%19", "%20", "%21")
WGMMA_STEP(64, 32, "%32,%33,%34,%35", "%36", "%37")
WGMMA_STEP(128, 64, "%64,%65,%66,%67", "%68", "%69")
WGMMA_STEP(256, 128, "%128,%129,%130,%131", "%132", "%133")
#endif
