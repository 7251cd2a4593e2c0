// Four rows of an invocation of a tile.

alias Rows = vec4<f32>;
const ROWS: u32 = 4u;

fn lane_row(row: u32, i: u32) -> u32 { return select(NONE, row + i, row + i < p.rows); }
fn row_of(rows: Rows, i: u32) -> f32 { return rows[i]; }
