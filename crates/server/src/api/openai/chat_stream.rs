//! A chat answer as chunks.

use super::chat::stop_reason;
use super::extras::Extras;
use crate::answer::{AnswerEvent, Answers};
use crate::api::sse::{Outbox, Teller};
use crate::error::ErrorForm;
use crate::ids;
use crate::models::ModelUse;
use crate::wire::chat::{CallDelta, ChatChunk, ChatDelta, ChunkChoice, FunctionDelta};
use crate::wire::logprobs::ChatLogprobs;
use crate::wire::receipt::ReceiptTimings;

/// Turns events into chunks.
pub(super) struct ChatStream {
    model: ModelUse,
    answers: Answers,
    id: String,
    created: u64,
    /// Answers whose first chunk is not out yet.
    unopened: usize,
    with_logprobs: bool,
    extras: Extras,
}

impl ChatStream {
    pub(super) fn new(
        model: ModelUse,
        answers: Answers,
        extras: Extras,
        with_logprobs: bool,
    ) -> Self {
        Self {
            model,
            unopened: answers.count(),
            answers,
            id: ids::fresh("chatcmpl-"),
            created: ids::now(),
            with_logprobs,
            extras,
        }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>) -> ChatChunk<'_> {
        ChatChunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model.name,
            prompt_token_ids: None,
            usage: self.extras.chunk_usage(choices.first().map(|choice| choice.index)),
            choices,
            timings: None,
        }
    }

    fn delta(&mut self, out: &mut Outbox, index: usize, delta: ChatDelta) {
        self.choice(out, ChunkChoice { index, delta, ..Default::default() });
    }

    fn call(&mut self, out: &mut Outbox, index: usize, call: CallDelta) {
        self.delta(out, index, ChatDelta { tool_calls: vec![call], ..ChatDelta::default() });
    }

    fn choice(&mut self, out: &mut Outbox, mut choice: ChunkChoice) {
        choice.token_ids = self.extras.take_ids(choice.index);
        out.json(&self.chunk(vec![choice]));
    }

    fn tell(&mut self, out: &mut Outbox, index: usize, event: AnswerEvent) {
        match event {
            AnswerEvent::Started(usage) => self.extras.start(index, usage),
            AnswerEvent::Tokens { ids, reasoning } => self.extras.tokens(index, ids, reasoning),
            AnswerEvent::Reasoning(text) => {
                let delta = ChatDelta { reasoning_content: Some(text), ..ChatDelta::default() };
                self.delta(out, index, delta);
            }
            AnswerEvent::Content { text, logprobs } => {
                let told = || ChatLogprobs::new(&self.model.tokenizer, &logprobs);
                let logprobs = self.with_logprobs.then(told);
                let delta = ChatDelta { content: Some(text), ..ChatDelta::default() };
                self.choice(out, ChunkChoice { index, delta, logprobs, ..Default::default() });
            }
            AnswerEvent::ToolCall { index: number, id, name } => {
                let function = FunctionDelta { name: Some(name), arguments: String::new() };
                let kind = Some("function");
                self.call(out, index, CallDelta { index: number, id: Some(id), kind, function });
            }
            AnswerEvent::ToolArguments { index: number, delta } => {
                let function = FunctionDelta { name: None, arguments: delta };
                self.call(out, index, CallDelta { index: number, id: None, kind: None, function });
            }
            AnswerEvent::ToolEnd => {}
            AnswerEvent::Finished(finish) => {
                self.extras.finish(index, &finish);
                let choice = ChunkChoice {
                    index,
                    finish_reason: Some(finish.reason()),
                    stop_reason: stop_reason(&finish),
                    token_ids: self.extras.take_ids(index),
                    ..Default::default()
                };
                let timings = Some(ReceiptTimings::from(&*finish));
                out.json(&ChatChunk { timings, ..self.chunk(vec![choice]) });
            }
        }
    }
}

impl Teller for ChatStream {
    async fn more(&mut self, out: &mut Outbox) -> bool {
        for index in 0..std::mem::take(&mut self.unopened) {
            let (role, content) = (Some("assistant"), Some(String::new()));
            let delta = ChatDelta { role, content, ..ChatDelta::default() };
            let choice = ChunkChoice { index, delta, ..Default::default() };
            let prompt_token_ids = self.answers.prompts.pop();
            out.json(&ChatChunk { prompt_token_ids, ..self.chunk(vec![choice]) });
        }
        match self.answers.next().await {
            Some(Ok((index, event))) => {
                self.tell(out, index, event);
                return true;
            }
            Some(Err(error)) => out.json(&error.body(ErrorForm::OpenAi, "")),
            None => {
                if let Some(usage) = self.extras.last_usage() {
                    out.json(&ChatChunk { usage: Some(Some(usage)), ..self.chunk(Vec::new()) });
                }
                out.text("[DONE]");
            }
        }
        false
    }
}
