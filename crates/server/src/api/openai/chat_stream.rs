//! A chat answer as chunks.

use super::chat::{add_usage, stop_reason};
use crate::answer::{AnswerEvent, Answers, TokenUsage};
use crate::api::sse::{Outbox, Teller};
use crate::app::App;
use crate::error::ErrorForm;
use crate::ids;
use crate::wire::chat::{CallDelta, ChatChunk, ChatDelta, ChunkChoice, FunctionDelta};
use crate::wire::logprobs::ChatLogprobs;
use crate::wire::receipt::ReceiptTimings;
use std::sync::Arc;

/// Turns events into chunks.
pub(super) struct ChatStream {
    app: Arc<App>,
    answers: Answers,
    id: String,
    created: u64,
    /// Answers whose first chunk is not out yet.
    unopened: usize,
    with_usage: bool,
    with_logprobs: bool,
    usage: TokenUsage,
}

impl ChatStream {
    pub(super) fn new(
        app: &Arc<App>,
        answers: Answers,
        with_usage: bool,
        with_logprobs: bool,
    ) -> Self {
        Self {
            app: Arc::clone(app),
            unopened: answers.count(),
            answers,
            id: ids::fresh("chatcmpl-"),
            created: ids::now(),
            with_usage,
            with_logprobs,
            usage: TokenUsage::default(),
        }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>) -> ChatChunk<'_> {
        ChatChunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.app.model.name,
            choices,
            usage: self.with_usage.then_some(None),
            timings: None,
        }
    }

    fn delta(&self, out: &mut Outbox, index: usize, delta: ChatDelta) {
        self.choice(out, ChunkChoice { index, delta, ..Default::default() });
    }

    fn call(&self, out: &mut Outbox, index: usize, call: CallDelta) {
        self.delta(out, index, ChatDelta { tool_calls: vec![call], ..ChatDelta::default() });
    }

    fn choice(&self, out: &mut Outbox, choice: ChunkChoice) {
        out.json(&self.chunk(vec![choice]));
    }

    fn tell(&mut self, out: &mut Outbox, index: usize, event: AnswerEvent) {
        match event {
            AnswerEvent::Started(_) => {}
            AnswerEvent::Reasoning(text) => {
                let delta = ChatDelta { reasoning_content: Some(text), ..ChatDelta::default() };
                self.delta(out, index, delta);
            }
            AnswerEvent::Content { text, logprobs } => {
                let told = || ChatLogprobs::new(&self.app.tokenizer, &logprobs);
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
                add_usage(&mut self.usage, index, &finish.usage);
                let choice = ChunkChoice {
                    index,
                    finish_reason: Some(finish.reason()),
                    stop_reason: stop_reason(&finish),
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
            self.delta(out, index, delta);
        }
        match self.answers.next().await {
            Some(Ok((index, event))) => {
                self.tell(out, index, event);
                return true;
            }
            Some(Err(error)) => out.json(&error.body(ErrorForm::OpenAi, "")),
            None if self.with_usage => {
                let usage = Some(Some(self.usage.into()));
                out.json(&ChatChunk { usage, ..self.chunk(Vec::new()) });
                out.text("[DONE]");
            }
            None => out.text("[DONE]"),
        }
        false
    }
}
