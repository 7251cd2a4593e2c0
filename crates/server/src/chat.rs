//! A question, whatever API asked it.

use crate::api::Ignored;
use crate::auth::Owner;
use forerun::{GenerationOptions, PromptInput};
use forerun_text::ToolChoice;
use serde_json::{Map, Value};
use std::sync::Arc;

/// A conversation to go on with.
#[derive(Clone, Debug)]
pub(crate) struct ChatRequest {
    /// Messages in OpenAI's form; the model's dialect brings them to the form its template wants.
    pub(crate) messages: Vec<Value>,
    /// Tools in OpenAI's form: `{"type": "function", "function": {…}}`.
    pub(crate) tools: Vec<Value>,
    /// Where each of them is in the client's request; without, they are `tools[0]` and so on.
    pub(crate) tool_places: Vec<String>,
    /// The field of such a tool that has the schema of its arguments.
    pub(crate) tool_schema: &'static str,
    /// Which of them must be called; `None` for none: the model hears of them, and calls none.
    pub(crate) tool_choice: Option<ToolChoice>,
    /// Several calls in one answer.
    pub(crate) parallel_tool_calls: bool,
    pub(crate) reasoning: ReasoningRequest,
    /// What the model is taken to have said already: the answer goes on from there.
    pub(crate) beginning: Option<String>,
    /// Further variables for the template.
    pub(crate) template_arguments: Map<String, Value>,
    pub(crate) generation: AnswerOptions,
    /// What of it had no effect.
    pub(crate) ignored: Ignored,
}

impl ChatRequest {
    /// Messages with nothing else asked.
    pub(crate) fn new(messages: Vec<Value>) -> Self {
        Self {
            messages,
            tools: Vec::new(),
            tool_places: Vec::new(),
            tool_schema: "parameters",
            tool_choice: Some(ToolChoice::Auto),
            parallel_tool_calls: true,
            reasoning: ReasoningRequest::default(),
            beginning: None,
            template_arguments: Map::new(),
            generation: AnswerOptions::default(),
            ignored: Ignored::default(),
        }
    }
}

impl ChatRequest {
    /// A place in `tools` as it is in the client's request.
    pub(crate) fn own_place(&self, path: &str) -> String {
        let own = || {
            let (index, rest) = path.strip_prefix("tools[")?.split_once(']')?;
            let place = self.tool_places.get(index.parse::<usize>().ok()?)?;
            let rest = rest.strip_prefix(".function").unwrap_or(rest);
            Some(match rest.strip_prefix(".parameters") {
                Some(inside) => format!("{place}.{}{inside}", self.tool_schema),
                None => format!("{place}{rest}"),
            })
        };
        own().unwrap_or_else(|| path.to_owned())
    }
}

/// Whether the model may think before it speaks. By default its template decides.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReasoningRequest {
    pub(crate) enabled: Option<bool>,
    /// Tokens of reasoning, after which it is ended.
    pub(crate) budget: Option<usize>,
    pub(crate) effort: Option<Effort>,
    /// The client's field that asks for reasoning.
    pub(crate) field: &'static str,
}

/// How hard to think.
#[derive(Clone, Debug)]
pub(crate) struct Effort {
    /// A word for the template.
    pub(crate) word: String,
    /// The client's field that says so.
    pub(crate) field: &'static str,
}

/// Texts to go on with as they stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompletionRequest {
    /// Texts or token ids.
    pub(crate) prompts: Vec<PromptInput>,
    pub(crate) generation: AnswerOptions,
}

/// Everything about an answer but its prompt.
#[derive(Clone, Debug)]
pub(crate) struct AnswerOptions {
    pub(crate) options: GenerationOptions,
    /// Answers per prompt, seeded one after the other.
    pub(crate) choices: usize,
    /// Whether the stop string that ends an answer is told as its last text.
    pub(crate) include_stop: bool,
    /// Whether log-probabilities are told of an end token, too.
    pub(crate) tell_end: bool,
    /// Whether the schema of an answer may be loosened where the grammar compiler cannot do all of it.
    pub(crate) lenient: bool,
    /// Whether the tokens of prompts are told.
    pub(crate) tell_prompt: bool,
    /// What it takes from the prefix cache and leaves there.
    pub(crate) cache: CacheOverrides,
    /// The request's name, for whoever looks into what became of it.
    pub(crate) request_id: Arc<str>,
    /// Whose it is, where API keys tell.
    pub(crate) owner: Option<Owner>,
}

/// How a request uses the prefix cache.
#[derive(Clone, Debug)]
pub(crate) struct CacheOverrides {
    pub(crate) on: bool,
    /// Evict what it leaves there last.
    pub(crate) keep: bool,
    /// Share only with requests that say the same.
    pub(crate) salt: Option<String>,
}

impl Default for CacheOverrides {
    fn default() -> Self {
        Self { on: true, keep: false, salt: None }
    }
}

impl Default for AnswerOptions {
    fn default() -> Self {
        Self {
            options: GenerationOptions::default(),
            choices: 1,
            include_stop: false,
            tell_end: false,
            lenient: false,
            tell_prompt: false,
            cache: CacheOverrides::default(),
            request_id: "".into(),
            owner: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_named_where_the_client_has_it() {
        let mut request = ChatRequest::new(Vec::new());
        assert_eq!(request.own_place("tools[1].function.name"), "tools[1].function.name");
        request.tool_places = vec!["tools[0]".to_owned(), "tools[2].tools[1]".to_owned()];
        request.tool_schema = "input_schema";
        for (path, own) in [
            ("tools[1].function.name", "tools[2].tools[1].name"),
            ("tools[0].function.parameters.type", "tools[0].input_schema.type"),
            ("tools[7].function", "tools[7].function"),
            ("messages[0]", "messages[0]"),
        ] {
            assert_eq!(request.own_place(path), own);
        }
    }
}
