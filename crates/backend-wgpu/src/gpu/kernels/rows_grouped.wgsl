// Four choices of an invocation that chose the same expert; group.wgsl laid them beside each other.

alias Rows = vec4<f32>;
const ROWS: u32 = 4u;
@group(0) @binding(10) var<storage, read> order: array<u32>;

fn rows_at(row: u32, k: u32) -> Rows {
  var numbers = Rows(0.0);
  for (var i = 0u; i < ROWS; i++) {
    let choice = order[row + i];
    if (choice != NONE) { numbers[i] = x[p.x + choice / p.share * p.cols + k]; }
  }
  return numbers;
}
fn row_of(rows: Rows, i: u32) -> f32 { return rows[i]; }
fn lane_row(row: u32, i: u32) -> u32 { return order[row + i]; }
fn norm_scales(lane: u32, row: u32) -> Rows { return Rows(1.0); }
