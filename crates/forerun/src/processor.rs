//! From prompts to generations: template, tokenizer, constraint, defaults. The command line and the server have no
//! other way.

use crate::at_least::AtLeast;
use crate::sampling::{PromptKind, SamplingSource};
use crate::{
    Error, Generation, GenerationOptions, Messages, PromptInput, Reasoning, TemplateError,
};
use forerun_base::Token;
use forerun_engine::{CacheUse, Constraint, Depth, RejectError, check_tokens};
use forerun_grammar::{GrammarSource, Grammars};
use forerun_text::{
    AnswerParser, ChatTemplate, Conversation, Dialect, GenerationDefaults, Opening, RenderedPrompt,
    Tokenizer,
};
use std::sync::OnceLock;

/// What a processor is made of.
pub struct TextParts {
    /// Text to tokens and back, or why there is no such thing.
    pub tokenizer: Result<Tokenizer, String>,
    /// Messages to a prompt, where the model has a template.
    pub template: Result<Option<ChatTemplate>, TemplateError>,
    /// End tokens and sampling settings of the model's files.
    pub defaults: GenerationDefaults,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Positions a sequence can reach.
    pub context: usize,
}

/// The text side of a model that runs.
pub struct TextProcessor {
    parts: TextParts,
    /// How the model writes reasoning and calls; with a template there is one.
    dialect: Option<Dialect>,
    grammars: OnceLock<Result<Grammars, String>>,
}

/// A conversation as the template wrote it.
#[derive(Debug)]
pub struct RenderedChat {
    /// The text and what it was made from.
    pub prompt: RenderedPrompt,
    /// Whether the answer begins with reasoning.
    pub opening: Opening,
    /// Whether and how long the model reasons.
    pub reasoning: Reasoning,
}

/// A prompt in tokens.
#[derive(Debug)]
pub struct EncodedPrompt {
    /// What the model reads.
    pub tokens: Vec<Token>,
    /// What the template wrote; `None` for text that is continued as it stands.
    pub chat: Option<RenderedChat>,
}

impl EncodedPrompt {
    /// Tokens to be continued as they stand.
    pub fn of_tokens(tokens: Vec<Token>) -> Self {
        Self { tokens, chat: None }
    }

    /// What the prompt is to the model.
    pub const fn kind(&self) -> PromptKind {
        if self.chat.is_some() { PromptKind::Chat } else { PromptKind::Text }
    }
}

/// Tokens that end an answer; in a chat also the token that ends a turn.
pub(crate) fn end_tokens(
    defaults: &GenerationDefaults,
    chat: Option<(&ChatTemplate, &Tokenizer)>,
) -> Vec<Token> {
    let defaults = defaults.clone();
    match chat {
        Some((template, tokenizer)) => {
            defaults.with_chat_eos(tokenizer, template.special_tokens()).eos_token_ids
        }
        None => defaults.eos_token_ids,
    }
}

impl TextProcessor {
    /// A processor of these parts.
    pub fn new(parts: TextParts) -> Self {
        let dialect = match (&parts.template, &parts.tokenizer) {
            (Ok(Some(template)), Ok(tokenizer)) => Some(Dialect::of(template, tokenizer)),
            _ => None,
        };
        Self { parts, dialect, grammars: OnceLock::new() }
    }

