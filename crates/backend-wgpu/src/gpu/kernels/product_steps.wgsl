// Products of few rows.
//
// Numerics: a norm has the bits of norm.wgsl: the squares of a row are summed by 64 invocations, each over every 64th
// element, then by a
//   tree.
// Shape of the launch: workgroups of 16 channels × 8 segments, for ROWS rows. A step takes a unit of each segment: half of
// the invocations
//   first lay its columns of x, normed, into workgroup memory, four of them each.

var<workgroup> sums: array<Rows, 128>;

// The columns of step `step`, 32 of each segment.
fn stage(lane: u32, step: u32, row: u32, scale: Rows) {
  if (lane >= 64u) { return; }
  let k = (lane / 8u * units_each() + step) * 32u + lane % 8u * 4u;
  var four: Four;
  for (var i = 0u; i < 4u; i++) {
    if (k + i < p.cols) {
      var numbers = rows_at(row, k + i);
      if ((p.flags & NORMED) != 0u) { numbers = numbers * scale * norm[k + i]; }
      four[i] = numbers;
    }
  }
  lay(lane, four);
}

// The sum of the segments' sums, in the invocations that have segment 0.
fn total_of(t: vec3<u32>, sum: Rows) -> Rows {
  workgroupBarrier();
  sums[t.y * 16u + t.x] = sum;
  workgroupBarrier();
  var all = sums[t.x];
  for (var segment = 1u; segment < SEGMENTS; segment++) { all += sums[segment * 16u + t.x]; }
  return all;
}

// What makes a row of x one whose mean square is one; all invocations of a workgroup call it.
fn inverse_rms(lane: u32, row: u32) -> f32 {
  var squares = 0.0;
  if (lane < LANES) {
    for (var i = lane; i < p.cols; i += LANES) {
      let number = x[p.x + row * p.cols + i];
      squares = fma(number, number, squares);
    }
  }
  return 1.0 / sqrt(workgroup_sum(lane, squares) / f32(p.cols) + p.eps);
}
