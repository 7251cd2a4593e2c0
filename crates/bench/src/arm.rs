//! What is compared: a source of drafts and how many of them a round holds.

use forerun_engine::{Depth, Speculation, SpeculationMode};
use std::fmt;
use std::str::FromStr;

/// One way to generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchArm {
    /// No drafts.
    Plain,
    /// Drafts.
    Drafting {
        /// Who drafts.
        by: ArmDrafters,
        /// How many drafts a round.
        depth: Depth,
    },
}

/// Who drafts. An engine has one set of drafters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmDrafters {
    /// The MTP head and the text, as `run` does.
    All,
    /// The MTP head.
    Mtp,
    /// The text itself.
    Text,
}

impl BenchArm {
    /// The arm `run` takes by default.
    pub(crate) const AUTO: Self = Self::Drafting { by: ArmDrafters::All, depth: Depth::Auto };

    /// What is compared when nobody says.
    pub(crate) fn defaults(has_head: bool) -> Vec<Self> {
        if !has_head {
            let ngram = Self::Drafting { by: ArmDrafters::Text, depth: Depth::Fixed(4) };
            return vec![Self::Plain, ngram, Self::AUTO];
        }
        let fixed = |depth| Self::Drafting { by: ArmDrafters::All, depth: Depth::Fixed(depth) };
        [Self::Plain].into_iter().chain((1..=4).map(fixed)).chain([Self::AUTO]).collect()
    }

    pub(crate) fn drafters(self) -> Option<ArmDrafters> {
        match self {
            Self::Plain => None,
            Self::Drafting { by, .. } => Some(by),
        }
    }

    /// What a request asks for.
    pub(crate) fn depth(self) -> Depth {
        match self {
            Self::Plain => Depth::Fixed(0),
            Self::Drafting { depth, .. } => depth,
        }
    }
}

impl ArmDrafters {
    /// Without a head, all that is left is the text.
    pub(crate) fn in_model(self, has_head: bool) -> Self {
        if self == Self::All && !has_head { Self::Text } else { self }
    }

    pub(crate) fn speculation(self, max_drafts: usize) -> Speculation {
        let (mtp, text) = (self != Self::Text, self != Self::Mtp);
        Speculation { mode: SpeculationMode::Verified, max_drafts, mtp, text, ..Speculation::OFF }
    }
}

impl fmt::Display for BenchArm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Drafting { by, depth } = self else { return f.write_str("plain") };
        let name = match by {
            ArmDrafters::All => None,
            ArmDrafters::Mtp => Some("mtp"),
            ArmDrafters::Text => Some("ngram"),
        };
        match (name, depth) {
            (None, Depth::Auto) => f.write_str("auto"),
            (None, Depth::Fixed(depth)) => write!(f, "{depth}"),
            (Some(name), Depth::Auto) => f.write_str(name),
            (Some(name), Depth::Fixed(depth)) => write!(f, "{name}:{depth}"),
        }
    }
}

impl FromStr for BenchArm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (by, depth) = match text.split_once(':') {
            Some(("mtp", depth)) => (ArmDrafters::Mtp, depth),
            Some(("ngram", depth)) => (ArmDrafters::Text, depth),
            _ => match text {
                "plain" => return Ok(Self::Plain),
                "mtp" => (ArmDrafters::Mtp, "auto"),
                "ngram" => (ArmDrafters::Text, "auto"),
                depth => (ArmDrafters::All, depth),
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
            assert_eq!(text.parse::<BenchArm>().unwrap().to_string(), text);
        }
        for text in ["", "0", "17", "-1", "mtp:0", "head:3", "Plain"] {
            assert!(text.parse::<BenchArm>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_model_without_a_head_drafts_from_the_text() {
        assert_eq!(ArmDrafters::All.in_model(false), ArmDrafters::Text);
        assert_eq!(ArmDrafters::All.in_model(true), ArmDrafters::All);
        assert!(
            BenchArm::defaults(false).iter().all(|arm| arm.drafters() != Some(ArmDrafters::Mtp))
        );
    }
}
