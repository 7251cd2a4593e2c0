//! `forerun pull`: a model from the hub into the cache.

mod bar;
mod report;

use crate::args::PullArgs;
use crate::exit::Outcome;
use crate::hub_model::{explained, settings};
use crate::interrupt::Answering;
use crate::mtp_state::MtpState;
use crate::report::bytes_text;
use crate::{fetch, terminal};
use anyhow::bail;
pub(crate) use bar::Bar;
use forerun_hub::{DownloadPlan, DownloadRequest, Hub, HubError, HubSettings, RepoId, RepoPart};
use forerun_model::ModelError;
use forerun_weights::Checkpoint;
use report::{MtpReport, PullReport};

pub(crate) fn pull(args: &PullArgs) -> anyhow::Result<Outcome> {
    if args.mtp_only && args.model.file.is_some() {
        bail!("--mtp-only takes a whole repository, OWNER/NAME without :FILE");
    }
    let _answering = Answering::begin();
    match pull_model(args) {
        Err(error) if matches!(error.downcast_ref(), Some(HubError::Stopped)) => {
            terminal::note("stopped; what was fetched is kept, run the command again to go on");
            Ok(Outcome::Cancelled)
        }
        Err(error) => Err(error),
        Ok(()) => Ok(Outcome::Done),
    }
}

fn pull_model(args: &PullArgs) -> anyhow::Result<()> {
    let settings = settings()?;
    let offline = settings.offline || args.offline;
    if let (true, Some(original)) = (offline, &args.mtp_from) {
        bail!("--mtp-from {original} needs the network, and HF_HUB_OFFLINE is set");
    }
    let hub = Hub::new(HubSettings { offline, ..settings })?;
    let part = if args.mtp_only { RepoPart::MtpOnly } else { RepoPart::Model };
    let ask = DownloadRequest { model: args.model.clone(), revision: args.revision.clone(), part };
    let plan = hub.plan(&ask, &mut Bar::hidden()).map_err(explained)?;
    if args.dry_run {
        return show(args, &plan, 0, None);
    }
    let mut downloaded = fetch::download(&hub, &plan)?;
    let mut opened = (!args.mtp_only).then(|| forerun_model::open(&plan.path()));
    if let (Some(original), Some(Ok(checkpoint))) = (&args.mtp_from, &opened) {
        downloaded += add_head(&hub, &plan, checkpoint, original)?;
        opened = Some(forerun_model::open(&plan.path()));
    } else if let (Some(_), Some(Err(why))) = (&args.mtp_from, &opened) {
        bail!("no MTP head is added, because the model cannot be opened: {why}");
    }
    show(args, &plan, downloaded, opened.as_ref())
}

/// Adds the head of the original to a model without one; gives the bytes that came.
fn add_head(
    hub: &Hub,
    plan: &DownloadPlan,
    checkpoint: &Checkpoint,
    original: &RepoId,
) -> anyhow::Result<u64> {
    if let MtpState::Present { file } = MtpState::of(checkpoint) {
        let file = file.display();
        terminal::aside(&format!("the model has an MTP head already, in {file}; nothing is added"));
        return Ok(0);
    }
    let mut bar = Bar::endless();
    let grafted = hub.graft_mtp(plan, original, &mut bar);
    bar.clear();
    let grafted = grafted?;
    let (tensors, size) = (grafted.tensors, bytes_text(grafted.bytes));
    terminal::aside(&format!("added the MTP head of {original}: {tensors} tensors, {size}"));
    Ok(grafted.bytes)
}

/// Says what there is now; stdout holds the path alone, for scripts.
fn show(
    args: &PullArgs,
    plan: &DownloadPlan,
    downloaded: u64,
    opened: Option<&Result<Checkpoint, ModelError>>,
) -> anyhow::Result<()> {
    let mtp = opened.map(|opened| MtpReport::new(opened, plan));
    if args.json {
        return terminal::show_json(&PullReport::new(plan, downloaded, mtp));
    }
    if args.dry_run {
        return Ok(terminal::show(&report::page(plan))?);
    }
    match &mtp {
        Some(mtp) => terminal::aside(&mtp.remark(&plan.repo)),
        None => terminal::aside(&format!(
            "only the files that hold the MTP head; not a whole model. A copy without one runs with\n  \
             forerun run … --drafter {}",
            plan.repo
        )),
    }
    Ok(terminal::show(&format!("{}\n", plan.path().display()))?)
}
