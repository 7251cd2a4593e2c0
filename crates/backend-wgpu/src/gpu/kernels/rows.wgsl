// Rows and words moved by index; nothing is computed, so they are moved as words.
//
// Math: forerun_backend::op::{GatherRows, ScatterRows, ScatterWords}.
// Shape of the launch: a workgroup for each row of `dim` words.

struct Sizes { x: u32, from_at: u32, to: u32, out: u32, rows: u32, dim: u32, x_rows: u32, out_rows: u32, site: u32, limit: u32 }
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> from_rows: array<u32>;
@group(0) @binding(3) var<storage, read> to_rows: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<u32>;

// Row `from[i]` of x becomes row i; row i becomes row `to[i]`; or both.
override GATHER: bool = true;
override SCATTER: bool = true;
// Words from `limit` on become 0.
override LIMITED: bool = false;

@compute @workgroup_size(64)
fn move_rows(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = flat(wg, n);
  if (row >= p.rows) { return; }
  var from_row = row;
  var to_row = row;
  if (GATHER) { from_row = from_rows[p.from_at + row]; }
  if (SCATTER) { to_row = to_rows[p.to + row]; }
  if (!inside(p.site, from_row, p.x_rows)) { return; }
  if (!inside(p.site + select(0u, 1u, GATHER), to_row, p.out_rows)) { return; }
  for (var i = lane; i < p.dim; i += 64u) {
    let word = x[p.x + from_row * p.dim + i];
    out[p.out + to_row * p.dim + i] = select(word, 0u, LIMITED && word >= p.limit);
  }
}
