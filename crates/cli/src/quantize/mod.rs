//! `forerun quantize`: any readable checkpoint to a smaller one in MLX's layout. Ctrl-C is answered between two pieces;
//! the same command goes on from there.

mod check;

use crate::args::{DeviceArgs, ModelArgs, QuantizeArgs};
use crate::exit::Outcome;
use crate::interrupt::{self, Answering};
use crate::load::ModelSource;
use crate::terminal;
use check::Check;
use forerun_devices::DeviceName;
use forerun_quantize::{QuantizeOptions, QuantizeReport, Quantizer, WriteControl};
use std::time::Instant;

const BAR: &str =
    "quantising {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";

pub(crate) fn quantize(args: &QuantizeArgs) -> anyhow::Result<Outcome> {
    let started = Instant::now();
    let options = options(args)?;
    let source = ModelSource::open(&args.source, &ModelArgs::default())?;
    // Threads are also those of encoding; a GPU has none.
    let threads = args.threads.filter(|_| args.device == DeviceName::Cpu);
    let device = DeviceArgs { device: args.device, threads, ..DeviceArgs::default() };
    let check = args.check.as_deref().map(|path| Check::prepare(path, &source, device));
    let check = check.transpose()?;
    let quantizer = Quantizer::prepare(&source.blueprint, &args.target, &options)?;
    quantizer.remarks().iter().for_each(|line| terminal::note(line));
    let Some(mut report) = write(quantizer)? else {
        terminal::note("interrupted; give the same command again to go on");
        return Ok(Outcome::Cancelled);
    };
    report.source.clone_from(&source.path);
    report.check = check.map(|check| check.compare(&source, &args.target)).transpose()?;
    report.seconds = started.elapsed().as_secs_f64();
    if args.json {
        terminal::show_json(&report)?;
    } else {
        terminal::show(&report.page())?;
    }
    Ok(Outcome::Done)
}

fn options(args: &QuantizeArgs) -> anyhow::Result<QuantizeOptions> {
    let defaults = QuantizeOptions::new(args.scheme()?);
    Ok(QuantizeOptions {
        keep: args.keep.clone(),
        shard_bytes: args.shard_bytes,
        threads: args.threads.unwrap_or(defaults.threads),
        force: args.force,
        ..defaults
    })
}

/// Writes with a bar; `None` after Ctrl-C.
fn write(quantizer: Quantizer<'_>) -> anyhow::Result<Option<QuantizeReport>> {
    // While this lives, Ctrl-C is answered between two pieces.
    let _answering = Answering::begin();
    let bar = terminal::bar(quantizer.bytes(), BAR);
    let mut progress = |bytes| bar.inc(bytes);
    let report = quantizer
        .write(&mut WriteControl { progress: &mut progress, cancelled: &interrupt::is_cancelled });
    bar.finish_and_clear();
    Ok(report?)
}
