// One token for each row of logits.
//
// Math: forerun_backend::op::Sample.
// Layout: rows and history are words as SampleRow and HistoryEntry have them; `scratch` is scratch of [rows, candidates].
// Numerics: logits are adjusted in f32 as the definition does. Noise and the weights of filters are the definition's, to the bit:
//   f32 without fused operations, weights as integers, whose sums have no order. So equal logits give equal tokens.
// Shape of the launch: blocks of 512 threads, gridDim.y of them for a row, which share the search for the largest logit; other
//   rows are the first one's. Filters find the least key that is kept, digit by digit: a key orders logits, ties by the lower
//   token.
// Limits: none.

// The largest key that blocks of a row have found, and how many of them have.
struct BestSoFar {
  u64 key;
  u32 blocks, none;
};

struct Sample {
  const float* logits;
  const u32* rows;
  const u32* history;
  const u32* ids;
  const u32* masks;
  u32* out;
  float* scratch;
  BestSoFar* best;  // [rows]; zeros between launches
  u32* fault;
  u32 site, candidates, vocabulary, entries, id_count, mask_count;
};

struct Row {
  float temperature;
  u32 top_k;
  float top_p, min_p, repetition, presence, frequency;
  u32 seed_low, seed_high, position, history_first, history_len, ids_first, ids_len, ids_prompt, mask;
};

// A number in (0, 1] from counters.
__device__ inline float uniform(const Row& row, u32 token) {
  u32 v[4] = {row.seed_low, row.seed_high, row.position, token};
  for (int i = 0; i < 4; i++) v[i] = v[i] * 1664525u + 1013904223u;
  for (int round = 0; round < 2; round++) {
    v[0] += v[1] * v[3];
    v[1] += v[2] * v[0];
    v[2] += v[0] * v[1];
    v[3] += v[1] * v[2];
    if (round == 0)
      for (int i = 0; i < 4; i++) v[i] ^= v[i] >> 16;
  }
  return ((float)v[0] + 0.5f) * (1.0f / 4294967296.0f);
}

__device__ inline float gumbel(const Row& row, u32 token) {
  float u = uniform(row, token), w = 1.0f - u;
  if (w == 0.0f) return -INFINITE;
  // -ln (1 - u), with what rounding took from 1 - u.
  float e = w == 1.0f ? u : ((w - 1.0f) + u) / w - ln_of(w);
  return -ln_of(e);
}

// e^d for d <= 0 in units of 2^-40.
__device__ inline u64 weight_of(float d) {
  if (!(d >= -28.0f)) return 0;
  const float round = 12582912.0f;
  float n = (d * 1.4426950408889634f + round) - round;
  float r = (d - n * 0.6933594f) - n * -2.1219444e-4f;
  float p = 1.9875691e-4f;
  p = p * r + 1.3981999e-3f;
  p = p * r + 8.333452e-3f;
  p = p * r + 4.1665796e-2f;
  p = p * r + 1.6666665e-1f;
  p = p * r + 5e-1f;
  float e = (p * (r * r) + r) + 1.0f;
  return (u64)(e * pow2(n + 40.0f));
}

__device__ inline bool allowed(const u32* mask, u32 token) {
  return !mask || mask[token / 32] >> (token % 32) & 1;
}

__device__ inline float penalised(const Row& row, float logit, bool seen, u32 generated) {
  if (seen) logit = logit > 0.0f ? logit / row.repetition : logit * row.repetition;
  float present = generated > 0 ? row.presence : 0.0f;
  return logit - present - row.frequency * (float)generated;
}

