//! One measurement: a batch of answers in one way, timed step by step.

use crate::stats::rate;
use anyhow::bail;
use forerun_base::{SeqId, Token};
use forerun_engine::{Depth, Engine, Event, FinishReason, ModelRunner, Receipt, Request, Sampling};
use std::time::{Duration, Instant};

/// What every arm has to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work<'a> {
    pub(super) prompt: &'a [Token],
    pub(super) batch: usize,
    pub(super) tokens: usize,
    pub(super) sampling: &'a Sampling,
}

/// How it went.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// By member of the batch.
    pub(super) answers: Vec<Vec<Token>>,
    /// Prompt tokens of all members.
    pub(super) read_tokens: usize,
    /// Tokens that came after every member had its first.
    pub(super) decode_tokens: usize,
    /// Until every member had its first token.
    pub(super) first_token: Duration,
    /// From then on.
    pub(super) decode: Duration,
    pub(super) decode_steps: u32,
    /// Of all members together.
    pub(super) receipt: Receipt,
}

impl Run {
    pub(super) fn decode_rate(&self) -> f64 {
        rate(self.decode_tokens, self.decode)
    }

    pub(super) fn prompt_rate(&self) -> f64 {
        rate(self.read_tokens, self.first_token)
    }

    pub(super) fn first_token_ms(&self) -> f64 {
        self.first_token.as_secs_f64() * 1e3
    }

    pub(super) fn ms_per_round(&self) -> f64 {
        self.decode.as_secs_f64() * 1e3 / f64::from(self.decode_steps.max(1))
    }
}

/// Runs the work to its end. Nothing else may be in the engine.
pub(super) fn measure(
    engine: &mut Engine<ModelRunner>,
    work: Work<'_>,
    depth: Depth,
) -> anyhow::Result<Run> {
    let read_tokens = work.batch * work.prompt.len();
    let mut run = Run { answers: vec![Vec::new(); work.batch], read_tokens, ..Run::default() };
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
    work: Work<'_>,
    depth: Depth,
) -> anyhow::Result<Vec<SeqId>> {
    let request = |member: usize| {
        let seed = work.sampling.seed.wrapping_add(member as u64);
        let sampling = Sampling { seed, ..work.sampling.clone() };
        Request { sampling, depth, ..Request::greedy(work.prompt.to_vec(), work.tokens) }
    };
    (0..work.batch).map(|member| Ok(engine.submit(request(member))?)).collect()
}

/// Takes what a step said; the number of new tokens.
fn take(events: &mut Vec<Event>, members: &[SeqId], run: &mut Run) -> anyhow::Result<usize> {
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
                bail!("the device failed: {why}")
            }
            Event::Finished { receipt, .. } => run.receipt.add(&receipt),
        }
    }
    Ok(new)
}
