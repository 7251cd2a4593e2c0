//! `forerun doctor`: what this machine has, whether its devices compute correctly, and how fast they are.

use crate::args::DoctorArgs;
use crate::exit::Outcome;
use crate::{bundled, hub_model, terminal};
use anyhow::bail;
use forerun_doctor::{DoctorOptions, DoctorProgress, DoctorReport, examine};
use std::path::PathBuf;
use std::time::Duration;

const BAR: &str = "examining {bar:24} {pos}/{len} {msg} {elapsed}";

pub(crate) fn doctor(args: &DoctorArgs) -> anyhow::Result<Outcome> {
    let DoctorArgs { device, threads, quick, .. } = *args;
    let options = DoctorOptions { device, threads, quick, model: model(args)? };
    let bar = terminal::bar(0, BAR);
    bar.enable_steady_tick(Duration::from_millis(250));
    let report = examine(&options, &mut |DoctorProgress { done, total, doing }| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(doing.to_owned());
    })?;
    bar.finish_and_clear();
    if args.json {
        terminal::show_json(&report)?;
    } else {
        terminal::show(&report.page())?;
    }
    conclude(&report)
}

/// The model of the small run: without a bundled one the rest is still worth knowing.
fn model(args: &DoctorArgs) -> anyhow::Result<Option<PathBuf>> {
    match &args.model {
        Some(path) => {
            let found = hub_model::locate(path)?;
            if !found.exists() {
                bail!("--model {}: no such file or folder", path.display());
            }
            Ok(Some(found))
        }
        None => {
            Ok(bundled::find().map_err(|_| terminal::note("no bundled model: no small run")).ok())
        }
    }
}

/// What fails is an error, so that scripts see it.
fn conclude(report: &DoctorReport) -> anyhow::Result<Outcome> {
    if let Some(device) = report.examined.iter().find(|device| !device.is_healthy()) {
        match (device.conformance.failed, device.problems.first()) {
            (0, Some(problem)) => bail!("{}: {problem}", device.name),
            (failed, _) => {
                let checks = device.conformance.checks;
                bail!("{}: {failed} of {checks} conformance checks failed", device.name)
            }
        }
    }
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_devices::DeviceName;

    #[test]
    fn a_failed_check_of_any_device_is_an_error() {
        let device = Some(DeviceName::Cpu);
        let options = DoctorOptions { device, quick: true, ..DoctorOptions::default() };
        let mut report = examine(&options, &mut |_| {}).unwrap();
        assert_eq!(conclude(&report).ok(), Some(Outcome::Done));
        report.examined[0].conformance.failed = 2;
        let error = conclude(&report).unwrap_err().to_string();
        assert!(error.starts_with("cpu: 2 of ") && error.ends_with("checks failed"), "{error}");
    }
}
