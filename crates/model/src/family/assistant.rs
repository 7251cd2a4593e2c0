//! Gemma 4's separate drafter: blocks with queries only, which read the target's keys and values.

use super::gemma4::Gemma4;
use crate::config::Config;
use crate::{AssistantSpec, AttentionSpec, ClusterSpec, ModelError, ModelSpec};
use forerun_backend::op::Activation;
use forerun_weights::Checkpoint;

const TYPES: [&str; 2] = ["gemma4_assistant", "gemma4_unified_assistant"];

/// Whether a checkpoint is a drafter for another one.
pub(crate) fn is_assistant(checkpoint: &Checkpoint) -> bool {
    let family = checkpoint.config().get("model_type").and_then(|t| t.as_str());
    family.is_some_and(|family| TYPES.contains(&family))
}

/// The drafter a checkpoint describes, fitted to its target.
pub(crate) fn read(
    checkpoint: &Checkpoint,
    target: &ModelSpec,
) -> Result<AssistantSpec, ModelError> {
    let root = Config::root(checkpoint.config());
    if !target.family.starts_with("gemma4") {
        return Err(ModelError::Drafter(format!("is made for Gemma 4, not for {}", target.family)));
    }
    let config =
        root.section("text_config").ok_or_else(|| root.bad("text_config", "is missing"))?;
    let text = Gemma4 { config: &config };
    text.check_features()?;
    equal("backbone_hidden_size", root.count("backbone_hidden_size")?, target.hidden)?;
    equal("vocab_size", config.count("vocab_size")?, target.vocabulary)?;
    let layer = |windowed: bool| {
        let (read, theirs) = last_of_kind(target, windowed)?;
        let mut attention = text.attention(windowed)?;
        equal("width of a head", attention.head_dim, theirs.head_dim)?;
        equal("number of key heads", attention.kv_heads, theirs.kv_heads)?;
        attention.shares = Some(read);
        // The drafter stands one past the last key and still sees a whole window before it and that key.
        attention.window = attention.window.map(|window| window + 1);
        text.layer(attention, false)
    };
    let windowed = text.windowed_layers()?;
    Ok(AssistantSpec {
        hidden: config.count("hidden_size")?,
        layers: windowed.into_iter().map(layer).collect::<Result<_, _>>()?,
        ropes: text.ropes()?,
        eps: text.eps()?,
        activation: Activation::GeluTanh,
        clusters: clusters(&root, target.vocabulary)?,
    })
}

/// The target's last layer of a kind that has keys of its own.
fn last_of_kind(target: &ModelSpec, windowed: bool) -> Result<(usize, &AttentionSpec), ModelError> {
    let own = target.layers.iter().enumerate().rev().find_map(|(i, layer)| {
        let attention = layer.mixer.attention()?;
        let fits = attention.shares.is_none() && attention.window.is_some() == windowed;
        fits.then_some((i, attention))
    });
    own.ok_or_else(|| {
        let kind = if windowed { "with" } else { "without" };
        ModelError::Drafter(format!("needs a layer {kind} a window, which the model has not"))
    })
}

/// Refuses a drafter whose `what` is not its target's.
pub(crate) fn equal(what: &str, found: usize, expected: usize) -> Result<(), ModelError> {
    if found == expected {
        return Ok(());
    }
    Err(ModelError::Drafter(format!("has a {what} of {found}, the model one of {expected}")))
}

fn clusters(root: &Config<'_>, vocabulary: usize) -> Result<Option<ClusterSpec>, ModelError> {
    if !root.flag("use_ordered_embeddings", false)? {
        return Ok(None);
    }
    let (count, best) = (root.count("num_centroids")?, root.count("centroid_intermediate_top_k")?);
    if !vocabulary.is_multiple_of(count) {
        let problem = format!("is {count}, which does not divide the vocabulary of {vocabulary}");
        return Err(root.bad("num_centroids", problem));
    }
    if best > count {
        let problem = format!("is {best}, more than num_centroids = {count}");
        return Err(root.bad("centroid_intermediate_top_k", problem));
    }
    Ok(Some(ClusterSpec { count, best }))
}
