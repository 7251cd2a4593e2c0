//! Where an answer is shown: its content on stdout as it comes, reasoning apart from it, and a line on stderr while a
//! long prompt is read.

use crate::args::ReasoningView;
use crate::interrupt::Answering;
use crate::stats::{rate, rate_text};
use crate::terminal;
use crate::wrap::Wrap;
use console::Term;
use forerun::{Answer, AnswerStream, Error, Progress, Reply, StreamEvent};
use indicatif::ProgressBar;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// A prompt shorter than this is read before a line about it is.
const LONG_PROMPT: usize = 128;
const TICK: Duration = Duration::from_millis(200);
const DIM: &str = "\x1b[2m";
const UNDIM: &str = "\x1b[0m";

/// An answer that is coming: of a prompt alone, or of a chat.
pub(crate) trait ComingAnswer: Iterator<Item = Result<StreamEvent, Error>> {
    /// What there is of it.
    fn so_far(&self) -> &Answer;
    /// Tokens of the prompt that are to be read.
    fn to_read(&self) -> usize;
}

impl ComingAnswer for AnswerStream {
    fn so_far(&self) -> &Answer {
        AnswerStream::so_far(self)
    }

    fn to_read(&self) -> usize {
        AnswerStream::to_read(self)
    }
}

impl ComingAnswer for Reply<'_> {
    fn so_far(&self) -> &Answer {
        Reply::so_far(self)
    }

    fn to_read(&self) -> usize {
        Reply::to_read(self)
    }
}

/// Which part of an answer is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Nothing,
    Reasoning,
    Content,
}

/// What shows one answer.
pub(crate) struct Screen {
    /// `None` shows nothing at all.
    out: Option<Box<dyn Write>>,
    view: ReasoningView,
    /// Whether reasoning can be told apart by its colour.
    styled: bool,
    wrap: Wrap,
    part: Part,
    /// Bytes of reasoning and of content that are shown.
    shown: (usize, usize),
    began: Instant,
    /// The line about reasoning that is folded.
    folded: ProgressBar,
    fresh_line: bool,
}

impl Screen {
    /// Stdout. Reasoning is shown at a terminal and hidden elsewhere, unless the view was typed.
    pub(crate) fn stdout(view: Option<ReasoningView>) -> Self {
        let terminal = io::stdout().is_terminal();
        let usual = if terminal { ReasoningView::Show } else { ReasoningView::Hide };
        let columns = Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
        let mut screen = Self::new(Some(Box::new(io::stdout())), view.unwrap_or(usual));
        screen.styled = terminal && std::env::var_os("NO_COLOR").is_none();
        screen.wrap = Wrap::at(columns.filter(|_| terminal));
        screen
    }

    /// Nowhere: the answer is shown as a whole once it is there.
    pub(crate) fn silent() -> Self {
        Self::new(None, ReasoningView::Hide)
    }

    fn new(out: Option<Box<dyn Write>>, view: ReasoningView) -> Self {
        Self {
            out,
            view,
            styled: false,
            wrap: Wrap::default(),
            part: Part::Nothing,
            shown: (0, 0),
            began: Instant::now(),
            folded: ProgressBar::hidden(),
            fresh_line: false,
        }
    }

    /// Shows an answer until its end. Ctrl-C ends it.
    pub(crate) fn follow(&mut self, answer: &mut dyn ComingAnswer) -> anyhow::Result<()> {
        let _answering = Answering::begin();
        let reading = self.reading(answer.to_read());
        let began = Instant::now();
        let mut done = Ok(());
        while let Some(event) = answer.next() {
            match event {
                Ok(StreamEvent::Reading(progress)) => note_progress(&reading, progress, began),
                Ok(StreamEvent::Started(_)) => {}
                Ok(_) => {
                    reading.finish_and_clear();
                    self.update(answer.so_far())?;
                }
                Err(error) => {
                    done = Err(error.into());
                    break;
                }
            }
        }
        reading.finish_and_clear();
        self.close_reasoning(answer.so_far().token_ids.len())?;
        done
    }

    /// Shows a text that the answer goes on from.
    pub(crate) fn say(&mut self, text: &str) -> io::Result<()> {
        let text = self.wrap.push(text);
        self.write(&text)
    }

    /// Ends the line that an answer may have left open.
    pub(crate) fn end_line(&mut self) -> io::Result<()> {
        let rest = self.wrap.end();
        self.write(&rest)?;
        if self.fresh_line { Ok(()) } else { self.write("\n") }
    }

    /// The line about a prompt; hidden where stderr is not a terminal.
    fn reading(&self, tokens: usize) -> ProgressBar {
        if self.out.is_none() || tokens < LONG_PROMPT {
            return ProgressBar::hidden();
        }
        let bar =
            terminal::bar(tokens as u64, "{spinner} reading the prompt: {pos}/{len} tok{msg}");
        bar.enable_steady_tick(TICK);
        bar
    }

