// Elementwise functions and gates: glu, softcap, gate_mul, add_gated and the same with its gate's product.
//
// Math: forerun_backend::op::activation.
// Layout: row-major f32.
// Numerics: f32; the functions are the prelude's, with the bits of the CPU's kernels.
// Shape of the launch: a thread for each element, blocks of 256.
// Limits: fewer than 2^31 blocks.

struct Glu {
  float* gate;
  const float* up;
  u64 len;
  u32 dim, up_width, up_first, activation;
};

KERNEL(glu, Glu, 256) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  if (i >= a.len) return;
  u64 row = i / a.dim, column = i % a.dim;
  float gate = a.gate[i], up = a.up[row * a.up_width + a.up_first + column];
  a.gate[i] = activated(a.activation, gate) * up;
}

struct Softcap {
  float* x;
  u64 len;
  float cap;
};

KERNEL(softcap, Softcap, 256) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  if (i < a.len) a.x[i] = a.cap * tanh_of(a.x[i] / a.cap);
}

struct GateMul {
  float* x;
  const float* gate;
  u64 len;
};

KERNEL(gate_mul, GateMul, 256) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  if (i < a.len) a.x[i] = a.x[i] * sigmoid(a.gate[i]);
}

struct AddGated {
  const float* x;
  const float* gate;
  float* out;
  u64 len;
  u32 dim;
};

KERNEL(add_gated, AddGated, 256) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  if (i < a.len) a.out[i] = a.out[i] + sigmoid(a.gate[i / a.dim]) * a.x[i];
}

// The same with the gate's product before it: a weight of one row, kept as f32. Each block of a row makes it again.
struct AddGatedBy {
  const float* x;
  const float* weight;  // [columns]
  const float* gated;   // [rows, columns]: what the weight is multiplied with
  float* gate;          // [rows]
  float* out;
  u32 dim, columns;
};

KERNEL(add_gated_by, AddGatedBy, 256) {
  __shared__ float gate;
  const u32 row = blockIdx.x, i = blockIdx.y * 256 + threadIdx.x;
  const u64 at = (u64)row * a.dim + i;
  const float x = i < a.dim ? a.x[at] : 0.0f, old = i < a.dim ? a.out[at] : 0.0f;
  if (warp() == 0) {
    const float sum = dot_of(a.weight, a.gated + (u64)row * a.columns, a.columns);
    if (lane() == 0) gate = sum;
    if (lane() == 0 && blockIdx.y == 0) a.gate[row] = sum;
  }
  __syncthreads();
  if (i < a.dim) a.out[at] = old + sigmoid(gate) * x;
}
