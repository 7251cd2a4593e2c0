//! The messages so far and the prompt they make.
//!
//! With a chat template every prompt is the whole conversation, rendered. Without one (or with
//! `--raw`) each line is continued as it stands and nothing is remembered.

use crate::args::RunArgs;
use crate::model_text::ModelText;
use anyhow::{Context, bail};
use forerun_base::Token;
use forerun_text::{ChatInput, ChatTemplate, Dialect, Literals};
use serde_json::{Map, Value, json};

/// What is to be continued.
pub(super) struct Rendered {
    pub(super) tokens: Vec<Token>,
    /// What the template wrote; `None` where there is none.
    pub(super) text: Option<String>,
}

pub(super) struct Conversation {
    template: Option<ChatTemplate>,
    /// Marks of reasoning and calls, which an answer may hold.
    own_marks: Vec<&'static str>,
    /// Whether special tokens that messages spell are special tokens; otherwise they are text.
    parse_special: bool,
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
        let dialect = template.as_ref().zip(text.tokenizer.as_ref());
        let own_marks =
            dialect.map(|(template, tokenizer)| Dialect::of(template, tokenizer).own_marks());
        Ok(Self {
            template,
            own_marks: own_marks.unwrap_or_default(),
            parse_special: args.parse_special,
            variables,
            system: args.system.clone(),
            messages: Vec::new(),
        })
    }

    pub(super) fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    pub(super) fn into_template(self) -> Option<ChatTemplate> {
        self.template
    }

    /// The prompt after one more line from the user. One that cannot fit into the context is not encoded first.
    pub(super) fn prompt_after(
        &mut self,
        text: &ModelText,
        line: &str,
        context: usize,
    ) -> anyhow::Result<Rendered> {
        let tokenizer = text.need_tokenizer()?;
        let fits = |text: &str| {
            tokenizer.check_length(text, context).context("--ctx N gives a longer context")
        };
        let Some(template) = &self.template else {
            fits(line)?;
            return Ok(Rendered { tokens: text.encode_raw(line)?, text: None });
        };
        let system = self.system.iter().map(|s| json!({"role": "system", "content": s}));
        let user = json!({"role": "user", "content": line});
        let mut messages: Vec<Value> =
            system.chain(self.messages.iter().cloned()).chain([user]).collect();
        let mut literals = Literals::default();
        if !self.parse_special {
            literals.hide_messages(tokenizer, &mut messages, &self.own_marks);
        }
        let rendered = template.render(&ChatInput {
            messages: &messages,
            tools: &[],
            add_generation_prompt: true,
            extra: &self.variables,
        })?;
        fits(&rendered)?;
        let tokens = tokenizer.encode_chat(&rendered, &literals)?;
        Ok(Rendered { tokens, text: Some(rendered) })
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
