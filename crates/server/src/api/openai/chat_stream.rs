//! A chat answer as chunks.

use super::chat::{add_usage, stop_reason};
use crate::answer::{AnswerEvent, Answers, Usage};
use crate::api::sse::{Outbox, Teller};
use crate::app::App;
use crate::error::Form;
use crate::ids;
use crate::wire::chat::{Chunk, ChunkChoice, Delta};
use crate::wire::receipt::Timings;
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
    usage: Usage,
}

impl ChatStream {
    pub(super) fn new(app: &Arc<App>, answers: Answers, choices: usize, with_usage: bool) -> Self {
        Self {
            app: Arc::clone(app),
            answers,
            id: ids::fresh("chatcmpl-"),
            created: ids::now(),
            unopened: choices,
            with_usage,
            usage: Usage::default(),
        }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>) -> Chunk<'_> {
        Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.app.model.name,
            choices,
            usage: self.with_usage.then_some(None),
            timings: None,
        }
    }

    fn delta(&self, out: &mut Outbox, index: usize, delta: Delta) {
        let choice =
            ChunkChoice { index, delta, logprobs: None, finish_reason: None, stop_reason: None };
        out.json(&self.chunk(vec![choice]));
    }

    fn tell(&mut self, out: &mut Outbox, index: usize, event: AnswerEvent) {
        match event {
            AnswerEvent::Content(text) => {
                self.delta(out, index, Delta { content: Some(text), ..Delta::default() });
            }
            AnswerEvent::Finished(finish) => {
                add_usage(&mut self.usage, index, &finish.usage);
                let choice = ChunkChoice {
                    index,
                    delta: Delta::default(),
                    logprobs: None,
                    finish_reason: Some(finish.reason()),
                    stop_reason: stop_reason(&finish),
                };
                let timings = Some(Timings::from(&*finish));
                out.json(&Chunk { timings, ..self.chunk(vec![choice]) });
            }
        }
    }
}

impl Teller for ChatStream {
    async fn more(&mut self, out: &mut Outbox) -> bool {
        for index in 0..std::mem::take(&mut self.unopened) {
            let delta = Delta { role: Some("assistant"), content: Some(String::new()) };
            self.delta(out, index, delta);
        }
        match self.answers.next().await {
            Some(Ok((index, event))) => {
                self.tell(out, index, event);
                return true;
            }
            Some(Err(error)) => out.json(&error.body(Form::OpenAi, "")),
            None if self.with_usage => {
                let usage = Some(Some(self.usage.into()));
                out.json(&Chunk { usage, ..self.chunk(Vec::new()) });
                out.text("[DONE]");
            }
            None => out.text("[DONE]"),
        }
        false
    }
}
