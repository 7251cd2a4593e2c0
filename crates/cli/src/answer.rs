//! One answer: a request goes to the engine, text comes out as it is decided.

use crate::generation::Generation;
use crate::interrupt::{self, Answering};
use crate::receipt;
use crate::stats::{Stopwatch, Timings};
use anyhow::{anyhow, bail};
use forerun_base::{SeqId, Token};
use forerun_engine::{Constraint, Engine, Event, FinishReason, ModelRunner, Receipt, Request};
use forerun_text::{Tokenizer, Transcript};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is asked.
pub(crate) struct Question<'a> {
    /// The whole prompt, also when a parked sequence holds its beginning.
    pub(crate) prompt: Vec<Token>,
    pub(crate) generation: &'a Generation,
    /// Tokens that end the answer unless the generation ignores them.
    pub(crate) end_tokens: &'a [Token],
    pub(crate) tokenizer: Option<&'a Tokenizer>,
    /// What the answer is held to.
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    /// Whether to keep the state for a further turn.
    pub(crate) park: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// `None` for a model without a tokenizer.
    pub(crate) text: Option<String>,
    pub(crate) token_ids: Vec<Token>,
    pub(crate) ending: Ending,
    pub(crate) prompt_tokens: usize,
    pub(crate) timings: Timings,
    pub(crate) receipt: Receipt,
    /// How tokens were sampled, for the line after the answer.
    sampling: String,
    /// The parked sequence, if it was to be kept and still is.
    pub(crate) parked: Option<SeqId>,
}

impl Answer {
    /// The line after an answer.
    pub(crate) fn line(&self) -> String {
        let drafts = receipt::line(&self.receipt);
        format!("{}{drafts}{}", self.timings.line(self.ending.reason()), self.sampling)
    }
}

/// Why the answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    EndToken,
    StopString(String),
    Length,
    Cancelled,
}

impl Ending {
    /// As `finish_reason` has it.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::EndToken | Self::StopString(_) => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }

    pub(crate) fn stop_string(&self) -> Option<&str> {
        match self {
            Self::StopString(text) => Some(text),
            _ => None,
        }
    }
}

/// Asks and waits; `show` gets the text piece by piece. `parked` is continued where the prompt
/// begins with its tokens and forgotten where it does not, with the same answer either way.
pub(crate) fn answer(
    engine: &mut Engine<ModelRunner>,
    mut question: Question<'_>,
    parked: Option<SeqId>,
    show: &mut dyn FnMut(&str) -> io::Result<()>,
) -> anyhow::Result<Answer> {
    let _answering = Answering::begin();
    let stops = &question.generation.stops;
    if !stops.is_empty() && question.tokenizer.is_none() {
        bail!("--stop needs text, and this model has no tokenizer.json");
    }
    let ends = if question.generation.ignore_eos { &[] } else { question.end_tokens };
    let transcript = Transcript::new(question.tokenizer, stops.clone(), ends.to_vec())?;
    let transcript = Arc::new(Mutex::new(transcript));
    let prompt_tokens = question.prompt.len();
    let mut stopwatch = Stopwatch::start();
    let (seq, read_tokens) = ask(engine, &mut question, ends, parked, &transcript)?;
    let mut token_ids = Vec::new();
    let (reason, receipt) = drive(engine, seq, |event_token| {
        stopwatch.token();
        token_ids.push(event_token);
        show(&lock(&transcript).fresh())
    })?;
    let timings = stopwatch.stop(read_tokens, token_ids.len());
    let mut transcript = lock(&transcript);
    transcript.finish()?;
    show(&transcript.fresh())?;
    let stopped = transcript.hit().map(|i| Ending::StopString(stops[i].clone()));
    let ending = match (reason, stopped) {
        (FinishReason::Refused(why), _) => return Err(anyhow!("the answer cannot go on: {why}")),
        (FinishReason::Failed(why), _) => return Err(anyhow!("the answer failed: {why}")),
        (_, Some(stopped)) => stopped,
        (FinishReason::EndToken | FinishReason::Complete, _) => Ending::EndToken,
        (FinishReason::Length, _) => Ending::Length,
        // The watch ends an answer for a stop string, handled above, or for Ctrl-C.
        (FinishReason::Cancelled | FinishReason::Watched, _) => Ending::Cancelled,
    };
    Ok(Answer {
        text: question.tokenizer.map(|_| transcript.text().to_owned()),
        token_ids,
        ending,
        prompt_tokens,
        timings,
        receipt,
        sampling: question.generation.line(),
        parked: engine.tokens(seq).map(|_| seq),
    })
}

