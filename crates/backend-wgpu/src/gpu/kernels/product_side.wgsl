@compute @workgroup_size(16, 8)
fn products(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_id) t: vec3<u32>) {
  let row = p.row + wg.y * ROWS;
  let scale = norm_scales(t.y * 16u + t.x, row);
  // Before the first block of a weight this is huge, so a block belongs to one weight alone.
  var block = p.channel / 16u + wg.x;
  part0(t, block, row, scale);
  block -= blocks0();
  part1(t, block, row, scale);
  block -= blocks1();
  part2(t, block, row, scale);
  block -= blocks2();
  part3(t, block, row, scale);
}
