//! `forerun list` and `forerun rm`: what the hub's cache holds.

use crate::args::{ListArgs, RemoveArgs};
use crate::exit::{Outcome, usage};
use crate::hub_model::{explained, settings};
use crate::report::bytes_text;
use crate::{fetch, terminal};
use anyhow::anyhow;
use forerun_hub::{CachedRepo, Hub, HubSettings};
use serde::Serialize;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

#[derive(Serialize)]
struct KeptReport {
    cache: PathBuf,
    models: Vec<ModelReport>,
    bytes: u64,
}

#[derive(Serialize)]
struct ModelReport {
    name: String,
    bytes: u64,
    gguf: Vec<String>,
    safetensors: bool,
    fetched: Option<u64>,
}

pub(crate) fn list(args: &ListArgs) -> anyhow::Result<Outcome> {
    let hub = hub()?;
    let kept = hub.kept().map_err(explained)?;
    let models: Vec<ModelReport> = kept.iter().map(ModelReport::new).collect();
    let bytes = models.iter().map(|model| model.bytes).sum();
    let report = KeptReport { cache: hub.cache().to_owned(), models, bytes };
    if args.json {
        terminal::show_json(&report)?;
        return Ok(Outcome::Done);
    }
    terminal::show(&report.models.iter().map(ModelReport::lines).collect::<String>())?;
    let (count, place) = (report.models.len(), report.cache.display());
    let models = if count == 1 { "model" } else { "models" };
    terminal::aside(&format!("{count} {models}, {} in {place}", bytes_text(bytes)));
    Ok(Outcome::Done)
}

pub(crate) fn remove(args: &RemoveArgs) -> anyhow::Result<Outcome> {
    let hub = hub()?;
    let names: Vec<String> = args.models.iter().map(ToString::to_string).collect();
    if !args.yes {
        if !io::stdin().is_terminal() {
            return Err(usage(anyhow!("nobody can be asked here; --yes removes without asking")));
        }
        if !fetch::agreed(&format!("remove {}? [Y/n]", names.join(", ")))? {
            return Ok(Outcome::Done);
        }
    }
    for (model, name) in args.models.iter().zip(&names) {
        let freed = hub.remove(model).map_err(explained)?;
        terminal::aside(&format!("removed {name}, {}", bytes_text(freed)));
    }
    Ok(Outcome::Done)
}

/// The cache; the network is left alone.
fn hub() -> anyhow::Result<Hub> {
    Ok(Hub::new(HubSettings { offline: true, ..settings()? })?)
}

impl ModelReport {
    fn new(repo: &CachedRepo) -> Self {
        let fetched = repo.fetched.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Self {
            name: repo.repo.to_string(),
            bytes: repo.bytes,
            gguf: repo.gguf.clone(),
            safetensors: repo.safetensors,
            fetched: fetched.map(|since| since.as_secs()),
        }
    }

    /// The name as it is typed; behind it those of single files.
    fn lines(&self) -> String {
        let about = match (self.safetensors, self.gguf.is_empty()) {
            (false, true) => "  (no weights)",
            _ => "",
        };
        let files = self.gguf.iter().map(|file| format!("{:>12}    {}:{file}\n", "", self.name));
        format!("{:>12}  {}{about}\n", bytes_text(self.bytes), self.name)
            + &files.collect::<String>()
    }
}
