//! A network's weights on a device.

use crate::altup::AltUp;
use crate::blueprint::Blueprint;
use crate::forward::RopeWeight;
use crate::loader::{Layout, Loader, Progress};
use crate::names::ModuleNames;
use crate::per_layer::{PerLayerBlock, PerLayerInputs};
use crate::streams::{Block, StreamMerge};
use crate::{Assistant, DrafterSpec, Frame, ModelError, ModelSpec, Mtp, RopeSpec};
use forerun_backend::{Backend, WeightId};

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
    pub(crate) ropes: Vec<RopeWeight>,
    pub(crate) layers: Vec<Block>,
    pub(crate) per_layer: Option<PerLayerInputs>,
    pub(crate) altup: Option<AltUp>,
    pub(crate) end: StreamEnd,
    pub(crate) head: WeightId,
    pub(crate) drafter: Option<Drafter>,
}

/// How the residual stream ends.
#[derive(Clone, Debug)]
pub(crate) enum StreamEnd {
    /// In a norm.
    One(WeightId),
    /// Several end in one.
    Several(StreamMerge),
}

/// What drafts ahead.
#[derive(Clone, Debug)]
pub(crate) enum Drafter {
    /// The model's own head.
    Head(Box<Mtp>),
    /// A small network beside it.
    Assistant(Box<Assistant>),
}

impl Model {
    /// Brings a network to a device; `progress` hears the bytes done so far.
    pub fn load<'a>(
        blueprint: &'a Blueprint,
        backend: &'a mut dyn Backend,
        progress: &'a mut Progress<'a>,
    ) -> Result<Self, ModelError> {
        let (spec, layout) = (blueprint.spec.clone(), &blueprint.layout);
        let blocks = spec.layers.iter().chain(spec.head_block());
        blocks.into_iter().try_for_each(|block| block.check(&*backend))?;
        let names = ModuleNames::of(&spec.family);
        let mut loader = Loader::new(&blueprint.checkpoint, names, backend, progress);
        loader.vocabulary = spec.vocabulary;
        loader.set_norm_offset(layout.norm_offset);
        let Layout { trunk, head, .. } = *layout;
        let table = [spec.vocabulary, spec.hidden];
        let embedding = loader.matrix(&format!("{trunk}.{}", names.embedding), table)?;
        let head =
            if spec.tied { embedding } else { loader.matrix(head.unwrap_or("lm_head"), table)? };
        let per_layer = match spec.per_layer {
            Some(inputs) => Some(PerLayerInputs::load(&mut loader, trunk, &spec, inputs)?),
            None => None,
        };
        let altup = match spec.altup() {
            Some(altup) => Some(AltUp::load(&mut loader, trunk, altup, spec.hidden)?),
            None => None,
        };
        let layers = load_layers(&mut loader, trunk, &spec)?;
        let end = match spec.layers.first().map(|layer| layer.frame) {
            Some(Frame::Streams(streams)) => {
                let merge = StreamMerge::load(&mut loader, trunk, streams, spec.hidden)?;
                StreamEnd::Several(merge)
            }
            _ => {
                let norm = format!("{trunk}.{}", names.final_norm);
                StreamEnd::One(loader.scaled_norm(&norm, spec.hidden, spec.logit_scale)?)
            }
        };
        let ropes = load_ropes(&mut loader, &spec.ropes)?;
        let drafter = load_drafter(&mut loader, blueprint)?;
        let (weight_bytes, parameters) = loader.totals();
        Ok(Self {
            spec,
            weight_bytes,
            parameters,
            embedding,
            ropes,
            layers,
            per_layer,
            altup,
            end,
            head,
            drafter,
        })
    }
}

fn load_layers(
    loader: &mut Loader<'_>,
    trunk: &str,
    spec: &ModelSpec,
) -> Result<Vec<Block>, ModelError> {
    let mut layers = Vec::with_capacity(spec.layers.len());
    for (i, layer) in spec.layers.iter().enumerate() {
        let block = format!("{trunk}.layers.{i}");
        let mut layer = Block::load(loader, &block, layer, spec.hidden)?;
        if let (Some(inputs), Block::Plain(layer)) = (spec.per_layer, &mut layer) {
            layer.per_layer = Some(PerLayerBlock::load(loader, &block, spec, inputs, i)?);
        }
        layers.push(layer);
    }
    Ok(layers)
}

pub(crate) fn load_ropes(
    loader: &mut Loader<'_>,
    ropes: &[RopeSpec],
) -> Result<Vec<RopeWeight>, ModelError> {
    let one = |rope: &RopeSpec| {
        let inv_freq = loader.numbers("rope frequencies", 1, &rope.inv_freq)?;
        Ok(RopeWeight { inv_freq, rotary: rope.rotary, scale: rope.scale })
    };
    ropes.iter().map(one).collect()
}

fn load_drafter<'a>(
    loader: &mut Loader<'a>,
    blueprint: &'a Blueprint,
) -> Result<Option<Drafter>, ModelError> {
    let spec = &blueprint.spec;
    let mut layout = &blueprint.layout;
    if let Some(source) = &blueprint.drafter {
        loader.read_from(&source.checkpoint);
        layout = &source.layout;
    }
    match &spec.drafter {
        None => Ok(None),
        Some(DrafterSpec::Head(block)) => {
            let path = layout.mtp_layer.as_deref().or(layout.mtp);
            let path = path.expect("the head was found by this prefix");
            loader.set_norm_offset(layout.mtp_norm_offset);
            let embedding = format!("{}.embed_tokens", layout.trunk);
            let tied = spec.tied.then_some(embedding.as_str());
            let trunk = [Some(embedding.as_str()), layout.head.or(tied)];
            Ok(Some(Drafter::Head(Box::new(Mtp::load(loader, path, block, spec, trunk)?))))
        }
        Some(DrafterSpec::Assistant(assistant)) => {
            let assistant = Assistant::load(loader, assistant, spec)?;
            Ok(Some(Drafter::Assistant(Box::new(assistant))))
        }
    }
}
