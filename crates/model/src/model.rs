//! A network's weights on a device.

use crate::loader::{Layout, Loader, Progress};
use crate::mixer::Mixer;
use crate::mlp::Mlp;
use crate::{LayerSpec, ModelError, ModelSpec, Mtp, family};
use forerun_backend::{Backend, WeightId};
use forerun_weights::Checkpoint;

/// A loaded network. Immutable: what sequences remember lives elsewhere.
#[derive(Clone, Debug)]
pub struct Model {
    /// The network as data.
    pub spec: ModelSpec,
    /// Bytes of weights on the device.
    pub weight_bytes: u64,
    /// Numbers those bytes stand for.
    pub parameters: u64,
    pub(crate) embedding: WeightId,
    pub(crate) inv_freq: WeightId,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: WeightId,
    pub(crate) head: WeightId,
    /// The MTP head, where the checkpoint has one.
    pub mtp: Option<Mtp>,
}

/// One block's weights.
#[derive(Clone, Debug)]
pub struct Layer {
    pub(crate) mixer_norm: WeightId,
    pub(crate) mixer: Mixer,
    pub(crate) mlp_norm: WeightId,
    pub(crate) mlp: Mlp,
}

impl Layer {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        block: &str,
        spec: &LayerSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            mixer_norm: loader.norm(&format!("{block}.input_layernorm"), hidden)?,
            mixer: Mixer::load(loader, block, &spec.mixer, hidden)?,
            mlp_norm: loader.norm(&format!("{block}.post_attention_layernorm"), hidden)?,
            mlp: Mlp::load(loader, block, &spec.mlp, hidden)?,
        })
    }
}

impl Model {
    /// Brings a checkpoint to a device; `progress` hears the bytes done so far.
    pub fn load<'a>(
        checkpoint: &'a Checkpoint,
        backend: &'a mut dyn Backend,
        progress: &'a mut Progress<'a>,
    ) -> Result<Self, ModelError> {
        let (spec, layout) = family::read(checkpoint)?;
        let mut loader = Loader::new(checkpoint, backend, progress);
        loader.set_norm_offset(layout.norm_offset);
        let Layout { trunk, head, .. } = layout;
        let table = [spec.vocabulary, spec.hidden];
        let embedding = loader.matrix(&format!("{trunk}.embed_tokens"), table)?;
        let head =
            if spec.tied { embedding } else { loader.matrix(head.unwrap_or("lm_head"), table)? };
        let layer = |(i, layer): (usize, &LayerSpec)| {
            Layer::load(&mut loader, &format!("{trunk}.layers.{i}"), layer, spec.hidden)
        };
        let layers = spec.layers.iter().enumerate().map(layer).collect::<Result<_, _>>()?;
        let norm = loader.norm(&format!("{trunk}.norm"), spec.hidden)?;
        let inv_freq = loader.numbers("rope frequencies", 1, &spec.rope.inv_freq)?;
        loader.set_norm_offset(layout.mtp_norm_offset);
        let mtp = match (&spec.mtp, layout.mtp) {
            (Some(block), Some(path)) => Some(Mtp::load(&mut loader, path, block, spec.hidden)?),
            _ => None,
        };
        let (weight_bytes, parameters) = loader.totals();
        Ok(Self { weight_bytes, parameters, embedding, inv_freq, layers, norm, head, mtp, spec })
    }
}
