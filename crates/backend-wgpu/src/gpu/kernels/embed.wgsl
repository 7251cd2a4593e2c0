// Rows of a weight as f32.
//
// Math: forerun_backend::op::Embed.
// Numerics: as the weight's definition, then one product with `factor`.
// Shape of the launch: a workgroup for each row; one launch for each piece of the weight, which leaves other rows
// alone.

struct Sizes { ids: u32, out: u32, rows: u32, cols: u32, height: u32, first: u32, count: u32, site: u32, style: u32, planes: Planes, factor: f32 }
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

// The bit of `style` that says that rows are named; else row i is row i.
const NAMED: u32 = 1u;

@compute @workgroup_size(64)
fn embed(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = flat(wg, n);
  if (row >= p.rows) { return; }
  var id = row;
  if ((p.style & NAMED) != 0u) { id = ids[p.ids + row]; }
  if (!inside(p.site, id, p.height)) { return; }
  if (id < p.first || id - p.first >= p.count) { return; }
  let at = channel_at(id - p.first, p.planes);
  for (var i = lane; i < p.cols; i += 64u) {
    var number = number_of(code_at0(at.x, i), scale_of0(at, i, p.cols, p.style));
    // An offset of zero makes every zero positive; compilers leave the sum out.
    if (!is_plain() && (bitcast<u32>(number) & 0x7fffffffu) == 0u) { number = bitcast<f32>(0u); }
    out[p.out + row * p.cols + i] = number * p.factor;
  }
}
