// Reductions over the first LANES invocations of a workgroup, by a tree whose shape is fixed: the same bits on every
// adapter,
// whatever its subgroups. Invocations past them take part in barriers alone.

const LANES: u32 = 64u;
var<workgroup> lanes: array<f32, LANES>;

fn workgroup_sum(lane: u32, x: f32) -> f32 {
  workgroupBarrier();
  if (lane < LANES) { lanes[lane] = x; }
  for (var by = LANES / 2u; by > 0u; by >>= 1u) {
    workgroupBarrier();
    if (lane < by) { lanes[lane] += lanes[lane + by]; }
  }
  workgroupBarrier();
  return lanes[0];
}

fn workgroup_max(lane: u32, x: f32) -> f32 {
  workgroupBarrier();
  if (lane < LANES) { lanes[lane] = x; }
  for (var by = LANES / 2u; by > 0u; by >>= 1u) {
    workgroupBarrier();
    if (lane < by) { lanes[lane] = max(lanes[lane], lanes[lane + by]); }
  }
  workgroupBarrier();
  return lanes[0];
}
