// Elementwise functions and gates.

struct Scale {
  float* x;
  u64 len;
  float factor;
};

// x <- x * factor.
KERNEL(scale, Scale, 256) {
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < a.len) a.x[i] *= a.factor;
}
