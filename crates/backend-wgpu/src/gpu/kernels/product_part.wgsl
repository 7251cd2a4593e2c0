// Products with weight number `$`.

@group(0) @binding(BIAS$) var<storage, read> bias$: array<f32>;
@group(0) @binding(OUT$) var<storage, read_write> out$: array<f32>;

// Columns from `k` to `k + 16`, or to the end, of a channel whose words begin at `at`; `place` is where x has column k.
fn half_unit$(at: vec3<u32>, k: u32, place: u32, start: Rows) -> Rows {
  var sum = start;
  let scale = scale_of$(at, k, p.cols);
  if (k + 16u <= p.cols && (32u % BITS) == 0u) {
    let words = BITS / 2u;
    var next = place;
    var word_at = at.x + (k * BITS >> 5u) * 16u;
    for (var i = 0u; i < words; i++) {
      var word = weight$[word_at];
      word_at += 16u;
      for (var j = 0u; j < 32u / BITS; j++) {
        var code = word;
        if (BITS < 32u) {
          code = word & ((1u << (BITS & 31u)) - 1u);
          word >>= BITS & 31u;
        }
        sum = fma(Rows(number_of(code, scale)), staged[next], sum);
        next++;
      }
    }
  } else {
    let end = min(k + 16u, p.cols);
    for (var column = k; column < end; column++) {
      let code = code_at$(at.x, column * BITS);
      sum = fma(Rows(number_of(code, scale)), staged[place + column - k], sum);
    }
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

fn store$(row: u32, n: u32, channel: u32, sums: Rows) {
  for (var i = 0u; i < ROWS; i++) {
    let number = lane_row(row, i);
    if (number == NONE) { continue; }
    var sum = row_of(sums, i);
    if ((p.flags & (HAS_BIAS << $u)) != 0u) { sum += bias$[channel]; }
    let at = p.parts[$].out + number * p.parts[$].height + n;
    if ((p.flags & ADD) != 0u) { sum = out$[at] + sum; }
    out$[at] = capped(sum);
  }
}
