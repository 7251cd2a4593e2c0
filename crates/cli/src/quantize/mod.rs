//! `forerun quantize`: any readable checkpoint to a smaller one in MLX's layout.
//!
//! What the new checkpoint consists of is a [`plan`], how precise each part becomes a [`policy`];
//! both are settled before anything is written. Then `layout` cuts them into files and `write`
//! fills one after another, in a `folder` that remembers how far it came.

mod check;
mod files;
mod folder;
mod keep;
mod layout;
mod plan;
mod policy;
mod report;
mod text;
mod write;

pub(crate) use keep::Keep;

use crate::args::{DeviceArgs, ModelArgs, QuantizeArgs};
use crate::exit::Outcome;
use crate::interrupt::Answering;
use crate::load::Source;
use crate::terminal;
use check::Check;
use folder::{Folder, Identity};
use forerun_devices::DeviceName;
use layout::Shard;
use report::Report;
use std::num::NonZero;
use std::time::Instant;
use write::End;

const BAR: &str =
    "quantising {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";

pub(crate) fn quantize(args: &QuantizeArgs) -> anyhow::Result<Outcome> {
    let started = Instant::now();
    let base = policy::base(args)?;
    let source = Source::open(&args.source, &ModelArgs::default())?;
    let checkpoint = &source.blueprint.checkpoint;
    // Threads are also those of encoding; a GPU has none.
    let threads = args.threads.filter(|_| args.device == DeviceName::Cpu);
    let device = DeviceArgs { device: args.device, threads, ..DeviceArgs::default() };
    let check = args.check.as_deref().map(|path| Check::prepare(path, &source, device));
    let check = check.transpose()?;
    let plan = plan::plan(checkpoint, &source.blueprint.storage())?;
    let choices = policy::choose(&plan, base, &args.keep)?;
    let shards = layout::shards(checkpoint, &plan, &choices, args.shard_bytes as u64)?;
    let (text, no_tokenizer) = text::prepare(checkpoint);
    let keeps: Vec<String> = args.keep.iter().map(Keep::to_string).collect();
    let settings = format!("{base}; files of {}; keep {keeps:?}", args.shard_bytes);
    let identity = Identity::new(checkpoint, &shards, settings);
    let folder = Folder::prepare(&args.target, checkpoint, &identity, args.force)?;
    report::opening(&plan, &shards, &folder).iter().for_each(|line| terminal::note(line));
    let Some(resumed_files) = write_all(args, &source, &folder, &shards)? else {
        terminal::note("interrupted; give the same command again to go on");
        return Ok(Outcome::Cancelled);
    };
    let ([trunk, head], quantization) =
        (report::parameters(&plan), files::quantization(&plan, &choices, base));
    let parameters = trunk.saturating_add(head);
    text.write(&folder.path)?;
    if shards.iter().any(Shard::is_sidecar) {
        files::write_manifest(&folder.path)?;
    }
    files::write_index(&folder.path, &shards, trunk)?;
    files::write_config(&folder.path, checkpoint, &quantization)?;
    folder.finish()?;
    let (kept, unquantized) = report::exceptions(&plan, &choices, base);
    let bytes_after: u64 = shards.iter().map(|shard| shard.bytes).sum();
    let report = Report {
        source: source.path.clone(),
        target: args.target.display().to_string(),
        quantization,
        bytes_before: checkpoint.total_bytes(),
        bytes_after,
        parameters,
        bits_per_weight: bytes_after as f64 * 8.0 / parameters.max(1) as f64,
        files: shards.len(),
        resumed_files,
        kept,
        unquantized,
        repacked: plan.repacked,
        dropped: plan.dropped,
        no_tokenizer,
        check: check.map(|check| check.compare(&source, &folder.path)).transpose()?,
        seconds: started.elapsed().as_secs_f64(),
    };
    if args.json {
        terminal::show_json(&report)?;
    } else {
        terminal::show(&report::page(&report))?;
    }
    Ok(Outcome::Done)
}

/// Writes the files that are not there yet; how many were, or `None` after Ctrl-C.
fn write_all(
    args: &QuantizeArgs,
    source: &Source,
    folder: &Folder,
    shards: &[Shard<'_>],
) -> anyhow::Result<Option<usize>> {
    // While this lives, Ctrl-C is answered between two pieces.
    let _answering = Answering::begin();
    let threads = args
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, NonZero::get));
    let bar = terminal::bar(shards.iter().map(|shard| shard.bytes).sum(), BAR);
    let mut there = 0;
    for shard in shards {
        if folder.resumes && write::is_written(&folder.path, shard) {
            there += 1;
            bar.inc(shard.bytes);
            continue;
        }
        let mut progress = |bytes| bar.inc(bytes);
        let end = write::write(
            &source.blueprint.checkpoint,
            &folder.path,
            shard,
            threads,
            &mut progress,
        )?;
        if end == End::Interrupted {
            bar.finish_and_clear();
            return Ok(None);
        }
    }
    bar.finish_and_clear();
    Ok(Some(there))
}
