//! Which files of a repository the engine needs.
//!
//! From a safetensors repository: configuration, tokenizer, chat template, the shards its index
//! names, and MTP sidecars. From a GGUF repository: one file, or the whole of one split set.
//! Nothing else: no other weights, no pictures, no texts.

use crate::listing::{ListedFile, Listing};
use crate::{HubError, RepoPart, sidecar};
use forerun_weights::is_mtp_tensor;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const INDEX: &str = "model.safetensors.index.json";
pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const CONFIG: &str = "config.json";

const CONFIGS: [&str; 6] = [
    CONFIG,
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];
const SIDECARS: [&str; 3] = [sidecar::FILE, "mtp/weights.safetensors", "mtp/manifest.json"];

/// Tensor name to file, as an index has it.
pub(crate) type WeightMap = BTreeMap<String, String>;

/// The chosen files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileSelection {
    /// Names, weights last, so that a model with all its weights is whole.
    pub(crate) files: Vec<String>,
    /// The file that stands for the model, where it is not the folder.
    pub(crate) entry: Option<String>,
}

/// Chooses; `index` is the repository's index, if it has one.
pub(crate) fn choose(
    listing: &Listing,
    file: Option<&str>,
    part: RepoPart,
    index: Option<&WeightMap>,
) -> Result<FileSelection, HubError> {
    let sets = GgufSet::all(listing);
    match (part, file) {
        (RepoPart::MtpOnly, _) => mtp_only(listing, index),
        (RepoPart::Model, Some(file)) => named(listing, &sets, file),
        (RepoPart::Model, None) => {
            let shards = shards(listing, index)?;
            let candidates: Vec<&GgufSet<'_>> = sets.iter().filter(|set| set.is_model()).collect();
            match (shards.is_empty(), candidates.as_slice()) {
                (false, _) => Ok(folder(listing, shards)),
                (true, []) => Err(unfit(
                    listing,
                    "holds no weights that this program reads; it reads model.safetensors, \
                     model-0000x-of-0000y.safetensors and .gguf",
                )),
                (true, [only]) => only.choice(listing),
                (true, several) => Err(several_files(listing, several)),
            }
        }
    }
}

fn unfit(listing: &Listing, why: impl Into<String>) -> HubError {
    HubError::Unfit { repo: listing.repo.clone(), why: why.into() }
}

