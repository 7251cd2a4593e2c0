//! Numbers for an operator, in the text form that Prometheus reads. Names follow vLLM's, with our prefix.

mod http;

pub(crate) use http::HttpMetrics;

use crate::model::Facts;
use crate::service::lock;
use forerun_backend::MemoryPlan;
use forerun_engine::{CacheStats, MissReason, Stats, TierStats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Everything that is counted.
pub(crate) struct Metrics {
    registry: Registry,
    engine: EngineView,
    /// From the arrival of a request to its first token.
    pub(crate) first_token: Histogram,
    /// Between tokens of an answer.
    pub(crate) between_tokens: Histogram,
    /// From the arrival of a request to the end of its answer.
    pub(crate) whole: Histogram,
    /// From the arrival of a request to its first piece of work.
    pub(crate) queued: Histogram,
    /// One step of the engine.
    pub(crate) step: Histogram,
    ended: Family<Ended, Counter>,
    loads: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Ended {
    finished_reason: &'static str,
}

impl Metrics {
    /// Of the model of this name, where there are others to tell it from.
    pub(crate) fn new(model: Option<&str>) -> Self {
        // From a millisecond to a bit over a minute, and from a tenth of that to seven seconds.
        let long = || Histogram::new((0..17).map(|i| 0.001 * f64::from(1 << i)));
        let short = || Histogram::new((0..17).map(|i| 0.0001 * f64::from(1 << i)));
        let this = Self {
            registry: Registry::with_labels(model.map(label).into_iter()),
            engine: EngineView::default(),
            first_token: long(),
            between_tokens: short(),
            whole: long(),
            queued: short(),
            step: short(),
            ended: Family::default(),
            loads: Counter::default(),
        };
        this.registered()
    }

    fn registered(mut self) -> Self {
        let histograms = [
            ("time_to_first_token_seconds", "From arrival to first token", &self.first_token),
            ("inter_token_latency_seconds", "Between tokens of an answer", &self.between_tokens),
            ("e2e_request_latency_seconds", "From arrival to the answer's end", &self.whole),
            ("request_queue_time_seconds", "From arrival to the first work", &self.queued),
            ("step_seconds", "One step of the engine, drafting included", &self.step),
        ];
        for (name, help, histogram) in histograms {
            self.registry.register(format!("forerun:{name}"), help, histogram.clone());
        }
        let help = "Answers that ended, by why";
        self.registry.register("forerun:request_success", help, self.ended.clone());
        // A counter that appears with its first event hides that event from whoever takes differences.
        for finished_reason in ["stop", "length", "abort", "error"] {
            drop(self.ended.get_or_create(&Ended { finished_reason }));
        }
        let help = "Times that the model was loaded";
        self.registry.register("forerun:model_loads", help, self.loads.clone());
        self.registry.register_collector(Box::new(self.engine.clone()));
        self
    }

    /// Takes what the engine says of itself.
    pub(crate) fn note_engine(&self, stats: Stats, cache: CacheStats) {
        *lock(&self.engine.stats) = (stats, cache);
    }

    /// Takes the end of an answer.
    pub(crate) fn note_end(&self, finished_reason: &'static str) {
        self.ended.get_or_create(&Ended { finished_reason }).inc();
    }

    /// Takes what an engine was built for that begins anew.
    pub(crate) fn note_loaded(&self, facts: &Facts) {
        self.loads.inc();
        *lock(&self.engine.memory) = Some(facts.memory.clone());
    }

    /// The engine is gone, and what it held.
    pub(crate) fn note_unloaded(&self) {
        *lock(&self.engine.stats) = Default::default();
        *lock(&self.engine.memory) = None;
    }

    /// Takes tokens that came together after a wait.
    pub(crate) fn note_tokens(&self, waited: Duration, tokens: usize) {
        let each = waited.as_secs_f64() / tokens.max(1) as f64;
        (0..tokens).for_each(|_| self.between_tokens.observe(each));
    }

    /// All of it as text.
    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// The label that tells models apart.
fn label(model: &str) -> (Cow<'static, str>, Cow<'static, str>) {
    ("model_name".into(), model.to_owned().into())
}

/// The engine's own numbers, read when somebody asks.
#[derive(Clone, Debug, Default)]
struct EngineView {
    stats: Arc<Mutex<(Stats, CacheStats)>>,
    /// What its memory is for, while it is loaded.
    memory: Arc<Mutex<Option<MemoryPlan>>>,
}

impl Collector for EngineView {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (stats, cache) = lock(&self.stats).clone();
        let speculation = &stats.speculation;
        let rounds: u64 = speculation.depths.iter().skip(1).sum();
        for (name, help, count) in [
            ("prompt_tokens", "Prompt tokens read", stats.prompt_tokens),
            ("generation_tokens", "Tokens of answers", stats.generated_tokens),
            ("steps", "Steps of the engine", stats.steps),
            ("submissions", "Runs of the device", stats.submissions),
            ("devices_lost", "Times that the device was lost", stats.devices_lost),
            ("spec_decode_num_drafts", "Rounds with drafts", rounds),
            ("spec_decode_num_draft_tokens", "Draft tokens proposed", speculation.drafted),
            ("spec_decode_num_accepted_tokens", "Draft tokens accepted", speculation.accepted),
        ] {
            one(&mut encoder, name, help, &ConstCounter::new(count))?;
        }
        for (name, help, count) in [
            ("prefix_cache_queries", "Prompt tokens looked up", cache.query_tokens),
            ("prefix_cache_hits", "Prompt tokens found", cache.hit_tokens),
            ("prefix_cache_disk_hits", "Prompt tokens found on disk", cache.disk_hit_tokens),
            ("prefix_cache_published", "Entries published", cache.published),
            ("prefix_cache_failed_copies", "Copies the device failed at", cache.failed_copies),
        ] {
            one(&mut encoder, name, help, &ConstCounter::new(count))?;
        }
        for (name, help, time) in [
            ("busy_seconds", "Time of all steps", stats.busy),
            ("submission_seconds", "Time of all runs of the device", stats.submission_time),
        ] {
            one(&mut encoder, name, help, &ConstCounter::new(time.as_secs_f64()))?;
        }
        let used = stats.blocks - stats.free_blocks;
        let share = if stats.blocks == 0 { 0.0 } else { used as f64 / stats.blocks as f64 };
        for (name, help, value) in [
            ("num_requests_running", "Answers being read for or generated", stats.running as f64),
            ("num_requests_waiting", "Answers that wait for room", stats.waiting as f64),
            ("kv_cache_usage_perc", "Share of key/value blocks in use, 0 to 1", share),
            ("kv_blocks_used", "Key/value blocks in use", used as f64),
            ("kv_blocks", "All key/value blocks", stats.blocks as f64),
            ("slots_used", "Leases in use", (stats.leases - stats.free_leases) as f64),
            ("slots", "All leases", stats.leases as f64),
            ("step_rows", "Rows of the last step", stats.step_rows as f64),
            (
                "submissions_in_flight",
                "Runs that the device has not passed",
                stats.in_flight as f64,
            ),
            (
                "submissions_in_flight_max",
                "Most runs that the device had not passed at a time",
                stats.most_in_flight as f64,
            ),
        ] {
            one(&mut encoder, name, help, &ConstGauge::new(value))?;
        }
        let help =
            "Time of the longest dispatch, by estimate; 0 where the device does not bound them";
        let gauge = ConstGauge::new(stats.longest_dispatch.unwrap_or_default().as_secs_f64());
        one(&mut encoder, "longest_dispatch_seconds", help, &gauge)?;
        submission_times(&mut encoder, &stats)?;
        self.by_position(&mut encoder, &stats)?;
        tiers(&mut encoder, &cache)?;
        disk(&mut encoder, &cache)?;
        misses(&mut encoder, &cache)?;
        let loaded = u64::from(lock(&self.memory).is_some());
        one(&mut encoder, "model_loaded", "1 while the model is loaded", &ConstGauge::new(loaded))?;
        self.memory_pools(&mut encoder)
    }
}

impl EngineView {
    fn by_position(&self, encoder: &mut DescriptorEncoder<'_>, stats: &Stats) -> fmt::Result {
        let name = "forerun:spec_decode_num_accepted_tokens_per_pos";
        let help = "Draft tokens accepted, by position in the round";
        let kind = ConstCounter::new(0u64).metric_type();
        let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
        let speculation = &stats.speculation;
        for (position, &accepted) in speculation.accepted_at.iter().enumerate() {
            if speculation.drafted_at[position] > 0 {
                let labels = [("position", position.to_string())];
                ConstCounter::new(accepted).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn memory_pools(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let name = "forerun:memory_pool_bytes";
        let kind = ConstGauge::new(0u64).metric_type();
        let help = "Memory planned at load";
        let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
        for item in lock(&self.memory).iter().flat_map(|plan| &plan.items) {
            let labels = [("pool", item.label.as_str())];
            ConstGauge::new(item.bytes).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// How long runs of the device take: half of them at most, 99 of 100 at most, and the longest.
fn submission_times(encoder: &mut DescriptorEncoder<'_>, stats: &Stats) -> fmt::Result {
    let name = "forerun:submission_busy_seconds";
    let kind = ConstGauge::new(0.0).metric_type();
    let help = "Time of a run of the device, by quantile";
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (quantile, share) in [("0.5", 0.5), ("0.99", 0.99), ("1", 1.0)] {
        let time = stats.submission_times.quantile(share).as_secs_f64();
        ConstGauge::new(time).encode(metric.encode_family(&[("quantile", quantile)])?)?;
    }
    Ok(())
}

/// What each tier of the cache holds and dropped.
fn tiers(encoder: &mut DescriptorEncoder<'_>, cache: &CacheStats) -> fmt::Result {
    let memory = ("memory", &cache.memory);
    let disk = cache.disk.as_ref().map(|disk| ("disk", &disk.tier));
    let tiers = || [Some(memory), disk].into_iter().flatten();
    type Read = fn(&TierStats) -> u64;
    let gauges: [(&str, &str, Read); 4] = [
        ("prefix_cache_bytes", "Bytes held", |tier| tier.bytes),
        ("prefix_cache_limit_bytes", "Bytes that may be held", |tier| tier.limit),
        ("prefix_cache_blocks", "Blocks held", |tier| tier.blocks as u64),
        ("prefix_cache_states", "Restore points held", |tier| tier.states as u64),
    ];
    for (name, help, read) in gauges {
        let kind = ConstGauge::new(0u64).metric_type();
        let name = format!("forerun:{name}");
        let mut metric = encoder.encode_descriptor(&name, help, None, kind)?;
        for (tier, stats) in tiers() {
            ConstGauge::new(read(stats)).encode(metric.encode_family(&[("tier", tier)])?)?;
        }
    }
    let counters: [(&str, &str, Read); 2] = [
        ("prefix_cache_evictions", "Entries dropped to make room", |tier| tier.evictions),
        ("prefix_cache_refused", "Texts too long to be kept", |tier| tier.refused),
    ];
    for (name, help, read) in counters {
        let kind = ConstCounter::new(0u64).metric_type();
        let name = format!("forerun:{name}");
        let mut metric = encoder.encode_descriptor(&name, help, None, kind)?;
        for (tier, stats) in tiers() {
            ConstCounter::new(read(stats)).encode(metric.encode_family(&[("tier", tier)])?)?;
        }
    }
    Ok(())
}

/// What the folder did, where there is one.
fn disk(encoder: &mut DescriptorEncoder<'_>, cache: &CacheStats) -> fmt::Result {
    let Some(disk) = &cache.disk else { return Ok(()) };
    for (name, help, count) in [
        ("disk_cache_written_bytes", "Bytes written", disk.written_bytes),
        ("disk_cache_read_bytes", "Bytes read", disk.read_bytes),
        ("disk_cache_dropped", "Entries not written for want of time", disk.dropped),
        ("disk_cache_failed_writes", "Entries the system did not take", disk.failed_writes),
        ("disk_cache_bad_files", "Files removed because they are no entries", disk.bad_files),
    ] {
        one(encoder, name, help, &ConstCounter::new(count))?;
    }
    one(encoder, "disk_cache_queued_bytes", "Bytes that wait", &ConstGauge::new(disk.queued_bytes))
}

fn misses(encoder: &mut DescriptorEncoder<'_>, cache: &CacheStats) -> fmt::Result {
    let kind = ConstCounter::new(0u64).metric_type();
    let help = "Requests that found less than their prompt, by why";
    let mut metric = encoder.encode_descriptor("forerun:prefix_cache_misses", help, None, kind)?;
    for reason in MissReason::ALL {
        let labels = [("reason", reason.as_str())];
        ConstCounter::new(cache.misses(reason)).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

fn one(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    let name = format!("forerun:{name}");
    metric.encode(encoder.encode_descriptor(&name, help, None, metric.metric_type())?)
}
