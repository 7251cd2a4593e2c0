//! Names of repositories and of models in them.

use crate::HubError;
use std::fmt;
use std::str::FromStr;

/// The hub's own limit for an owner or a name.
const MAX_PART: usize = 96;
/// What folders of models begin with; data sets have another word.
const MODELS: &str = "models--";

/// A repository: `OWNER/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoId {
    owner: String,
    name: String,
}

/// A model in a repository: `OWNER/NAME` or `OWNER/NAME:FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// The repository.
    pub repo: RepoId,
    /// A file of it, or the name of a quantisation such as `Q4_K_M`.
    pub file: Option<String>,
}

impl RepoId {
    /// The folder of the cache that holds the repository.
    pub(crate) fn folder(&self) -> String {
        format!("{MODELS}{}--{}", self.owner, self.name)
    }

    /// The repository that such a folder holds.
    pub(crate) fn of_folder(folder: &str) -> Option<Self> {
        folder.strip_prefix(MODELS)?.replacen("--", "/", 1).parse().ok()
    }
}

impl FromStr for RepoId {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let fault = |why: &str| HubError::Name { given: text.into(), why: why.into() };
        let Some((owner, name)) = text.split_once('/') else {
            return Err(fault("expected OWNER/NAME"));
        };
        for part in [owner, name] {
            let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if part.is_empty() || part.len() > MAX_PART || !part.chars().all(known) {
                return Err(fault("expected OWNER/NAME of letters, digits, `-`, `_` and `.`"));
            }
            // The cache joins owner and name with `--`, so neither may hold it.
            let framed = part.starts_with(['-', '.']) || part.ends_with(['-', '.']);
            if framed || part.contains("--") || part.contains("..") {
                return Err(fault("`--`, `..`, and `-` or `.` at an end are not allowed"));
            }
        }
        Ok(Self { owner: owner.into(), name: name.into() })
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

impl FromStr for ModelName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        match text.split_once(':') {
            None => Ok(Self { repo: text.parse()?, file: None }),
            Some((_, "")) => Err(HubError::Name {
                given: text.into(),
                why: "a file or a quantisation is expected after `:`".into(),
            }),
            Some((repo, file)) => Ok(Self { repo: repo.parse()?, file: Some(file.into()) }),
        }
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.repo)?;
        self.file.as_ref().map_or(Ok(()), |file| write!(f, ":{file}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_were_given() {
        for text in ["Qwen/Qwen3.5-0.8B", "a/b", "o_1/n.2", "a/b:Q4_K_M", "a/b:sub/m.gguf"] {
            assert_eq!(text.parse::<ModelName>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_name_or_could_leave_the_cache_is_refused() {
        let long = format!("a/{}", "x".repeat(97));
        for text in [
            "", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/b--c", "a--b/c", "a/b c", "a\\b/c",
            "a/-b", "a/b.", "a/b:", "ä/b", "a/b?c", "a/b%2e", &long,
        ] {
            assert!(text.parse::<ModelName>().is_err(), "{text}");
        }
    }
}
