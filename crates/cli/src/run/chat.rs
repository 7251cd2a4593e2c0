//! The chat at a terminal.
//!
//! With a chat template the library remembers the conversation and keeps its state on the device. Without one each line
//! is continued as it stands and nothing is remembered.

use super::command::{Command, HELP};
use super::history::Lines;
use super::saved::{SavedChat, expanded};
use super::settings::ChatSettings;
use crate::answer::{line, remark, sampling_line};
use crate::exit::Outcome;
use crate::report::bytes_text;
use crate::screen::Screen;
use crate::terminal;
use anyhow::anyhow;
use forerun::{Answer, Chat, Error, Messages, Model, PromptKind, RejectError};
use rustyline::error::ReadlineError;
use std::ops::ControlFlow;

/// A chat with somebody at a terminal.
pub(super) struct Terminal {
    model: Model,
    /// `None` where the model has no chat template.
    chat: Option<Chat>,
    settings: ChatSettings,
    /// As they were typed with the command.
    start: ChatSettings,
    /// What was said last.
    asked: Option<String>,
    last: Option<Answer>,
    /// How tokens were sampled last, for the line after an answer.
    sampled: String,
}

impl Terminal {
    pub(super) fn new(model: Model, messages: Option<Messages>, settings: ChatSettings) -> Self {
        let chat = messages.map(|messages| {
            model.chat().with_messages(messages).with_options(settings.options.clone())
        });
        let start = settings.clone();
        Self { model, chat, settings, start, asked: None, last: None, sampled: String::new() }
    }

