//! Parts of reports that several tools share: memory plans and sampling parameters as JSON, sizes and rates for people.
#![forbid(unsafe_code)]

use forerun_backend::MemoryPlan;
use forerun_base::Token;
use forerun_engine::Sampling;
use serde::Serialize;
use std::time::Duration;

/// A memory plan.
#[derive(Debug, Serialize)]
pub struct MemoryReport {
    /// Of all items.
    pub total_bytes: u64,
    /// What memory is for.
    pub items: Vec<MemoryItem>,
}

/// One line of a memory plan.
#[derive(Debug, Serialize)]
pub struct MemoryItem {
    /// What it is for.
    pub label: String,
    /// Its size.
    pub bytes: u64,
}

impl From<&MemoryPlan> for MemoryReport {
    fn from(plan: &MemoryPlan) -> Self {
        let item =
            |i: &forerun_backend::PlanItem| MemoryItem { label: i.label.clone(), bytes: i.bytes };
        Self { total_bytes: plan.total(), items: plan.items.iter().map(item).collect() }
    }
}

/// Sampling parameters as they were used.
#[derive(Debug, Serialize)]
pub struct SamplingReport<'a> {
    /// 0 is greedy.
    pub temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    logit_bias: &'a [(Token, f32)],
}

impl<'a> From<&'a Sampling> for SamplingReport<'a> {
    fn from(sampling: &'a Sampling) -> Self {
        Self {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            logit_bias: &sampling.logit_bias,
        }
    }
}

/// Tokens per second; 0 when there is nothing to divide.
pub fn rate(tokens: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if tokens == 0 || seconds <= 0.0 { 0.0 } else { tokens as f64 / seconds }
}

/// Bytes for people.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// Counts of parameters for people.
pub fn count_text(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..1_000_000 => format!("{:.1} K", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", count as f64 / 1e6),
        _ => format!("{:.2} B", count as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!(bytes_text(512), "512 B");
        assert_eq!(bytes_text(1536), "1.5 KiB");
        assert_eq!(bytes_text(3 << 30), "3.0 GiB");
        assert_eq!(count_text(28_200_000), "28.2 M");
        assert_eq!(count_text(35_000_000_000), "35.00 B");
    }
}
