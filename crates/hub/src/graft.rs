//! The MTP head of an original, for a copy that lost it.
//!
//! Quantised copies often drop the `mtp.*` tensors. Their bytes lie in a few places of the original's
//! shards, so only those ranges are requested. There is no checksum over a part of a file: the header
//! is checked against the size the hub lists, and every answer against the requested range.

use crate::cache::RepoCache;
use crate::fetch::MinimumRate;
use crate::http::{MAX_TEXT_BYTES, Query, text_of};
use crate::listing::{Listing, file_url, identify, refusal};
use crate::plan::{DownloadPlan, Hub};
use crate::retry::{Tries, TryError};
use crate::select::{CONFIG, shards};
use crate::{DownloadWatch, HubError, RepoId, sidecar};
use forerun_weights::is_mtp_tensor;
use forerun_weights::safetensors::{TensorInfo, parse_header};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

const CHUNK: usize = 256 << 10;
const LENGTH: u64 = 8;

/// A head that was written.
#[derive(Clone, Debug)]
pub struct Grafted {
    /// The sidecar.
    pub file: PathBuf,
    /// Tensors in it.
    pub tensors: usize,
    /// Its bytes.
    pub bytes: u64,
}

/// One shard of the original and the tensors wanted from it, by offset.
struct HeadShard {
    repo: RepoId,
    name: String,
    url: String,
    size: u64,
    tensors: Vec<(String, TensorInfo)>,
}

/// Where bytes go, and who looks on.
struct GraftSink<'a> {
    out: &'a mut dyn Write,
    /// For errors.
    path: &'a Path,
    watch: &'a mut dyn DownloadWatch,
    done: u64,
}

impl Hub {
    /// Writes the MTP head of `original` beside the fetched model of `plan`. The model must not
    /// have one.
    pub fn graft_mtp(
        &self,
        plan: &DownloadPlan,
        original: &RepoId,
        watch: &mut dyn DownloadWatch,
    ) -> Result<Grafted, HubError> {
        let unfit = |repo: &RepoId, why: String| HubError::Unfit { repo: repo.clone(), why };
        if plan.path().is_file() && plan.path().extension().is_none_or(|e| e != "safetensors") {
            let why = format!(
                "is not a safetensors model; an MTP head cannot be put beside it, but is used with\n  \
                 forerun pull {original} --mtp-only\n  forerun run … --drafter {original}"
            );
            return Err(unfit(&plan.repo, why));
        }
        let cache = RepoCache::new(&self.settings.cache, &plan.repo);
        let _lock = cache.lock(sidecar::FILE, watch)?;
        let listing = self.list(original, "main", watch)?;
        self.check_width(plan, &listing, watch)?;
        let sources = self.sources(&listing, watch)?;
        if sources.is_empty() {
            return Err(unfit(original, "has no `mtp.*` tensors to take".into()));
        }
        let file = plan.folder.join(sidecar::FILE);
        let source = format!("{original}@{}", listing.commit);
        self.write_sidecar(&file, &sources, &source, watch)
    }

    /// A head of another width is that of another model.
    fn check_width(
        &self,
        plan: &DownloadPlan,
        original: &Listing,
        watch: &mut dyn DownloadWatch,
    ) -> Result<(), HubError> {
        let path = plan.folder.join(CONFIG);
        let own = forerun_base::read_regular(&path).map_err(|e| HubError::io(&path, e))?;
        let theirs = self.read_text(original, CONFIG, watch)?;
        let (own, theirs) = (hidden_size(&own), hidden_size(&theirs));
        if own.is_some() && theirs.is_some() && own != theirs {
            return Err(HubError::Unfit {
                repo: original.repo.clone(),
                why: format!(
                    "is not the original of {}: hidden_size is {} there and {} here",
                    plan.repo,
                    theirs.unwrap_or_default(),
                    own.unwrap_or_default()
                ),
            });
        }
        Ok(())
    }

    /// Reads the headers of the shards that hold the head.
    fn sources(
        &self,
        listing: &Listing,
        watch: &mut dyn DownloadWatch,
    ) -> Result<Vec<HeadShard>, HubError> {
        let index = self.index(listing, watch)?;
        let names: BTreeSet<String> = match &index {
            Some(index) => {
                let mtp = index.iter().filter(|(tensor, _)| is_mtp_tensor(tensor));
                mtp.map(|(_, file)| file.clone()).collect()
            }
            None => shards(listing, None)?.into_iter().collect(),
        };
        let mut sources = Vec::new();
        for name in names {
            let source = self.source(listing, name, watch)?;
            if !source.tensors.is_empty() {
                sources.push(source);
            }
        }
        Ok(sources)
    }

