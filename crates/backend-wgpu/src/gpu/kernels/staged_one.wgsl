// One row's columns in workgroup memory, four a vector.

alias Four = vec4<f32>;
var<workgroup> staged: array<vec4<f32>, 64>;

fn lay(place: u32, four: Four) { staged[place] = four; }
fn staged_at(place: u32) -> Rows { return staged[place >> 2u][place & 3u]; }

// A sum and four columns more.
fn add_four(numbers: vec4<f32>, place: u32, start: Rows) -> Rows {
  let four = staged[place >> 2u];
  return fma(numbers.w, four.w, fma(numbers.z, four.z, fma(numbers.y, four.y, fma(numbers.x, four.x, start))));
}
