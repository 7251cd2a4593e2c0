//! Text to tokens and back, as the model's own tokenizer has it.

use super::JsonBody;
use crate::app::{App, on_the_side};
use crate::chat::ChatRequest;
use crate::error::ServerError;
use crate::prepare;
use crate::wire::tokens::{Detokenized, Tokenized};
use axum::extract::State;
use axum::response::Response;
use forerun_base::Token;
use forerun_engine::check_tokens;
use std::sync::Arc;

/// A text as it stands, or a conversation as the chat template writes it.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    let fields = &mut body.fields;
    let entry = app.find(fields.take("model")?)?;
    let text: Option<String> = fields.take("prompt")?;
    let messages = super::openai::chat::messages(fields)?;
    let tools = fields.take("tools")?.unwrap_or_default();
    let arguments = fields.take("chat_template_kwargs")?.unwrap_or_default();
    let add_special = fields.take("add_special_tokens")?.unwrap_or(true);
    let spelled = fields.take("return_token_strs")?.unwrap_or(false);
    fields.finish()?;
    let model = app.ready(&entry).await?;
    let tokenized = on_the_side(move || {
        let tokens = match (text, messages) {
            (Some(text), None) => model.text.encode(&text, add_special)?,
            (None, Some(messages)) => {
                let template_arguments = arguments;
                let request =
                    ChatRequest { tools, template_arguments, ..ChatRequest::new(messages) };
                prepare::chat_prompt(&model, &request)?
            }
            _ => {
                let message = "give `prompt`, a text, or `messages`, a conversation, and not both";
                return Err(ServerError::invalid("prompt", message));
            }
        };
        let tokenizer = &model.tokenizer;
        let spelling = |&token: &Token| tokenizer.token_text(token).unwrap_or_default();
        Ok(Tokenized {
            count: tokens.len(),
            max_model_len: model.facts.context,
            token_strs: spelled.then(|| tokens.iter().map(spelling).collect()),
            tokens,
        })
    })
    .await?;
    Ok(super::json(&tokenized))
}

pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    let fields = &mut body.fields;
    let entry = app.find(fields.take("model")?)?;
    let tokens: Vec<Token> = fields.need("tokens")?;
    fields.finish()?;
    let model = app.ready(&entry).await?;
    let prompt = on_the_side(move || {
        check_tokens(&tokens, model.facts.vocabulary)?;
        Ok(model.tokenizer.decode(&tokens, false)?)
    })
    .await?;
    Ok(super::json(&Detokenized { prompt }))
}
