//! Models by their name on the hub: `OWNER/NAME` or `OWNER/NAME:FILE`, or a short name.

use crate::report::bytes_text;
use crate::short_names;
use anyhow::anyhow;
use forerun_hub::{DownloadRequest, Hub, HubError, HubSettings, ModelName, RepoPart, Unwatched};
use std::path::{Path, PathBuf};

/// The branch that a bare name means.
pub(crate) const MAIN: &str = "main";

/// Where a model is: what exists is a path; else a name of the hub is looked up in its cache. The
/// network is left alone.
pub(crate) fn locate(given: &Path) -> anyhow::Result<PathBuf> {
    let Some(model) = name_of(given) else { return Ok(given.to_owned()) };
    match in_cache(&model, RepoPart::Model) {
        Ok(path) => Ok(path),
        Err(HubError::NotCached { cache, why, .. }) => Err(absent(&model, &cache, &why)),
        Err(error) => Err(explained(error)),
    }
}

/// That a model is not here, and how to get it.
pub(crate) fn absent(model: &ModelName, cache: &Path, why: &str) -> anyhow::Error {
    anyhow!(
        "{model} does not exist here, and the cache {} does not hold it whole ({why}); fetch it with\n  \
         forerun pull {model}",
        cache.display()
    )
}

/// A name as it is typed where nothing but a name can be meant.
pub(crate) fn parse(text: &str) -> Result<ModelName, HubError> {
    short_names::model(text).map_or_else(|| text.parse(), Ok)
}

/// Where a drafter is: of a model with an MTP head, the files that hold it are enough.
pub(crate) fn locate_drafter(given: &Path) -> anyhow::Result<PathBuf> {
    locate(given).or_else(|whole| {
        let Some(model) = name_of(given) else { return Err(whole) };
        in_cache(&model, RepoPart::MtpOnly).map_err(|_| whole)
    })
}

pub(crate) fn in_cache(model: &ModelName, part: RepoPart) -> Result<PathBuf, HubError> {
    let hub = Hub::new(HubSettings { offline: true, ..settings()? })?;
    let ask = DownloadRequest { model: model.clone(), revision: MAIN.into(), part };
    Ok(hub.plan(&ask, &mut Unwatched)?.path())
}

/// The name, where a model is given by name: what is no path and can be one. A missing file of weights is a missing
/// file and no name.
pub(crate) fn name_of(given: &Path) -> Option<ModelName> {
    if given.exists() {
        return None;
    }
    if let Some(model) = given.to_str().and_then(short_names::model) {
        return Some(model);
    }
    let weights =
        given.extension().is_some_and(|ending| ending == "gguf" || ending == "safetensors");
    let name: ModelName = given.to_str()?.parse().ok()?;
    (name.file.is_some() || !weights).then_some(name)
}

/// The hub's variables from the environment.
pub(crate) fn settings() -> Result<HubSettings, HubError> {
    HubSettings::read(&|name| std::env::var(name).ok())
}

/// An error for people: a choice of files comes as a list with sizes and the command to type.
pub(crate) fn explained(error: HubError) -> anyhow::Error {
    let HubError::Several { repo, files } = error else { return error.into() };
    let size = |bytes: &Option<u64>| bytes.map_or("unknown".to_owned(), bytes_text);
    let lines: Vec<String> =
        files.iter().map(|(name, bytes)| format!("  {:>10}  {name}", size(bytes))).collect();
    let example = files.first().map_or("FILE", |(name, _)| name);
    anyhow!(
        "{repo} holds several models; name one:\n{}\nfor example\n  forerun pull {repo}:{example}",
        lines.join("\n")
    )
}