    /// The tokenizer, or why there is none.
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.parts.tokenizer.as_ref().map_err(|why| Error::NoTokenizer(why.clone()))
    }

    /// The chat template and the dialect found from it.
    pub fn chat(&self) -> Result<(&ChatTemplate, &Dialect), Error> {
        match (&self.parts.template, &self.dialect) {
            (Err(error), _) => Err(error.clone().into()),
            (Ok(None), _) => Err(Error::NoTemplate),
            (Ok(Some(template)), Some(dialect)) => Ok((template, dialect)),
            (Ok(Some(_)), None) => Err(self.tokenizer().err().unwrap_or(Error::NoTemplate)),
        }
    }

    /// What the model's files ask for.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.parts.defaults
    }

    /// Positions a sequence can reach.
    pub fn context(&self) -> usize {
        self.parts.context
    }

    /// Tokens in the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.parts.vocabulary
    }

    /// Tokens that end an answer; in a chat also the token that ends a turn.
    pub fn end_tokens(&self, kind: PromptKind) -> Vec<Token> {
        let template = self.parts.template.as_ref().ok().and_then(Option::as_ref);
        let template = template.filter(|_| kind == PromptKind::Chat);
        end_tokens(&self.parts.defaults, template.zip(self.parts.tokenizer.as_ref().ok()))
    }

    /// Where sampling parameters come from that a request leaves out.
    pub fn sampling_source(&self, kind: PromptKind) -> SamplingSource {
        SamplingSource::of(&self.parts.defaults, kind)
    }

    /// What makes constraints of this vocabulary. What ends a turn of a chat ends any answer that has one.
    pub fn grammars(&self) -> Result<&Grammars, Error> {
        let made = self.grammars.get_or_init(|| {
            let tokenizer = self.tokenizer().map_err(|error| error.to_string())?;
            let ends = self.end_tokens(PromptKind::Chat);
            Grammars::new(tokenizer, self.parts.vocabulary, &ends).map_err(|e| e.to_string())
        });
        made.as_ref().map_err(|why| Error::Vocabulary(why.clone()))
    }

    /// A prompt of any kind in tokens.
    pub fn encode_prompt(&self, prompt: &PromptInput) -> Result<EncodedPrompt, Error> {
        match prompt {
            PromptInput::Text(text) => Ok(EncodedPrompt::of_tokens(self.encode(text, true)?)),
            PromptInput::Tokens(tokens) => {
                check_tokens(tokens, self.parts.vocabulary)?;
                Ok(EncodedPrompt::of_tokens(tokens.clone()))
            }
            PromptInput::Messages(messages) => self.encode_messages(messages),
        }
    }

    /// A text to tokens. One that cannot fit into the context is not encoded first.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<Token>, Error> {
        let tokenizer = self.tokenizer()?;
        tokenizer.check_length(text, self.parts.context)?;
        Ok(tokenizer.encode(text, add_special)?)
    }

    /// A conversation in tokens, up to the opening of the answer.
    pub fn encode_messages(&self, messages: &Messages) -> Result<EncodedPrompt, Error> {
        let variables = messages.all_variables();
        let conversation = messages.conversation(&variables);
        self.encode_chat(self.render(&conversation, messages.reasoning)?)
    }

    /// A conversation as the template writes it. A budget is for reasoning that has begun, so it begins where there is
    /// one.
    pub fn render(
        &self,
        conversation: &Conversation<'_>,
        reasoning: Reasoning,
    ) -> Result<RenderedChat, Error> {
        let (template, dialect) = self.chat()?;
        let mut prompt = dialect.prompt(template, self.tokenizer()?, conversation)?;
        let mut opening = dialect.opening(&prompt.text);
        if let (Some(_), Opening::Free, Some(mark)) =
            (reasoning.budget, opening, dialect.reasoning_open())
        {
            prompt.text.push_str(mark);
            opening = Opening::Open;
        }
        Ok(RenderedChat { prompt, opening, reasoning })
    }

    /// Lets the answer go on from `beginning`, as text that the model has said already. Reasoning that the template
    /// opened is over then. Special tokens that the beginning spells are text, unless `parse_special`.
    pub fn begin_answer(
        &self,
        chat: &mut RenderedChat,
        beginning: &str,
        parse_special: bool,
    ) -> Result<(), Error> {
        let (_, dialect) = self.chat()?;
        if let (Opening::Open, Some(end)) = (chat.opening, dialect.reasoning_end()) {
            chat.prompt.text.push_str(&format!("\n{end}\n\n"));
            chat.opening = Opening::Closed;
        }
        let mut text = serde_json::Value::from(beginning);
        if !parse_special {
            chat.prompt.literals.hide(self.tokenizer()?, &mut text, &[]);
        }
        chat.prompt.text.push_str(text.as_str().unwrap_or_default());
        Ok(())
    }

    /// A rendered conversation in tokens.
    pub fn encode_chat(&self, chat: RenderedChat) -> Result<EncodedPrompt, Error> {
        let tokenizer = self.tokenizer()?;
        tokenizer.check_length(&chat.prompt.text, self.parts.context)?;
        let tokens = tokenizer.encode_chat(&chat.prompt.text, &chat.prompt.literals)?;
        Ok(EncodedPrompt { tokens, chat: Some(chat) })
    }

    /// What an answer is held to: a grammar, behind reasoning where the template began it. Compiles for as long as it
    /// is `wanted`.
    pub fn constraint(
        &self,
        chat: Option<&RenderedChat>,
        grammar: Option<&GrammarSource>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Box<dyn Constraint>>, Error> {
        let compile =
            |source| -> Result<_, Error> { Ok(self.grammars()?.compile_while(source, wanted)?) };
        let inner = grammar.map(compile).transpose()?;
        let (Some(chat), Some(dialect)) = (chat, &self.dialect) else { return Ok(inner) };
        let limit = chat.reasoning.limit();
        match (chat.opening, dialect.reasoning_end()) {
            (Opening::Open, Some(end)) if inner.is_some() || limit.is_some() => {
                Ok(Some(self.grammars()?.after_reasoning(end, limit, inner)?))
            }
            _ => Ok(inner),
        }
    }

    /// The generation of a prompt: the options over the model's defaults, checked.
    pub fn generation(
        &self,
        prompt: Vec<Token>,
        kind: PromptKind,
        options: &GenerationOptions,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Generation, Error> {
        let context = self.parts.context;
        if prompt.len() >= context {
            return Err(RejectError::PromptTooLong { prompt: prompt.len(), context }.into());
        }
        if !options.stops.is_empty() {
            self.tokenizer()?;
        }
        let sampling = options.sampling.resolve(&self.parts.defaults, kind);
        sampling.check(self.parts.vocabulary)?;
        check_tokens(&options.stop_tokens, self.parts.vocabulary)?;
        let mut end_tokens = if options.ignore_eos { Vec::new() } else { self.end_tokens(kind) };
        end_tokens.extend(&options.stop_tokens);
        let constraint = match (options.min_tokens, constraint) {
            (0, constraint) => constraint,
            (least, None) => {
                let least = AtLeast::new(least, end_tokens.clone(), self.parts.vocabulary);
                Some(Box::new(least) as Box<dyn Constraint>)
            }
            (_, Some(_)) => return Err(Error::MinTokens),
        };
        let default_length = self.parts.defaults.max_new_tokens.map_or(context, |n| n as usize);
        Ok(Generation {
            sampling,
            max_tokens: options.max_tokens.unwrap_or(default_length),
            end_tokens,
            stops: options.stops.clone(),
            depth: options.drafts.unwrap_or(Depth::Auto),
            priority: options.priority,
            cache: CacheUse::default(),
            constraint,
            logprobs: options.logprobs,
            shown: if options.hide_marks { Vec::new() } else { self.shown_tokens(kind) },
            retain: false,
            cancel: options.cancel.clone(),
            prompt,
        })
    }

    /// Special tokens that are part of an answer's text: marks of reasoning and calls.
    fn shown_tokens(&self, kind: PromptKind) -> Vec<Token> {
        match (kind, &self.dialect) {
            (PromptKind::Chat, Some(dialect)) => dialect.shown_tokens(),
            _ => Vec::new(),
        }
    }

    /// What reads the answer to a chat: reasoning, content, calls of the tools.
    pub fn answer_parser(
        &self,
        chat: &RenderedChat,
        tools: &[forerun_text::Tool],
    ) -> Option<AnswerParser> {
        let dialect = self.dialect.as_ref()?;
        Some(AnswerParser::new(dialect, chat.opening == Opening::Open, tools))
    }
}
