//! The chat at a terminal.
//!
//! The finished sequence stays parked in the engine, so a turn reads only what is new; whether it
//! does or the conversation is read again changes the time and not the text.

use super::command::{Command, HELP};
use super::conversation::{Conversation, Rendered};
use super::form::Form;
use crate::answer::{Answer, Question, answer};
use crate::exit::Outcome;
use crate::generation::Generation;
use crate::load::{Loaded, Source};
use crate::report::bytes_text;
use crate::terminal;
use forerun_base::{SeqId, Token};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::ops::ControlFlow;

pub(super) struct Chat {
    source: Source,
    loaded: Loaded,
    generation: Generation,
    conversation: Conversation,
    form: Option<Form>,
    end_tokens: Vec<Token>,
    parked: Option<SeqId>,
    last: Option<Answer>,
}

impl Chat {
    pub(super) fn new(
        source: Source,
        loaded: Loaded,
        generation: Generation,
        conversation: Conversation,
        form: Option<Form>,
    ) -> Self {
        let end_tokens = source.text.end_tokens(conversation.template());
        let (parked, last) = (None, None);
        Self { source, loaded, generation, conversation, form, end_tokens, parked, last }
    }

    /// Reads lines and answers them until someone leaves.
    pub(super) fn talk(mut self) -> anyhow::Result<Outcome> {
        self.greet();
        let mut editor = DefaultEditor::new()?;
        let mut leaving = false;
        loop {
            match editor.readline("> ") {
                Ok(line) => {
                    leaving = false;
                    let _ = editor.add_history_entry(&line);
                    if self.take(line.trim())?.is_break() {
                        return Ok(Outcome::Done);
                    }
                }
                Err(ReadlineError::Interrupted) if leaving => return Ok(Outcome::Done),
                Err(ReadlineError::Interrupted) => {
                    leaving = true;
                    terminal::aside("Ctrl-C again, Ctrl-D or /quit leaves");
                }
                Err(ReadlineError::Eof) => return Ok(Outcome::Done),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn greet(&mut self) {
        let device = self.loaded.engine.runner().device();
        terminal::aside(&format!("{} on {device}. /help lists commands.", self.source.path));
        if self.conversation.template().is_none() {
            terminal::aside(
                "without a chat template each line is continued as it stands; nothing is remembered",
            );
        }
    }

    fn take(&mut self, line: &str) -> anyhow::Result<ControlFlow<()>> {
        if line.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        match Command::parse(line) {
            None => self.answer_line(line)?,
            Some(Command::Quit) => return Ok(ControlFlow::Break(())),
            Some(Command::Help) => terminal::note(HELP),
            Some(Command::Reset) => {
                self.conversation.reset();
                terminal::aside("forgotten");
            }
            Some(Command::System(_)) if self.conversation.template().is_none() => {
                terminal::note("without a chat template there is no system message");
            }
            Some(Command::System(system)) => {
                terminal::aside(if system.is_some() { "set" } else { "removed" });
                self.conversation.set_system(system);
            }
            Some(Command::Stats) => self.show_stats(),
            Some(Command::Unknown(line)) => {
                terminal::note(&format!("unknown command `{line}`; /help lists the known ones"));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn answer_line(&mut self, line: &str) -> anyhow::Result<()> {
        let context = self.loaded.engine.runner().limits().context;
        let Rendered { tokens: prompt, text } =
            match self.conversation.prompt_after(&self.source.text, line, context) {
                Ok(prompt) => prompt,
                // The template refused this turn; the conversation goes on without it.
                Err(error) => {
                    terminal::note(&format!("error: {error:#}"));
                    return Ok(());
                }
            };
        if prompt.len() >= context {
            terminal::note(&format!(
                "this turn needs {} tokens and the context holds {context}: /reset forgets the \
                 conversation, or start again with a larger --ctx",
                prompt.len()
            ));
            return Ok(());
        }
        let form = self.form.as_ref();
        let constraint = form.map(|form| form.constraint(text.as_deref())).transpose()?;
        let question = Question {
            prompt,
            generation: &self.generation,
            end_tokens: &self.end_tokens,
            tokenizer: self.source.text.tokenizer.as_ref(),
            constraint,
            park: self.conversation.template().is_some(),
        };
        let parked = self.parked.take();
        let answer = answer(&mut self.loaded.engine, question, parked, &mut terminal::show)?;
        let text = answer.text.as_deref().unwrap_or_default();
        terminal::end_line(text)?;
        terminal::aside(&answer.line());
        // Stopped before the first token, it is as if nobody had asked.
        if !answer.token_ids.is_empty() {
            self.conversation.remember(line, text);
        }
        self.parked = answer.parked;
        self.last = Some(answer);
        Ok(())
    }

    fn show_stats(&mut self) {
        let used = self.last.as_ref().map_or(0, |a| a.prompt_tokens + a.token_ids.len());
        let runner = self.loaded.engine.runner();
        let memory = bytes_text(runner.memory().total());
        let context = runner.limits().context;
        if let Some(last) = &self.last {
            terminal::note(&last.line());
        }
        terminal::note(&format!("context {used} of {context} tok · memory {memory}"));
    }
}
