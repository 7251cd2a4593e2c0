//! One measurement: a batch of answers in one way, timed step by step.

use crate::BenchError;
use forerun_base::{SeqId, Token};
use forerun_engine::{Depth, Engine, Event, FinishReason, ModelRunner, Receipt, Request, Sampling};
use forerun_report::rate;
use std::time::{Duration, Instant};

/// What every arm has to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArmWork<'a> {
    pub(crate) prompt: &'a [Token],
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
    pub(crate) sampling: &'a Sampling,
}

/// How it went.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArmRun {
    /// By member of the batch.
    pub(crate) answers: Vec<Vec<Token>>,
    /// BenchPrompt tokens of all members.
    pub(crate) read_tokens: usize,
    /// Tokens that came after every member had its first.
    pub(crate) decode_tokens: usize,
    /// Until every member had its first token.
    pub(crate) first_token: Duration,
    /// From then on.
    pub(crate) decode: Duration,
    pub(crate) decode_steps: u32,
    /// Of all members together.
    pub(crate) receipt: Receipt,
}

impl ArmRun {
    pub(crate) fn decode_rate(&self) -> f64 {
        rate(self.decode_tokens, self.decode)
    }

    pub(crate) fn prompt_rate(&self) -> f64 {
        rate(self.read_tokens, self.first_token)
    }

    pub(crate) fn first_token_ms(&self) -> f64 {
        self.first_token.as_secs_f64() * 1e3
    }

    pub(crate) fn ms_per_round(&self) -> f64 {
        self.decode.as_secs_f64() * 1e3 / f64::from(self.decode_steps.max(1))
    }
}

/// Runs the work to its end. Nothing else may be in the engine.
pub(crate) fn measure(
    engine: &mut Engine<ModelRunner>,
    work: ArmWork<'_>,
    depth: Depth,
) -> Result<ArmRun, BenchError> {
    let read_tokens = work.batch * work.prompt.len();
    let mut run =
        ArmRun { answers: vec![Vec::new(); work.batch], read_tokens, ..ArmRun::default() };
    let mut events = Vec::new();
    let started = Instant::now();
    let members = submit(engine, work, depth)?;
    let mut all_began = None;
    while !engine.is_idle() {
        engine.step(&mut events);
        let now = Instant::now();
        let new = take(&mut events, &members, &mut run)?;
        match all_began {
            Some(began) => {
                run.decode = now.duration_since(began);
                run.decode_steps += 1;
                run.decode_tokens += new;
            }
            None if run.answers.iter().all(|answer| !answer.is_empty()) => {
                run.first_token = now.duration_since(started);
                all_began = Some(now);
            }
            None => {}
        }
    }
    Ok(run)
}

fn submit(
    engine: &mut Engine<ModelRunner>,
    work: ArmWork<'_>,
    depth: Depth,
) -> Result<Vec<SeqId>, BenchError> {
    let request = |member: usize| {
        let seed = work.sampling.seed.wrapping_add(member as u64);
        let sampling = Sampling { seed, ..work.sampling.clone() };
        Request { sampling, depth, ..Request::greedy(work.prompt.to_vec(), work.tokens) }
    };
    (0..work.batch).map(|member| Ok(engine.submit(request(member))?)).collect()
}

/// Takes what a step said; the number of new tokens.
fn take(events: &mut Vec<Event>, members: &[SeqId], run: &mut ArmRun) -> Result<usize, BenchError> {
    let mut new = 0;
    for event in events.drain(..) {
        match event {
            Event::Token { seq, token, .. } => {
                let member = members.iter().position(|&m| m == seq);
                run.answers[member.expect("the engine holds nobody else")].push(token);
                new += 1;
            }
            Event::Started { .. } => {}
            Event::Finished { reason: FinishReason::Failed(why), .. } => {
                return Err(BenchError::DeviceFailed { why });
            }
            Event::Finished { receipt, .. } => run.receipt.add(&receipt),
        }
    }
    Ok(new)
}
