//! From a question to jobs for the engine: template, tokenizer, defaults.

use crate::app::App;
use crate::chat::{ChatRequest, CompletionRequest, Generation, Prompt};
use crate::error::ServerError;
use crate::service::Job;
use forerun_base::Token;
use forerun_engine::{Depth, RejectError, check_tokens};
use forerun_text::ChatInput;

/// One job per answer to a conversation.
pub(crate) fn chat(app: &App, request: &ChatRequest) -> Result<Vec<Job>, ServerError> {
    let prompt = chat_prompt(app, request)?;
    let template = app.model.template.as_ref().ok_or_else(no_template)?;
    let ends = app.model.chat_end_tokens(template);
    jobs(app, &request.generation, prompt, ends)
}

/// The tokens of a conversation, up to the opening of the answer.
pub(crate) fn chat_prompt(app: &App, request: &ChatRequest) -> Result<Vec<Token>, ServerError> {
    let template = app.model.template.as_ref().ok_or_else(no_template)?;
    let text = template.render(&ChatInput {
        messages: &request.messages,
        tools: &[],
        add_generation_prompt: true,
        extra: &request.template_arguments,
    })?;
    encode(app, &text, false)
}

/// One job per answer, prompt by prompt.
pub(crate) fn completion(app: &App, request: &CompletionRequest) -> Result<Vec<Job>, ServerError> {
    let mut all = Vec::new();
    for prompt in &request.prompts {
        let prompt = match prompt {
            Prompt::Text(text) => encode(app, text, true)?,
            Prompt::Tokens(tokens) => {
                check_tokens(tokens, app.facts.vocabulary)?;
                tokens.clone()
            }
        };
        all.extend(jobs(app, &request.generation, prompt, app.model.end_tokens())?);
    }
    Ok(all)
}

fn no_template() -> ServerError {
    ServerError::invalid(
        "messages",
        "this model has no chat template; continue text at /v1/completions instead",
    )
}

/// Text to tokens. One that is too long for any context is not tokenized first.
pub(crate) fn encode(app: &App, text: &str, add_special: bool) -> Result<Vec<Token>, ServerError> {
    let (bytes, context) = (text.len(), app.facts.context);
    if bytes > context.saturating_mul(LONGEST_TOKEN) {
        let message = format!("the prompt has {bytes} bytes; the context holds {context} tokens");
        return Err(ServerError::Invalid { param: None, message });
    }
    Ok(app.model.tokenizer.encode(text, add_special)?)
}

/// No vocabulary in use spells a token with more bytes.
const LONGEST_TOKEN: usize = 1024;

fn jobs(
    app: &App,
    generation: &Generation,
    prompt: Vec<Token>,
    end_tokens: Vec<Token>,
) -> Result<Vec<Job>, ServerError> {
    let context = app.facts.context;
    if prompt.len() >= context {
        return Err(RejectError::PromptTooLong { prompt: prompt.len(), context }.into());
    }
    let sampling = generation.sampling.over(&app.model.defaults);
    sampling.check(app.facts.vocabulary)?;
    let asked = app.model.defaults.max_new_tokens.map_or(context, |n| n as usize);
    let first = Job {
        prompt,
        sampling,
        max_tokens: generation.max_tokens.unwrap_or(asked),
        end_tokens: if generation.ignore_end { Vec::new() } else { end_tokens },
        stops: generation.stops.clone(),
        depth: generation.speculation.unwrap_or(Depth::Auto),
        priority: generation.priority,
    };
    let seeded = |i: usize| {
        let mut job = first.clone();
        job.sampling.seed = first.sampling.seed.wrapping_add(i as u64);
        job
    };
    Ok((0..generation.choices).map(seeded).collect())
}
