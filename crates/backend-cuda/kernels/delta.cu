// The short convolution, and Gated DeltaNet: the inputs of the delta rule and the rule itself, with log-and-fold state.
//
// Math: forerun_backend::op::{ShortConv, DeltaGates, DeltaInputs, DeltaRule}.
// Layout: as there.
// Numerics: f32. A convolution adds its taps from the oldest on. The squares of a head are summed by 128 threads, each over
//   every 128th element, then by a tree. The rule is sequential over rows. A column of a state belongs to four lanes, each with
//   four of every sixteen elements in sums of their own; these are added by a tree, then those of lanes. So bits depend on the widths alone, not on how rows are cut into spans and calls.
// Shape of the launch:
//   short_conv: a thread for each row and channel.
//   conv_window: a thread for each span and channel, which moves window and log on.
//   delta_gates: a block of 128 threads for each row and each head of q and k.
//   delta_inputs: a block of 128 threads for each row, and each head of q and k or 128 channels of v.
//   delta_window: a thread for each span and channel, which moves window and log on.
//   delta_inputs_few: both for few rows, keys up to 128 and four taps, a block of 128 threads for each span and each head or
//     128 channels.
//   delta_rule_N: a block of 128 threads for each span, value head and 32 columns; N elements a lane. The last block of a key
//     head to end writes the log of what its blocks share.
// States, windows and logs, which the steps before this one left, are prefetched while the kernel ahead still runs.
// Limits: 2 to 16 taps; dk up to 256.

// Rows that a window keeps at most.
#define MOST_KEPT 15

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
  float kept[MOST_KEPT];
  u32 settled = span.pending + span.confirmed;
#pragma unroll
  for (u32 i = 0; i < MOST_KEPT; i++)
    if (i < keep) kept[i] = conv_seen(a, span, settled + i, channel);
#pragma unroll
  for (u32 i = 0; i < MOST_KEPT; i++)
    if (i < keep) a.window[((u64)span.slot * keep + i) * a.channels + channel] = kept[i];
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
  u32 key_heads, value_heads, dk, dv;
  float beta_scale;
  u32 taps;
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

// Decay and write strength of value head `head` in a row: element `at` of both.
template <class Args> __device__ inline void gates_of(const Args& a, u64 at, u32 head) {
  a.decay[at] = exp_of(a.rate[head] * softplus(a.gate_a[at] + a.dt_bias[head]));
  a.beta[at] = a.beta_scale * sigmoid(a.gate_b[at]);
}

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
  float beta_scale;
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
  for (u32 i = threadIdx.x; i < a.value_heads; i += 128) gates_of(a, (u64)row * a.value_heads + i, i);
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
  for (u32 i = threadIdx.x; i < a.value_heads; i += 128) gates_of(a, (u64)batch_row * a.value_heads + i, i);
}

// Moves window and log of a channel on, once all rows have been convolved.
__device__ inline void move_window(const DeltaInputs& a, const Span& span, u32 channel) {
  u32 width = channels(a), keep = a.taps - 1, settled = span.pending + span.confirmed;
  float kept[MOST_KEPT];
#pragma unroll
  for (u32 i = 0; i < MOST_KEPT; i++)
    if (i < keep) kept[i] = seen(a, span, settled + i, channel);
#pragma unroll
  for (u32 i = 0; i < MOST_KEPT; i++)
    if (i < keep) a.window[((u64)span.slot * keep + i) * width + channel] = kept[i];
  for (u32 i = span.confirmed; i < span.rows; i++) {
    u64 to = (u64)span.slot * a.spans.log_rows + i - span.confirmed;
    a.log[to * width + channel] = a.x[((u64)span.first_row + i) * width + channel];
  }
}

KERNEL(delta_window, DeltaInputs, 128) {
  Span span;
  u32 channel = blockIdx.x * 128 + threadIdx.x;
  if (!read_span(a.spans, blockIdx.y, span, a.spans.fault) || channel >= channels(a)) return;
  move_window(a, span, channel);
}

// `delta_inputs` and `delta_window` in one, for few rows and convolutions of four taps.
#define FEW_ROWS 64
#define AHEAD 8  // tokens of a channel that are loaded at a time

