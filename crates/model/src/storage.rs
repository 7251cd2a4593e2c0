//! How a checkpoint stores its parts, for those who write it anew.

use crate::{Blueprint, MixerSpec, MlxForm};

/// Names and conventions of a stored checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct StorageForm {
    /// Prefix of the trunk.
    pub trunk: &'static str,
    /// The head's module, when stored.
    pub head: Option<&'static str>,
    /// Prefix of the MTP part, when stored.
    pub mtp: Option<&'static str>,
    /// Whether the embedding is also the head.
    pub tied: bool,
    /// What must be added to the trunk's norm weights to get the factors: 1 where files hold
    /// `w − 1`.
    pub norm_offset: f32,
    /// The same for the MTP part.
    pub mtp_norm_offset: f32,
    /// Layers that use the keys and values of an earlier one; stored weights for their own are not used.
    pub sharing_layers: Vec<usize>,
    /// The form in which MLX reads the family.
    pub mlx: MlxForm,
}

impl Blueprint {
    /// How its checkpoint stores things.
    pub fn storage(&self) -> StorageForm {
        let layout = &self.layout;
        let shares = |mixer: &MixerSpec| match mixer {
            MixerSpec::Attention(attention) => attention.shares.is_some(),
            _ => false,
        };
        let layers = self.spec.layers.iter().enumerate();
        StorageForm {
            trunk: layout.trunk,
            head: layout.head,
            mtp: layout.mtp,
            tied: self.spec.tied,
            norm_offset: layout.norm_offset,
            mtp_norm_offset: layout.mtp_norm_offset,
            sharing_layers: layers.filter(|(_, l)| shares(&l.mixer)).map(|(i, _)| i).collect(),
            mlx: MlxForm::of(&self.spec.family),
        }
    }
}
