//! Messages of a conversation, and prompts of any kind.

use forerun_base::Token;
use forerun_text::Conversation;
use serde_json::{Map, Value, json};

/// A conversation for the model's chat template.
///
/// ```
/// use forerun::Messages;
///
/// let messages = Messages::new().system("Be brief.").user("Why is the sky blue?");
/// assert_eq!(messages.list[1]["role"], "user");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Messages {
    /// Messages in the form of the chat API: objects with `role` and `content`.
    pub list: Vec<Value>,
    /// Definitions of the tools that the model is told of.
    pub tools: Vec<Value>,
    /// Further variables for the template.
    pub variables: Map<String, Value>,
    /// Whether and how long the model reasons.
    pub reasoning: Reasoning,
    /// Take special tokens that messages spell, such as `<|im_end|>`, for special tokens; otherwise they are text.
    pub parse_special: bool,
}

/// Whether and how long a model reasons before it answers. Its template decides by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reasoning {
    /// Ask for reasoning, or for none: the template's variable `enable_thinking`.
    pub enabled: Option<bool>,
    /// Most tokens of reasoning, after which it is ended.
    pub budget: Option<usize>,
}

impl Reasoning {
    /// The template's variable for it.
    pub const VARIABLE: &str = "enable_thinking";

    /// Tokens after which reasoning that has begun is ended: none where it was turned off.
    pub(crate) fn limit(&self) -> Option<usize> {
        if self.enabled == Some(false) { Some(0) } else { self.budget }
    }
}

impl Messages {
    /// No messages.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a system message.
    #[must_use]
    pub fn system(self, text: impl Into<String>) -> Self {
        self.with("system", text.into())
    }

    /// Adds a message of the user.
    #[must_use]
    pub fn user(self, text: impl Into<String>) -> Self {
        self.with("user", text.into())
    }

    /// Adds an answer of the model.
    #[must_use]
    pub fn assistant(self, text: impl Into<String>) -> Self {
        self.with("assistant", text.into())
    }

    /// Sets a variable of the template.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Asks for reasoning, or for none.
    #[must_use]
    pub fn thinking(mut self, enabled: bool) -> Self {
        self.reasoning.enabled = Some(enabled);
        self
    }

    fn with(mut self, role: &str, content: String) -> Self {
        self.list.push(json!({"role": role, "content": content}));
        self
    }

    /// The variables with the one for reasoning.
    pub(crate) fn all_variables(&self) -> Map<String, Value> {
        let mut variables = self.variables.clone();
        if let Some(enabled) = self.reasoning.enabled {
            variables.insert(Reasoning::VARIABLE.to_owned(), enabled.into());
        }
        variables
    }

    /// The same for rendering.
    pub(crate) fn conversation<'a>(
        &'a self,
        variables: &'a Map<String, Value>,
    ) -> Conversation<'a> {
        let (messages, tools, parse_special) = (&self.list, &self.tools, self.parse_special);
        Conversation { messages, tools, variables, parse_special }
    }
}

/// A prompt of any kind.
#[derive(Clone, Debug)]
pub enum PromptInput {
    /// A text that is continued as it stands.
    Text(String),
    /// Token ids that are continued as they stand.
    Tokens(Vec<Token>),
    /// A conversation that the model's chat template renders.
    Messages(Messages),
}

impl From<&str> for PromptInput {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for PromptInput {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<Token>> for PromptInput {
    fn from(tokens: Vec<Token>) -> Self {
        Self::Tokens(tokens)
    }
}

impl From<Messages> for PromptInput {
    fn from(messages: Messages) -> Self {
        Self::Messages(messages)
    }
}