// A channel's convolutions, one token after another, and its window and log moved on. What is there at the beginning of the
// step is loaded before anything is computed.
template <class Out> __device__ __forceinline__ void convolve_channel(const DeltaInputs& a, const Span& span, u32 channel, Out out) {
  const u32 width = channels(a), all = span.pending + span.rows, settled = span.pending + span.confirmed;
  float* window = a.window + (u64)span.slot * 3 * width + channel;
  float* log = a.log + (u64)span.slot * a.spans.log_rows * width + channel;
  const float* x = a.x + (u64)span.first_row * width + channel;
  const float4 w = *(const float4*)(a.weight + 4 * (u64)channel);
  float old = 0, middle = 0, last = 0, kept[3];
  if (span.start > 0) old = window[0], middle = window[width], last = window[2 * (u64)width];
  kept[0] = old, kept[1] = middle, kept[2] = last;
  for (u32 from = 0; from < all; from += AHEAD) {
    float next[AHEAD];
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
      const u32 at = from + i;
      next[i] = at >= all ? 0.0f : at < span.pending ? log[(u64)at * width] : x[(u64)(at - span.pending) * width];
    }
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
      const u32 at = from + i;
      if (at >= all) break;
      if (at >= span.pending) out(at - span.pending, silu((((0.0f + w.x * old) + w.y * middle) + w.z * last) + w.w * next[i]));
      old = middle, middle = last, last = next[i];
      if (at + 1 == settled) kept[0] = old, kept[1] = middle, kept[2] = last;
    }
  }
  for (u32 i = 0; i < 3; i++) window[(u64)i * width] = kept[i];
  for (u32 i = span.confirmed; i < span.rows; i++) log[(u64)(i - span.confirmed) * width] = x[(u64)i * width];
}

OVERLAPPED_KERNEL(delta_inputs_few, DeltaInputs, 128) {
  __shared__ float line[FEW_ROWS][128];
  let_next_start();
  Span span;
  const u32 part = blockIdx.y, width = channels(a), heads = 2 * a.key_heads, t = threadIdx.x;
  const bool head = part < heads;
  const u32 first = head ? part * a.dk : heads * a.dk + (part - heads) * 128, count = head ? a.dk : min(128u, width - first);
  const bool there = read_span(a.spans, blockIdx.x, span, a.spans.fault);
  if (there && t < count) {
    for (u32 j = 0; j < 3; j++) prefetch(a.window + ((u64)span.slot * 3 + j) * width + first + t);
    for (u32 j = 0; j < span.pending; j++) prefetch(a.log + ((u64)span.slot * a.spans.log_rows + j) * width + first + t);
    prefetch(a.weight + (u64)(first + t) * 4);
  }
  wait_for_previous();
  if (!there) return;
  float* out = a.qkv + (u64)span.first_row * width + first;
  if (t < count) convolve_channel(a, span, first + t, [&](u32 row, float u) {
    if (head) line[row][t] = u;
    else out[(u64)row * width + t] = u;
  });
  if (part == heads)
    for (u32 i = t; i < span.rows * a.value_heads; i += 128) gates_of(a, (u64)span.first_row * a.value_heads + i, i % a.value_heads);
  if (!head) return;
  for (u32 row = 0; row < span.rows; row++) {
    const float u = t < count ? line[row][t] : 0.0f;
    float scale = 1.0f / sqrtf(block_sum(u * u) + 1e-6f);
    if (part < a.key_heads) scale *= 1.0f / sqrtf((float)a.dk);
    if (t < count) out[(u64)row * width + t] = u * scale;
  }
}

struct DeltaRule {
  const float* qkv;
  const float* decay;
  const float* beta;
  float* state;
  float* log;
  float* out;
  u32* arrived;  // [spans, key heads]: blocks that no longer need the log; zeros between launches
  Spans spans;
  u32 key_heads, value_heads, dk, dv;
};

// Tokens that are staged in shared memory at a time.
template <int N> constexpr u32 STAGED = N > 32 ? 8 : 16;

// The sum of four lanes' four sums.
__device__ inline float over_lanes(const float* p) {
  float sum = (p[0] + p[1]) + (p[2] + p[3]);
  sum += __shfl_xor_sync(ALL_LANES, sum, 8);
  return sum + __shfl_xor_sync(ALL_LANES, sum, 16);
}

// What a block needs of some tokens.
template <int N> struct DeltaStage {
  float keys[STAGED<N>][4 * N], queries[STAGED<N>][4 * N], values[STAGED<N>][32], gates[STAGED<N>][2];
};