/// Hands the question to the engine; the sequence and the prompt tokens it has yet to read.
fn ask(
    engine: &mut Engine<ModelRunner>,
    question: &mut Question<'_>,
    end_tokens: &[Token],
    parked: Option<SeqId>,
    transcript: &Arc<Mutex<Transcript>>,
) -> anyhow::Result<(SeqId, usize)> {
    let watched = Arc::clone(transcript);
    let constraint = question.constraint.take();
    let request = |prompt: Vec<Token>| Request {
        sampling: question.generation.sampling.clone(),
        end_tokens: end_tokens.to_vec(),
        // Ending by the watch, not by `cancel`, keeps a parked conversation usable after Ctrl-C.
        watch: Some(Box::new(move |token| lock(&watched).take(token) || interrupt::is_cancelled())),
        depth: question.generation.depth,
        constraint,
        park: question.park,
        ..Request::greedy(prompt, question.generation.max_tokens)
    };
    let held = parked.and_then(|seq| Some((seq, engine.tokens(seq)?.0)));
    let rest = held.and_then(|(seq, tokens)| Some((seq, question.prompt.strip_prefix(tokens)?)));
    if let Some((seq, rest)) = rest {
        let rest = rest.to_vec();
        // The last token a sequence holds was decided but never read.
        let read = rest.len() + 1;
        engine.resume(seq, request(rest))?;
        return Ok((seq, read));
    }
    if let Some(seq) = parked {
        engine.cancel(seq, &mut Vec::new());
    }
    Ok((engine.submit(request(question.prompt.clone()))?, question.prompt.len()))
}

/// Steps until the sequence ends.
fn drive(
    engine: &mut Engine<ModelRunner>,
    seq: SeqId,
    mut token: impl FnMut(Token) -> io::Result<()>,
) -> anyhow::Result<(FinishReason, Receipt)> {
    let mut events = Vec::new();
    loop {
        // A prompt is read without asking the watch.
        if interrupt::is_cancelled() {
            engine.cancel(seq, &mut events);
        } else {
            engine.step(&mut events);
        }
        for event in events.drain(..) {
            match event {
                Event::Started { .. } => {}
                Event::Token { token: id, .. } => token(id)?,
                Event::Finished { reason, receipt, .. } => return Ok((reason, *receipt)),
            }
        }
    }
}

fn lock(transcript: &Mutex<Transcript>) -> MutexGuard<'_, Transcript> {
    transcript.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::DeviceArgs;
    use crate::bundled;
    use crate::load::Source;
    use forerun_engine::{Depth, Sampling, Settings};
    use forerun_server::SamplingSource;

    fn ask(parked: Option<SeqId>, prompt: &[Token], engine: &mut Engine<ModelRunner>) -> Answer {
        let sampling = Sampling {
            temperature: 0.8,
            repetition_penalty: 1.3,
            frequency_penalty: 0.2,
            seed: 9,
            ..Sampling::default()
        };
        let generation = Generation {
            sampling,
            source: SamplingSource::Greedy,
            max_tokens: 12,
            stops: Vec::new(),
            ignore_eos: true,
            depth: Depth::Auto,
        };
        let question = Question {
            prompt: prompt.to_vec(),
            generation: &generation,
            end_tokens: &[],
            tokenizer: None,
            constraint: None,
            park: true,
        };
        answer(engine, question, parked, &mut |_| Ok(())).unwrap()
    }

    #[test]
    fn a_turn_says_the_same_continued_or_read_anew() {
        let source =
            Source::open(&bundled::find().unwrap(), &crate::args::ModelArgs::default()).unwrap();
        let settings = Settings { context: 128, ..Settings::default() };
        let mut engine = source
            .load(&settings, DeviceArgs { threads: Some(1), ..DeviceArgs::default() })
            .unwrap()
            .engine;
        let mut prompt = source.text.encode_raw("Once upon a time there was a cat.").unwrap();
        let first = ask(None, &prompt, &mut engine);
        prompt.extend(&first.token_ids);
        prompt.extend(source.text.encode_raw(" And then").unwrap());
        let continued = ask(first.parked, &prompt, &mut engine);
        assert!(continued.timings.read_tokens < prompt.len());
        engine.cancel(continued.parked.unwrap(), &mut Vec::new());
        let anew = ask(None, &prompt, &mut engine);
        assert_eq!(anew.timings.read_tokens, prompt.len());
        assert_eq!(continued.token_ids, anew.token_ids);
        let other = ask(anew.parked, &prompt[1..], &mut engine);
        assert_eq!(other.timings.read_tokens, prompt.len() - 1, "another prompt is read whole");
    }
}
