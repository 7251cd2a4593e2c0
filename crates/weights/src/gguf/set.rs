//! Which GGUF files belong together: one alone, or `name-00001-of-00003.gguf` and its
//! companions.

use super::Metadata;
use crate::WeightsError;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// The files of one model, in order.
#[derive(Debug)]
pub(crate) struct GgufShards {
    pub(crate) folder: PathBuf,
    pub(crate) files: Vec<PathBuf>,
}

impl GgufShards {
    /// The set that a file is part of.
    pub(crate) fn around(path: &Path, folder: PathBuf) -> Result<Self, WeightsError> {
        let name = path.file_name().and_then(|name| name.to_str()).and_then(PartName::parse);
        let Some(part) = name else { return Ok(Self { folder, files: vec![path.into()] }) };
        Self::numbered(folder, &part)
    }

    /// The only set among the names in a folder; `None` when there is no GGUF file. Projectors
    /// of pictures (`mmproj`) are parts of another model.
    pub(crate) fn in_folder(
        folder: &Path,
        names: &BTreeSet<String>,
    ) -> Result<Option<Self>, WeightsError> {
        let mut models: BTreeMap<(String, usize), &String> = BTreeMap::new();
        for name in names.iter().filter(|n| n.ends_with(".gguf") && !n.starts_with("mmproj")) {
            let key = match PartName::parse(name) {
                Some(part) => (part.stem, part.total),
                None => (name.clone(), 0),
            };
            models.entry(key).or_insert(name);
        }
        let mut first = models.values();
        match (first.next(), models.len()) {
            (Some(name), 1) => Self::around(&folder.join(name), folder.into()).map(Some),
            (None, _) => Ok(None),
            (Some(_), _) => {
                let list: Vec<String> = models.values().map(|name| format!("`{name}`")).collect();
                Err(WeightsError::checkpoint(
                    folder,
                    format!("holds several GGUF models: {}; name one of them", list.join(", ")),
                ))
            }
        }
    }

    fn numbered(folder: PathBuf, part: &PartName) -> Result<Self, WeightsError> {
        let mut files = Vec::new();
        for number in 1..=part.total {
            let name = part.file(number);
            let path = folder.join(&name);
            if !path.is_file() {
                return Err(WeightsError::checkpoint(
                    &folder,
                    format!("part {number} of {} is missing: `{name}`; download it", part.total),
                ));
            }
            files.push(path);
        }
        Ok(Self { folder, files })
    }

    /// Holds what each part says about the set against the set. `parts` are in the order of the
    /// files, each with the number of its tensors.
    pub(crate) fn check(&self, parts: &[(Metadata, usize)]) -> Result<(), WeightsError> {
        let all: usize = parts.iter().map(|(_, tensors)| tensors).sum();
        for (number, (path, (metadata, _))) in self.files.iter().zip(parts).enumerate() {
            let single = parts.len() == 1;
            let facts =
                [(NUMBER, number, single), (COUNT, parts.len(), single), (TENSORS, all, true)];
            for (key, expected, optional) in facts {
                let stated = metadata.keys().any(|k| k == key);
                let found = metadata.count(key);
                if found == Some(expected as u64) || (!stated && optional) {
                    continue;
                }
                let found = found.map_or("no count".to_owned(), |n| n.to_string());
                return Err(WeightsError::checkpoint(
                    path,
                    format!(
                        "`{key}` is {found}; expected {expected} for part {} of {} files (a part keeps its name `…-00001-of-00002.gguf`)",
                        number + 1,
                        parts.len()
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// `stem-00002-of-00005.gguf`.
struct PartName {
    stem: String,
    total: usize,
}

impl PartName {
    fn parse(name: &str) -> Option<Self> {
        let (rest, total) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(number) || !digits(total) {
            return None;
        }
        let (number, total) = (number.parse::<usize>().ok()?, total.parse().ok()?);
        (1..=total).contains(&number).then(|| Self { stem: stem.into(), total })
    }

    fn file(&self, number: usize) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.total)
    }
}
