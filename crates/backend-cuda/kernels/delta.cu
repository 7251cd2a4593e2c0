// The short convolution, and Gated DeltaNet: the inputs of the delta rule and the rule itself, with log-and-fold state.
//
// Math: forerun_backend::op::{ShortConv, DeltaGates, DeltaInputs, DeltaRule}.
// Layout: as there.
// Numerics: f32. A convolution adds its taps from the oldest on. The squares of a head are summed by 128 threads, each over
//   every 128th element, then by a tree. The rule is sequential over rows. A column of a state belongs to four lanes, each with N
//   neighbouring elements, every fourth of which is added to the same of four sums; these are added by a tree, then
//   those of lanes. So bits depend on the widths alone, not on how rows are cut into spans and calls.
// Shape of the launch:
//   short_conv: a thread for each row and channel.
//   conv_window: a thread for each span and channel, which moves window and log on.
//   delta_gates: a block of 128 threads for each row and each head of q and k.
//   delta_inputs: a block of 128 threads for each row, and each head of q and k or 128 channels of v.
//   delta_window: a thread for each span and channel, which moves window and log on.
//   delta_rule_N: a block of 128 threads for each span, value head and 32 columns; N elements a lane.
//   delta_log: a block of 128 threads for each drafted row of the batch.
// Limits: 2 to 16 taps; dk up to 256.

struct Span {
  u32 first_row, rows, confirmed, pending, slot, start;
};

struct Spans {
  const u32* table;
  u32* fault;
  u32 site, count, slots, log_rows, rows, unused;
};

// Entry `i` of the table, if what it points at is there.
__device__ inline bool read_span(const Spans& spans, u32 i, Span& span, u32* fault) {
  const u32* words = spans.table + 6 * (u64)i;
  span = {words[0], words[1], words[2], words[3], words[4], words[5]};
  bool fits = span.slot < spans.slots && span.pending <= spans.log_rows &&
              span.confirmed <= span.rows && span.rows - span.confirmed <= spans.log_rows &&
              (u64)span.first_row + span.rows <= spans.rows;
  if (fits || !fault) return fits;
  u32 site = spans.site;
  inside(fault, site, span.slot, spans.slots) &&
      inside(fault, site + 1, span.pending, (u64)spans.log_rows + 1) &&
      inside(fault, site + 2, span.confirmed, (u64)span.rows + 1) &&
      inside(fault, site + 3, span.rows - span.confirmed, (u64)spans.log_rows + 1) &&
      inside(fault, site + 4, (u64)span.first_row + span.rows, (u64)spans.rows + 1);
  return false;
}

// The span that a row of the batch belongs to; all threads of the block call it together.
__device__ inline bool span_of_row(const Spans& spans, u32 row, Span& span) {
  __shared__ u32 found;
  if (threadIdx.x == 0) found = ALL_LANES;
  __syncthreads();
  for (u32 i = threadIdx.x; i < spans.count; i += blockDim.x)
    if (read_span(spans, i, span, spans.fault) && row >= span.first_row &&
        row - span.first_row < span.rows)
      atomicMin(&found, i);
  __syncthreads();
  return found != ALL_LANES && read_span(spans, found, span, 0);
}

struct ShortConv {
  const float* x;
  const float* input_gate;
  const float* output_gate;
  const float* weight;
  const float* bias;
  float* window;
  float* log;
  float* out;
  Spans spans;
  u32 channels, taps, silu, unused;
};

// Row `i` of the batch as the convolution takes it in.
__device__ inline float conv_input(const ShortConv& a, u64 row, u32 channel) {
  u64 at = row * a.channels + channel;
  return a.input_gate ? a.x[at] * a.input_gate[at] : a.x[at];
}

// What a span can see, oldest first: the window (zeros at the start of a text), pending log rows, its own rows.
__device__ inline float conv_seen(const ShortConv& a, const Span& span, u32 i, u32 channel) {
  u32 keep = a.taps - 1;
  if (i < keep)
    return span.start == 0 ? 0.0f : a.window[((u64)span.slot * keep + i) * a.channels + channel];
  i -= keep;
  if (i < span.pending)
    return a.log[((u64)span.slot * a.spans.log_rows + i) * a.channels + channel];
  return conv_input(a, (u64)span.first_row + i - span.pending, channel);
}