    /// Reads lines and answers them until someone leaves. `kept` keeps them for later chats.
    pub(super) fn talk(mut self, kept: bool) -> anyhow::Result<Outcome> {
        self.greet();
        let mut lines = Lines::open(kept)?;
        let mut leaving = false;
        loop {
            match lines.editor.readline("> ") {
                Ok(line) => {
                    leaving = false;
                    let message = whole_message(line, &mut || lines.editor.readline(". "));
                    lines.keep(&message)?;
                    if self.take(message.trim())?.is_break() {
                        return Ok(Outcome::Done);
                    }
                }
                Err(ReadlineError::Interrupted) if leaving => return Ok(Outcome::Done),
                Err(ReadlineError::Interrupted) => {
                    leaving = true;
                    terminal::aside("Ctrl-C again, Ctrl-D or /bye leaves");
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
        let done = match Command::parse(line) {
            None => self.answer(line)?,
            Some(Command::Quit) => return Ok(ControlFlow::Break(())),
            Some(Command::Help) => said(HELP),
            Some(Command::Set(None)) => {
                let kind = self.chat.as_ref().map_or(PromptKind::Text, |_| PromptKind::Chat);
                said(&self.settings.table(self.model.processor(), kind))
            }
            Some(Command::Set(Some((name, value)))) => self.set(&name, &value),
            Some(Command::Regenerate) => self.regenerate()?,
            Some(Command::Stats) => self.show_stats(),
            Some(Command::Unknown(complaint)) => said(&complaint),
            Some(command) => self.on_conversation(command),
        };
        // The chat goes on without what could not be done.
        done.unwrap_or_else(|error| terminal::note(&format!("error: {error:#}")));
        Ok(ControlFlow::Continue(()))
    }

    /// Commands that need a conversation.
    fn on_conversation(&mut self, command: Command) -> anyhow::Result<()> {
        let Some(chat) = &mut self.chat else {
            return said("without a chat template there is no conversation");
        };
        match command {
            Command::Reset => {
                chat.reset();
                self.asked = None;
                terminal::aside("forgotten");
            }
            Command::System(system) => {
                terminal::aside(if system.is_some() { "set" } else { "removed" });
                chat.set_system(system);
            }
            Command::Save(path) => {
                let (path, values) = (expanded(&path), self.settings.values());
                SavedChat::new(self.model.name(), values, chat.messages()).write(&path)?;
                terminal::aside(&format!("saved to {}", path.display()));
            }
            Command::Load(path) => {
                let saved = SavedChat::read(&expanded(&path))?;
                let mut settings = self.settings.clone();
                settings.load(&saved.settings, &self.start, self.model.processor())?;
                let (count, name) = (saved.messages.len(), self.model.name());
                chat.set_messages(saved.messages);
                terminal::aside(&format!("{count} messages; /regen answers the last again"));
                if saved.model != name {
                    terminal::aside(&format!("{} began it, {name} goes on", saved.model));
                }
                self.apply(settings);
            }
            _ => unreachable!("commands that need no conversation are handled before"),
        }
        Ok(())
    }

    /// Sets an option, or shows the one that is named.
    fn set(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        if value.is_empty() {
            return Err(anyhow!("/set {name} needs a value; /set alone lists the options"));
        }
        let mut settings = self.settings.clone();
        settings.set(name, value, &self.start, self.model.processor())?;
        self.apply(settings);
        terminal::aside("set");
        Ok(())
    }

    /// Lets the answers to come have these settings.
    fn apply(&mut self, settings: ChatSettings) {
        if let Some(chat) = &mut self.chat {
            chat.set_options(settings.options.clone());
            chat.set_reasoning(settings.reasoning);
        }
        self.settings = settings;
    }

    /// Answers the last message again. The next seed gives another text, and so on.
    fn regenerate(&mut self) -> anyhow::Result<anyhow::Result<()>> {
        let before = self.chat.as_ref().map(|chat| chat.messages().to_vec());
        let ends_with_answer =
            before.iter().flatten().last().is_some_and(|message| message["role"] == "assistant");
        let taken = match &mut self.chat {
            Some(chat) if ends_with_answer => chat.take_back(),
            _ => self.asked.clone(),
        };
        let Some(text) = taken else {
            return Ok(said("nothing was said that could be answered again"));
        };
        let mut settings = self.settings.clone();
        let seed = settings.options.sampling.seed.unwrap_or_default();
        settings.options.sampling.seed = Some(seed.wrapping_add(1));
        self.apply(settings);
        let tokens = self.last.take();
        let done = self.answer(&text)?;
        let empty = self.last.as_ref().is_none_or(|answer| answer.token_ids.is_empty());
        if let (true, Some(chat), Some(before)) = (empty, &mut self.chat, before) {
            // The answer that was to be replaced is better than none.
            chat.set_messages(before);
            self.last = tokens;
        }
        Ok(done)
    }

    /// Answers a text. The outer error ends the chat, the inner one is a turn that cannot be.
    fn answer(&mut self, text: &str) -> anyhow::Result<anyhow::Result<()>> {
        self.asked = Some(text.to_owned());
        let mut screen = Screen::stdout(self.settings.view);
        let Self { model, chat, settings, .. } = self;
        let (kind, answer, sampling) = match chat {
            Some(chat) => {
                let mut reply = match chat.send(text) {
                    Ok(reply) => reply,
                    Err(error) => return Ok(Err(explained(error))),
                };
                screen.follow(&mut reply)?;
                let sampling = reply.sampling().clone();
                (PromptKind::Chat, reply.answer()?, sampling)
            }
            None => {
                let mut stream = match model.complete(text, settings.options.clone()) {
                    Ok(stream) => stream,
                    Err(error) => return Ok(Err(explained(error))),
                };
                screen.follow(&mut stream)?;
                let sampling = stream.sampling().clone();
                (PromptKind::Text, stream.answer()?, sampling)
            }
        };
        screen.end_line()?;
        self.sampled = sampling_line(self.model.processor(), kind, &sampling);
        remark(&answer, &self.sampled);
        self.last = Some(answer);
        Ok(Ok(()))
    }

    fn show_stats(&mut self) -> anyhow::Result<()> {
        let used = |a: &Answer| a.finish.prompt_tokens + a.token_ids.len();
        let used = self.last.as_ref().map_or(0, used);
        let memory = bytes_text(self.model.memory().total());
        let context = self.model.context();
        if let Some(last) = &self.last {
            terminal::note(&line(last, &self.sampled));
        }
        said(&format!("context {used} of {context} tok · memory {memory}"))
    }
}

/// Says something, which cannot fail.
fn said(text: &str) -> anyhow::Result<()> {
    terminal::note(text);
    Ok(())
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
fn explained(error: Error) -> anyhow::Error {
    match error {
        Error::Reject(RejectError::PromptTooLong { prompt, context }) => anyhow!(
            "this turn needs {prompt} tokens and the context holds {context}: /reset forgets the conversation, or start \
             again with a larger --ctx"
        ),
        error => error.into(),
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
