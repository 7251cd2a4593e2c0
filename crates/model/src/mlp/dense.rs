//! A gated MLP, or one whose gate is its own input: relu squared is relu of a product times the product.

use crate::ModelError;
use crate::forward::{Input, Output, Pass};
use crate::loader::Loader;
use forerun_backend::op::{GatedLinear, Glu, Linear, LinearPart, Linears, Threshold};
use forerun_backend::{View, WeightId};

/// Weights of one gated MLP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    ffn: usize,
    gate: WeightId,
    up: WeightId,
    /// The projection back to the residual stream.
    pub(super) down: WeightId,
    /// How far above their mean gates must be to pass, in standard deviations; all pass without.
    pub(super) deviations: Option<f32>,
}

impl Dense {
    pub(super) fn load(
        loader: &mut Loader<'_>,
        path: &str,
        ffn: usize,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let names = loader.names;
        let at = |name: &str| format!("{path}.{name}");
        let fused = names.gate_up_proj.map(at).filter(|both| loader.checkpoint.has_matrix(both));
        if let Some(both) = fused {
            let matrix = loader.checkpoint.parts(&both, &[2 * ffn, hidden])?;
            let mut half = |name: &str, rows| {
                loader.rows(&format!("{both} ({name})"), &matrix, std::slice::from_ref(&rows))
            };
            let (gate, up) = (half("gate", 0..ffn)?, half("up", ffn..2 * ffn)?);
            let down = loader.matrix(&at(names.down_proj), [hidden, ffn])?;
            return Ok(Self { ffn, gate, up, down, deviations: None });
        }
        let published = [names.gate_proj, names.up_proj, names.down_proj];
        // MLX may write the common names, whatever a family publishes.
        let common = ["gate_proj", "up_proj", "down_proj"];
        let converted = loader.checkpoint.has_matrix(&at(common[0]));
        let [gate, up, down] = if converted { common } else { published };
        let alone = gate == up;
        let gate = loader.matrix(&at(gate), [ffn, hidden])?;
        let up = if alone { gate } else { loader.matrix(&at(up), [ffn, hidden])? };
        let down = loader.matrix(&at(down), [hidden, ffn])?;
        Ok(Self { ffn, gate, up, down, deviations: None })
    }

    /// `act(gate input) · (up input)`.
    pub(super) fn activate(&self, pass: &mut Pass<'_>, Input { x, norm }: Input) -> View {
        let out = pass.rows_of(pass.space.activated, self.ffn);
        let scratch = pass.rows_of(pass.space.up, self.ffn);
        let (Self { gate, up, .. }, activation) = (*self, pass.sizes.activation);
        if let Some(deviations) = self.deviations {
            let part = |weight, out| Some(LinearPart { weight, bias: None, out });
            pass.push(Linears { x, norm, parts: [part(gate, out), part(up, scratch), None, None] });
            pass.push(Threshold { x: out, dim: self.ffn, deviations });
            pass.push(Glu::same(out, scratch, activation));
            return out;
        }
        pass.push(GatedLinear { x, norm, gate, up, activation, scratch, out });
        out
    }

    /// `down(act(gate input) · (up input))` to `out`.
    pub(super) fn forward(&self, pass: &mut Pass<'_>, input: Input, out: Output) {
        let x = self.activate(pass, input);
        let Output { view, store } = out;
        pass.push(Linear { x, weight: self.down, bias: None, channels: None, out: view, store });
    }
}
