// Products of rows with channels of a weight: all channels in order, those of chosen experts, or those in a list.
//
// Math: out[r][n] (+)= Σ_k x[r][k]·w[n][k] (+ bias[n]).
// Numerics: f32. K is cut into 8 segments of whole units of 32 columns. A segment is summed from zero by `fma`, columns ascending, and
//   segments are added ascending. The order depends on K alone: the text with one row and that with four rows of an invocation give the
//   same bits, and so do all three ways to name channels.
// Shape of the launch: workgroups of 16 channels × 8 segments, for ROWS rows; one launch for each piece of the weight.
// Limits: none.

struct Sizes {
  x: u32, out: u32, names: u32, rows: u32, cols: u32, height: u32, first: u32, count: u32,
  planes: Planes,
  add: u32, has_bias: u32, share: u32, base: u32, stride: u32, limit: u32, site: u32, channel: u32,
}
var<immediate> p: Sizes;
@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> names: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

// 0: channel n is channel n. 1: it is channel `base + names[row]·stride + n`. 2: it is channel `names[row·height + n]`.
override NAMING: u32 = 0u;

const SEGMENTS: u32 = 8u;
var<workgroup> sums: array<Rows, 128>;

// Columns from `k` to `k + 16`, or to the end, of a channel whose codes begin at `at`.
fn half_unit(at: vec3<u32>, k: u32, row: u32, start: Rows) -> Rows {
  var sum = start;
  let scale = scale_of(at, k, p.cols);
  let whole = k + 16u <= p.cols;
  if (whole && (32u % BITS) == 0u) {
    let words = BITS / 2u;
    var column = k;
    var word_at = at.x + (k * BITS >> 5u) * 16u;
    for (var i = 0u; i < words; i++) {
      var word = weight[word_at];
      word_at += 16u;
      for (var j = 0u; j < 32u / BITS; j++) {
        var code = word;
        if (BITS < 32u) {
          code = word & ((1u << (BITS & 31u)) - 1u);
          word >>= BITS & 31u;
        }
        sum = fma(Rows(number_of(code, scale)), rows_at(row, column), sum);
        column++;
      }
    }
  } else {
    let end = min(k + 16u, p.cols);
    for (var column = k; column < end; column++) {
      let code = code_at(at.x, column * BITS);
      sum = fma(Rows(number_of(code, scale)), rows_at(row, column), sum);
    }
  }
  return sum;
}

@compute @workgroup_size(16, 8)
fn product(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_id) t: vec3<u32>) {
  let n = p.channel + wg.x * 16u + t.x;
  let row = wg.y * ROWS;
  var channel = n;
  var here = n < p.height;
  if (NAMING == 1u && here) {
    let name = names[p.names + row];
    here = inside(p.site, name, p.limit);
    channel = p.base + name * p.stride + n;
  }
  if (NAMING == 2u && here) {
    channel = names[p.names + row * p.height + n];
    here = channel < p.limit;
  }
  here = here && channel >= p.first && channel - p.first < p.count;
  var sum = Rows(0.0);
  if (here) {
    let at = channel_at(channel - p.first, p.planes);
    let units = (p.cols + 31u) / 32u;
    let each = (units + SEGMENTS - 1u) / SEGMENTS;
    let end = min(units, (t.y + 1u) * each) * 32u;
    for (var k = t.y * each * 32u; k < end; k += 16u) {
      if (k < p.cols) { sum = half_unit(at, k, row, sum); }
    }
  }
  sums[t.y * 16u + t.x] = sum;
  workgroupBarrier();
  if (t.y == 0u && here) {
    for (var segment = 1u; segment < SEGMENTS; segment++) { sum += sums[segment * 16u + t.x]; }
    if (p.has_bias == 1u) { sum += Rows(bias[channel]); }
    store(row, n, sum);
  }
}