KERNEL(short_conv, ShortConv, 128) {
  Span span;
  u32 batch_row = blockIdx.x, channel = blockIdx.y * 128 + threadIdx.x;
  if (!span_of_row(a.spans, batch_row, span) || channel >= a.channels) return;
  u32 first = span.pending + batch_row - span.first_row;
  float sum = 0.0f;
  for (u32 j = 0; j < a.taps; j++)
    sum = sum + a.weight[(u64)channel * a.taps + j] * conv_seen(a, span, first + j, channel);
  if (a.bias) sum = sum + a.bias[channel];
  if (a.silu) sum = silu(sum);
  u64 at = (u64)batch_row * a.channels + channel;
  a.out[at] = a.output_gate ? sum * a.output_gate[at] : sum;
}

KERNEL(conv_window, ShortConv, 128) {
  Span span;
  u32 channel = blockIdx.x * 128 + threadIdx.x, keep = a.taps - 1;
  if (!read_span(a.spans, blockIdx.y, span, a.spans.fault) || channel >= a.channels) return;
  float kept[15];
  u32 settled = span.pending + span.confirmed;
  for (u32 i = 0; i < keep; i++) kept[i] = conv_seen(a, span, settled + i, channel);
  for (u32 i = 0; i < keep; i++)
    a.window[((u64)span.slot * keep + i) * a.channels + channel] = kept[i];
  for (u32 i = span.confirmed; i < span.rows; i++) {
    u64 to = (u64)span.slot * a.spans.log_rows + i - span.confirmed;
    a.log[to * a.channels + channel] = conv_input(a, (u64)span.first_row + i, channel);
  }
}

struct DeltaInputs {
  const float* x;
  const float* gate_a;
  const float* gate_b;
  const float* weight;
  const float* rate;
  const float* dt_bias;
  float* window;
  float* log;
  float* qkv;
  float* decay;
  float* beta;
  Spans spans;
  u32 key_heads, value_heads, dk, dv, taps;
};

__device__ inline u32 channels(const DeltaInputs& a) {
  return 2 * a.key_heads * a.dk + a.value_heads * a.dv;
}

// What a span can see, oldest first: the window (zeros at the start of a text), pending log rows, its own rows.
__device__ inline float seen(const DeltaInputs& a, const Span& span, u32 i, u32 channel) {
  u32 keep = a.taps - 1, width = channels(a);
  if (i < keep)
    return span.start == 0 ? 0.0f : a.window[((u64)span.slot * keep + i) * width + channel];
  i -= keep;
  if (i < span.pending)
    return a.log[((u64)span.slot * a.spans.log_rows + i) * width + channel];
  return a.x[((u64)span.first_row + i - span.pending) * width + channel];
}

__device__ inline float convolved(const DeltaInputs& a, const Span& span, u32 row, u32 channel) {
  u32 first = span.pending + row;
  float sum = 0.0f;
  for (u32 j = 0; j < a.taps; j++)
    sum = sum + a.weight[(u64)channel * a.taps + j] * seen(a, span, first + j, channel);
  return silu(sum);
}

// ln (1 + e^x), the identity where that is exact.
__device__ inline float softplus(float x) { return x > 20.0f ? x : ln_1p(exp_of(x)); }

struct DeltaGates {
  float* qkv;
  const float* gate_a;
  const float* gate_b;
  const float* rate;
  const float* dt_bias;
  float* decay;
  float* beta;
  Spans spans;
  u32 key_heads, value_heads, dk, dv;
};

KERNEL(delta_gates, DeltaGates, 128) {
  Span span;
  u32 row = blockIdx.x, part = blockIdx.y;
  if (!span_of_row(a.spans, row, span)) return;
  u32 width = 2 * a.key_heads * a.dk + a.value_heads * a.dv;
  float* head = a.qkv + (u64)row * width + (u64)part * a.dk;
  float sum = 0.0f;
  for (u32 i = threadIdx.x; i < a.dk; i += 128) sum = fmaf(head[i], head[i], sum);
  float scale = 1.0f / sqrtf(block_sum(sum) + 1e-6f);
  if (part < a.key_heads) scale *= 1.0f / sqrtf((float)a.dk);
  for (u32 i = threadIdx.x; i < a.dk; i += 128) head[i] *= scale;
  if (part > 0) return;
  for (u32 i = threadIdx.x; i < a.value_heads; i += 128) {
    u64 at = (u64)row * a.value_heads + i;
    a.decay[at] = exp_of(a.rate[i] * softplus(a.gate_a[at] + a.dt_bias[i]));
    a.beta[at] = sigmoid(a.gate_b[at]);
  }
}

