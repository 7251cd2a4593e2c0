//! `forerun synth`: a folder of random weights; and the same without a folder, for `synth:NAME`.

use crate::args::{ModelArgs, SynthArgs, SynthShapeArgs};
use crate::exit::Outcome;
use crate::load::ModelSource;
use crate::report::bytes_text;
use crate::{bundled, terminal};
use anyhow::{Context, bail};
use forerun::ModelFiles;
use forerun_model::Blueprint;
use forerun_synth::{Synth, SynthOptions, published, write_folder};
use forerun_weights::Checkpoint;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// What stands before the name of a shape where a model is expected.
const PREFIX: &str = "synth:";

/// Files beside the weights that a model may have.
const TEXT_FILES: [&str; 8] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
];

#[derive(Serialize)]
struct SynthReport<'a> {
    like: &'static str,
    dtype: String,
    /// Whoever reads only this must not take it for a trained model.
    random: bool,
    parameters: u64,
    bytes: u64,
    files: usize,
    assumed: &'a [&'static str],
    config: &'a Value,
}

pub(crate) fn synth(args: &SynthArgs) -> anyhow::Result<Outcome> {
    let options = args.shape.options(args.like, args.seed);
    let synth = Synth::new(&options)?;
    let target = args.target.as_path();
    let shown = target.display().to_string();
    std::fs::create_dir_all(target).with_context(|| shown.clone())?;
    if std::fs::read_dir(target).with_context(|| shown.clone())?.next().is_some() {
        bail!("{shown} is not empty; give another folder");
    }
    let tokenizer = args.tokenizer.clone().map_or_else(bundled::find, Ok)?;
    copy_text(&tokenizer, target)?;
    let bar = terminal::bar(
        synth.bytes(),
        "drawing {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
    );
    let written = write_folder(&synth, target, &mut |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    let written = written?;
    if args.json {
        terminal::show_json(&SynthReport {
            like: args.like.name,
            dtype: options.form.to_string(),
            random: true,
            parameters: synth.parameters,
            bytes: written.bytes,
            files: written.files,
            assumed: synth.assumed,
            config: &synth.config,
        })?;
    } else {
        terminal::show(&page(&synth, &options, &shown, written.bytes))?;
    }
    Ok(Outcome::Done)
}

fn page(synth: &Synth, options: &SynthOptions, folder: &str, bytes: u64) -> String {
    let mut page = format!(
        "{folder}: {}\n{:.2} billion parameters, {}; what it says means nothing\n",
        options.title(),
        synth.parameters as f64 / 1e9,
        bytes_text(bytes),
    );
    if !synth.assumed.is_empty() {
        page.push_str(&format!("assumed, not certain: {}\n", synth.assumed.join(", ")));
    }
    page
}

/// Copies what a folder says about text.
fn copy_text(from: &Path, to: &Path) -> anyhow::Result<()> {
    let here = TEXT_FILES.iter().filter(|name| from.join(name).is_file());
    let mut copied = 0;
    for name in here {
        std::fs::copy(from.join(name), to.join(name)).with_context(|| name.to_string())?;
        copied += 1;
    }
    if copied == 0 {
        bail!("--tokenizer: {} holds no tokenizer", from.display());
    }
    Ok(())
}

/// A model by its name, which may be `synth:NAME`; the bundled model where there is none.
pub(crate) fn source(
    model: Option<&Path>,
    shape: &SynthShapeArgs,
    options: &ModelArgs,
) -> anyhow::Result<ModelSource> {
    match (drawn(model, shape)?, model) {
        (Some(files), _) => ModelSource::with_options(files, options),
        (None, Some(path)) => ModelSource::open(path, options),
        (None, None) => ModelSource::open(&bundled::find()?, options),
    }
}

/// The model that `synth:NAME` stands for, with the bundled model's tokenizer; `None` for any other model.
fn drawn(model: Option<&Path>, shape: &SynthShapeArgs) -> anyhow::Result<Option<ModelFiles>> {
    let name = model.and_then(Path::to_str).and_then(|model| model.strip_prefix(PREFIX));
    let Some(name) = name else {
        return match shape.typed() {
            Some(option) => {
                bail!("{option} is about random weights: give {PREFIX}NAME as the model")
            }
            None => Ok(None),
        };
    };
    let options = shape.options(published(name)?, 0);
    let (synth, title) = (Synth::new(&options)?, options.title());
    let config = synth.config.clone();
    let checkpoint = Checkpoint::made(&bundled::find()?, &title, config, Arc::new(synth))?;
    Ok(Some(ModelFiles::of(Blueprint::of(checkpoint)?, &title)?))
}
