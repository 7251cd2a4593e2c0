//! `forerun inspect`: what a model is made of, from headers and configuration alone.

mod inventory;
mod page;
mod part;
mod report;

use crate::args::InspectArgs;
use crate::exit::Outcome;
use crate::load::ModelSource;
use crate::{bundled, sizing, terminal};
use forerun::{DeviceName, Error};
use forerun_engine::{ModelRunner, Settings};
use inventory::Inventory;
use report::{Headroom, InspectReport, Plan};

pub(crate) fn inspect(args: &InspectArgs) -> anyhow::Result<Outcome> {
    let source = ModelSource::open(
        &args.model.clone().map_or_else(bundled::find, Ok)?,
        &args.model_options,
    )?;
    let inventory = Inventory::take(&source.blueprint.checkpoint)?;
    let sizes = sizing::for_answers(&args.engine, &args.speculation, &source.blueprint.spec);
    let settings = fitted(args, &source, Settings { sequences: args.batch, ..sizes })?;
    let memory = ModelRunner::memory_plan(&source.blueprint.spec, &settings)?;
    let room = Headroom::take(args, &source, &settings)?;
    let report = InspectReport::new(&source, &inventory, Plan { settings, memory, room })?;
    if args.json {
        terminal::show_json(&report)?;
    } else {
        terminal::show(&page::page(&report))?;
    }
    Ok(Outcome::Done)
}

/// The settings that `run` would take: a context that was not typed is shortened to what fits. One that does not fit is
/// shown all the same.
fn fitted(
    args: &InspectArgs,
    source: &ModelSource,
    settings: Settings,
) -> anyhow::Result<Settings> {
    let Some(free) = args.engine.room(DeviceName::Cpu) else { return Ok(settings) };
    match source.fit(settings, args.engine.ctx.is_some(), free) {
        Err(Error::Memory { .. }) => Ok(settings),
        fitted => Ok(fitted?),
    }
}
