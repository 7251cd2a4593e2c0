//! What is compared: a source of drafts and how many of them a round holds.

use forerun_engine::{Depth, Mode, Speculation};
use std::fmt;
use std::str::FromStr;

/// One way to generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// No drafts.
    Plain,
    Drafting {
        by: Drafters,
        depth: Depth,
    },
}

/// Who drafts. An engine has one set of drafters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drafters {
    /// The MTP head and the text, as `run` does.
    All,
    Mtp,
    Text,
}

impl Arm {
    /// The arm `run` takes by default.
    pub(super) const AUTO: Self = Self::Drafting { by: Drafters::All, depth: Depth::Auto };

    /// What is compared when nobody says.
    pub(super) fn defaults(has_head: bool) -> Vec<Self> {
        if !has_head {
            let ngram = Self::Drafting { by: Drafters::Text, depth: Depth::Fixed(4) };
            return vec![Self::Plain, ngram, Self::AUTO];
        }
        let fixed = |depth| Self::Drafting { by: Drafters::All, depth: Depth::Fixed(depth) };
        [Self::Plain].into_iter().chain((1..=4).map(fixed)).chain([Self::AUTO]).collect()
    }

    pub(super) fn drafters(self) -> Option<Drafters> {
        match self {
            Self::Plain => None,
            Self::Drafting { by, .. } => Some(by),
        }
    }

    /// What a request asks for.
    pub(super) fn depth(self) -> Depth {
        match self {
            Self::Plain => Depth::Fixed(0),
            Self::Drafting { depth, .. } => depth,
        }
    }
}

impl Drafters {
    /// Without a head, all that is left is the text.
    pub(super) fn in_model(self, has_head: bool) -> Self {
        if self == Self::All && !has_head { Self::Text } else { self }
    }

    pub(super) fn speculation(self, max_drafts: usize) -> Speculation {
        let (mtp, text) = (self != Self::Text, self != Self::Mtp);
        Speculation { mode: Mode::Verified, max_drafts, mtp, text, ..Speculation::OFF }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Drafting { by, depth } = self else { return f.write_str("plain") };
        let name = match by {
            Drafters::All => None,
            Drafters::Mtp => Some("mtp"),
            Drafters::Text => Some("ngram"),
        };
        match (name, depth) {
            (None, Depth::Auto) => f.write_str("auto"),
            (None, Depth::Fixed(depth)) => write!(f, "{depth}"),
            (Some(name), Depth::Auto) => f.write_str(name),
            (Some(name), Depth::Fixed(depth)) => write!(f, "{name}:{depth}"),
        }
    }
}

impl FromStr for Arm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (by, depth) = match text.split_once(':') {
            Some(("mtp", depth)) => (Drafters::Mtp, depth),
            Some(("ngram", depth)) => (Drafters::Text, depth),
            _ => match text {
                "plain" => return Ok(Self::Plain),
                "mtp" => (Drafters::Mtp, "auto"),
                "ngram" => (Drafters::Text, "auto"),
                depth => (Drafters::All, depth),
            },
        };
        let depth = match depth.parse() {
            _ if depth == "auto" => Depth::Auto,
            Ok(depth @ 1..=Depth::MOST) => Depth::Fixed(depth),
            Ok(0) => return Err("no drafts at all is called plain".to_owned()),
            _ => {
                return Err(format!(
                    "expected plain, auto, a number from 1 to {}, mtp, mtp:N, ngram or ngram:N",
                    Depth::MOST
                ));
            }
        };
        Ok(Self::Drafting { by, depth })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arm_is_printed_as_it_is_typed() {
        for text in ["plain", "1", "16", "auto", "mtp", "mtp:3", "ngram", "ngram:4"] {
            assert_eq!(text.parse::<Arm>().unwrap().to_string(), text);
        }
        for text in ["", "0", "17", "-1", "mtp:0", "head:3", "Plain"] {
            assert!(text.parse::<Arm>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_model_without_a_head_drafts_from_the_text() {
        assert_eq!(Drafters::All.in_model(false), Drafters::Text);
        assert_eq!(Drafters::All.in_model(true), Drafters::All);
        assert!(Arm::defaults(false).iter().all(|arm| arm.drafters() != Some(Drafters::Mtp)));
    }
}
