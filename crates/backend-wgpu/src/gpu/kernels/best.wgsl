// The best of some scores, one after the other: `rank_of` of the kernel that includes this says what is ranked.
//
// Numerics: ranks are compared as integers, in the total order of f32, of equal ones the lower index first.
// Shape of the launch: a workgroup for each row; a round for each choice, which looks for the best after the last one.

// A candidate: the order of its rank, and its index, or NOBODY.
struct Best { key: u32, place: u32 }
const NOBODY: u32 = 0xffffffffu;

var<workgroup> keys: array<u32, LANES>;
var<workgroup> places: array<u32, LANES>;

// Whether the first of two candidates comes before the second.
fn before(a: Best, b: Best) -> bool {
  return a.key > b.key || (a.key == b.key && a.place < b.place);
}

// The best of `first`, `first + step`, ... below `end`, behind `last` where there is one, for one invocation.
fn best_after(last: Best, first: u32, end: u32, step: u32) -> Best {
  var best = Best(0u, NOBODY);
  for (var i = first; i < end; i += step) {
    let own = Best(order_of(rank_of(i)), i);
    if ((last.place == NOBODY || before(last, own)) && (best.place == NOBODY || before(own, best))) { best = own; }
  }
  return best;
}

// The same of the first `count` for a whole workgroup.
fn next_best(lane: u32, last: Best, count: u32) -> Best {
  let own = best_after(last, lane, count, LANES);
  workgroupBarrier();
  keys[lane] = own.key;
  places[lane] = own.place;
  for (var by = LANES / 2u; by > 0u; by >>= 1u) {
    workgroupBarrier();
    if (lane < by) {
      let other = Best(keys[lane + by], places[lane + by]);
      let better = places[lane] == NOBODY || before(other, Best(keys[lane], places[lane]));
      if (other.place != NOBODY && better) {
        keys[lane] = other.key;
        places[lane] = other.place;
      }
    }
  }
  workgroupBarrier();
  return Best(keys[0], places[0]);
}
