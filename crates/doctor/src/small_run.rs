//! A short generation, for the longest submission that a device is handed.

use forerun_base::Token;
use forerun_devices::DeviceOptions;
use forerun_engine::{Engine, Event, FinishReason, ModelRunner, Request, Settings, Speculation};
use forerun_model::{Blueprint, Model};
use forerun_report::rate;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// What the run came to.
#[derive(Debug, Serialize)]
pub struct SmallRunReport {
    /// The folder or file as it was given.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// Of reading the prompt, the first token included.
    pub prompt_tokens_per_s: f64,
    /// From the first token on.
    pub decode_tokens_per_s: f64,
    /// What the device was handed, in all.
    pub submissions: u64,
    /// Time the device was busy with one, at most.
    pub longest_submission_ms: f64,
    /// And on average.
    pub mean_submission_ms: f64,
    /// Time of the longest dispatch, by estimate; null where the device does not bound them.
    pub longest_dispatch_ms: Option<f64>,
}

/// Why there was no run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SmallRunError {
    #[error(transparent)]
    Device(#[from] forerun_devices::DeviceError),
    #[error(transparent)]
    Model(#[from] forerun_model::ModelError),
    #[error(transparent)]
    Engine(#[from] forerun_engine::EngineError),
    #[error(transparent)]
    Reject(#[from] forerun_engine::RejectError),
    #[error("the device failed: {0}")]
    Failed(String),
    #[error("the model answered nothing")]
    NoAnswer,
}

/// Reads a prompt of arbitrary tokens and answers greedily, with the drafts that `run` makes.
pub(crate) fn run(
    path: &Path,
    device: &DeviceOptions,
    quick: bool,
) -> Result<SmallRunReport, SmallRunError> {
    let (prompt_tokens, answer_tokens) = if quick { (64, 16) } else { (512, 64) };
    let blueprint = Blueprint::open(path)?;
    let most = blueprint.spec.max_positions;
    let prompt_tokens = prompt_tokens.min(most.saturating_sub(answer_tokens)).max(1);
    let settings = Settings {
        context: prompt_tokens + answer_tokens,
        speculation: Speculation { text: true, ..Speculation::mtp(MAX_DRAFTS) },
        ..Settings::default()
    };
    // What makes no engine is refused before weights are read.
    settings.limits(&blueprint.spec)?;
    let mut backend = forerun_devices::open(device)?.backend;
    let model = Model::load(&blueprint, &mut *backend, &mut |_| {})?;
    let mut engine = Engine::new(ModelRunner::new(backend, model, &settings)?);
    let prompt = spread_out(prompt_tokens, blueprint.spec.vocabulary);
    let started = Instant::now();
    engine.submit(Request::greedy(prompt, answer_tokens))?;
    let (first, end, tokens) = finish(&mut engine)?;
    let stats = engine.stats();
    Ok(SmallRunReport {
        model: path.display().to_string(),
        prompt_tokens,
        answer_tokens: tokens,
        prompt_tokens_per_s: rate(prompt_tokens, first.duration_since(started)),
        decode_tokens_per_s: rate(tokens.saturating_sub(1), end.duration_since(first)),
        submissions: stats.submissions,
        longest_submission_ms: stats.submission_times.longest().as_secs_f64() * 1e3,
        mean_submission_ms: stats.submission_time.as_secs_f64() * 1e3
            / stats.submissions.max(1) as f64,
        longest_dispatch_ms: stats.longest_dispatch.map(|time| time.as_secs_f64() * 1e3),
    })
}

/// Drafts of a round at most.
const MAX_DRAFTS: usize = 8;

/// Runs to the end; when the first token and the last came, and how many.
fn finish(engine: &mut Engine<ModelRunner>) -> Result<(Instant, Instant, usize), SmallRunError> {
    let (mut first, mut tokens, mut events) = (None, 0, Vec::new());
    while !engine.is_idle() {
        engine.step(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Token { .. } => {
                    first.get_or_insert_with(Instant::now);
                    tokens += 1;
                }
                Event::Finished { reason: FinishReason::Failed(why), .. } => {
                    return Err(SmallRunError::Failed(why.to_string()));
                }
                _ => {}
            }
        }
    }
    first.map(|first| (first, Instant::now(), tokens)).ok_or(SmallRunError::NoAnswer)
}

/// Token ids over the whole vocabulary, the same each time.
fn spread_out(count: usize, vocabulary: usize) -> Vec<Token> {
    // The golden ratio of 2^32: a Weyl sequence, which spreads evenly.
    let id = |i: usize| (((i as u64 * 0x9e37_79b9) & 0xffff_ffff) * vocabulary as u64) >> 32;
    (1..=count).map(|i| id(i) as Token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_testkit::Golden;

    #[test]
    fn a_small_run_counts_its_submissions_and_times_the_longest() {
        let device = DeviceOptions { threads: Some(1), ..DeviceOptions::default() };
        let report = run(Golden::open("qwen3_5").checkpoint(), &device, true).unwrap();
        assert_eq!((report.prompt_tokens, report.answer_tokens), (64, 16));
        assert!(report.submissions >= 2, "{report:?}");
        assert!(report.longest_submission_ms > 0.0, "{report:?}");
        assert!(report.longest_submission_ms >= report.mean_submission_ms, "{report:?}");
        let missing = run(Path::new("no/such/model"), &device, true).unwrap_err().to_string();
        assert!(missing.contains("no/such/model"), "{missing}");
    }

    #[test]
    fn the_prompt_stays_in_the_vocabulary() {
        for vocabulary in [1, 2, 400, 250_000] {
            assert!(spread_out(600, vocabulary).iter().all(|&id| (id as usize) < vocabulary));
        }
    }
}
