// One row of an invocation.

alias Rows = f32;
const ROWS: u32 = 1u;

fn rows_at(row: u32, k: u32) -> Rows { return x[p.x + row / p.share * p.cols + k]; }

fn put(row: u32, n: u32, sum: f32) {
  let at = p.out + row * p.height + n;
  if (p.add == 1u) { out[at] = out[at] + sum; } else { out[at] = sum; }
}

fn store(row: u32, n: u32, sum: Rows) { put(row, n, sum); }
