//! `forerun verify`: proves on the user's machine and model that speed changes nothing. Ctrl-C ends the program at
//! once: a proof that is not finished is none.

use crate::args::VerifyArgs;
use crate::exit::Outcome;
use crate::{synth, terminal};
use forerun_engine::Settings;
use forerun_verify::{LoadError, VerifiedModel, VerifyOptions, VerifyProgress, verify as prove};
use std::time::Duration;

pub(crate) fn verify(args: &VerifyArgs) -> anyhow::Result<Outcome> {
    let source = synth::source(args.model.as_deref(), &args.synth, &args.model_options)?;
    let options = VerifyOptions {
        tokens: args.tokens,
        seed: args.seed,
        quick: args.quick,
        kv: args.kv.dtype(),
        draft_vocabulary: args.vocabulary.draft_vocabulary,
        threads: args.device.threads,
    };
    let model = VerifiedModel {
        name: &source.path,
        spec: &source.blueprint.spec,
        tokenizer: source.text.tokenizer.as_ref(),
    };
    // Hidden where stderr is not a terminal.
    let bar = terminal::bar(0, "verifying {bar:24} {pos}/{len} {msg} {elapsed}");
    bar.enable_steady_tick(Duration::from_millis(250));
    let mut load = |settings: &Settings| {
        let loaded = bar.suspend(|| source.load(settings, args.device));
        loaded.map(|loaded| loaded.engine).map_err(LoadError::from)
    };
    let verification =
        prove(&options, &model, &mut load, &mut |VerifyProgress { done, total, doing }| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
            bar.set_message(doing.to_owned());
        })?;
    bar.finish_and_clear();
    if args.json {
        terminal::show_json(&verification.report())?;
    } else {
        terminal::aside(&format!("{} on {}", source.path, verification.device()));
        terminal::show(&verification.table())?;
    }
    verification.conclude()?;
    Ok(Outcome::Done)
}
