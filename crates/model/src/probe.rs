//! Where numbers stop being finite.

use crate::model::StreamEnd;
use crate::{Model, PassInputs, StateBuffers, Workspace};
use forerun_backend::{BackendError, Op, View};

/// Runs operations and says whether the rows they leave are finite.
pub type IsFinite<'a> = dyn FnMut(&[Op], View) -> Result<bool, BackendError> + 'a;

impl Model {
    /// Lays down a pass up to one layer or another for `is_finite` to run, and names the first part whose output is not
    /// finite. The state of its sequences is of no use after that.
    pub fn first_not_finite(
        &self,
        space: &Workspace,
        states: &StateBuffers,
        inputs: PassInputs,
        is_finite: &mut IsFinite<'_>,
    ) -> Result<String, BackendError> {
        let mut is_finite = |layers| {
            let (ops, rows) = self.rows_behind(layers, space, states, inputs);
            is_finite(&ops, rows)
        };
        // What is not finite stays so in all layers behind.
        let (mut good, mut bad) = (0, self.layers.len());
        if !is_finite(good)? {
            return Ok("the embedding".to_owned());
        }
        if is_finite(bad)? {
            return Ok("the last norm".to_owned());
        }
        while bad - good > 1 {
            let middle = good.midpoint(bad);
            *(if is_finite(middle)? { &mut good } else { &mut bad }) = middle;
        }
        Ok(format!("layer {good}"))
    }

    /// A pass through the first so many layers, and where it leaves the residual stream.
    fn rows_behind(
        &self,
        layers: usize,
        space: &Workspace,
        states: &StateBuffers,
        inputs: PassInputs,
    ) -> (Vec<Op>, View) {
        let mut ops = Vec::new();
        let mut pass = self.pass(&mut ops, space, inputs);
        self.first_layers(&mut pass, states, layers);
        let rows = match &self.end {
            StreamEnd::One(_) => pass.rows_of(space.x, self.spec.hidden),
            StreamEnd::Several(merge) => {
                pass.rows_of(space.streams, merge.streams() * self.spec.hidden)
            }
        };
        (ops, rows)
    }
}
