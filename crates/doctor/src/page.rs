//! The report as plain text, to be read by people and pasted into a bug report.

use crate::{ConformanceReport, DeviceReport, DoctorReport, Host, RateReport, SmallRunReport};
use forerun_devices::{DeviceEntry, DeviceState, Processor};
use std::fmt::Write;

impl DoctorReport {
    /// The whole report as plain text.
    pub fn page(&self) -> String {
        let short = if self.quick { ", short examination" } else { "" };
        let mut page = format!("forerun {} doctor{short}\n\nmachine\n", self.version);
        page += &host(&self.host);
        page += "\ndevices\n";
        self.devices.iter().for_each(|entry| page += &device_entry(entry));
        self.examined.iter().for_each(|report| page += &device_report(report));
        page + &conclusion(self)
    }
}

/// A label and its value.
fn field(label: &str, value: &str) -> String {
    format!("  {label:<14}{value}\n")
}

fn size(bytes: Option<u64>) -> String {
    const GIB: f64 = (1u64 << 30) as f64;
    bytes.map_or_else(|| "unknown".to_owned(), |bytes| format!("{:.1} GiB", bytes as f64 / GIB))
}

fn host(host: &Host) -> String {
    let Host { system, release, memory, container, graphics, nvidia_driver } = host;
    let mut text = field("system", &format!("{system} {}", release.as_deref().unwrap_or_default()));
    let sizes = (size(memory.total_bytes), size(memory.available_bytes));
    text += &field("memory", &format!("{}, {} available", sizes.0, sizes.1));
    let mut limits = Vec::new();
    if container.memory_bytes.is_some() {
        limits.push(format!("{} of memory", size(container.memory_bytes)));
    }
    limits.extend(container.cpus.map(|cpus| format!("{cpus:.1} processors")));
    let limits = if limits.is_empty() { "no limit".to_owned() } else { limits.join(", ") };
    text += &field("container", &limits);
    for adapter in graphics {
        let driver = adapter.driver.as_deref().unwrap_or("no kernel driver");
        text += &field("graphics", &format!("{} {} ({driver})", adapter.vendor, adapter.id));
    }
    if graphics.is_empty() {
        text += &field("graphics", "none on the bus");
    }
    if let Some(version) = nvidia_driver {
        text += &field("nvidia driver", version);
    }
    text
}

fn device_entry(entry: &DeviceEntry) -> String {
    match &entry.state {
        DeviceState::Processor(processor) => processor_text(&entry.name, processor),
        DeviceState::Gpu { description, arithmetic, free_bytes } => {
            let free = free_bytes.map(|bytes| format!(", {} free", size(Some(bytes))));
            let free = free.unwrap_or_default();
            field(&entry.name, &format!("found: {description}{free}")) + &field("", arithmetic)
        }
        DeviceState::Software { description } => {
            field(&entry.name, &format!("found: {description}"))
                + &field("", &format!("slow; only --device {} uses it", entry.name))
        }
        DeviceState::Unavailable { why } => field(&entry.name, &format!("not usable: {why}")),
    }
}

fn processor_text(name: &str, processor: &Processor) -> String {
    let Processor { model, architecture, device, kernels, features, missing, .. } = processor;
    let model = model.as_deref().unwrap_or("unknown processor");
    let physical = processor.physical_cores.map(|n| format!(" ({n} physical on the machine)"));
    let governor = processor.governor.as_ref().map(|governor| format!(", governor {governor}"));
    field(name, &format!("found: {device}"))
        + &field("", &format!("{model}, {architecture}"))
        + &field(
            "",
            &format!(
                "{} logical cores usable{}{}",
                processor.logical_cores,
                physical.unwrap_or_default(),
                governor.unwrap_or_default()
            ),
        )
        + &field("", &format!("kernels: {}", kernels.join(", ")))
        + &field("", &format!("has: {}", features.join(" ")))
        + &field("", &format!("lacks: {}", missing.join(" ")))
}

fn device_report(report: &DeviceReport) -> String {
    let DeviceReport { name, description, conformance, rates, small_run, problems } = report;
    let mut text = format!("\n{name}: {description}\n");
    text += &conformance_text(conformance);
    text += &rates_text(rates);
    if let Some(run) = small_run {
        text += &run_text(run);
    }
    problems.iter().for_each(|problem| text += &format!("  PROBLEM: {problem}\n"));
    text
}

