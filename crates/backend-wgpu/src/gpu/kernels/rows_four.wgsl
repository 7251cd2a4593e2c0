// Four rows of an invocation; those past the last are copies of it that nobody stores.

alias Rows = vec4<f32>;
const ROWS: u32 = 4u;

fn rows_at(row: u32, k: u32) -> Rows {
  let rows = min(vec4(row, row + 1u, row + 2u, row + 3u), vec4(p.rows - 1u));
  let at = vec4(p.x + k) + rows * p.cols;
  return vec4(x[at.x], x[at.y], x[at.z], x[at.w]);
}
fn lane_row(row: u32, i: u32) -> u32 { return select(NONE, row + i, row + i < p.rows); }
fn row_of(rows: Rows, i: u32) -> f32 { return rows[i]; }
fn norm_scales(lane: u32, row: u32) -> Rows {
  var scales = Rows(1.0);
  if ((p.flags & NORMED) == 0u) { return scales; }
  for (var i = 0u; i < ROWS; i++) { scales[i] = inverse_rms(lane, min(row + i, p.rows - 1u)); }
  return scales;
}
