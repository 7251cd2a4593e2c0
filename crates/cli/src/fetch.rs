//! Fetching a model that a command was given by name and that is not here yet.

use crate::exit::Outcome;
use crate::hub_model::{MAIN, absent, explained, in_cache, name_of, settings};
use crate::interrupt::Answering;
use crate::pull::Bar;
use crate::report::bytes_text;
use crate::terminal;
use forerun_hub::{DownloadPlan, DownloadRequest, Hub, HubError, RepoPart};
use std::io::{self, BufRead, IsTerminal};
use std::path::Path;

/// Whether the command can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// It is a path, or a model that is in the cache now.
    Here,
    /// By Ctrl-C, or by the person who was asked.
    Stopped(Outcome),
}

/// Sees to it that a model is here: one that is given by name and not in the cache is fetched, unless `offline`.
/// Somebody at a terminal is asked first.
pub(crate) fn ensure(given: &Path, offline: bool) -> anyhow::Result<Fetched> {
    let Some(model) = name_of(given) else { return Ok(Fetched::Here) };
    if model.to_string() != given.to_string_lossy() {
        terminal::aside(&format!("{} is {model}", given.display()));
    }
    let (cache, why) = match in_cache(&model, RepoPart::Model) {
        Ok(_) => return Ok(Fetched::Here),
        Err(HubError::NotCached { cache, why, .. }) => (cache, why),
        Err(error) => return Err(explained(error)),
    };
    let settings = settings()?;
    if offline || settings.offline {
        return Err(absent(&model, &cache, &why));
    }
    let hub = Hub::new(settings)?;
    let ask = DownloadRequest { model, revision: MAIN.into(), part: RepoPart::Model };
    let _answering = Answering::begin();
    let fetched = plan_and_fetch(&hub, &ask);
    match fetched {
        Err(error) if matches!(error.downcast_ref(), Some(HubError::Stopped)) => {
            terminal::note("stopped; what was fetched is kept, run the command again to go on");
            Ok(Fetched::Stopped(Outcome::Cancelled))
        }
        fetched => fetched,
    }
}

fn plan_and_fetch(hub: &Hub, ask: &DownloadRequest) -> anyhow::Result<Fetched> {
    let plan = hub.plan(ask, &mut Bar::hidden()).map_err(explained)?;
    if io::stdin().is_terminal() && io::stderr().is_terminal() {
        let question = format!(
            "{} is not here; fetch it ({})? [Y/n]",
            ask.model,
            bytes_text(plan.missing_bytes())
        );
        if !agreed(&question)? {
            return Ok(Fetched::Stopped(Outcome::Done));
        }
    }
    download(hub, &plan)?;
    Ok(Fetched::Here)
}

/// Fetches what a plan lacks, with a bar; gives the bytes that came.
pub(crate) fn download(hub: &Hub, plan: &DownloadPlan) -> Result<u64, HubError> {
    let missing = plan.files.iter().filter(|file| !file.cached).count();
    if missing > 0 {
        let size = bytes_text(plan.missing_bytes());
        let files = if missing == 1 { "file" } else { "files" };
        terminal::aside(&format!("{}: fetching {missing} {files}, {size}", plan.repo));
    }
    let mut bar = Bar::of(plan.bytes());
    let fetched = hub.fetch(plan, &mut bar);
    bar.clear();
    Ok(fetched?.bytes)
}

/// Whether somebody at the terminal says yes, which an empty line is.
pub(crate) fn agreed(question: &str) -> io::Result<bool> {
    terminal::note(question);
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line)?;
    let answer = line.trim().to_lowercase();
    Ok(read > 0 && (answer.is_empty() || answer == "y" || answer == "yes"))
}