fn conformance_text(report: &ConformanceReport) -> String {
    let ConformanceReport { checks, failed, operations, failures } = report;
    let mut text = format!("  conformance: {failed} of {checks} checks failed\n");
    text += &format!(
        "    {:<18}{:>6}{:>8}{:>13}{:>10}\n",
        "operation", "cases", "failed", "worst error", "allowed"
    );
    for operation in operations {
        let worst = operation.worst_error.map_or("not a number".to_owned(), |e| format!("{e:.1e}"));
        let _ = writeln!(
            text,
            "    {:<18}{:>6}{:>8}{worst:>13}{:>10}",
            operation.operation,
            operation.cases,
            operation.failed,
            format!("{:.0e}", operation.allowed_error)
        );
    }
    failures.iter().for_each(|failure| text += &format!("    FAILED {failure}\n"));
    if *failed > failures.len() {
        text += &format!("    and {} more\n", failed - failures.len());
    }
    text
}

fn rates_text(rates: &RateReport) -> String {
    let mut text = String::new();
    if let Some(bandwidth) = &rates.bandwidth {
        let read = bandwidth.read_gb_per_s.map(|rate| format!("read {rate:.1} GB/s, "));
        let peak =
            bandwidth.peak_f32_gflop_per_s.map(|rate| format!("; f32 peak {rate:.0} GFLOP/s"));
        text += &format!(
            "  bandwidth: {}copy {:.1} GB/s{}\n",
            read.unwrap_or_default(),
            bandwidth.copy_gb_per_s,
            peak.unwrap_or_default()
        );
    }
    if let Some(first) = rates.products.first() {
        let ([n, k], rows) = (first.shape, first.gemm_rows);
        text += &format!("  products with weights of {n} x {k}; GEMV of 1 row, GEMM of {rows}\n");
        text += &format!(
            "    {:<11}{:>9}{:>8}{:>10}{:>16}\n",
            "weights", "GEMV us", "GB/s", "GFLOP/s", "GEMM GFLOP/s"
        );
    }
    for rate in &rates.products {
        let _ = writeln!(
            text,
            "    {:<11}{:>9.1}{:>8.1}{:>10.1}{:>16.1}",
            rate.format,
            rate.gemv_us,
            rate.gemv_gb_per_s,
            rate.gemv_gflop_per_s,
            rate.gemm_gflop_per_s
        );
    }
    text
}

fn run_text(run: &SmallRunReport) -> String {
    let answered = format!(
        "  small run: prompt {} tok at {:.0} tok/s, answer {} tok at {:.1} tok/s\n",
        run.prompt_tokens, run.prompt_tokens_per_s, run.answer_tokens, run.decode_tokens_per_s
    );
    let dispatch = run.longest_dispatch_ms;
    let dispatch = dispatch.map(|ms| format!("; longest dispatch {ms:.2} ms by estimate"));
    let submitted = format!(
        "  submissions: {}, longest {:.2} ms, mean {:.2} ms{}\n",
        run.submissions,
        run.longest_submission_ms,
        run.mean_submission_ms,
        dispatch.unwrap_or_default()
    );
    answered + &submitted
}

fn conclusion(report: &DoctorReport) -> String {
    let names = |healthy: bool| -> Vec<&str> {
        let of = report.examined.iter().filter(|device| device.is_healthy() == healthy);
        of.map(|device| device.name.as_str()).collect()
    };
    let (well, ill) = (names(true), names(false));
    let verdict = match (well.is_empty(), ill.is_empty()) {
        (_, true) => format!("healthy: {}", well.join(", ")),
        (true, false) => format!("NOT HEALTHY: {}", ill.join(", ")),
        (false, false) => format!("healthy: {}; NOT HEALTHY: {}", well.join(", "), ill.join(", ")),
    };
    format!("\n{verdict} ({:.1} s)\n", report.seconds)
}

#[cfg(test)]
mod tests {
    use crate::{DoctorOptions, examine};
    use forerun_devices::DeviceName;

    #[test]
    fn the_page_shows_what_was_found_and_what_failed() {
        let options = DoctorOptions {
            device: Some(DeviceName::Cpu),
            threads: Some(1),
            quick: true,
            model: None,
        };
        let mut last = (0, 0);
        let mut report = examine(&options, &mut |progress| {
            last = (progress.done + 1, progress.total);
        })
        .unwrap();
        assert_eq!(last.0, last.1, "the progress ends where it said it would");
        let page = report.page();
        for words in [
            "machine\n",
            "kernels: ",
            "cuda",
            "conformance: 0 of ",
            "rms_norm",
            "GEMM",
            "q4_k",
            "bandwidth: read ",
            "healthy: cpu (",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(!page.contains("NOT HEALTHY") && !page.contains("small run"), "{page}");
        let device = &mut report.examined[0];
        device.conformance.failed = 3;
        device.conformance.failures = vec!["linear: q4 [reference]: off".to_owned()];
        let page = report.page();
        for words in
            ["3 of ", "FAILED linear: q4 [reference]: off", "and 2 more", "NOT HEALTHY: cpu"]
        {
            assert!(page.contains(words), "{words}: {page}");
        }
    }
}
