//! What the cache holds, and taking it away again.

use crate::cache::RepoCache;
use crate::listing::{ListedFile, Listing};
use crate::select::choose;
use crate::{Hub, HubError, ModelName, RepoId, RepoPart};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A repository in the cache.
#[derive(Clone, Debug)]
pub struct CachedRepo {
    /// Its name.
    pub repo: RepoId,
    /// Bytes on disk, of every revision and of transfers that broke.
    pub bytes: u64,
    /// Names of the weight files that can be opened alone: GGUF files.
    pub gguf: Vec<String>,
    /// Whether there are safetensors files.
    pub safetensors: bool,
    /// When something of it was fetched last.
    pub fetched: Option<SystemTime>,
}

impl Hub {
    /// Every repository in the cache, by name. What other programs keep there and is no model's is left out.
    ///
    /// # Errors
    /// When the cache is there and cannot be read.
    pub fn kept(&self) -> Result<Vec<CachedRepo>, HubError> {
        let cache = self.cache();
        let entries = match fs::read_dir(cache) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| HubError::io(cache, error))?,
        };
        let mut repos = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().into_string().ok();
            let repo = name.as_deref().and_then(RepoId::of_folder);
            if let Some(repo) = repo.filter(|_| entry.path().is_dir()) {
                repos.push(CachedRepo::read(repo, &entry.path()));
            }
        }
        repos.sort_by_key(|found| found.repo.to_string());
        Ok(repos)
    }

    /// Takes a model away: the whole repository, or of one with several GGUF files the one that is named. Gives the
    /// bytes that are free now.
    ///
    /// # Errors
    /// When it is not in the cache, or cannot be removed.
    pub fn remove(&self, model: &ModelName) -> Result<u64, HubError> {
        let cache = RepoCache::new(self.cache(), &model.repo);
        let folder = cache.folder();
        if !folder.is_dir() {
            return Err(cache.absent(MAIN, "it was not fetched"));
        }
        let before = disk_bytes(&folder);
        match &model.file {
            None => {
                fs::remove_dir_all(&folder).map_err(|error| HubError::io(&folder, error))?;
                let locks = cache.locks();
                if locks.is_dir() {
                    fs::remove_dir_all(&locks).map_err(|error| HubError::io(&locks, error))?;
                }
            }
            Some(file) => remove_file(&cache, file)?,
        }
        Ok(before.saturating_sub(disk_bytes(&folder)))
    }
}

/// The branch that a bare name means.
const MAIN: &str = "main";

impl CachedRepo {
    fn read(repo: RepoId, folder: &Path) -> Self {
        let mut gguf = Vec::new();
        let mut safetensors = false;
        for (name, _) in pointers(folder) {
            safetensors |= name.ends_with(".safetensors");
            if name.ends_with(".gguf") && !gguf.contains(&name) {
                gguf.push(name);
            }
        }
        gguf.sort();
        let fetched =
            fs::metadata(folder.join("snapshots")).and_then(|about| about.modified()).ok();
        Self { repo, bytes: disk_bytes(folder), gguf, safetensors, fetched }
    }
}

/// The files that `wanted` means among those that are there.
fn files_of(
    cache: &RepoCache,
    wanted: &str,
    all: &[(String, PathBuf)],
) -> Result<Vec<String>, HubError> {
    let repo = cache.repo().clone();
    if wanted.ends_with(".safetensors") {
        let why = "one safetensors file is no model; remove the whole repository".to_owned();
        return Err(HubError::Unfit { repo, why });
    }
    let names: BTreeSet<&String> = all.iter().map(|(name, _)| name).collect();
    let file = |name: &String| ListedFile { name: name.clone(), size: None, blob: None };
    let files = names.into_iter().map(file).collect();
    let listing = Listing { repo, commit: String::new(), files, originals: Vec::new() };
    Ok(choose(&listing, Some(wanted), RepoPart::Model, None)?.files)
}

/// Takes a file out of every revision, and its content where nothing else shows it.
fn remove_file(cache: &RepoCache, wanted: &str) -> Result<(), HubError> {
    let folder = cache.folder();
    let all = pointers(&folder);
    let names = files_of(cache, wanted, &all)?;
    let mut users: BTreeMap<PathBuf, usize> = BTreeMap::new();
    let content = |path: &Path| fs::canonicalize(path).ok();
    for (_, path) in &all {
        if let Some(content) = content(path) {
            *users.entry(content).or_default() += 1;
        }
    }
    let blobs = fs::canonicalize(folder.join("blobs")).ok();
    for (_, path) in all.iter().filter(|(name, _)| names.contains(name)) {
        let held = content(path);
        fs::remove_file(path).map_err(|error| HubError::io(path, error))?;
        let Some(held) = held else { continue };
        let left = users.get_mut(&held).map_or(0, |count| {
            *count -= 1;
            *count
        });
        let ours = blobs.as_ref().is_some_and(|blobs| held.parent() == Some(blobs));
        if left == 0 && ours {
            fs::remove_file(&held).map_err(|error| HubError::io(&held, error))?;
        }
    }
    Ok(())
}

