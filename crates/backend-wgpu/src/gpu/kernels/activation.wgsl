// Functions on the gate of a gated product: 0 silu, 1 gelu by its tanh form, 2 relu.

fn activate(mode: u32, v: f32) -> f32 {
  if (mode == 0u) { return silu(v); }
  if (mode == 2u) { return max(v, 0.0); }
  let inner = 0.7978846 * (v + 0.044715 * v * v * v);
  return 0.5 * v * (1.0 + tanh_of(inner));
}
