//! A chat: messages that are remembered, and the state that goes with them.

use crate::{
    Answer, AnswerStream, Error, GenerationOptions, Messages, Model, PromptInput, Reasoning,
    StreamEvent,
};
use forerun_base::SeqId;
use forerun_engine::Sampling;
use serde_json::{Value, json};

/// A conversation with a model.
///
/// The state of the last answer stays on the device as long as there is room for it, so that a turn reads only what is
/// new; whether it does or the conversation is read again changes the time and not the text.
///
/// ```
/// # fn main() -> Result<(), forerun::Error> {
/// use forerun::{GenerationOptions, Model};
///
/// let model = Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m"))?;
/// let mut chat = model.chat().with_options(GenerationOptions::new().max_tokens(12).seed(1));
/// for event in chat.send("I want to book a table for two")? {
///     print!("{}", event?.text());
/// }
/// let answer = chat.send("For tomorrow, please.")?.answer()?;
/// assert!(answer.finish.read_tokens < answer.finish.prompt_tokens);
/// assert_eq!(chat.messages().len(), 4);
/// # Ok(())
/// # }
/// ```
pub struct Chat {
    model: Model,
    /// The system message, the turns so far, variables.
    messages: Messages,
    options: GenerationOptions,
    retained: Option<SeqId>,
}

impl Chat {
    pub(crate) fn new(model: Model) -> Self {
        let (messages, options) = (Messages::new(), GenerationOptions::new());
        Self { model, messages, options, retained: None }
    }

    /// Begins with these messages, variables and settings of reasoning.
    #[must_use]
    pub fn with_messages(mut self, messages: Messages) -> Self {
        self.messages = messages;
        self
    }

    /// Sets the options of the answers to come.
    #[must_use]
    pub fn with_options(mut self, options: GenerationOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the system message.
    #[must_use]
    pub fn with_system(mut self, text: impl Into<String>) -> Self {
        self.set_system(Some(text.into()));
        self
    }

    /// Replaces the system message, or removes it.
    pub fn set_system(&mut self, text: Option<String>) {
        self.messages.list.retain(|message| !is_system(message));
        if let Some(text) = text {
            self.messages.list.insert(0, json!({"role": "system", "content": text}));
        }
    }

    /// Replaces the options of the answers to come.
    pub fn set_options(&mut self, options: GenerationOptions) {
        self.options = options;
    }

    /// Sets whether and how long the model reasons.
    pub fn set_reasoning(&mut self, reasoning: Reasoning) {
        self.messages.reasoning = reasoning;
    }

    /// Forgets every turn; the system message stays.
    pub fn reset(&mut self) {
        self.messages.list.retain(is_system);
    }

    /// What was said so far.
    pub fn messages(&self) -> &[Value] {
        &self.messages.list
    }

    /// Replaces what was said, the system message included.
    pub fn set_messages(&mut self, list: Vec<Value>) {
        self.messages.list = list;
    }

    /// Takes the last turn back, if there is one: what the user said.
    pub fn take_back(&mut self) -> Option<String> {
        let list = &mut self.messages.list;
        let user = list.iter().rposition(|message| message["role"] == "user")?;
        let said = list.drain(user..).next()?;
        Some(said["content"].as_str().unwrap_or_default().to_owned())
    }

    /// Sends a message of the user. The turn is remembered once the reply is dropped, unless it has no token.
    pub fn send(&mut self, text: impl Into<String>) -> Result<Reply<'_>, Error> {
        let message = json!({"role": "user", "content": text.into()});
        let mut messages = self.messages.clone();
        messages.list.push(message.clone());
        let prompt = PromptInput::Messages(messages);
        let stream = self.model.start_from(&prompt, &self.options, self.retained, true)?;
        self.retained = None;
        Ok(Reply { chat: self, message: Some(message), stream })
    }
}

fn is_system(message: &Value) -> bool {
    message["role"] == "system"
}

impl Drop for Chat {
    fn drop(&mut self) {
        if let Some(seq) = self.retained.take() {
            self.model.driver().forget(seq);
        }
    }
}

/// The answer to a message, as it comes. Dropping it ends the answer and keeps what there is of it.
pub struct Reply<'c> {
    chat: &'c mut Chat,
    /// What the user said, until the turn is remembered.
    message: Option<Value>,
    stream: AnswerStream,
}

impl Reply<'_> {
    /// The whole answer, what was read of it included.
    pub fn answer(mut self) -> Result<Answer, Error> {
        for event in self.by_ref() {
            event?;
        }
        Ok(self.remember())
    }

    /// How tokens are sampled, the seed included.
    pub fn sampling(&self) -> &Sampling {
        self.stream.sampling()
    }

    /// Tokens that are to be read: what is new, where the state of the last answer is still on the device.
    pub fn to_read(&self) -> usize {
        self.stream.to_read()
    }

    /// What has come of the answer so far.
    pub fn so_far(&self) -> &Answer {
        self.stream.so_far()
    }

    /// Adds the turn to the conversation.
    fn remember(&mut self) -> Answer {
        let answer = self.stream.take_answer();
        if let Some(message) = self.message.take()
            // Ended before the first token, it is as if the message had not been sent.
            && !answer.token_ids.is_empty()
        {
            let mut turn = json!({"role": "assistant", "content": answer.content});
            if !answer.reasoning.is_empty() {
                // Templates decide what of it a later turn is shown.
                turn["reasoning_content"] = answer.reasoning.clone().into();
            }
            self.chat.messages.list.extend([message, turn]);
        }
        answer
    }
}

impl Iterator for Reply<'_> {
    type Item = Result<StreamEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.stream.next()
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        self.chat.retained = self.chat.model.driver().release(self.stream.seq);
        if self.message.is_some() {
            self.remember();
        }
    }
}
