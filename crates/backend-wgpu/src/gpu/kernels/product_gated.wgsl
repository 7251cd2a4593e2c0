// A gate and what it gates, multiplied: the first half of a gated MLP.

@compute @workgroup_size(16, 8)
fn gated(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_id) t: vec3<u32>) {
  let n = p.channel + wg.x * 16u + t.x;
  let row = p.row + wg.y * ROWS;
  let gate_channel = channel_of(n, lane_row(row, 0u), p.parts[0].height, p.base0, p.stride0);
  let up_channel = channel_of(n, lane_row(row, 0u), p.parts[0].height, p.base1, p.stride1);
  let here = gate_channel != NONE;
  let scale = norm_scales(t.y * 16u + t.x, row);
  let gate = total_of(t, segment0(t, here, gate_channel, row, scale));
  let up = total_of(t, segment1(t, here, up_channel, row, scale));
  if (t.y != 0u || !here) { return; }
  let mode = select(select(0u, 1u, (p.flags & GELU) != 0u), 2u, (p.flags & RELU) != 0u);
  for (var i = 0u; i < ROWS; i++) {
    let number = lane_row(row, i);
    if (number == NONE) { continue; }
    out0[p.parts[0].out + number * p.parts[0].height + n] = activate(mode, row_of(gate, i)) * row_of(up, i);
  }
}
