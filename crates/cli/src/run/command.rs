//! Lines that speak to the chat and not to the model.

use clap::error::{ContextKind, ContextValue};

/// A line that begins with `/`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    Reset,
    /// Sets the system message; without text it removes it.
    System(Option<String>),
    /// An option and its new value; nothing shows all, a name alone shows that one.
    Set(Option<(String, String)>),
    Regenerate,
    Save(String),
    Load(String),
    Stats,
    Quit,
    Unknown(String),
}

pub(super) const HELP: &str = "\
/help            this list
/set             the options of the answers; /set NAME VALUE sets one, /set NAME default undoes that
/system TEXT     set the system message; without TEXT, remove it
/regen           answer the last message again, with the next seed
/reset           forget the conversation
/save FILE       write the conversation and the options to a JSON file
/load FILE       go on with what such a file holds
/stats           the last answer, the context and the memory in use
/bye             leave (so do /quit, Ctrl-D and Ctrl-C twice)
Ctrl-C stops an answer. A line that ends with \\ goes on in the next one, and lines between \"\"\" and \"\"\" are one
message. Anything else is said to the model, a path such as /etc/hosts too.";

/// Names as they are typed, to find the nearest of.
const NAMES: [&str; 13] = [
    "help", "set", "system", "regen", "reset", "clear", "save", "load", "stats", "bye", "quit",
    "exit", "?",
];

impl Command {
    /// The command in a line, if it is one.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        // A path has more separators or an extension, and no command has.
        let name = word.strip_prefix('/').filter(|name| !name.contains(['/', '.']))?;
        let rest = rest.trim();
        Some(match (name, rest.is_empty()) {
            ("help" | "?", true) => Self::Help,
            ("reset" | "clear", true) => Self::Reset,
            ("regen", true) => Self::Regenerate,
            ("stats", true) => Self::Stats,
            ("quit" | "exit" | "bye", true) => Self::Quit,
            ("set", true) => Self::Set(None),
            ("set", false) => {
                let (option, value) = rest.split_once([' ', '=']).unwrap_or((rest, ""));
                Self::Set(Some((option.to_owned(), value.trim().to_owned())))
            }
            ("save", false) => Self::Save(rest.to_owned()),
            ("load", false) => Self::Load(rest.to_owned()),
            ("system", empty) => Self::System((!empty).then(|| rest.to_owned())),
            _ => Self::Unknown(Self::complaint(word, name)),
        })
    }

    /// What is wrong with a line that begins like a command and is none.
    fn complaint(word: &str, name: &str) -> String {
        if NAMES.contains(&name) {
            let form = if matches!(name, "save" | "load") { " FILE" } else { "" };
            return format!("it is `{word}{form}`; /help lists the commands");
        }
        match nearest(name, &NAMES) {
            Some(near) => format!("unknown command `{word}`; did you mean `/{near}`?"),
            None => format!("unknown command `{word}`; /help lists the known ones"),
        }
    }
}

/// The name among these that somebody may have meant.
pub(super) fn nearest(word: &str, names: &[&'static str]) -> Option<String> {
    let known = names.iter().map(|&name| clap::Command::new(name));
    let names = clap::Command::new("").no_binary_name(true).disable_help_flag(true);
    let error = names.disable_help_subcommand(true).subcommands(known).try_get_matches_from([word]);
    match error.err()?.get(ContextKind::SuggestedSubcommand)? {
        ContextValue::String(name) => Some(name.clone()),
        ContextValue::Strings(names) => names.last().cloned(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_slash_at_the_start_makes_a_command() {
        let set = |name: &str, value: &str| Command::Set(Some((name.into(), value.into())));
        for (line, expected) in [
            ("what is /help?", None),
            ("/etc/hosts has which lines?", None),
            ("/notes.txt is what?", None),
            ("/bye", Some(Command::Quit)),
            ("/help", Some(Command::Help)),
            ("/regen", Some(Command::Regenerate)),
            ("/set", Some(Command::Set(None))),
            ("/set top_k 3", Some(set("top_k", "3"))),
            ("/set temperature=0.5", Some(set("temperature", "0.5"))),
            ("/set stop The End", Some(set("stop", "The End"))),
            ("/save /tmp/a b.json", Some(Command::Save("/tmp/a b.json".into()))),
            ("/load x.json", Some(Command::Load("x.json".into()))),
            ("/system Be kind. ", Some(Command::System(Some("Be kind.".into())))),
            ("/system", Some(Command::System(None))),
        ] {
            assert_eq!(Command::parse(line), expected, "{line}");
        }
    }

    #[test]
    fn an_unknown_command_names_the_nearest_one() {
        for (line, says) in [
            ("/regn", "unknown command `/regn`; did you mean `/regen`?"),
            ("/zzz x", "unknown command `/zzz`; /help"),
            ("/save", "`/save FILE`"),
            ("/bye now", "`/bye`"),
        ] {
            let Some(Command::Unknown(said)) = Command::parse(line) else { panic!("{line}") };
            assert!(said.contains(says), "{line}: {said}");
        }
    }
}
