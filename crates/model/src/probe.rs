//! Where numbers stop being finite.

use crate::{Model, PassInputs, StateBuffers, Workspace};
use forerun_backend::{Backend, BackendError, HostDataMut, submit_and_wait};

impl Model {
    /// Runs a pass again, up to one layer or another, and names the first part whose output is not finite. The state of
    /// its sequences is of no use after that.
    pub fn first_not_finite(
        &self,
        backend: &mut dyn Backend,
        space: &Workspace,
        states: &StateBuffers,
        inputs: PassInputs,
    ) -> Result<String, BackendError> {
        let mut is_finite = |layers| self.is_finite_after(layers, backend, space, states, inputs);
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

    /// Whether the residual stream is finite behind the first so many layers.
    fn is_finite_after(
        &self,
        layers: usize,
        backend: &mut dyn Backend,
        space: &Workspace,
        states: &StateBuffers,
        inputs: PassInputs,
    ) -> Result<bool, BackendError> {
        let mut ops = Vec::new();
        let mut pass = self.pass(&mut ops, space, inputs);
        self.embed(&mut pass, inputs.embedded, self.embedding, space.x);
        pass.turn_tables(0);
        if let Some(per_layer) = &self.per_layer {
            per_layer.prepare(&mut pass);
        }
        for (layer, state) in self.layers.iter().zip(&states.layers).take(layers) {
            layer.forward(&mut pass, state);
        }
        let view = pass.rows_of(space.x, self.spec.hidden);
        ops.into_iter().try_for_each(|op| op.apply(backend))?;
        submit_and_wait(backend)?;
        let mut rows = vec![0.0; view.len];
        backend.read(view, HostDataMut::F32(&mut rows))?;
        Ok(rows.iter().all(|x| x.is_finite()))
    }
}
