//! `forerun inspect`: what a model is made of, from headers and configuration alone.

mod inventory;
mod page;
mod part;
mod report;

use crate::args::InspectArgs;
use crate::exit::Outcome;
use crate::load::Source;
use crate::{sizing, terminal};
use forerun_engine::{ModelRunner, Settings};
use inventory::Inventory;
use report::Report;

pub(crate) fn inspect(args: &InspectArgs) -> anyhow::Result<Outcome> {
    let source = Source::open(&args.model, &args.model_options)?;
    let inventory = Inventory::take(&source.blueprint.checkpoint)?;
    let sizes = sizing::for_answers(&args.engine, &args.speculation, &source.blueprint.spec);
    let settings = Settings { sequences: args.batch, ..sizes };
    let memory = ModelRunner::memory_plan(&source.blueprint.spec, &settings)?;
    let report = Report::new(&source, &inventory, &settings, &memory)?;
    if args.json {
        terminal::show_json(&report)?;
    } else {
        terminal::show(&page::page(&report))?;
    }
    Ok(Outcome::Done)
}
