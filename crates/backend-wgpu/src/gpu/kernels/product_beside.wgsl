// Workgroups of weight number `$`.
fn blocks$() -> u32 { return (p.parts[$].height + 15u) / 16u; }

fn part$(t: vec3<u32>, block: u32, row: u32, scale: Rows) {
  if (block < blocks$()) {
    let n = block * 16u + t.x;
    let here = n < p.parts[$].height;
    let sum = total_of(t, segment$(t, here, n, row, scale));
    if (t.y == 0u && here) { store$(row, n, n, sum); }
  }
}