/// The files of every revision by name, with the path that shows them.
fn pointers(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for snapshot in entries(&folder.join("snapshots")) {
        let mut folders = vec![(snapshot, String::new())];
        while let Some((at, prefix)) = folders.pop() {
            for path in entries(&at) {
                let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
                let name = format!("{prefix}{name}");
                let link = fs::symlink_metadata(&path).is_ok_and(|about| about.is_symlink());
                if path.is_dir() && !link {
                    folders.push((path, format!("{name}/")));
                } else {
                    found.push((name, path));
                }
            }
        }
    }
    found
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .map_or_else(|_| Vec::new(), |all| all.flatten().map(|e| e.path()).collect())
}

/// Bytes of all files, links not followed.
fn disk_bytes(folder: &Path) -> u64 {
    let size = |path: PathBuf| match fs::symlink_metadata(&path) {
        Ok(about) if about.is_dir() => disk_bytes(&path),
        Ok(about) if about.is_file() => about.len(),
        _ => 0,
    };
    entries(folder).into_iter().map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HubSettings;

    /// A cache with a repository of two files that share a revision, one of which another revision has, too.
    #[cfg(unix)]
    fn cache() -> (tempfile::TempDir, Hub) {
        let root = tempfile::tempdir().unwrap();
        let repo = root.path().join("hub/models--o--gguf");
        let write = |path: &str, text: &str| {
            let path = repo.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let link = |commit: &str, name: &str, blob: &str| {
            let path = repo.join("snapshots").join(commit).join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(repo.join("blobs").join(blob), path).unwrap();
        };
        write("blobs/aa", "four");
        write("blobs/bb", "sixsix");
        write("refs/main", &"1".repeat(40));
        for commit in ["1", "2"] {
            link(&commit.repeat(40), "m-Q4_K_M.gguf", "aa");
        }
        link(&"1".repeat(40), "m-Q8_0.gguf", "bb");
        fs::create_dir_all(root.path().join("hub/datasets--o--d")).unwrap();
        let home = root.path().display().to_string();
        let get = |name: &str| (name == "HF_HOME").then(|| home.clone());
        let settings = HubSettings { offline: true, ..HubSettings::read(&get).unwrap() };
        (root, Hub::new(settings).unwrap())
    }

    #[cfg(unix)]
    #[test]
    fn models_are_listed_with_what_they_take_on_disk() {
        let (_root, hub) = cache();
        let kept = hub.kept().unwrap();
        assert_eq!(kept.len(), 1, "a data set is none: {kept:?}");
        assert_eq!(kept[0].repo.to_string(), "o/gguf");
        assert_eq!(kept[0].gguf, ["m-Q4_K_M.gguf", "m-Q8_0.gguf"]);
        assert_eq!(kept[0].bytes, 4 + 6 + 40, "each content once, and the reference");
    }

    #[cfg(unix)]
    #[test]
    fn one_file_goes_from_every_revision_and_the_rest_stays() {
        let (root, hub) = cache();
        assert_eq!(hub.remove(&"o/gguf:q4_k_m".parse().unwrap()).unwrap(), 4);
        assert_eq!(hub.kept().unwrap()[0].gguf, ["m-Q8_0.gguf"]);
        assert!(hub.remove(&"o/gguf:Q4_K_M".parse().unwrap()).is_err(), "it is gone");
        assert_eq!(hub.remove(&"o/gguf".parse().unwrap()).unwrap(), 46);
        assert!(hub.kept().unwrap().is_empty());
        assert!(root.path().join("hub/datasets--o--d").is_dir());
        assert!(hub.remove(&"o/gguf".parse().unwrap()).is_err());
    }

    #[test]
    fn without_a_cache_there_is_nothing() {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join("none").display().to_string();
        let get = |name: &str| (name == "HF_HOME").then(|| home.clone());
        let settings = HubSettings { offline: true, ..HubSettings::read(&get).unwrap() };
        assert!(Hub::new(settings).unwrap().kept().unwrap().is_empty());
    }
}
