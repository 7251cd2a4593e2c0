// Choices of experts in fours that chose the same expert.
//
// Math: none. `order` gets tiles of four choices, experts ascending and choices of an expert ascending; places that nobody
// fills hold NONE.
// Shape of the launch: one workgroup; an invocation has every 64th expert.
// Limits: at most 1024 experts.

struct Sizes { names: u32, choices: u32, experts: u32, places: u32, site: u32 }
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> names: array<u32>;
@group(0) @binding(2) var<storage, read_write> order: array<u32>;

const NONE: u32 = 0xffffffffu;
// Of each expert: its choices, then the first place of its tiles.
var<workgroup> first: array<u32, 1024>;

@compute @workgroup_size(64)
fn group(@builtin(local_invocation_index) lane: u32) {
  for (var i = lane; i < p.choices; i += 64u) {
    if (!inside(p.site, names[p.names + i], p.experts)) { break; }
  }
  for (var expert = lane; expert < p.experts; expert += 64u) {
    var count = 0u;
    for (var i = 0u; i < p.choices; i++) { count += select(0u, 1u, names[p.names + i] == expert); }
    first[expert] = count;
  }
  workgroupBarrier();
  if (lane == 0u) {
    var next = 0u;
    for (var expert = 0u; expert < p.experts; expert++) {
      let count = first[expert];
      first[expert] = next;
      next += (count + 3u) / 4u * 4u;
    }
    for (var place = next; place < p.places; place++) { order[place] = NONE; }
  }
  workgroupBarrier();
  for (var expert = lane; expert < p.experts; expert += 64u) {
    var place = first[expert];
    for (var i = 0u; i < p.choices; i++) {
      if (names[p.names + i] == expert) {
        order[place] = i;
        place++;
      }
    }
    while (place % 4u != 0u) {
      order[place] = NONE;
      place++;
    }
  }
}
