//! A checkpoint and the network it describes, before anything is on a device.

use crate::family::{self, assistant, deepseek_v4};
use crate::loader::Layout;
use crate::{DrafterSpec, ModelError, ModelSpec, RopeScale, gguf};
use forerun_weights::Checkpoint;
use sha2::{Digest as _, Sha256};
use std::path::Path;

/// Everything known about a model from its headers and configuration.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// The tensors, under published names whatever the file calls them.
    pub checkpoint: Checkpoint,
    /// The network.
    pub spec: ModelSpec,
    pub(crate) layout: Layout,
    /// Where the drafter's weights are, when they have a checkpoint of their own.
    pub(crate) drafter: Option<DrafterSource>,
}

/// A drafter's own checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct DrafterSource {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) layout: Layout,
}

impl Blueprint {
    /// Opens a folder, a `.safetensors` or a `.gguf` file and reads what network it holds.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let checkpoint = open(path)?;
        if assistant::is_assistant(&checkpoint) {
            return Err(ModelError::IsDrafter(path.to_owned()));
        }
        Self::of(checkpoint)
    }

    /// Reads what network a checkpoint of published names describes.
    pub fn of(checkpoint: Checkpoint) -> Result<Self, ModelError> {
        let (spec, layout) = family::read(&checkpoint)?;
        Ok(Self { checkpoint, spec, layout, drafter: None })
    }

    /// Takes the drafter from another checkpoint: a separate drafter of this model's family, or any
    /// checkpoint of the same model that still has its MTP head.
    pub fn attach_drafter(&mut self, path: &Path) -> Result<(), ModelError> {
        let checkpoint = translated(Checkpoint::open_head(path)?)?;
        let source = if assistant::is_assistant(&checkpoint) {
            let spec = assistant::read(&checkpoint, &self.spec)?;
            self.spec.drafter = Some(DrafterSpec::Assistant(spec));
            DrafterSource { layout: Layout::find(&checkpoint), checkpoint }
        } else {
            let (other, layout) = family::read(&checkpoint)?;
            let Some(DrafterSpec::Head(block)) = other.drafter else {
                return Err(ModelError::NotADrafter(path.to_owned()));
            };
            assistant::equal("width", other.hidden, self.spec.hidden)?;
            assistant::equal("vocabulary", other.vocabulary, self.spec.vocabulary)?;
            self.spec.drafter = Some(DrafterSpec::Head(block));
            DrafterSource { checkpoint, layout }
        };
        self.drafter = Some(source);
        Ok(())
    }

    /// Stretches the context: positions of every layer that sees all of it turn more slowly.
    pub fn extend_context(&mut self, scale: RopeScale) {
        self.spec.extend_context(scale);
    }

    /// Names the model: its network as it will run and some bytes of every tensor, the drafter's included. What
    /// another model leaves behind is told by it.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(format!("{:?}", self.spec));
        hash.update(self.checkpoint.fingerprint());
        if let Some(drafter) = &self.drafter {
            hash.update(drafter.checkpoint.fingerprint());
        }
        let hex = |byte: &u8| format!("{byte:02x}");
        hash.finalize().iter().map(hex).collect()
    }

    /// Bytes of all weight files.
    pub fn total_bytes(&self) -> u64 {
        let drafter = self.drafter.as_ref().map_or(0, |d| d.checkpoint.total_bytes());
        self.checkpoint.total_bytes() + drafter
    }
}

/// Opens a checkpoint; GGUF files get published names and a config.
pub fn open(path: &Path) -> Result<Checkpoint, ModelError> {
    translated(Checkpoint::open(path)?)
}

fn translated(checkpoint: Checkpoint) -> Result<Checkpoint, ModelError> {
    match checkpoint.gguf() {
        Some(_) => gguf::translate(checkpoint),
        None if deepseek_v4::is_it(checkpoint.config()) => deepseek_v4::translate(checkpoint),
        None => Ok(checkpoint),
    }
}
