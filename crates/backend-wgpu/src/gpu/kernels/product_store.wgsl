// What comes out of products with weight number `$`.

@group(0) @binding(BIAS$) var<storage, read> bias$: array<f32>;
@group(0) @binding(OUT$) var<storage, read_write> out$: array<f32>;

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
