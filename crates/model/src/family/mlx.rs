//! The form in which MLX reads a family's files, where it differs from what is published.

/// What depends on the family when a checkpoint is written for MLX.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MlxForm {
    /// The text model lies at `language_model`: MLX knows Gemma's text models under their own names, Qwen's only
    /// inside others.
    pub nested: bool,
    /// What a reader adds to norm weights to get the factors.
    pub norm_offset: f32,
    /// The size of the vocabulary is read from the top of the config.
    pub vocabulary_at_root: bool,
    /// The family, where its form is read and not written here.
    pub read_only: Option<&'static str>,
}

/// Families whose form is read and not written.
const READ_ONLY: [&str; 3] = ["granitemoehybrid", "lfm2_moe", "nemotron_h"];

impl MlxForm {
    pub(crate) fn of(family: &str) -> Self {
        Self {
            nested: family.starts_with("qwen3_5")
                || ["gemma3", "gemma4", "gemma4_unified"].contains(&family),
            norm_offset: if ["gemma3", "gemma3_text"].contains(&family) { 1.0 } else { 0.0 },
            vocabulary_at_root: family.starts_with("gemma4"),
            read_only: READ_ONLY.into_iter().find(|name| *name == family),
        }
    }
}
