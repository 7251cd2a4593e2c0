// Copies that run beside the arithmetic, and what waits for them (sm_90).

#ifdef FORERUN_EMULATED
// A barrier in shared memory: copies are done at once, so only counting is left.
namespace emulated {
struct Mbarrier { u16 phase, count, pending, none; };
static_assert(sizeof(Mbarrier) == 8, "as large as CUDA's");
static long long owed[MOST_DYNAMIC / 8];  // bytes a barrier waits for
inline Mbarrier& mbarrier(u32 at) { return *(Mbarrier*)(state.shared + at); }
inline void settle(u32 at) {
  Mbarrier& b = mbarrier(at);
  if (b.pending == 0 && owed[at / 8] == 0) b.phase ^= 1, b.pending = b.count, state.idle = 0;
}
}  // namespace emulated
__device__ inline u32 shared_address(const void* p) { return (u32)((const u8*)p - emulated::state.shared); }
__device__ inline void barrier_init(u32 at, u32 count) {
  emulated::mbarrier(at) = {0, (u16)count, (u16)count, 0};
  emulated::owed[at / 8] = 0;
}
__device__ inline void barrier_init_done() {}
__device__ inline void barrier_arrive(u32 at) {
  emulated::mbarrier(at).pending--;
  emulated::settle(at);
}
__device__ inline void barrier_expect(u32 at, u32 bytes) {
  emulated::owed[at / 8] += bytes;
  barrier_arrive(at);
}
__device__ inline void barrier_wait(u32 at, u32 parity) {
  while (emulated::mbarrier(at).phase == parity) emulated::yield();
}
__device__ inline void copy_async(u32 to, const void* from, u32 bytes, u32 barrier) {
  if (to % 16 || (u64)from % 16 || bytes % 16) abort();
  memcpy(emulated::state.shared + to, from, bytes);
  emulated::owed[barrier / 8] -= bytes;
  emulated::settle(barrier);
}
__device__ inline void group_barrier(u32 id, u32 threads) { emulated::barrier(id, threads); }
__device__ inline void fewer_registers() {}
__device__ inline void more_registers() {}
#elif __CUDA_ARCH__ >= 900
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(u32 at, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(u32 at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 at, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 at, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(at), "r"(parity)
        : "memory");
  } while (!done);
}
__device__ __forceinline__ void copy_async(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"((u64)__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void group_barrier(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Registers move from four warps that copy to eight that multiply.
__device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); }
__device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 232;"); }
#endif
#endif