/// The model's safetensors files; empty where there are none.
pub(crate) fn shards(
    listing: &Listing,
    index: Option<&WeightMap>,
) -> Result<Vec<String>, HubError> {
    if let Some(index) = index {
        let names: BTreeSet<&String> = index.values().collect();
        if let Some(absent) = names.iter().find(|name| listing.find(name).is_none()) {
            return Err(unfit(listing, format!("{INDEX} names `{absent}`, which is missing")));
        }
        return Ok(names.into_iter().cloned().collect());
    }
    if listing.find(SINGLE).is_some() {
        return Ok(vec![SINGLE.into()]);
    }
    let mut run: Vec<(Split<'_>, &ListedFile)> = listing
        .files
        .iter()
        .filter_map(|file| Some((Split::read(&file.name, ".safetensors")?, file)))
        .filter(|(split, _)| split.stem == "model")
        .collect();
    run.sort_by_key(|(split, _)| split.number);
    check_run(listing, &run)?;
    Ok(run.into_iter().map(|(_, file)| file.name.clone()).collect())
}

fn folder(listing: &Listing, shards: Vec<String>) -> FileSelection {
    let mut files = beside(listing);
    files.extend(shards.into_iter().filter(|shard| !SIDECARS.contains(&shard.as_str())));
    FileSelection { files, entry: None }
}

/// Everything but the shards: texts first, then sidecars.
fn beside(listing: &Listing) -> Vec<String> {
    let text = |name: &str| {
        let tokenizer =
            name.starts_with("tokenizer") && name.ends_with(".json") && !name.contains('/');
        tokenizer || name == INDEX || CONFIGS.contains(&name)
    };
    let all = || listing.files.iter().map(|file| file.name.as_str());
    let texts = all().filter(|name| text(name));
    texts.chain(all().filter(|name| SIDECARS.contains(name))).map(str::to_owned).collect()
}

/// The shards with `mtp.*` tensors, and what is needed to find them.
fn mtp_only(listing: &Listing, index: Option<&WeightMap>) -> Result<FileSelection, HubError> {
    let mut files: Vec<String> = [CONFIG, INDEX]
        .into_iter()
        .chain(SIDECARS)
        .filter(|name| listing.find(name).is_some())
        .map(str::to_owned)
        .collect();
    let holding: BTreeSet<String> = match index {
        Some(index) => {
            let mtp = index.iter().filter(|(tensor, _)| is_mtp_tensor(tensor));
            mtp.map(|(_, file)| file.clone()).collect()
        }
        // Which of several shards hold it cannot be told, so all of them come.
        None => shards(listing, None)?.into_iter().collect(),
    };
    let sidecar = files.iter().any(|file| file.ends_with(".safetensors"));
    if holding.is_empty() && !sidecar {
        return Err(unfit(listing, "has no MTP head: no `mtp.*` tensor and no sidecar"));
    }
    for shard in holding {
        if listing.find(&shard).is_none() {
            return Err(unfit(listing, format!("{INDEX} names `{shard}`, which is missing")));
        }
        if !files.contains(&shard) {
            files.push(shard);
        }
    }
    Ok(FileSelection { files, entry: None })
}

/// What `:FILE` means: a file by its name, or a GGUF file by its quantisation.
fn named(listing: &Listing, sets: &[GgufSet<'_>], wanted: &str) -> Result<FileSelection, HubError> {
    if let Some(set) = sets.iter().find(|set| set.files.iter().any(|f| f.name == wanted)) {
        return set.choice(listing);
    }
    if listing.find(wanted).is_some() {
        if !wanted.ends_with(".safetensors") {
            return Err(unfit(listing, format!("`{wanted}` is not a file of weights")));
        }
        let mut files = beside(listing);
        files.retain(|file| file != INDEX && file != wanted);
        files.push(wanted.into());
        return Ok(FileSelection { files, entry: Some(wanted.into()) });
    }
    let fitting: Vec<&GgufSet<'_>> =
        sets.iter().filter(|set| set.is_model() && set.is_quantised_as(wanted)).collect();
    match fitting.as_slice() {
        [only] => only.choice(listing),
        [] if sets.is_empty() => Err(unfit(listing, format!("has no file `{wanted}`"))),
        [] => {
            let names: Vec<&str> = sets.iter().map(|set| set.files[0].name.as_str()).collect();
            let names = names.join("\n  ");
            let why = format!("has no file and no quantisation `{wanted}`; it has\n  {names}");
            Err(unfit(listing, why))
        }
        several => Err(several_files(listing, several)),
    }
}

fn several_files(listing: &Listing, sets: &[&GgufSet<'_>]) -> HubError {
    let files = sets.iter().map(|set| (set.files[0].name.clone(), set.bytes())).collect();
    HubError::Several { repo: listing.repo.clone(), files }
}

/// One GGUF model: a file, or the files of a split one in order.
struct GgufSet<'a> {
    /// Name without `-0000x-of-0000y` and extension.
    stem: &'a str,
    files: Vec<&'a ListedFile>,
    splits: Vec<Split<'a>>,
}

/// A GGUF file and its place in a split set, if it is in one.
type Member<'a> = (Option<Split<'a>>, &'a ListedFile);

impl<'a> GgufSet<'a> {
    fn all(listing: &'a Listing) -> Vec<Self> {
        let mut sets: BTreeMap<(&str, usize), Vec<Member<'a>>> = BTreeMap::new();
        for file in &listing.files {
            let Some(bare) = file.name.strip_suffix(".gguf") else { continue };
            let split = Split::read(&file.name, ".gguf");
            let key = split.map_or((bare, 0), |split| (split.stem, split.total));
            sets.entry(key).or_default().push((split, file));
        }
        let set = |((stem, _), mut files): ((&'a str, usize), Vec<Member<'a>>)| {
            files.sort_by_key(|(split, _)| split.map(|split| split.number));
            let splits = files.iter().filter_map(|(split, _)| *split).collect();
            Self { stem, files: files.into_iter().map(|(_, file)| file).collect(), splits }
        };
        sets.into_iter().map(set).collect()
    }

    /// Projectors and importance matrices are stored as GGUF too.
    fn is_model(&self) -> bool {
        let name = self.stem.rsplit('/').next().unwrap_or(self.stem).to_lowercase();
        !name.contains("mmproj") && !name.contains("imatrix")
    }

    /// Whether the name ends a word with this quantisation: `Q4_K` is not `Q4_K_M`.
    fn is_quantised_as(&self, wanted: &str) -> bool {
        let (stem, wanted) = (self.stem.to_lowercase(), wanted.to_lowercase());
        let bound = |c: Option<char>| c.is_none_or(|c| matches!(c, '-' | '.' | '/'));
        stem.match_indices(&wanted).any(|(at, found)| {
            let before = stem[..at].chars().next_back();
            bound(before) && bound(stem[at + found.len()..].chars().next())
        })
    }

    fn bytes(&self) -> Option<u64> {
        self.files.iter().try_fold(0u64, |all, file| all.checked_add(file.size?))
    }

    fn choice(&self, listing: &Listing) -> Result<FileSelection, HubError> {
        let run: Vec<(Split<'_>, &ListedFile)> =
            self.splits.iter().copied().zip(self.files.iter().copied()).collect();
        check_run(listing, &run)?;
        let files: Vec<String> = self.files.iter().map(|file| file.name.clone()).collect();
        Ok(FileSelection { entry: files.first().cloned(), files })
    }
}

/// The place of a file in a set: `STEM-00002-of-00005.EXT`.
#[derive(Clone, Copy)]
struct Split<'a> {
    stem: &'a str,
    number: usize,
    total: usize,
}

impl<'a> Split<'a> {
    fn read(name: &'a str, extension: &str) -> Option<Self> {
        let (front, total) = name.strip_suffix(extension)?.rsplit_once("-of-")?;
        let (stem, number) = front.rsplit_once('-')?;
        let number_of = |text: &str| {
            let digits = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| text.parse().ok()).flatten()
        };
        Some(Self { stem, number: number_of(number)?, total: number_of(total)? })
    }
}

/// A sorted run must be complete.
fn check_run(listing: &Listing, run: &[(Split<'_>, &ListedFile)]) -> Result<(), HubError> {
    for (expected, (split, file)) in (1..).zip(run) {
        if split.number != expected || split.total != run.len() {
            let why = format!("`{}` belongs to a set that is not complete", file.name);
            return Err(unfit(listing, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