KERNEL(delta_inputs, DeltaInputs, 128) {
  Span span;
  u32 batch_row = blockIdx.x, part = blockIdx.y, width = channels(a);
  if (!span_of_row(a.spans, batch_row, span)) return;
  u32 row = batch_row - span.first_row;
  float* out = a.qkv + (u64)batch_row * width;
  u32 heads = 2 * a.key_heads;
  if (part < heads) {
    u32 first = part * a.dk;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < a.dk; i += 128) {
      float u = convolved(a, span, row, first + i);
      out[first + i] = u;
      sum = fmaf(u, u, sum);
    }
    float scale = 1.0f / sqrtf(block_sum(sum) + 1e-6f);
    if (part < a.key_heads) scale *= 1.0f / sqrtf((float)a.dk);
    for (u32 i = threadIdx.x; i < a.dk; i += 128) out[first + i] *= scale;
    return;
  }
  u32 channel = heads * a.dk + (part - heads) * 128 + threadIdx.x;
  if (channel < width) out[channel] = convolved(a, span, row, channel);
  if (part > heads) return;
  for (u32 head = threadIdx.x; head < a.value_heads; head += 128) {
    u64 at = (u64)batch_row * a.value_heads + head;
    a.decay[at] = exp_of(a.rate[head] * softplus(a.gate_a[at] + a.dt_bias[head]));
    a.beta[at] = sigmoid(a.gate_b[at]);
  }
}

KERNEL(delta_window, DeltaInputs, 128) {
  Span span;
  u32 channel = blockIdx.x * 128 + threadIdx.x, width = channels(a), keep = a.taps - 1;
  if (!read_span(a.spans, blockIdx.y, span, a.spans.fault) || channel >= width) return;
  float kept[15];
  u32 settled = span.pending + span.confirmed;
  for (u32 i = 0; i < keep; i++) kept[i] = seen(a, span, settled + i, channel);
  for (u32 i = 0; i < keep; i++) a.window[((u64)span.slot * keep + i) * width + channel] = kept[i];
  for (u32 i = span.confirmed; i < span.rows; i++) {
    u64 to = (u64)span.slot * a.spans.log_rows + i - span.confirmed;
    a.log[to * width + channel] = a.x[((u64)span.first_row + i) * width + channel];
  }
}

struct DeltaRule {
  const float* qkv;
  const float* decay;
  const float* beta;
  float* state;
  float* log;
  float* out;
  Spans spans;
  u32 key_heads, value_heads, dk, dv;
};

// Tokens whose keys and queries are staged at a time.
#define STAGED 8

// The sum of four lanes' four sums.
__device__ inline float over_lanes(const float* p) {
  float sum = (p[0] + p[1]) + (p[2] + p[3]);
  sum += __shfl_xor_sync(ALL_LANES, sum, 8);
  return sum + __shfl_xor_sync(ALL_LANES, sum, 16);
}

