//! Lines that speak to the chat and not to the model.

/// A line that begins with `/`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Reset,
    /// Sets the system message; without text it removes it.
    System(Option<String>),
    Stats,
    Quit,
    Unknown(String),
}

pub(super) const HELP: &str = "\
/help          this list
/reset         forget the conversation
/system TEXT   set the system message; without TEXT, remove it
/stats         the last answer, the context and the memory in use
/bye           leave (so do /quit, Ctrl-D and Ctrl-C twice)
Ctrl-C stops an answer. A line that ends with \\ goes on in the next one, and lines between \"\"\" and \"\"\" are one
message. Anything else is said to the model, a path such as /etc/hosts too.";

impl Command {
    /// The command in a line, if it is one.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        // A path has more separators or an extension, and no command has.
        let name = word.strip_prefix('/').filter(|name| !name.contains(['/', '.']))?;
        let rest = rest.trim();
        Some(match (name, rest.is_empty()) {
            ("help" | "?", true) => Self::Help,
            ("reset", true) => Self::Reset,
            ("stats", true) => Self::Stats,
            ("quit" | "exit" | "bye", true) => Self::Quit,
            ("system", empty) => Self::System((!empty).then(|| rest.to_owned())),
            _ => Self::Unknown(line.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_slash_at_the_start_makes_a_command() {
        assert_eq!(Command::parse("what is /help?"), None);
        assert_eq!(Command::parse("/etc/hosts has which lines?"), None);
        assert_eq!(Command::parse("/notes.txt is what?"), None);
        assert_eq!(Command::parse("/bye"), Some(Command::Quit));
        assert_eq!(Command::parse("/help"), Some(Command::Help));
        assert_eq!(
            Command::parse("/system Be kind. "),
            Some(Command::System(Some("Be kind.".into())))
        );
        assert_eq!(Command::parse("/system"), Some(Command::System(None)));
        assert_eq!(Command::parse("/nope x"), Some(Command::Unknown("/nope x".into())));
    }
}