    /// Shows what is new.
    fn update(&mut self, answer: &Answer) -> io::Result<()> {
        let (reasoned, said) = self.shown;
        let reasoning = &answer.reasoning[reasoned..];
        let content = &answer.content[said..];
        self.shown = (answer.reasoning.len(), answer.content.len());
        if !reasoning.is_empty() {
            self.open_reasoning()?;
            if self.view == ReasoningView::Show {
                self.say(reasoning)?;
            }
            self.folded.set_position(answer.token_ids.len() as u64);
        }
        if !content.is_empty() {
            self.close_reasoning(answer.token_ids.len())?;
            self.part = Part::Content;
            self.say(content)?;
        }
        Ok(())
    }

    fn open_reasoning(&mut self) -> io::Result<()> {
        if self.part == Part::Reasoning {
            return Ok(());
        }
        if self.part == Part::Content {
            self.end_line()?;
        }
        self.part = Part::Reasoning;
        self.began = Instant::now();
        match self.view {
            ReasoningView::Show => self.write(if self.styled { DIM } else { "<think>\n" }),
            ReasoningView::Fold => {
                self.folded = terminal::bar(0, "{spinner} reasoning: {pos} tok, {elapsed}");
                self.folded.enable_steady_tick(TICK);
                Ok(())
            }
            ReasoningView::Hide => Ok(()),
        }
    }

    fn close_reasoning(&mut self, tokens: usize) -> io::Result<()> {
        if self.part != Part::Reasoning {
            return Ok(());
        }
        self.part = Part::Nothing;
        match self.view {
            ReasoningView::Show => {
                let rest = self.wrap.end();
                self.write(&rest)?;
                self.write(if self.styled { UNDIM } else { "" })?;
                self.write(match (self.styled, self.fresh_line) {
                    (true, true) => "\n",
                    (true, false) => "\n\n",
                    (false, true) => "</think>\n\n",
                    (false, false) => "\n</think>\n\n",
                })
            }
            ReasoningView::Fold => {
                self.folded.finish_and_clear();
                let seconds = self.began.elapsed().as_secs_f64();
                terminal::aside(&format!("reasoned for {tokens} tok, {seconds:.1} s"));
                Ok(())
            }
            ReasoningView::Hide => Ok(()),
        }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        let Some(out) = &mut self.out else { return Ok(()) };
        if text.is_empty() {
            return Ok(());
        }
        // Colours end no line and begin none.
        if ![DIM, UNDIM].contains(&text) {
            self.fresh_line = text.ends_with('\n');
        }
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// Tokens, and how fast and how long they are read.
fn note_progress(bar: &ProgressBar, progress: Progress, began: Instant) {
    let Progress { read, of } = progress;
    bar.set_position(read as u64);
    let speed = rate(read, began.elapsed());
    if speed > 0.0 {
        let left = of.saturating_sub(read) as f64 / speed;
        bar.set_message(format!(", {}, {left:.0} s left", rate_text(speed)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What a screen shows of an answer that comes in these steps of reasoning and content.
    fn shown(view: ReasoningView, styled: bool, steps: &[(&str, &str)]) -> String {
        let paper = Paper::default();
        let mut screen = Screen::new(Some(Box::new(paper.clone())), view);
        screen.styled = styled;
        let mut answer = Answer::default();
        for (reasoning, content) in steps {
            answer.reasoning.push_str(reasoning);
            answer.content.push_str(content);
            screen.update(&answer).unwrap();
        }
        screen.close_reasoning(1).unwrap();
        screen.end_line().unwrap();
        let bytes = paper.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn reasoning_is_set_apart_and_only_where_it_is_shown() {
        use ReasoningView::{Fold, Hide, Show};
        let steps = [("so ", ""), ("it is", ""), ("", "Yes"), ("", ".")];
        for (view, styled, expected) in [
            (Show, true, "\x1b[2mso it is\x1b[0m\n\nYes.\n"),
            (Show, false, "<think>\nso it is\n</think>\n\nYes.\n"),
            (Fold, true, "Yes.\n"),
            (Hide, false, "Yes.\n"),
        ] {
            assert_eq!(shown(view, styled, &steps), expected, "{view:?}");
        }
        assert_eq!(shown(Show, true, &[("cut", "")]), "\x1b[2mcut\x1b[0m\n\n");
        assert_eq!(shown(Show, true, &[("", "plain\n")]), "plain\n");
        assert_eq!(shown(Hide, false, &[]), "\n", "an empty answer is an empty line");
    }
}
