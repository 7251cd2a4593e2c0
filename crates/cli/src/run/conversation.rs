//! The messages so far and the prompt they make.
//!
//! With a chat template every prompt is the whole conversation, rendered. Without one (or with
//! `--raw`) each line is continued as it stands and nothing is remembered.

use crate::args::RunArgs;
use crate::model_text::ModelText;
use anyhow::bail;
use forerun_base::Token;
use forerun_text::{ChatInput, ChatTemplate};
use serde_json::{Map, Value, json};

/// What is to be continued.
pub(super) struct Rendered {
    pub(super) tokens: Vec<Token>,
    /// What the template wrote; `None` where there is none.
    pub(super) text: Option<String>,
}

pub(super) struct Conversation {
    template: Option<ChatTemplate>,
    variables: Map<String, Value>,
    system: Option<String>,
    /// User and assistant in turn.
    messages: Vec<Value>,
}

impl Conversation {
    /// An empty conversation. Options for a template the model does not have are an error.
    pub(super) fn open(args: &RunArgs, text: &ModelText) -> anyhow::Result<Self> {
        let template = if args.raw { None } else { text.template()? };
        let variables = variables(args)?;
        if template.is_none() && (args.system.is_some() || !variables.is_empty()) {
            bail!(
                "this model has no chat template, so --system, --template-arg, --think and \
                 --no-think mean nothing to it"
            );
        }
        Ok(Self { template, variables, system: args.system.clone(), messages: Vec::new() })
    }

    pub(super) fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    pub(super) fn into_template(self) -> Option<ChatTemplate> {
        self.template
    }

    /// The prompt after one more line from the user.
    pub(super) fn prompt_after(
        &mut self,
        text: &ModelText,
        line: &str,
    ) -> anyhow::Result<Rendered> {
        let Some(template) = &self.template else {
            return Ok(Rendered { tokens: text.encode_raw(line)?, text: None });
        };
        let system = self.system.iter().map(|s| json!({"role": "system", "content": s}));
        let user = json!({"role": "user", "content": line});
        let messages: Vec<Value> =
            system.chain(self.messages.iter().cloned()).chain([user]).collect();
        let rendered = template.render(&ChatInput {
            messages: &messages,
            tools: &[],
            add_generation_prompt: true,
            extra: &self.variables,
        })?;
        Ok(Rendered { tokens: text.encode_rendered(&rendered)?, text: Some(rendered) })
    }

    /// Remembers a turn that was answered.
    pub(super) fn remember(&mut self, line: &str, answer: &str) {
        if self.template.is_some() {
            self.messages.push(json!({"role": "user", "content": line}));
            self.messages.push(json!({"role": "assistant", "content": answer}));
        }
    }

    /// Forgets every turn; the system message stays.
    pub(super) fn reset(&mut self) {
        self.messages.clear();
    }

    /// Replaces the system message, or removes it.
    pub(super) fn set_system(&mut self, system: Option<String>) {
        self.system = system;
    }
}

/// Template variables, each given once.
fn variables(args: &RunArgs) -> anyhow::Result<Map<String, Value>> {
    let thinking = match (args.think, args.no_think) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    let shorthand = thinking.map(|on| ("enable_thinking".to_owned(), Value::Bool(on)));
    let mut variables = Map::new();
    for (key, value) in args.template_arg.iter().cloned().chain(shorthand) {
        if variables.contains_key(&key) {
            bail!("the template argument `{key}` is given twice");
        }
        variables.insert(key, value);
    }
    Ok(variables)
}
