// Four rows of an invocation; those past the last are copies of it that nobody stores.

alias Rows = vec4<f32>;
const ROWS: u32 = 4u;

fn rows_at(row: u32, k: u32) -> Rows {
  let rows = min(vec4(row, row + 1u, row + 2u, row + 3u), vec4(p.rows - 1u));
  let at = vec4(p.x + k) + rows * p.cols;
  return vec4(x[at.x], x[at.y], x[at.z], x[at.w]);
}

fn put(row: u32, n: u32, sum: f32) {
  if (row >= p.rows) { return; }
  let at = p.out + row * p.height + n;
  if (p.add == 1u) { out[at] = out[at] + sum; } else { out[at] = sum; }
}

fn store(row: u32, n: u32, sum: Rows) {
  put(row, n, sum.x);
  put(row + 1u, n, sum.y);
  put(row + 2u, n, sum.z);
  put(row + 3u, n, sum.w);
}
