// One row of an invocation.

alias Rows = f32;
const ROWS: u32 = 1u;

fn rows_at(row: u32, k: u32) -> Rows { return x[p.x + row / p.share * p.cols + k]; }
// The row that is number `i` of an invocation, or NONE.
fn lane_row(row: u32, i: u32) -> u32 { return select(NONE, row, row < p.rows); }
fn row_of(rows: Rows, i: u32) -> f32 { return rows; }
fn norm_scales(lane: u32, row: u32) -> Rows {
  if ((p.flags & NORMED) == 0u) { return 1.0; }
  return inverse_rms(lane, row);
}
