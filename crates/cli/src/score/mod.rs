//! `forerun score`: how likely a model finds a text.

mod logits_file;

use crate::args::ScoreArgs;
use crate::exit::{Outcome, usage};
use crate::load::{Loaded, ModelSource, with_option};
use crate::report::MemoryReport;
use crate::{given, ids, sizing, stats, stdin, terminal};
use anyhow::{Context, bail};
use forerun_base::Token;
use forerun_engine::check_tokens;
use logits_file::LogitsFile;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) fn score(args: &ScoreArgs) -> anyhow::Result<Outcome> {
    let elsewhere = args.text.is_some() || args.file.is_some() || args.ids.is_some();
    let (first, second) = (args.first.as_deref(), args.second.as_deref());
    let (model, text) = given::model_and_text(first, second, elsewhere).map_err(usage)?;
    let source = ModelSource::open(&model, &args.model_options)?;
    let tokens = tokens(args, text, &source)?;
    let settings = sizing::for_text(&args.engine, &source.blueprint.spec, tokens.len())?;
    if let Some(free) = args.engine.room(args.device.device) {
        source.check_fits(&settings, free).map_err(with_option)?;
    }
    let mut loaded = source.load(&settings, args.device)?;
    let scores = TimedScores::compute(&source, &mut loaded, &tokens, args.logits.as_deref())?;
    if args.json {
        terminal::show_json(&scores.report(&source, &mut loaded, &tokens))?;
    } else {
        if args.tokens {
            terminal::show(&scores.listing(&source, &tokens))?;
        }
        terminal::show(&scores.summary(&tokens))?;
    }
    Ok(Outcome::Done)
}

/// The tokens to score, checked before weights are read.
fn tokens(
    args: &ScoreArgs,
    typed: Option<String>,
    source: &ModelSource,
) -> anyhow::Result<Vec<Token>> {
    let text = match (&typed, &args.text, &args.file, &args.ids) {
        (_, _, _, Some(given)) => return checked(ids::read(given)?, source),
        (_, _, Some(path), _) => text_of(path)?,
        (Some(text), ..) if text == "-" => stdin::read()?,
        (Some(text), ..) | (_, Some(text), ..) => text.clone(),
        (None, None, None, None) => stdin::read()?,
    };
    // What cannot fit is refused before it is encoded.
    let most = args.engine.ctx.unwrap_or(source.blueprint.spec.max_positions);
    source.text.need_tokenizer()?.check_length(&text, most.saturating_add(1))?;
    checked(source.text.encode_raw(&text)?, source)
}

fn text_of(path: &Path) -> anyhow::Result<String> {
    forerun_base::read_regular_text(path).with_context(|| path.display().to_string())
}

/// The tokens of a text file.
pub(crate) fn tokens_of_file(path: &Path, source: &ModelSource) -> anyhow::Result<Vec<Token>> {
    let text = text_of(path)?;
    checked(source.text.encode_raw(&text)?, source)
}

/// The perplexity of a text; `None` when a single token leaves nothing to predict.
pub(crate) fn perplexity(
    source: &ModelSource,
    loaded: &mut Loaded,
    tokens: &[Token],
) -> anyhow::Result<Option<f64>> {
    Ok(TimedScores::compute(source, loaded, tokens, None)?.perplexity())
}

fn checked(tokens: Vec<Token>, source: &ModelSource) -> anyhow::Result<Vec<Token>> {
    if tokens.is_empty() {
        bail!("the text is empty; at least one token is needed");
    }
    check_tokens(&tokens, source.blueprint.spec.vocabulary)?;
    Ok(tokens)
}

/// What the model thinks of a text.
struct TimedScores {
    scores: forerun::Scores,
    time: Duration,
}

impl TimedScores {
    fn compute(
        source: &ModelSource,
        loaded: &mut Loaded,
        tokens: &[Token],
        logits: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let shape = [tokens.len(), source.blueprint.spec.vocabulary];
        let mut file = logits.map(|path| LogitsFile::create(path, shape)).transpose()?;
        let mut written = Ok(());
        let started = Instant::now();
        let scores = forerun::Scores::compute(&mut loaded.engine, tokens.to_vec(), &mut |row| {
            if let (Some(file), Ok(())) = (&mut file, &written) {
                written = file.push(row);
            }
        });
        let time = started.elapsed();
        written?;
        // Logits that are not finite are written all the same, for whoever looks for the cause.
        if let Ok(_) | Err(forerun::Error::NotFinite { .. }) = scores {
            file.map(LogitsFile::finish).transpose()?;
        }
        Ok(Self { scores: scores?, time })
    }

    fn perplexity(&self) -> Option<f64> {
        self.scores.perplexity()
    }

    fn listing(&self, source: &ModelSource, tokens: &[Token]) -> String {
        let mut lines = String::new();
        for (i, (&token, logprob)) in tokens.iter().zip(&self.scores.logprobs).enumerate() {
            let text = source.text.tokenizer.as_ref().map_or(Ok(String::new()), |tokenizer| {
                tokenizer.decode(&[token], false).map(|text| format!("{text:?}"))
            });
            let logprob = logprob.map_or("-".to_owned(), |p| format!("{p:.4}"));
            let text = text.unwrap_or_default();
            lines.push_str(&format!("{i:>7} {token:>8} {logprob:>10}  {text}\n"));
        }
        lines
    }

    fn summary(&self, tokens: &[Token]) -> String {
        let perplexity = self.perplexity().map_or("-".to_owned(), |p| format!("{p:.4}"));
        let sum = self.scores.sum();
        let rate = stats::rate(tokens.len(), self.time);
        let count = tokens.len();
        format!(
            "{count} tokens · log-probability {sum:.4} · perplexity {perplexity} · {rate:.0} tok/s\n"
        )
    }

    fn report<'a>(
        &'a self,
        source: &'a ModelSource,
        loaded: &mut Loaded,
        tokens: &'a [Token],
    ) -> ScoreReport<'a> {
        let runner = loaded.engine.runner();
        ScoreReport {
            token_ids: tokens,
            logprobs: &self.scores.logprobs,
            perplexity: self.perplexity(),
            tokens: tokens.len(),
            timings: ScoreTimings {
                load_s: loaded.load_s,
                score_s: self.time.as_secs_f64(),
                tokens_per_s: stats::rate(tokens.len(), self.time),
            },
            model: &source.path,
            device: runner.device(),
            memory: MemoryReport::from(runner.memory()),
        }
    }
}

/// Scores as JSON.
#[derive(Serialize)]
struct ScoreReport<'a> {
    token_ids: &'a [Token],
    logprobs: &'a [Option<f64>],
    perplexity: Option<f64>,
    tokens: usize,
    timings: ScoreTimings,
    model: &'a str,
    device: String,
    memory: MemoryReport,
}

#[derive(Serialize)]
struct ScoreTimings {
    load_s: f64,
    score_s: f64,
    tokens_per_s: f64,
}
