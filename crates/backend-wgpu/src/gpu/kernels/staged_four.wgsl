// Columns of four rows in workgroup memory, a vector each.

alias Four = array<vec4<f32>, 4>;
var<workgroup> staged: array<vec4<f32>, 256>;

fn lay(place: u32, four: Four) {
  staged[place * 4u] = four[0];
  staged[place * 4u + 1u] = four[1];
  staged[place * 4u + 2u] = four[2];
  staged[place * 4u + 3u] = four[3];
}
fn staged_at(place: u32) -> Rows { return staged[place]; }

// Sums and four columns more.
fn add_four(numbers: vec4<f32>, place: u32, start: Rows) -> Rows {
  var sum = fma(Rows(numbers.x), staged[place], start);
  sum = fma(Rows(numbers.y), staged[place + 1u], sum);
  sum = fma(Rows(numbers.z), staged[place + 2u], sum);
  return fma(Rows(numbers.w), staged[place + 3u], sum);
}