// Applies history and the span's own tokens to the logits in `scratch`.
__device__ inline bool adjust(const Sample& a, const Row& row, float* scratch) {
  __shared__ u32 bad;
  u32 t = threadIdx.x;
  if (t == 0) bad = 0;
  __syncthreads();
  const u32* entries = a.history + 3 * (u64)row.history_first;
  const u32* ids = a.ids + row.ids_first;
  u32 prompt = min(row.ids_prompt, row.ids_len);
  for (u32 i = t; i < row.history_len; i += blockDim.x) {
    u32 token = entries[3 * i], counts = entries[3 * i + 1];
    if (!inside(a.fault, a.site + 2, token, a.vocabulary)) {
      bad = 1;
      continue;
    }
    if (token >= a.candidates) continue;
    u32 generated = counts >> 1;
    bool seen = counts & 1;
    for (u32 j = 0; j < row.ids_len; j++) {
      if (ids[j] != token) continue;
      seen = true;
      generated += j >= prompt;
    }
    scratch[token] = penalised(row, scratch[token], seen, generated) + __uint_as_float(entries[3 * i + 2]);
  }
  __syncthreads();
  if (row.repetition != 1.0f || row.presence != 0.0f || row.frequency != 0.0f) {
    for (u32 i = t; i < row.ids_len; i += blockDim.x) {
      u32 token = ids[i], generated = 0;
      bool known = false;
      for (u32 j = 0; j < i && !known; j++) known = ids[j] == token;
      for (u32 j = 0; j < row.history_len && !known; j++) known = entries[3 * j] == token;
      if (known) continue;
      if (!inside(a.fault, a.site + 3, token, a.vocabulary)) {
        bad = 1;
        continue;
      }
      if (token >= a.candidates) continue;
      for (u32 j = prompt; j < row.ids_len; j++) generated += ids[j] == token;
      scratch[token] = penalised(row, scratch[token], true, generated);
    }
  }
  __syncthreads();
  return bad == 0;
}

// The order of logits: larger ones first, of equal ones the lower token.
__device__ inline u64 key_of(float logit, u32 token) {
  return (u64)order_of(logit) << 32 | (u32)~token;
}

// The key by which the largest logit is searched: equal for equal numbers, lowest for NaN.
__device__ inline u64 best_key(float number, u32 token) {
  if (number != number) number = -INFINITE;
  return key_of(number == 0.0f ? 0.0f : number, token);
}

// The largest key so that those from it on, and from `least` on, add up to `enough`. A logit counts 1, or what it weighs.
__device__ inline u64 select(const float* scaled, u32 count, u64 least, float most, bool weigh,
                             double enough) {
  __shared__ u64 bins[256], shared_key, shared_above;
  u64 key = 0, above = 0;
  for (int digit = 7; digit >= 0; digit--) {
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    u32 shift = 8 * digit;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
      float x = scaled[i];
      u64 own = key_of(x, i);
      bool prefix = digit == 7 || own >> (shift + 8) == key >> (shift + 8);
      if (own < least || !prefix) continue;
      atomicAdd(&bins[own >> shift & 255], weigh ? weight_of(x - most) : 1ull);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = 255;
      while (bin > 0 && !((double)(above + bins[bin]) >= enough)) above += bins[bin--];
      shared_key = key | (u64)bin << shift;
      shared_above = above;
    }
    __syncthreads();
    key = shared_key;
    above = shared_above;
  }
  return key > least ? key : least;
}

__device__ inline u64 block_sum_u64(u64 x) {
  __shared__ u64 sums[32];
  for (u32 by = 16; by > 0; by >>= 1) x += __shfl_xor_sync(ALL_LANES, x, by);
  __syncthreads();
  if (lane() == 0) sums[warp()] = x;
  __syncthreads();
  u64 total = 0;
  for (u32 i = 0; i < blockDim.x / 32; i++) total += sums[i];
  return total;
}

// The logit of a key's number.
__device__ inline float logit_of(u64 key) { return of_order((u32)(key >> 32)); }

// The least key that the filters keep.
__device__ inline u64 filtered(const float* scaled, u32 count, const Row& row, u64 best) {
  float most = logit_of(best);
  u64 least = 0;
  if (row.top_k > 0 && row.top_k < count)
    least = select(scaled, count, 0, most, false, (double)row.top_k);
  if (row.top_p < 1.0f) {
    u64 sum = 0;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x)
      if (key_of(scaled[i], i) >= least) sum += weight_of(scaled[i] - most);
    double limit = (double)row.top_p * (double)block_sum_u64(sum);
    least = select(scaled, count, least, most, true, limit);
  }
  return least < best ? least : best;
}