// Begins to copy tokens `from` to `to` of a span, pending ones from the log; `wide`: 16 bytes at a time.
template <int N>
__device__ inline void stage_tokens(const DeltaRule& a, const Span& span, u32 head, u32 from, u32 to, bool wide, DeltaStage<N>& stage) {
  const u32 key_head = head / (a.value_heads / a.key_heads), keys = a.key_heads * a.dk, values = a.value_heads * a.dv;
  const u32 width = 2 * keys + values, log_width = keys + values + 2 * a.value_heads;
  const float* log = a.log + (u64)span.slot * a.spans.log_rows * log_width;
  const u32 column = blockIdx.z * 32, columns = min(32u, a.dv - column), step = wide ? 4 : 1;
  const u32 each = (2 * a.dk + columns) / step;
  for (u32 i = threadIdx.x; i < (to - from) * each; i += 128) {
    const u32 at = i / each, token = from + at, k = i % each * step;
    const bool old = token < span.pending;
    const float* line = old ? log + (u64)token * log_width : a.qkv + ((u64)span.first_row + token - span.pending) * width;
    // Queries, which the log has not, keys, values.
    const float* of_keys = old ? line : line + keys;
    if (k < a.dk) {
      if (!old) copy_floats(&stage.queries[at][k], line + key_head * a.dk + k, wide);
    } else if (k < 2 * a.dk) {
      copy_floats(&stage.keys[at][k - a.dk], of_keys + key_head * a.dk + k - a.dk, wide);
    } else {
      copy_floats(&stage.values[at][k - 2 * a.dk], of_keys + keys + head * a.dv + column + k - 2 * a.dk, wide);
    }
  }
  for (u32 i = threadIdx.x; i < (to - from) * 2; i += 128) {
    const u32 at = i / 2, token = from + at;
    const u64 row = (u64)span.first_row + token - span.pending;
    const float* gate = i % 2 ? a.beta + row * a.value_heads : a.decay + row * a.value_heads;
    if (token < span.pending) gate = log + (u64)token * log_width + keys + values + i % 2 * a.value_heads;
    copy_floats(&stage.gates[at][i % 2], gate + head, false);
  }
  copies_commit();
}

// Writes the drafts' rows to the log: values of the block's own columns, which nobody else reads, and what the blocks of a key
// head share if this is the `last` of them to have read the log.
template <int N>
__device__ inline void write_log(const DeltaRule& a, const Span& span, u32 head, u32 column, bool first, bool last, const DeltaStage<N>& stage) {
  const u32 drafts = span.rows - span.confirmed, of_key = a.value_heads / a.key_heads, key_head = head / of_key;
  const u32 keys = a.key_heads * a.dk, kv = keys + a.value_heads * a.dv, width = kv + 2 * a.value_heads;
  const u32 settled = span.pending + span.confirmed;
  const u64 row = (u64)span.first_row + span.confirmed;
  float* log = a.log + (u64)span.slot * a.spans.log_rows * width;
  const float* from = a.qkv + row * (keys + kv) + keys;
  // The rows are in shared memory still where all of them fit.
  const bool staged = settled + drafts <= STAGED<N>;
  if (first)
    for (u32 i = 0; i < drafts; i++) {
      const u32 at = keys + head * a.dv + column;
      log[i * width + at] = staged ? stage.values[settled + i][column % 32] : from[i * (u64)(keys + kv) + at];
    }
  if (!last) return;
  for (u32 i = threadIdx.x; i < drafts * of_key; i += 128) {
    const u32 draft = i / of_key, value_head = key_head * of_key + i % of_key;
    log[draft * width + kv + value_head] = a.decay[(row + draft) * a.value_heads + value_head];
    log[draft * width + kv + a.value_heads + value_head] = a.beta[(row + draft) * a.value_heads + value_head];
  }
  for (u32 i = threadIdx.x; i < drafts * a.dk; i += 128) {
    const u32 draft = i / a.dk, k = i % a.dk, at = key_head * a.dk + k;
    log[draft * width + at] = staged ? stage.keys[settled + draft][k] : from[draft * (u64)(keys + kv) + at];
  }
}

