// A product of its own, and experts' last one, which is weighed and summed.

@compute @workgroup_size(16, 8)
fn product(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_id) t: vec3<u32>) {
  let n = p.channel + wg.x * 16u + t.x;
  let row = p.row + wg.y * ROWS;
  let channel = channel_of(n, lane_row(row, 0u), p.parts[0].height, p.base0, p.stride0);
  let here = is_bound(channel);
  let scale = norm_scales(t.y * 16u + t.x, row);
  let sum = total_of(t, segment0(t, here, channel - p.first, row, scale));
  if (t.y == 0u && here) { store0(row, n, channel, sum); }
}

// The products of a row's choices `stride1` at a time, each times its weight, which is bound as the norm from `base1` on,
// summed in the
// order in which they were chosen.
@compute @workgroup_size(16, 8)
fn product_of_choices(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_id) t: vec3<u32>) {
  let n = p.channel + wg.x * 16u + t.x;
  let row = p.row + wg.y;
  var sum = 0.0;
  var whole = true;
  for (var j = 0u; j < p.stride1; j++) {
    let choice = row * p.stride1 + j;
    let channel = channel_of(n, choice, p.parts[0].height, p.base0, p.stride0);
    let here = is_bound(channel);
    let product = row_of(total_of(t, segment0(t, here, channel - p.first, choice, Rows(1.0))), 0u);
    sum = fma(norm[p.base1 + choice], product, sum);
    whole = whole && here;
  }
  if (t.y == 0u && whole) { store0(row, n, 0u, Rows(sum)); }
}
