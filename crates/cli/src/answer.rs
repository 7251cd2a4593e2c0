//! What is said about an answer after it.

use crate::receipt;
use crate::stats::Timings;
use crate::terminal;
use forerun::{Answer, Ending, PromptKind, Sampling, SamplingSource, TextProcessor};

/// Says below an answer how it went.
pub(crate) fn remark(answer: &Answer, sampling: &str) {
    terminal::aside(&line(answer, sampling));
    if answer.content.is_empty() && !answer.reasoning.is_empty() {
        terminal::aside("it ended while the model was reasoning; --no-think asks for none");
    }
}

/// The line after an answer: times, drafts, sampling.
pub(crate) fn line(answer: &Answer, sampling: &str) -> String {
    let finish = &answer.finish;
    let drafts = receipt::line(&finish.receipt);
    format!("{}{drafts}{sampling}", Timings::of(finish).line(&ending(&finish.ending)))
}

/// Why the answer ended; where a limit cut it, what lifts the limit.
fn ending(ending: &Ending) -> String {
    match ending {
        Ending::Length => "length: cut here, --max-tokens and --ctx give more".to_owned(),
        other => other.reason().to_owned(),
    }
}

/// The part of that line that says how tokens were sampled; empty unless the model's files left it open.
pub(crate) fn sampling_line(
    processor: &TextProcessor,
    kind: PromptKind,
    sampling: &Sampling,
) -> String {
    let Sampling { temperature, top_k, top_p, min_p, .. } = sampling;
    if processor.sampling_source(kind) != SamplingSource::Default || *temperature == 0.0 {
        return String::new();
    }
    format!(
        " · sampling: temperature {temperature}, top-k {top_k}, top-p {top_p}, min-p {min_p}, default"
    )
}
