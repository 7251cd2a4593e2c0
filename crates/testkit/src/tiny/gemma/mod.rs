//! Gemma 3 and 4: layers with and without a window, sandwich norms, and what only Gemma 4 has.

mod assistant;
mod config;
mod tensors;

pub use assistant::TinyAssistant;
pub(super) use tensors::fill;

use super::Family;

/// What a Gemma model has besides; other families do not look at it.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemma {
    /// Keys that a layer with a window shows.
    pub window: usize,
    /// Layers without one.
    pub whole: Vec<usize>,
    /// Logits stay within ± this.
    pub cap: Option<f64>,
    /// Gemma 3: scores are divided by the root of it.
    pub query_scalar: f64,
    /// Gemma 3: positions are divided by it in layers without a window.
    pub rope_factor: Option<f64>,
    /// Gemma 4: width of a head in layers without a window.
    pub whole_head_dim: usize,
    /// Gemma 4: key heads of layers without a window, whose values are then made from keys.
    pub keys_as_values: Option<usize>,
    /// Gemma 4: trailing layers that read the keys and values of an earlier one.
    pub sharing: usize,
    /// Gemma 4: whether those have an MLP twice as wide.
    pub double_wide: bool,
    /// Gemma 4: width of per-layer inputs; 0 for none.
    pub per_layer: usize,
    /// Gemma 4: whether experts stand beside each MLP.
    pub experts: bool,
}

impl Default for Gemma {
    fn default() -> Self {
        Self {
            window: 16,
            whole: vec![5],
            cap: None,
            query_scalar: 20.0,
            rope_factor: None,
            whole_head_dim: 32,
            keys_as_values: None,
            sharing: 0,
            double_wide: false,
            per_layer: 0,
            experts: false,
        }
    }
}

impl Gemma {
    /// What a family looks at: nothing that only Gemma 4 has, in Gemma 3.
    fn of(&self, family: Family) -> Self {
        if family == Family::Gemma4 {
            return self.clone();
        }
        let Self { window, whole, cap, query_scalar, rope_factor, .. } = self.clone();
        Self { window, whole, cap, query_scalar, rope_factor, ..Self::default() }
    }
}
