// Whole rows moved by index: gather_rows, scatter_rows; words: scatter_words; and the table of rotary angles.
//
// Math: forerun_backend::op::{rows, rope}.
// Layout: row-major; rows are copied as words.
// Numerics: copies are exact. Angles are f32 products, as everywhere; their cosines and sines are computed in f64 and rounded.
// Shape of the launch: blocks of 256 threads, gridDim.y of them for each row; a thread for each word and each angle.
// Limits: none.

struct MoveRows {
  const u32* x;
  const u32* rows;
  u32* out;
  u32* fault;
  u32 site, limit, dim;
};

KERNEL(gather_rows, MoveRows, 256) {
  u32 row = a.rows[blockIdx.x];
  if (!inside(a.fault, a.site, row, a.limit)) return;
  const u32* from = a.x + (u64)row * a.dim;
  u32* to = a.out + (u64)blockIdx.x * a.dim;
#pragma unroll 4
  for (u32 i = blockIdx.y * 256 + threadIdx.x; i < a.dim; i += gridDim.y * 256) to[i] = from[i];
}

KERNEL(scatter_rows, MoveRows, 256) {
  u32 row = a.rows[blockIdx.x];
  if (!inside(a.fault, a.site, row, a.limit)) return;
  const u32* from = a.x + (u64)blockIdx.x * a.dim;
  u32* to = a.out + (u64)row * a.dim;
#pragma unroll 4
  for (u32 i = blockIdx.y * 256 + threadIdx.x; i < a.dim; i += gridDim.y * 256) to[i] = from[i];
}

struct MoveWords {
  const u32* words;
  const u32* from;
  const u32* to;
  u32* out;
  u32* fault;
  u32 site, words_limit, out_limit, count, limit;
};

KERNEL(scatter_words, MoveWords, 256) {
  u32 i = blockIdx.x * 256 + threadIdx.x;
  if (i >= a.count) return;
  u32 from = a.from[i], to = a.to[i];
  if (!inside(a.fault, a.site, from, a.words_limit)) return;
  if (!inside(a.fault, a.site + 1, to, a.out_limit)) return;
  u32 word = a.words[from];
  a.out[to] = word < a.limit ? word : 0;
}

struct RopeTable {
  const u32* positions;
  const float* inv_freq;
  float* out;
  u64 count;
  u32 pairs, shift;
  float scale;
};

// Cosine and sine of any angle below 2^40: cut to at most pi / 4 around a multiple of pi / 2, then fdlibm's polynomials.
__device__ inline void cos_sin(double x, float& cosine, float& sine) {
  const double round = 6755399441055744.0;
  double n = (x * 0.63661977236758138 + round) - round;
  double r = fma(n, -1.5707963267948966, x);
  r = fma(n, -6.123233995736766e-17, r);
  double z = r * r;
  double s = 1.58969099521155010221e-10;
  s = fma(s, z, -2.50507602534068634195e-08);
  s = fma(s, z, 2.75573137070700676789e-06);
  s = fma(s, z, -1.98412698298579493134e-04);
  s = fma(s, z, 8.33333333332248946124e-03);
  s = fma(s, z, -1.66666666666666324348e-01);
  s = fma(s * z, r, r);
  double c = -1.13596475577881948265e-11;
  c = fma(c, z, 2.08757232129817482790e-09);
  c = fma(c, z, -2.75573143513906633035e-07);
  c = fma(c, z, 2.48015872894767294178e-05);
  c = fma(c, z, -1.38888888888741095749e-03);
  c = fma(c, z, 4.16666666666666019037e-02);
  c = fma(c * z, z, fma(z, -0.5, 1.0));
  long long quarter = (long long)n & 3;
  double cs = quarter & 1 ? s : c, sn = quarter & 1 ? c : s;
  cosine = (float)((quarter + 1) & 2 ? -cs : cs);
  sine = (float)(quarter & 2 ? -sn : sn);
}

KERNEL(rope_table, RopeTable, 256) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  if (i >= a.count) return;
  u64 row = i / a.pairs, pair = i % a.pairs;
  float angle = (float)((u64)a.positions[row] + a.shift) * a.inv_freq[pair], cosine, sine;
  cos_sin((double)angle, cosine, sine);
  float* out = a.out + row * 2 * a.pairs;
  out[pair] = cosine * a.scale;
  out[a.pairs + pair] = sine * a.scale;
}