template <int N>
__device__ inline void delta(const DeltaRule& a) {
  __shared__ __align__(16) float keys[STAGED][4 * N], queries[STAGED][4 * N];
  Span span;
  u32 head = blockIdx.y, t = threadIdx.x;
  if (!read_span(a.spans, blockIdx.x, span, a.spans.fault)) return;
  u32 key_head = head / (a.value_heads / a.key_heads);
  u32 width = 2 * a.key_heads * a.dk + a.value_heads * a.dv;
  u32 log_width = a.key_heads * a.dk + a.value_heads * (a.dv + 2);
  const float* log = a.log + (u64)span.slot * a.spans.log_rows * log_width;
  // Eight neighbouring columns of a warp, four parts of a column.
  u32 column = blockIdx.z * 32 + warp() * 8 + lane() % 8, first = lane() / 8 * N;
  bool mine = column < a.dv;
  float* state = a.state + ((u64)span.slot * a.value_heads + head) * a.dk * a.dv + column;
  float s[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    bool there = mine && first + i < a.dk && span.start > 0;
    s[i] = there ? state[(u64)(first + i) * a.dv] : 0.0f;
  }
  u32 settled = span.pending + span.confirmed, all = span.pending + span.rows;
  bool changed = settled > 0 || span.start == 0;
  for (u32 from = 0; from <= all; from += STAGED) {
    u32 count = min((u32)STAGED, all - from);
    __syncthreads();
    for (u32 i = t; i < count * 4 * N; i += 128) {
      u32 token = from + i / (4 * N), k = i % (4 * N);
      bool old = token < span.pending, there = k < a.dk;
      const float* line = old ? log + (u64)token * log_width
                              : a.qkv + ((u64)span.first_row + token - span.pending) * width;
      u32 key_at = (old ? 0 : a.key_heads * a.dk) + key_head * a.dk + k;
      keys[i / (4 * N)][k] = there ? line[key_at] : 0.0f;
      queries[i / (4 * N)][k] = there && !old ? line[key_head * a.dk + k] : 0.0f;
    }
    __syncthreads();
    for (u32 at = 0; at <= count; at++) {
      u32 token = from + at;
      // The state at the committed position, before the first draft.
      if (token == settled && changed && mine) {
        changed = false;
#pragma unroll
        for (int i = 0; i < N; i++)
          if (first + i < a.dk) state[(u64)(first + i) * a.dv] = s[i];
      }
      if (at == count) break;
      bool old = token < span.pending;
      u64 row = (u64)span.first_row + token - span.pending;
      const float* logged = log + (u64)token * log_width + a.key_heads * a.dk;
      const float* gates = logged + a.value_heads * a.dv;
      u64 gate = row * a.value_heads + head;
      float decay = old ? gates[head] : a.decay[gate];
      float beta = old ? gates[a.value_heads + head] : a.beta[gate];
      float v = 0.0f;
      if (mine)
        v = old ? logged[head * a.dv + column]
                : a.qkv[row * width + 2 * a.key_heads * a.dk + head * a.dv + column];
      // Lanes of a quarter warp read the same 16 bytes.
      const float4* key = (const float4*)&keys[at][first];
      const float4* query = (const float4*)&queries[at][first];
      float p[4] = {0.0f, 0.0f, 0.0f, 0.0f}, o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < N / 4; i++) {
        float4 k = key[i];
        p[0] = fmaf(s[4 * i] = s[4 * i] * decay, k.x, p[0]);
        p[1] = fmaf(s[4 * i + 1] = s[4 * i + 1] * decay, k.y, p[1]);
        p[2] = fmaf(s[4 * i + 2] = s[4 * i + 2] * decay, k.z, p[2]);
        p[3] = fmaf(s[4 * i + 3] = s[4 * i + 3] * decay, k.w, p[3]);
      }
      float error = beta * (v - over_lanes(p));
#pragma unroll
      for (int i = 0; i < N / 4; i++) {
        float4 k = key[i], q = query[i];
        o[0] = fmaf(s[4 * i] = fmaf(k.x, error, s[4 * i]), q.x, o[0]);
        o[1] = fmaf(s[4 * i + 1] = fmaf(k.y, error, s[4 * i + 1]), q.y, o[1]);
        o[2] = fmaf(s[4 * i + 2] = fmaf(k.z, error, s[4 * i + 2]), q.z, o[2]);
        o[3] = fmaf(s[4 * i + 3] = fmaf(k.w, error, s[4 * i + 3]), q.w, o[3]);
      }
      float asked = over_lanes(o);
      if (mine && !old && first == 0) a.out[gate * a.dv + column] = asked;
    }
  }
}

KERNEL(delta_rule_4, DeltaRule, 128) { delta<4>(a); }
KERNEL(delta_rule_16, DeltaRule, 128) { delta<16>(a); }
KERNEL(delta_rule_32, DeltaRule, 128) { delta<32>(a); }
KERNEL(delta_rule_64, DeltaRule, 128) { delta<64>(a); }

// Draft rows to the log, once all heads have folded what was in it.
KERNEL(delta_log, DeltaRule, 128) {
  Span span;
  u32 batch_row = blockIdx.x;
  if (!span_of_row(a.spans, batch_row, span)) return;
  u32 row = batch_row - span.first_row;
  if (row < span.confirmed) return;
  u32 keys = a.key_heads * a.dk, kv = keys + a.value_heads * a.dv;
  const float* from = a.qkv + (u64)batch_row * (keys + kv) + keys;
  float* to = a.log + ((u64)span.slot * a.spans.log_rows + row - span.confirmed) * (kv + 2 * a.value_heads);
  for (u32 i = threadIdx.x; i < kv; i += 128) to[i] = from[i];
  for (u32 i = threadIdx.x; i < a.value_heads; i += 128) {
    to[kv + i] = a.decay[(u64)batch_row * a.value_heads + i];
    to[kv + a.value_heads + i] = a.beta[(u64)batch_row * a.value_heads + i];
  }
}
