//! How a checkpoint stores its parts, for those who write it anew.

use crate::Blueprint;

/// Names and conventions of a stored checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Storage {
    /// `model_type` of the config.
    pub family: String,
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
}

impl Blueprint {
    /// How its checkpoint stores things.
    pub fn storage(&self) -> Storage {
        let layout = &self.layout;
        Storage {
            family: self.spec.family.clone(),
            trunk: layout.trunk,
            head: layout.head,
            mtp: layout.mtp,
            tied: self.spec.tied,
            norm_offset: layout.norm_offset,
            mtp_norm_offset: layout.mtp_norm_offset,
        }
    }
}
