//! An answer as the events of the Messages API.

use super::messages::{SIGNATURE, stop_reason, stop_sequence};
use crate::answer::{AnswerEvent, Answers, TokenUsage};
use crate::api::sse::{Outbox, Teller};
use crate::error::ErrorForm;
use crate::ids;
use crate::models::ModelUse;
use crate::wire::anthropic::{
    BlockDelta, MessageDelta, MessageEvent, MessageResponse, ResponseBlock,
};
use crate::wire::receipt::ReceiptTimings;
use serde_json::json;

/// Turns parts of an answer into blocks that open, grow and close.
pub(super) struct MessageStream {
    model: ModelUse,
    answers: Answers,
    id: String,
    /// Blocks opened so far; the last is open if `open` says of what kind.
    blocks: usize,
    open: Option<BlockKind>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Thinking,
    Text,
    Call,
}

impl MessageStream {
    pub(super) fn new(model: ModelUse, answers: Answers) -> Self {
        let id = ids::fresh("msg_");
        Self { model, answers, id, blocks: 0, open: None }
    }

    fn start(&self, out: &mut Outbox, usage: TokenUsage) {
        let message = MessageResponse {
            id: &self.id,
            kind: "message",
            role: "assistant",
            model: &self.model.name,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: usage.into(),
            timings: None,
        };
        send(out, &MessageEvent::MessageStart { message });
        send(out, &MessageEvent::Ping);
    }

    /// Closes what is open unless it is of this kind, and opens a block.
    fn block(
        &mut self,
        out: &mut Outbox,
        kind: BlockKind,
        content_block: impl FnOnce() -> ResponseBlock,
    ) {
        if self.open == Some(kind) && kind != BlockKind::Call {
            return;
        }
        self.close(out);
        let (index, content_block) = (self.blocks, content_block());
        send(out, &MessageEvent::ContentBlockStart { index, content_block });
        self.blocks += 1;
        self.open = Some(kind);
    }

    fn delta(&self, out: &mut Outbox, delta: BlockDelta) {
        send(out, &MessageEvent::ContentBlockDelta { index: self.blocks.saturating_sub(1), delta });
    }

    fn close(&mut self, out: &mut Outbox) {
        let Some(kind) = self.open.take() else { return };
        if kind == BlockKind::Thinking {
            self.delta(out, BlockDelta::Signature { signature: SIGNATURE.to_owned() });
        }
        send(out, &MessageEvent::ContentBlockStop { index: self.blocks.saturating_sub(1) });
    }

    fn tell(&mut self, out: &mut Outbox, event: AnswerEvent) {
        match event {
            AnswerEvent::Started(usage) => self.start(out, usage),
            AnswerEvent::Reasoning(thinking) => {
                let empty = || ResponseBlock::Thinking {
                    thinking: String::new(),
                    signature: String::new(),
                };
                self.block(out, BlockKind::Thinking, empty);
                self.delta(out, BlockDelta::Thinking { thinking });
            }
            AnswerEvent::Content { text, .. } => {
                self.block(out, BlockKind::Text, || ResponseBlock::Text { text: String::new() });
                self.delta(out, BlockDelta::Text { text });
            }
            AnswerEvent::ToolCall { id, name, .. } => {
                self.block(out, BlockKind::Call, || ResponseBlock::ToolUse {
                    id,
                    name,
                    input: json!({}),
                });
            }
            AnswerEvent::ToolArguments { delta, .. } => {
                self.delta(out, BlockDelta::InputJson { partial_json: delta });
            }
            AnswerEvent::Tokens { .. } | AnswerEvent::ToolEnd => {}
            AnswerEvent::Finished(finish) => {
                self.close(out);
                let delta = MessageDelta {
                    stop_reason: stop_reason(&finish),
                    stop_sequence: stop_sequence(&finish),
                };
                let (usage, timings) = (finish.usage.into(), ReceiptTimings::from(&*finish));
                send(out, &MessageEvent::MessageDelta { delta, usage, timings });
            }
        }
    }
}

fn send(out: &mut Outbox, event: &MessageEvent<'_>) {
    out.typed(event);
}

impl Teller for MessageStream {
    async fn more(&mut self, out: &mut Outbox) -> bool {
        match self.answers.next().await {
            Some(Ok((_, event))) => {
                self.tell(out, event);
                return true;
            }
            Some(Err(error)) => out.typed(&error.body(ErrorForm::Anthropic, "")),
            None => send(out, &MessageEvent::MessageStop),
        }
        false
    }
}
