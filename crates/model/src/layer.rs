//! One block: a mixer and an MLP, and how they meet the residual stream.

use crate::altup::{self, AltUpBlock};
use crate::forward::{Output, Pass};
use crate::loader::Loader;
use crate::mixer::Mixer;
use crate::mlp::Mlp;
use crate::names::ModuleNames;
use crate::per_layer::PerLayerBlock;
use crate::{Frame, LayerSpec, LayerState, MlpSpec, ModelError};
use forerun_backend::op::Store;
use forerun_backend::{Backend, WeightId};

impl LayerSpec {
    /// Refuses a device that lacks an operation of one of the block's parts.
    pub(crate) fn check(&self, backend: &dyn Backend) -> Result<(), ModelError> {
        self.mixer.check(backend)?;
        match self.lacked(backend.missing()) {
            None => Ok(()),
            Some((part, op)) => {
                let (device, part) = (backend.name(), part.to_owned());
                Err(ModelError::Missing { device, part, op })
            }
        }
    }

    /// The first part besides the mixer that needs one of these operations, in words, and the operation.
    fn lacked(&self, missing: &[&str]) -> Option<(&'static str, &'static str)> {
        let frame: &[&str] = match self.frame {
            Frame::AltUp(_) => altup::OPERATIONS,
            Frame::Streams(streams) => streams.operations(),
            _ => &[],
        };
        let mlp: &[&str] = match self.mlp {
            MlpSpec::Sparse { .. } => &["threshold"],
            _ => &[],
        };
        let parts = [("a residual of several streams", frame), ("a sparse mlp", mlp)];
        parts.into_iter().find_map(|(part, operations)| {
            let op = operations.iter().find(|op| missing.contains(op))?;
            Some((part, *op))
        })
    }
}

/// One block's weights.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// The mixer, in a block that has one, and the norm before it where there is one.
    mixer: Option<(Mixer, Option<WeightId>)>,
    /// The same of the MLP.
    mlp: Option<(Mlp, Option<WeightId>)>,
    /// Norms of what mixer and MLP give, where they stand there.
    after: Option<AfterNorms>,
    /// What goes on between several streams.
    altup: Option<AltUpBlock>,
    /// What the token's own vector for this layer adds.
    pub(crate) per_layer: Option<PerLayerBlock>,
    /// What the stream is multiplied by at the end.
    scale: f32,
}

#[derive(Clone, Copy, Debug)]
struct AfterNorms {
    mixer: WeightId,
    mlp: WeightId,
}

impl Layer {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        block: &str,
        spec: &LayerSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let names = loader.names;
        let norm = |loader: &mut Loader<'_>, name: &'static str| {
            let path = |name: &str| format!("{block}.{name}");
            let stored = loader.checkpoint.contains(&format!("{}.weight", path(name)));
            loader.norm(&path(if stored { name } else { ModuleNames::common(name) }), hidden)
        };
        let (before, after, scale) = match spec.frame {
            Frame::Pre => ([Some(names.mixer_norm), Some(names.mlp_norm)], None, 1.0),
            Frame::Post => {
                // The norm behind attention is called what the one before the MLP is called elsewhere.
                let after = AfterNorms {
                    mixer: norm(loader, names.mlp_norm)?,
                    mlp: norm(loader, "post_feedforward_layernorm")?,
                };
                ([None; 2], Some(after), 1.0)
            }
            Frame::Sandwich { .. } | Frame::AltUp(_) => {
                let after = AfterNorms {
                    mixer: norm(loader, "post_attention_layernorm")?,
                    mlp: norm(loader, "post_feedforward_layernorm")?,
                };
                let scaled = spec.frame == Frame::Sandwich { scaled: true };
                let scale =
                    if scaled { loader.number(&format!("{block}.layer_scalar"))? } else { 1.0 };
                ([Some(names.mixer_norm), Some("pre_feedforward_layernorm")], Some(after), scale)
            }
            Frame::Streams(_) => unreachable!("a block on several streams is loaded as such"),
        };
        let [before_mixer, before_mlp] = before;
        let altup = match spec.frame {
            Frame::AltUp(spec) => Some(AltUpBlock::load(loader, block, spec, hidden)?),
            _ => None,
        };
        let mixer = match Mixer::load(loader, block, &spec.mixer, hidden)? {
            Some(mixer) => Some((mixer, before_mixer.map(|name| norm(loader, name)).transpose()?)),
            None => None,
        };
        let mlp = match Mlp::load(loader, block, &spec.mlp, hidden)? {
            Some(mlp) => Some((mlp, before_mlp.map(|name| norm(loader, name)).transpose()?)),
            None => None,
        };
        Ok(Self { mixer, mlp, after, altup, per_layer: None, scale })
    }

    /// Keys and values of the rows in `x`, for rows of which nothing else is wanted.
    pub(crate) fn remember(&self, pass: &mut Pass<'_>, state: &LayerState) {
        if let Some((mixer, norm)) = &self.mixer {
            mixer.remember(pass, pass.input_of(*norm), state);
        }
    }

    /// One block over the residual stream in `x`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, state: &LayerState) {
        let space = pass.space;
        let out = match self.after {
            None => Output { view: pass.rows_of(space.x, pass.sizes.hidden), store: Store::Add },
            Some(_) => {
                Output { view: pass.rows_of(space.branch, pass.sizes.hidden), store: Store::Set }
            }
        };
        let streams = self.altup.as_ref().zip(self.mixer.as_ref().and_then(|(_, norm)| *norm));
        if let Some((altup, norm)) = streams {
            altup.predict(pass);
            altup.narrow(pass, norm);
        }
        if let Some((mixer, norm)) = &self.mixer {
            mixer.forward(pass, pass.input_of(*norm), state, out);
        }
        if let Some(after) = self.after {
            pass.add_norm(space.branch, after.mixer, space.x, 1.0);
        }
        if let Some((altup, norm)) = streams {
            altup.widen(pass, norm);
        }
        if let Some((mlp, norm)) = &self.mlp {
            mlp.forward(pass, *norm, out);
        }
        let Some(after) = self.after else { return };
        if let Some(altup) = &self.altup {
            pass.add_norm(space.branch, after.mlp, space.x, 1.0);
            return altup.correct(pass, self.per_layer.as_ref());
        }
        match &self.per_layer {
            None => pass.add_norm(space.branch, after.mlp, space.x, self.scale),
            Some(block) => {
                pass.add_norm(space.branch, after.mlp, space.x, 1.0);
                block.forward(pass, self.scale)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AltUpSpec, AttentionSpec, MixerSpec};

    #[test]
    fn a_part_is_named_with_the_operation_that_it_lacks() {
        let mixer = MixerSpec::Attention(AttentionSpec::plain(1, 1, 8));
        let altup = AltUpSpec { streams: 2, active: 0, scaled: true, laurel: 4 };
        let plain = LayerSpec { mixer, mlp: MlpSpec::Dense(8), frame: Frame::Pre };
        let sparse =
            LayerSpec { mlp: MlpSpec::Sparse { ffn: 8, deviations: 1.0 }, ..plain.clone() };
        let streams = LayerSpec { frame: Frame::AltUp(altup), ..sparse.clone() };
        let all = ["threshold", "correct_streams"];
        assert_eq!(plain.lacked(&all), None);
        assert_eq!(sparse.lacked(&all), Some(("a sparse mlp", "threshold")));
        assert_eq!(
            streams.lacked(&all),
            Some(("a residual of several streams", "correct_streams"))
        );
        assert_eq!(streams.lacked(&["delta_rule"]), None);
    }
}