    fn source(
        &self,
        listing: &Listing,
        name: String,
        watch: &mut dyn DownloadWatch,
    ) -> Result<HeadShard, HubError> {
        let Some(listed) = listing.find(&name) else {
            let why = format!("the index names `{name}`, which is missing");
            return Err(HubError::Unfit { repo: listing.repo.clone(), why });
        };
        let http = self.http()?;
        let size = identify(http, listing, listed, watch)?.size;
        let url = file_url(http, &listing.repo, &listing.commit, &name);
        let repo = listing.repo.clone();
        let mut source = HeadShard { repo, name, url, size, tensors: Vec::new() };
        let broken = |why: String| HubError::answer(&source.name, why);
        if size < LENGTH {
            return Err(broken(format!("{size} bytes is too short for a safetensors file")));
        }
        let mut head = Vec::new();
        let path = Path::new(sidecar::FILE);
        let mut sink = GraftSink { out: &mut head, path, watch, done: 0 };
        self.read_range(&source, 0..LENGTH, &mut sink)?;
        let prefix = head.first_chunk().expect("the range was read whole");
        let length = u64::from_le_bytes(*prefix);
        if length > MAX_TEXT_BYTES.min(size - LENGTH) {
            return Err(broken(format!("its header claims {length} bytes")));
        }
        let mut sink = GraftSink { out: &mut head, path, watch, done: 0 };
        self.read_range(&source, LENGTH..LENGTH + length, &mut sink)?;
        let header = parse_header(&head, size).map_err(|e| broken(e.to_string()))?;
        let wanted = header.tensors.into_iter().filter(|(name, _)| is_mtp_tensor(name));
        source.tensors = wanted.collect();
        source.tensors.sort_by_key(|(_, info)| info.range.start);
        Ok(source)
    }

    fn write_sidecar(
        &self,
        path: &Path,
        sources: &[HeadShard],
        origin: &str,
        watch: &mut dyn DownloadWatch,
    ) -> Result<Grafted, HubError> {
        let all: Vec<(String, TensorInfo)> =
            sources.iter().flat_map(|source| source.tensors.iter().cloned()).collect();
        let header = sidecar::header(&all, origin);
        let partial = PathBuf::from(format!("{}.incomplete", path.display()));
        let mut file = File::create(&partial).map_err(|e| HubError::io(&partial, e))?;
        let failed = |e, need| HubError::write(&partial, e, need);
        let data: u64 = all.iter().map(|(_, info)| info.range.len() as u64).sum();
        file.write_all(&header).map_err(|e| failed(e, data))?;
        let mut sink = GraftSink { out: &mut file, path: &partial, watch, done: 0 };
        for source in sources {
            for range in joined(&source.tensors) {
                let range = range.start as u64..range.end as u64;
                self.read_range(source, range, &mut sink)?;
            }
        }
        file.sync_all().map_err(|e| failed(e, 0))?;
        drop(file);
        std::fs::rename(&partial, path).map_err(|e| HubError::io(path, e))?;
        let bytes = header.len() as u64 + data;
        Ok(Grafted { file: path.into(), tensors: all.len(), bytes })
    }

    /// Exactly these bytes of a shard, over as many connections as it takes.
    fn read_range(
        &self,
        source: &HeadShard,
        range: Range<u64>,
        sink: &mut GraftSink<'_>,
    ) -> Result<(), HubError> {
        let http = self.http()?;
        let mut tries = Tries::new(&source.name, http.patience);
        let mut at = range.start;
        while at < range.end {
            let before = at;
            let query = Query {
                url: &source.url,
                head: false,
                range: Some((at, Some(range.end - 1))),
                within: None,
            };
            let reply = http.send(&query).and_then(|reply| match reply.status {
                206 => Ok(reply),
                200 => Err(HubError::answer(&source.name, "the server sends no ranges").into()),
                _ => Err(refusal(http, &source.repo, None, &reply)),
            });
            let copied = reply.and_then(|reply| {
                let expected = format!("bytes {at}-{}/{}", range.end - 1, source.size);
                let said = text_of(&reply.headers, "content-range").unwrap_or_default();
                if said != expected {
                    let why = format!("requested `{expected}`, the server sends `{said}`");
                    return Err(HubError::answer(&source.name, why).into());
                }
                copy(reply.body, sink, &mut at, range.end)
            });
            if let Err(fault) = copied {
                tries.gain(at - before);
                tries.after(fault, sink.watch)?;
            }
        }
        Ok(())
    }
}

fn copy(
    mut body: impl Read,
    sink: &mut GraftSink<'_>,
    at: &mut u64,
    end: u64,
) -> Result<(), TryError> {
    let mut buffer = vec![0; CHUNK];
    let mut pace = MinimumRate::new();
    while *at < end {
        if sink.watch.stop() {
            return Err(HubError::Stopped.into());
        }
        let room = usize::try_from(end - *at).unwrap_or(CHUNK).min(CHUNK);
        let n = body.read(&mut buffer[..room]).map_err(TryError::passing)?;
        if n == 0 {
            return Err(TryError::passing("the connection ends too early"));
        }
        let failed = |e| HubError::write(sink.path, e, end - *at);
        sink.out.write_all(&buffer[..n]).map_err(failed)?;
        *at += n as u64;
        sink.done += n as u64;
        sink.watch.bytes(sink.done);
        pace.check(n)?;
    }
    Ok(())
}

/// The ranges of neighbours as one.
fn joined(tensors: &[(String, TensorInfo)]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (_, info) in tensors {
        match ranges.last_mut() {
            Some(last) if last.end == info.range.start => last.end = info.range.end,
            _ => ranges.push(info.range.clone()),
        }
    }
    ranges
}

fn hidden_size(config: &[u8]) -> Option<u64> {
    let config: Value = serde_json::from_slice(config).ok()?;
    let text = config.get("text_config").unwrap_or(&config);
    text.get("hidden_size").or_else(|| config.get("hidden_size"))?.as_u64()
}
