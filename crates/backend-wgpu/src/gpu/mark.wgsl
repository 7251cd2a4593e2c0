// A sign that a pass ran to its end: the last word beside the noted indices becomes `word · 2654435761 + ticket`.
// Not every driver tells when it stops work that takes too long, and what was stopped must not count as done.

@group(0) @binding(0) var<storage, read_write> noted: array<u32, 4>;
var<immediate> ticket: u32;

@compute @workgroup_size(1)
fn mark() { noted[3] = noted[3] * 2654435761u + ticket; }
