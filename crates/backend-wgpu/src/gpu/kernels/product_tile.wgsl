// A product of many rows, as prompts have them.
//
// Shape of the launch: a workgroup has 64 channels × 32 rows, an invocation four channels, every 16th, and four rows. It goes
// through all of
//   K, segment by segment: first a unit of 32 columns of the rows and of the channels, widened, is laid into workgroup
//   memory, where each
//   number is read by eight or 16 invocations.
// Numerics: see product.wgsl: an invocation ends a sum where a segment ends, and has an empty one where there are no
// columns left.
// Limits: K is a multiple of 4; rows are not normed.

const TILE_ROWS: u32 = 32u;
const TILE_CHANNELS: u32 = 64u;
// Vectors of a row of a unit, and one more, so that neighbours do not lie in the same bank.
const LINE: u32 = 9u;
var<workgroup> tile_x: array<vec4<f32>, 288>;
var<workgroup> tile_w: array<vec4<f32>, 576>;

// Half a unit of a channel, whose first column is there.
fn widen(at: vec3<u32>, k: u32, place: u32) {
  let scale = scale_of0(at, k, p.cols, p.flags);
  if (BITS <= 4u) {
    let low = stream0(at.x, k * BITS, 8u * BITS);
    let high = stream0(at.x, (k + 8u) * BITS, 8u * BITS);
    tile_w[place] = four_of(low, scale);
    tile_w[place + 1u] = four_of(low >> (4u * BITS & 31u), scale);
    tile_w[place + 2u] = four_of(high, scale);
    tile_w[place + 3u] = four_of(high >> (4u * BITS & 31u), scale);
  } else {
    for (var i = 0u; i < 4u; i++) { tile_w[place + i] = four_at0(at.x, k + 4u * i, scale); }
  }
}

@compute @workgroup_size(16, 8)
fn product(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_id) t: vec3<u32>) {
  let lane = t.y * 16u + t.x;
  let first = p.channel + wg.x * TILE_CHANNELS;
  let row = p.row + wg.y * TILE_ROWS;
  let each = units_each();
  // The channel that this invocation widens half units of.
  let widened = p.base0 + first + lane % 64u - p.first;
  let here = first + lane % 64u < p.parts[0].height && widened < p.count;
  let at = channel_at(widened, Planes(p.codes, p.scales, p.parts[0].scales_at, p.parts[0].offsets_at));
  let half = lane / 64u;
  var total: array<Rows, 4>;
  for (var segment = 0u; segment < SEGMENTS; segment++) {
    var sum: array<Rows, 4>;
    for (var step = 0u; step < each; step++) {
      let k = (segment * each + step) * 32u;
      if (k >= p.cols) { break; }
      workgroupBarrier();
      if (here && k + half * 16u < p.cols) { widen(at, k + half * 16u, lane % 64u * LINE + half * 4u); }
      for (var i = lane; i < 256u; i += 128u) {
        let column = k + i % 8u * 4u;
        if (column < p.cols) {
          let place = p.x + min(row + i / 8u, p.rows - 1u) / p.share * p.cols + column;
          tile_x[i / 8u * LINE + i % 8u] = vec4(x[place], x[place + 1u], x[place + 2u], x[place + 3u]);
        }
      }
      workgroupBarrier();
      let fours = min(8u, (p.cols - k) / 4u);
      for (var four = 0u; four < fours; four++) {
        let x0 = tile_x[(t.y * 4u) * LINE + four];
        let x1 = tile_x[(t.y * 4u + 1u) * LINE + four];
        let x2 = tile_x[(t.y * 4u + 2u) * LINE + four];
        let x3 = tile_x[(t.y * 4u + 3u) * LINE + four];
        let c0 = Rows(x0.x, x1.x, x2.x, x3.x);
        let c1 = Rows(x0.y, x1.y, x2.y, x3.y);
        let c2 = Rows(x0.z, x1.z, x2.z, x3.z);
        let c3 = Rows(x0.w, x1.w, x2.w, x3.w);
        for (var i = 0u; i < 4u; i++) {
          let w = tile_w[(i * 16u + t.x) * LINE + four];
          sum[i] = fma(Rows(w.w), c3, fma(Rows(w.z), c2, fma(Rows(w.y), c1, fma(Rows(w.x), c0, sum[i]))));
        }
      }
    }
    for (var i = 0u; i < 4u; i++) {
      if (segment == 0u) { total[i] = sum[i]; } else { total[i] += sum[i]; }
    }
  }
  for (var i = 0u; i < 4u; i++) {
    let n = first + i * 16u + t.x;
    let channel = p.base0 + n;
    if (n < p.parts[0].height && channel - p.first < p.count) { store0(row + t.y * 4u, n, channel, total[i]); }
  }
}
