// Products with weight number `$`, of few rows.

// Eight whole columns from `k` on of a channel whose codes begin at `at`; `place` is where x has column k.
fn eight$(at: u32, k: u32, place: u32, scale: vec2<f32>, start: Rows) -> Rows {
  if (BITS <= 4u) {
    let bits = stream$(at, k * BITS, 8u * BITS);
    let sum = add_four(four_of(bits, scale), place, start);
    return add_four(four_of(bits >> (4u * BITS & 31u), scale), place + 4u, sum);
  }
  let sum = add_four(four_at$(at, k, scale), place, start);
  return add_four(four_at$(at, k + 4u, scale), place + 4u, sum);
}

// Columns from `k` to `k + 16`, or to the end.
fn half_unit$(at: vec3<u32>, k: u32, place: u32, start: Rows) -> Rows {
  let scale = scale_of$(at, k, p.cols, p.flags);
  if (k + 16u <= p.cols) {
    return eight$(at.x, k + 8u, place + 8u, scale, eight$(at.x, k, place, scale, start));
  }
  var sum = start;
  for (var column = k; column < p.cols; column++) {
    sum = fma(Rows(number_of(code_at$(at.x, column), scale)), staged_at(place + column - k), sum);
  }
  return sum;
}

// The sum over this invocation's segment of a channel, counted from the first of the piece.
fn segment$(t: vec3<u32>, here: bool, channel: u32, row: u32, scale: Rows) -> Rows {
  var sum = Rows(0.0);
  let at = channel_at(channel, Planes(p.codes, p.scales, p.parts[$].scales_at, p.parts[$].offsets_at));
  let each = units_each();
  for (var step = 0u; step < each; step++) {
    workgroupBarrier();
    stage(t.y * 16u + t.x, step, row, scale);
    workgroupBarrier();
    let k = (t.y * each + step) * 32u;
    for (var half = 0u; half < 32u; half += 16u) {
      if (here && k + half < p.cols) { sum = half_unit$(at, k + half, t.y * 32u + half, sum); }
    }
  }
  return sum;
}
