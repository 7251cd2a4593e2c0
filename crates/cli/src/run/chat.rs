//! The chat at a terminal.
//!
//! With a chat template the library remembers the conversation and keeps its state on the device. Without one each line
//! is continued as it stands and nothing is remembered.

use super::command::{Command, HELP};
use crate::answer::{line, sampling_line, show_answer};
use crate::exit::Outcome;
use crate::report::bytes_text;
use crate::terminal;
use forerun::{Answer, Chat, Error, GenerationOptions, Messages, Model, PromptKind, RejectError};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::ops::ControlFlow;

/// A chat with somebody at a terminal.
pub(super) struct Terminal {
    model: Model,
    /// `None` where the model has no chat template.
    chat: Option<Chat>,
    options: GenerationOptions,
    last: Option<Answer>,
    /// How tokens were sampled last, for the line after an answer.
    sampled: String,
}

impl Terminal {
    pub(super) fn new(
        model: Model,
        messages: Option<Messages>,
        options: GenerationOptions,
    ) -> Self {
        let chat = messages
            .map(|messages| model.chat().with_messages(messages).with_options(options.clone()));
        Self { model, chat, options, last: None, sampled: String::new() }
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
                    let message = whole_message(line, &mut || editor.readline(". "));
                    let _ = editor.add_history_entry(&message);
                    if self.take(message.trim())?.is_break() {
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
        let (name, device) = (self.model.name(), self.model.device());
        terminal::aside(&format!("{name} on {device}. /help lists commands."));
        if self.chat.is_none() {
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
                self.chat.iter_mut().for_each(Chat::reset);
                terminal::aside("forgotten");
            }
            Some(Command::System(system)) => match &mut self.chat {
                None => terminal::note("without a chat template there is no system message"),
                Some(chat) => {
                    terminal::aside(if system.is_some() { "set" } else { "removed" });
                    chat.set_system(system);
                }
            },
            Some(Command::Stats) => self.show_stats(),
            Some(Command::Unknown(line)) => {
                terminal::note(&format!("unknown command `{line}`; /help lists the known ones"));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn answer_line(&mut self, text: &str) -> anyhow::Result<()> {
        let Self { model, chat, options, .. } = self;
        let (kind, answer, sampling) = match chat {
            Some(chat) => {
                let mut reply = match chat.send(text) {
                    Ok(reply) => reply,
                    // The conversation goes on without this turn.
                    Err(error) => {
                        explain(error);
                        return Ok(());
                    }
                };
                show_answer(&mut reply, &mut terminal::show)?;
                let sampling = reply.sampling().clone();
                (PromptKind::Chat, reply.answer()?, sampling)
            }
            None => {
                let mut stream = match model.complete(text, options.clone()) {
                    Ok(stream) => stream,
                    Err(error) => {
                        explain(error);
                        return Ok(());
                    }
                };
                show_answer(&mut stream, &mut terminal::show)?;
                let sampling = stream.sampling().clone();
                (PromptKind::Text, stream.answer()?, sampling)
            }
        };
        terminal::end_line(&answer.text)?;
        self.sampled = sampling_line(self.model.processor(), kind, &sampling);
        terminal::aside(&line(&answer, &self.sampled));
        self.last = Some(answer);
        Ok(())
    }

    fn show_stats(&mut self) {
        let used = |a: &Answer| a.finish.prompt_tokens + a.token_ids.len();
        let used = self.last.as_ref().map_or(0, used);
        let memory = bytes_text(self.model.memory().total());
        let context = self.model.context();
        if let Some(last) = &self.last {
            terminal::note(&line(last, &self.sampled));
        }
        terminal::note(&format!("context {used} of {context} tok · memory {memory}"));
    }
}

/// A message of one line, or of several: a backslash at its end goes on, and three quotes open a block that three
/// quotes close. What was typed until the end of the input counts.
fn whole_message(first: String, next: &mut dyn FnMut() -> Result<String, ReadlineError>) -> String {
    const QUOTES: &str = "\"\"\"";
    if let Some(opened) = first.trim_start().strip_prefix(QUOTES) {
        let mut block = opened.to_owned();
        while !block.trim_end().ends_with(QUOTES) {
            let Ok(line) = next() else { return block };
            block = format!("{block}\n{line}");
        }
        let closed = block.trim_end();
        return closed[..closed.len() - QUOTES.len()].trim_matches('\n').to_owned();
    }
    let mut message = first;
    while let Some(open) = message.strip_suffix('\\') {
        let Ok(line) = next() else { return open.to_owned() };
        message = format!("{open}\n{line}");
    }
    message
}

/// Why a turn has no answer.
fn explain(error: Error) {
    match error {
        Error::Reject(RejectError::PromptTooLong { prompt, context }) => {
            terminal::note(&format!(
                "this turn needs {prompt} tokens and the context holds {context}: /reset forgets the \
                 conversation, or start again with a larger --ctx"
            ));
        }
        error => terminal::note(&format!("error: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_may_have_several_lines() {
        for (lines, expected, left) in [
            (&["one", "two"][..], "one", 1),
            (&["one\\", "two\\", "three", "four"], "one\ntwo\nthree", 1),
            (&["\"\"\"", "one", "", "two", "\"\"\"", "x"], "one\n\ntwo", 1),
            (&["\"\"\"one", "two\"\"\""], "one\ntwo", 0),
            (&["\"\"\"one\"\"\""], "one", 0),
            (&["\"\"\"", "one"], "\none", 0),
            (&["one\\"], "one", 0),
        ] {
            let mut rest = lines.iter().map(|&line| line.to_owned());
            let first = rest.next().unwrap();
            let message = whole_message(first, &mut || rest.next().ok_or(ReadlineError::Eof));
            assert_eq!((message.as_str(), rest.count()), (expected, left), "{lines:?}");
        }
    }
}