template <int N>
__device__ inline void delta(const DeltaRule& a) {
  __shared__ __align__(16) DeltaStage<N> stages[2];
  __shared__ bool last;
  Span span;
  u32 head = blockIdx.y, t = threadIdx.x;
  let_next_start();
  const bool there = read_span(a.spans, blockIdx.x, span, a.spans.fault);
  if (there && span.start > 0)
    for (u32 i = t; i < a.dk; i += 128)
      prefetch(a.state + ((u64)(span.slot * a.value_heads + head) * a.dk + i) * a.dv + blockIdx.z * 32);
  // What fills keys and columns up is zero.
  if (a.dk < 4 * N || a.dv % 32) {
    for (u32 i = t; i < 2 * sizeof(DeltaStage<N>) / 4; i += 128) ((float*)stages)[i] = 0;
    __syncthreads();
  }
  wait_for_previous();
  if (!there) return;
  const bool wide = a.dk % 4 == 0 && a.dv % 4 == 0 && a.value_heads % 2 == 0;
  const u32 all = span.pending + span.rows;
  stage_tokens<N>(a, span, head, 0, min(all, STAGED<N>), wide, stages[0]);
  // Eight neighbouring columns of a warp. Of a column's elements a lane has four of sixteen that follow each other.
  const u32 column = blockIdx.z * 32 + warp() * 8 + lane() % 8, first = lane() / 8 * 4;
  const bool mine = column < a.dv;
  float* state = a.state + ((u64)span.slot * a.value_heads + head) * a.dk * a.dv + column;
  float s[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    const u32 element = i / 4 * 16 + first + i % 4;
    s[i] = mine && element < a.dk && span.start > 0 ? state[(u64)element * a.dv] : 0.0f;
  }
  const u32 settled = span.pending + span.confirmed;
  bool changed = settled > 0 || span.start == 0, drafts = span.rows > span.confirmed;
  u32* arrived = a.arrived + blockIdx.x * a.key_heads + head / (a.value_heads / a.key_heads);
  for (u32 from = 0, which = 0; from <= all; from += STAGED<N>, which ^= 1) {
    const u32 to = min(all, from + STAGED<N>);
    if (to < all) stage_tokens<N>(a, span, head, to, min(all, to + STAGED<N>), wide, stages[which ^ 1]);
    if (to < all) copies_wait<1>();
    else copies_wait<0>();
    __syncthreads();
    // This block has read the log.
    if (drafts && t == 0 && to >= span.pending && (from < span.pending || from == 0))
      last = atomicAdd(arrived, 1u) + 1 == a.value_heads / a.key_heads * gridDim.z;
    const DeltaStage<N>& stage = stages[which];
    for (u32 token = from; token <= to; token++) {
      // The state at the committed position, before the first draft.
      if (token == settled && changed && mine) {
        changed = false;
#pragma unroll
        for (int i = 0; i < N; i++) {
          const u32 element = i / 4 * 16 + first + i % 4;
          if (element < a.dk) state[(u64)element * a.dv] = s[i];
        }
      }
      if (token == to) break;
      const u32 at = token - from;
      const float decay = stage.gates[at][0], beta = stage.gates[at][1], v = stage.values[at][column % 32];
      float p[4] = {0.0f, 0.0f, 0.0f, 0.0f}, o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < N / 4; i++) {
        // Lanes of a quarter warp read the same 16 bytes, and the quarters 64 that follow each other.
        const float4 k = *(const float4*)&stage.keys[at][16 * i + first];
        p[0] = fmaf(s[4 * i] = s[4 * i] * decay, k.x, p[0]);
        p[1] = fmaf(s[4 * i + 1] = s[4 * i + 1] * decay, k.y, p[1]);
        p[2] = fmaf(s[4 * i + 2] = s[4 * i + 2] * decay, k.z, p[2]);
        p[3] = fmaf(s[4 * i + 3] = s[4 * i + 3] * decay, k.w, p[3]);
      }
      const float error = beta * (v - over_lanes(p));
#pragma unroll
      for (int i = 0; i < N / 4; i++) {
        const float4 k = *(const float4*)&stage.keys[at][16 * i + first], q = *(const float4*)&stage.queries[at][16 * i + first];
        o[0] = fmaf(s[4 * i] = fmaf(k.x, error, s[4 * i]), q.x, o[0]);
        o[1] = fmaf(s[4 * i + 1] = fmaf(k.y, error, s[4 * i + 1]), q.y, o[1]);
        o[2] = fmaf(s[4 * i + 2] = fmaf(k.z, error, s[4 * i + 2]), q.z, o[2]);
        o[3] = fmaf(s[4 * i + 3] = fmaf(k.w, error, s[4 * i + 3]), q.w, o[3]);
      }
      const float asked = over_lanes(o);
      if (mine && token >= span.pending && first == 0)
        a.out[(((u64)span.first_row + token - span.pending) * a.value_heads + head) * a.dv + column] = asked;
    }
    // The stage is read before the next tokens come into it.
    __syncthreads();
  }
  if (!drafts) return;
  if (last && t == 0) *arrived = 0;
  write_log<N>(a, span, head, column, mine && first == 0, last, stages[0]);
}

OVERLAPPED_KERNEL(delta_rule_4, DeltaRule, 128) { delta<4>(a); }
OVERLAPPED_KERNEL(delta_rule_16, DeltaRule, 128) { delta<16>(a); }
OVERLAPPED_KERNEL(delta_rule_32, DeltaRule, 128) { delta<32>(a); }
OVERLAPPED_KERNEL(delta_rule_64, DeltaRule, 128) { delta<64>(a); }
