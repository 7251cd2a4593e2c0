//! From a name to files: what would be fetched, and fetching it.

use crate::cache::RepoCache;
use crate::fetch::FileDownload;
use crate::http::{HttpClient, MAX_TEXT_BYTES};
use crate::listing::{FileIdentity, Listing, file_url, identify, list, refusal};
use crate::select::{INDEX, WeightMap, choose};
use crate::{DownloadWatch, HubError, HubSettings, ModelName, RepoId};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The hub and the cache.
pub struct Hub {
    pub(crate) settings: HubSettings,
    http: Option<HttpClient>,
}

/// Which files of a model are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RepoPart {
    /// All the engine needs.
    #[default]
    Model,
    /// Only the shards that hold the MTP head.
    MtpOnly,
}

/// What is wanted.
#[derive(Clone, Debug)]
pub struct DownloadRequest {
    /// The model.
    pub model: ModelName,
    /// A branch, a tag or a commit.
    pub revision: String,
    /// Which of its files.
    pub part: RepoPart,
}

/// The chosen files of a model.
#[derive(Clone, Debug)]
pub struct DownloadPlan {
    /// The repository.
    pub repo: RepoId,
    /// As requested.
    pub revision: String,
    /// What that stands for.
    pub commit: String,
    /// The snapshot's folder.
    pub folder: PathBuf,
    /// The files, in the order in which they come.
    pub files: Vec<PlannedFile>,
    /// What the model card says the model was made from.
    pub originals: Vec<RepoId>,
    entry: Option<String>,
}

/// A file of a plan.
#[derive(Clone, Debug)]
pub struct PlannedFile {
    /// Its name in the repository.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// Whether the cache has it.
    pub cached: bool,
    /// `None` where it is known from the cache alone.
    identity: Option<FileIdentity>,
}

/// What fetching did.
#[derive(Clone, Copy, Debug)]
pub struct Downloaded {
    /// Bytes that came over the network.
    pub bytes: u64,
}

impl DownloadPlan {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |all, file| all.saturating_add(file.size))
    }

    /// Bytes of the files that are still to come.
    pub fn missing_bytes(&self) -> u64 {
        let missing = self.files.iter().filter(|file| !file.cached);
        missing.fold(0, |all, file| all.saturating_add(file.size))
    }

    /// What to open: the snapshot's folder, or the file that was chosen.
    pub fn path(&self) -> PathBuf {
        match &self.entry {
            None => self.folder.clone(),
            Some(entry) => entry.split('/').fold(self.folder.clone(), |p, part| p.join(part)),
        }
    }
}

impl Hub {
    /// Prepares for requests; none is made yet.
    pub fn new(settings: HubSettings) -> Result<Self, HubError> {
        let http = (!settings.offline).then(|| HttpClient::new(&settings)).transpose()?;
        Ok(Self { settings, http })
    }

    /// The folder that holds every model.
    pub fn cache(&self) -> &Path {
        &self.settings.cache
    }

    pub(crate) fn http(&self) -> Result<&HttpClient, HubError> {
        self.http.as_ref().ok_or_else(|| HubError::Setting {
            name: "offline".into(),
            why: "this needs the network".into(),
        })
    }

    /// Chooses the files of a model. Offline it answers from the cache, or says what is missing.
    pub fn plan(
        &self,
        ask: &DownloadRequest,
        watch: &mut dyn DownloadWatch,
    ) -> Result<DownloadPlan, HubError> {
        let repo = &ask.model.repo;
        let cache = RepoCache::new(&self.settings.cache, repo);
        let listing = self.list(repo, &ask.revision, watch)?;
        let offline = self.http.is_none();
        // What a snapshot lacks is not the repository's fault.
        let blame = |error| match error {
            HubError::Unfit { why, .. } if offline => cache.absent(&ask.revision, &why),
            other => other,
        };
        let index = self.index(&listing, watch)?;
        let file = ask.model.file.as_deref();
        let choice = choose(&listing, file, ask.part, index.as_ref()).map_err(blame)?;
        let mut files = Vec::new();
        for name in choice.files {
            let listed = listing.find(&name).expect("only listed files are chosen");
            files.push(match &self.http {
                None => {
                    let size = listed.size.unwrap_or_default();
                    PlannedFile { name, size, cached: true, identity: None }
                }
                Some(http) => {
                    let identity = identify(http, &listing, listed, watch)?;
                    let size = identity.size;
                    let cached = cache.holds(&listing.commit, &name, size)?;
                    PlannedFile { name, size, cached, identity: Some(identity) }
                }
            });
        }
        Ok(DownloadPlan {
            repo: repo.clone(),
            revision: ask.revision.clone(),
            folder: cache.snapshot(&listing.commit),
            commit: listing.commit,
            files,
            originals: listing.originals,
            entry: choice.entry,
        })
    }

