// Bytes from the host to a view that begins or ends inside a word.
//
// Layout: `words` are the words of `out` from `first` on, the bytes outside the view being of no meaning.
// Shape of the launch: an invocation for each word, which alone writes it.

struct Sizes { first: u32, count: u32, head: u32, tail: u32 }
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> words: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn copy(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = flat(wg, n) * 64u + lane;
  if (i >= p.count) { return; }
  // Bytes before the view in the first word, and bytes of the view in the last one.
  var mask = 0xffffffffu;
  if (i == 0u) { mask = mask << (8u * p.head); }
  if (i == p.count - 1u && p.tail < 4u) { mask = mask & ((1u << (8u * p.tail)) - 1u); }
  out[p.first + i] = (out[p.first + i] & ~mask) | (words[i] & mask);
}
