// What every family begins with.
//
// Numerics: kernels are compiled without contraction (--fmad=false, -ffp-contract=off): a product and a sum are
// rounded apart unless the text says fmaf. Division and square roots are rounded to nearest. So a GPU and the CPU
// compute the same bits.
//
// FORERUN_EMULATED: the text is compiled with g++ after emulated.h, which has the C++ twins of what CUDA has built in.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;

#ifdef FORERUN_EMULATED
// A kernel: its thread's body, and an entry that the emulation finds by name.
#define KERNEL(name, Args, threads)                                                   \
  static void name##_thread(const Args& a);                                           \
  extern "C" void name(const void* args) { name##_thread(*(const Args*)args); }       \
  extern "C" const u32 name##_bytes;                                                  \
  const u32 name##_bytes = sizeof(Args);                                              \
  static void name##_thread(const Args& a)
// Dynamic shared memory.
#define DYNAMIC_SHARED(type, name) type* name = (type*)emulated::dynamic()
#else
#define KERNEL(name, Args, threads) \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Args a)
extern __shared__ __align__(128) unsigned char forerun_dynamic[];
#define DYNAMIC_SHARED(type, name) type* name = (type*)forerun_dynamic
#endif

#define ALL_LANES 0xffffffffu

__device__ inline u32 lane() { return threadIdx.x & 31; }
__device__ inline u32 warp() { return threadIdx.x >> 5; }