    /// Fetches what the cache lacks of a plan.
    pub fn fetch(
        &self,
        plan: &DownloadPlan,
        watch: &mut dyn DownloadWatch,
    ) -> Result<Downloaded, HubError> {
        let Some(http) = &self.http else { return Ok(Downloaded { bytes: 0 }) };
        let cache = RepoCache::new(&self.settings.cache, &plan.repo);
        let listing = Listing {
            repo: plan.repo.clone(),
            commit: plan.commit.clone(),
            files: Vec::new(),
            originals: Vec::new(),
        };
        let mut before = 0;
        let mut bytes = 0;
        for file in &plan.files {
            let identity = file.identity.as_ref().expect("a plan made online knows its files");
            let job = FileDownload {
                http,
                cache: &cache,
                listing: &listing,
                name: &file.name,
                identity,
                before,
            };
            bytes += job.run(watch)?;
            before += file.size;
            watch.bytes(before);
        }
        // Only now, so that a broken update leaves the model that was there in use.
        cache.set_commit(&plan.revision, &plan.commit)?;
        Ok(Downloaded { bytes })
    }

    pub(crate) fn list(
        &self,
        repo: &RepoId,
        revision: &str,
        watch: &mut dyn DownloadWatch,
    ) -> Result<Listing, HubError> {
        match &self.http {
            Some(http) => list(http, repo, revision, watch),
            None => RepoCache::new(&self.settings.cache, repo).list(revision),
        }
    }

    /// The index of a repository that has one.
    pub(crate) fn index(
        &self,
        listing: &Listing,
        watch: &mut dyn DownloadWatch,
    ) -> Result<Option<WeightMap>, HubError> {
        if listing.find(INDEX).is_none() {
            return Ok(None);
        }
        let bytes = self.read_text(listing, INDEX, watch)?;
        let index = forerun_weights::parse_index(&bytes);
        index.map(Some).map_err(|why| HubError::answer(&format!("{}: {INDEX}", listing.repo), why))
    }

    /// A small file: from the cache, or else over the network without storing it.
    pub(crate) fn read_text(
        &self,
        listing: &Listing,
        name: &str,
        watch: &mut dyn DownloadWatch,
    ) -> Result<Vec<u8>, HubError> {
        let cache = RepoCache::new(&self.settings.cache, &listing.repo);
        let pointer = cache.pointer(&listing.commit, name)?;
        let (Some(http), false) = (&self.http, pointer.is_file()) else {
            let mut bytes = Vec::new();
            forerun_base::open_regular(&pointer)
                .and_then(|file| file.take(MAX_TEXT_BYTES).read_to_end(&mut bytes))
                .map_err(|e| HubError::io(&pointer, e))?;
            return Ok(bytes);
        };
        let Some(listed) = listing.find(name) else {
            let why = format!("has no file `{name}`");
            return Err(HubError::Unfit { repo: listing.repo.clone(), why });
        };
        let identity = identify(http, listing, listed, watch)?;
        let url = file_url(http, &listing.repo, &listing.commit, name);
        let bytes = http.text(&url, watch, &|reply| match reply.status {
            200 => Ok(()),
            _ => Err(refusal(http, &listing.repo, None, reply)),
        })?;
        let mut hasher = identity.blob.hasher(identity.size);
        hasher.update(&bytes);
        let (expected, found) = (identity.blob, hasher.finish());
        if found != expected {
            let (expected, found) = (expected.to_string(), found.to_string());
            return Err(HubError::Checksum { file: name.into(), expected, found });
        }
        Ok(bytes)
    }
}