// What a row without a logit above minus infinity samples.
#define NO_TOKEN 0xffffffffu

__device__ inline u32 token_of(u64 key) { return key >> 32 > order_of(-INFINITE) ? ~(u32)key : NO_TOKEN; }

KERNEL(sample, Sample, 512) {
  u32 number = blockIdx.x, t = threadIdx.x, count = a.candidates;
  Row row;
  {
    const u32* words = a.rows + 16 * (u64)number;
    row = {__uint_as_float(words[0]), words[1],  __uint_as_float(words[2]), __uint_as_float(words[3]),
           __uint_as_float(words[4]), __uint_as_float(words[5]), __uint_as_float(words[6]), words[7],
           words[8], words[9], words[10], words[11], words[12], words[13], words[14], words[15]};
  }
  u32 words_per_mask = (a.vocabulary + 31) / 32;
  bool fits = (row.mask == 0 || inside(a.fault, a.site, row.mask - 1, a.mask_count)) &&
              inside(a.fault, a.site + 2, (u64)row.history_first + row.history_len, (u64)a.entries + 1) &&
              inside(a.fault, a.site + 3, (u64)row.ids_first + row.ids_len, (u64)a.id_count + 1);
  if (!fits) return;
  const u32* mask = row.mask ? a.masks + (u64)(row.mask - 1) * words_per_mask : 0;
  const float* logits = a.logits + (u64)number * count;
  bool penalties = row.repetition != 1.0f || row.presence != 0.0f || row.frequency != 0.0f;
  u64 best = 0;
  if (row.temperature == 0.0f && row.history_len == 0 && !penalties) {
    u32 each = (u32)ceil_div(count, gridDim.y), first = min(blockIdx.y * each, count);
#pragma unroll 8
    for (u32 i = first + t; i < min(first + each, count); i += 512) {
      u64 key = allowed(mask, i) ? best_key(logits[i], i) : 0;
      best = key > best ? key : best;
    }
    best = block_max_u64(best);
    if (t > 0) return;
    BestSoFar* all = a.best + number;
    atomicMax(&all->key, best);
    __threadfence();
    if (atomicAdd(&all->blocks, 1u) + 1 < gridDim.y) return;
    __threadfence();
    a.out[number] = token_of(atomicExch(&all->key, (u64)0));
    all->blocks = 0;
    return;
  }
  if (blockIdx.y > 0) return;
  float* scratch = a.scratch + (u64)number * count;
  for (u32 i = t; i < count; i += blockDim.x) scratch[i] = allowed(mask, i) ? logits[i] : -INFINITE;
  __syncthreads();
  if (!adjust(a, row, scratch)) return;
  bool greedy = row.temperature == 0.0f;
  u64 largest = 0;
  for (u32 i = t; i < count; i += blockDim.x) {
    float x = scratch[i];
    if (!greedy) scratch[i] = x = x == x ? x / row.temperature : -INFINITE;
    u64 key = best_key(x, i), full = key_of(x, i);
    best = key > best ? key : best;
    largest = full > largest ? full : largest;
  }
  best = block_max_u64(best);
  largest = block_max_u64(largest);
  if (greedy || token_of(best) == NO_TOKEN) {
    if (t == 0) a.out[number] = token_of(best);
    return;
  }
  __syncthreads();
  u64 least = filtered(scratch, count, row, largest);
  float most = logit_of(largest);
  double lightest = (double)row.min_p * 1099511627776.0;
  u64 noisiest = 0;
  for (u32 i = t; i < count; i += blockDim.x) {
    float x = scratch[i];
    u64 key = key_of(x, i);
    bool heavy = row.min_p <= 0.0f || key == largest || (double)weight_of(x - most) >= lightest;
    if (key < least || !heavy) continue;
    u64 noisy = best_key(x + gumbel(row, i), i);
    noisiest = noisy > noisiest ? noisy : noisiest;
  }
  noisiest = block_max_u64(noisiest);
  if (t == 0) a.out[number] = ~(u32)noisiest;
}
