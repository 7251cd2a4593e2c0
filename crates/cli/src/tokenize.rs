//! `forerun tokenize`: text to tokens and back, as the model's own tokenizer has it.

use crate::args::TokenizeArgs;
use crate::exit::{Outcome, usage};
use crate::{given, hub_model, ids, stdin, terminal};
use anyhow::Context;
use forerun::{ModelText, Token};
use forerun_weights::Checkpoint;
use serde::Serialize;

#[derive(Serialize)]
struct TokenizeReport {
    tokens: usize,
    token_ids: Vec<Token>,
    text: String,
}

pub(crate) fn tokenize(args: &TokenizeArgs) -> anyhow::Result<Outcome> {
    let elsewhere = args.file.is_some() || args.decode.is_some();
    let (first, second) = (args.first.as_deref(), args.second.as_deref());
    let (model, typed) = given::model_and_text(first, second, elsewhere).map_err(usage)?;
    let path = hub_model::locate(&model)?;
    let text = ModelText::open(&Checkpoint::open(&path)?)?;
    let tokenizer = text.need_tokenizer()?;
    if let Some(given) = &args.decode {
        let token_ids = ids::read(given)?;
        let text = tokenizer.decode(&token_ids, false)?;
        if args.json {
            terminal::show_json(&TokenizeReport { tokens: token_ids.len(), token_ids, text })?;
        } else {
            terminal::show(&text)?;
            terminal::end_line(&text)?;
        }
        return Ok(Outcome::Done);
    }
    let text = match (typed, &args.file) {
        (_, Some(path)) => {
            forerun_base::read_regular_text(path).with_context(|| path.display().to_string())?
        }
        (Some(text), _) if text != "-" => text,
        _ => stdin::read()?,
    };
    let token_ids = tokenizer.encode(&text, !args.no_special)?;
    if args.json {
        terminal::show_json(&TokenizeReport { tokens: token_ids.len(), token_ids, text })?;
    } else if args.ids_only {
        terminal::show(&token_ids.iter().map(|id| format!("{id}\n")).collect::<String>())?;
    } else {
        let line = |&id: &Token| {
            let spelling = tokenizer.decode(&[id], false).unwrap_or_default();
            format!("{id:>8}  {spelling:?}\n")
        };
        terminal::show(&token_ids.iter().map(line).collect::<String>())?;
        terminal::note(&format!("{} tokens", token_ids.len()));
    }
    Ok(Outcome::Done)
}
