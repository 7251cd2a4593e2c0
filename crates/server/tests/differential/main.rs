//! The random differential tester: whatever else runs, every answer is the one the same request gets alone.
//!
//! ```text
//! cargo test --release -p forerun-server --test differential                          # short, a fixed seed
//! cargo test --release -p forerun-server --test differential -- --seconds 3600        # long, a new seed
//! cargo test --release -p forerun-server --test differential -- --seed 7 --traces 500
//! cargo test --release -p forerun-server --test differential -- --trace '{"model":…}' # one trace again
//! ```
//!
//! A trace is a model, an engine over it and requests drawn at random: sampling, penalties, grammars, stop strings,
//! drafters and depths, the prefix cache in memory and on disk, batches, priorities, cancels, restarts. Tokens, text,
//! endings and the bits of log-probabilities must be those of an engine that holds nothing but that request. A trace
//! that fails is cut down and printed as a command.
#![cfg(test)]

mod answer;
mod draw;
mod run;
mod shrink;
mod trace;

use run::Models;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use trace::{Action, Trace};

/// What runs without options.
const SEED: u64 = 1;
const TRACES: u64 = 120;
/// Time to cut a failing trace down.
const SHRINKING: Duration = Duration::from_secs(120);

struct TraceOptions {
    seed: u64,
    traces: u64,
    /// No further trace is begun after this.
    most: Duration,
    trace: Option<Trace>,
    check_itself: bool,
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(2);
        }
    };
    let mut models = Models::default();
    if let Some(trace) = options.trace {
        return match models.difference(&trace) {
            None => said("no difference"),
            Some(why) => failed(&mut models, trace, why),
        };
    }
    if options.check_itself
        && let Err(why) = finds_a_planted_fault(&mut models)
    {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    println!("differential: seed {}", options.seed);
    let (started, mut requests, mut done) = (Instant::now(), 0, 0);
    while done < options.traces && started.elapsed() < options.most {
        let trace = draw::trace(options.seed, done);
        requests += trace.actions.iter().filter(|a| matches!(a, Action::Ask { .. })).count();
        if let Some(why) = models.difference(&trace) {
            println!("trace {done} of seed {}: {why}", options.seed);
            return failed(&mut models, trace, why);
        }
        done += 1;
        if done.is_multiple_of(500) {
            println!("{done} traces, {requests} requests, {:.0?}", started.elapsed());
        }
    }
    said(&format!("{done} traces, {requests} requests, {:.1?}: no difference", started.elapsed()))
}

fn said(what: &str) -> ExitCode {
    println!("differential: {what}");
    ExitCode::SUCCESS
}

/// Cuts the trace down and says how to run it again.
fn failed(models: &mut Models, trace: Trace, why: String) -> ExitCode {
    // Panics are part of the search now, and there are many.
    std::panic::set_hook(Box::new(|_| {}));
    let (trace, why) = shrink::shrink(models, trace, why, SHRINKING);
    let json =
        serde_json::to_string(&trace).expect("a trace is plain data").replace('\'', "\\u0027");
    println!("{why}\nrun it again with\n");
    println!("cargo test --release -p forerun-server --test differential -- --trace '{json}'\n");
    ExitCode::FAILURE
}

/// A tester that finds nothing must be one that could.
fn finds_a_planted_fault(models: &mut Models) -> Result<(), String> {
    let planted = (0..64).map(|number| Trace { planted: true, ..draw::trace(SEED, number) });
    let mut golden = planted.filter(|trace| matches!(trace.model, trace::ModelChoice::Golden(_)));
    let found = golden.find_map(|trace| Some(trace.clone()).zip(models.difference(&trace)));
    let (trace, why) = found.ok_or("a planted fault is not found")?;
    let (small, why) = shrink::shrink(models, trace, why, Duration::from_secs(20));
    match small.actions.len() {
        0..=3 => Ok(()),
        left => Err(format!("a planted fault ({why}) is cut down to {left} actions only")),
    }
}

/// `None` where this is not what was requested: a harness lists tests, or runs others.
fn options(mut words: impl Iterator<Item = String>) -> Result<Option<TraceOptions>, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let most = Duration::MAX;
    let mut options =
        TraceOptions { seed: SEED, traces: TRACES, most, trace: None, check_itself: true };
    let (mut seeded, mut long) = (false, false);
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            value.parse().map_err(|_| format!("{word} {value}: expected an integer"))
        };
        match &*word {
            "--seed" => (options.seed, seeded) = (number()?, true),
            "--traces" => (options.traces, long) = (number()?, true),
            "--seconds" => {
                (options.most, options.traces, long) =
                    (Duration::from_secs(number()?), u64::MAX, true);
            }
            "--trace" => {
                let json = words.next().ok_or("--trace needs a value")?;
                let trace = serde_json::from_str(&json).map_err(|e| format!("--trace: {e}"))?;
                options.trace = Some(trace);
            }
            "--list" => {
                println!("differential: test");
                return Ok(None);
            }
            // Options of the usual harness, and names of other tests.
            flag if flag.starts_with('-') => {}
            filter if !"differential".contains(filter) => return Ok(None),
            _ => {}
        }
    }
    if long && !seeded {
        options.seed = now;
    }
    options.check_itself = !long;
    Ok(Some(options))
}
