//! How long an answer took.

use forerun::Finish;
pub(crate) use forerun_report::rate;
use serde::Serialize;
use std::time::Duration;

/// The times of one answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timings {
    /// Prompt tokens that were read, less than the prompt when a chat goes on or when the answer was given up.
    pub(crate) read_tokens: usize,
    pub(crate) answer_tokens: usize,
    /// Until the first token.
    pub(crate) prompt: Duration,
    /// From the first token on.
    pub(crate) decode: Duration,
}

/// Timings as JSON has them. A rate of 0 means that there was nothing to measure.
#[derive(Debug, Serialize)]
pub(crate) struct TimingsReport {
    load_s: f64,
    prompt_s: f64,
    prompt_tokens_per_s: f64,
    decode_s: f64,
    decode_tokens_per_s: f64,
    /// Null where none came.
    time_to_first_token_s: Option<f64>,
}

impl Timings {
    pub(crate) fn of(finish: &Finish) -> Self {
        Self {
            read_tokens: finish.read_tokens,
            answer_tokens: finish.completion_tokens,
            prompt: finish.prompt_time,
            decode: finish.decode_time,
        }
    }

    pub(crate) fn report(&self, load_s: f64) -> TimingsReport {
        TimingsReport {
            load_s,
            prompt_s: self.prompt.as_secs_f64(),
            prompt_tokens_per_s: self.prompt_rate(),
            decode_s: self.decode.as_secs_f64(),
            decode_tokens_per_s: self.decode_rate(),
            time_to_first_token_s: self.has_begun().then_some(self.prompt.as_secs_f64()),
        }
    }

    /// Whether the prompt was read to its end: its last row gives the first token.
    fn has_begun(&self) -> bool {
        self.answer_tokens > 0
    }

    /// A prompt that was given up has no rate: the step that was cut short counts for its time alone.
    fn prompt_rate(&self) -> f64 {
        if self.has_begun() { rate(self.read_tokens, self.prompt) } else { 0.0 }
    }

    /// The first token belongs to the prompt's time.
    fn decode_rate(&self) -> f64 {
        rate(self.answer_tokens.saturating_sub(1), self.decode)
    }

    /// The line after an answer.
    pub(crate) fn line(&self, ending: &str) -> String {
        if !self.has_begun() {
            let (read, time) = (self.read_tokens, duration_text(self.prompt));
            return format!("prompt given up after {read} tok, {time} · {ending}");
        }
        format!(
            "prompt {} tok, {} · answer {} tok, {} · first token {} · {ending}",
            self.read_tokens,
            rate_text(self.prompt_rate()),
            self.answer_tokens,
            rate_text(self.decode_rate()),
            duration_text(self.prompt),
        )
    }
}

/// A rate for people.
pub(crate) fn rate_text(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1} tok/s") } else { format!("{rate:.0} tok/s") }
}

fn duration_text(time: Duration) -> String {
    match time.as_millis() {
        ms @ 0..10_000 => format!("{ms} ms"),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_counts_the_first_token_with_the_prompt() {
        let timings = Timings {
            read_tokens: 16,
            answer_tokens: 201,
            prompt: Duration::from_millis(10),
            decode: Duration::from_millis(500),
        };
        let line =
            "prompt 16 tok, 1600 tok/s · answer 201 tok, 400 tok/s · first token 10 ms · stop";
        assert_eq!(timings.line("stop"), line);
    }

    #[test]
    fn a_prompt_that_was_given_up_has_no_rate() {
        let given_up =
            Timings { read_tokens: 9000, prompt: Duration::from_millis(10), ..Timings::default() };
        assert_eq!(given_up.line("cancelled"), "prompt given up after 9000 tok, 10 ms · cancelled");
        assert_eq!(given_up.prompt_rate(), 0.0);
        assert_eq!(given_up.report(1.0).time_to_first_token_s, None);
    }

    #[test]
    fn an_answer_of_one_token_has_no_rate() {
        let timings = Timings { answer_tokens: 1, ..Timings::default() };
        assert_eq!(timings.decode_rate(), 0.0);
    }
}
