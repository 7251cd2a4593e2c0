//! What a repository holds at one commit, by the hub's word or by the cache's.

use crate::blob::BlobId;
use crate::http::{HttpClient, HttpReply, Query, text_of};
use crate::retry::{TryError, retry};
use crate::{DownloadWatch, HubError, RepoId, url};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;

const MAX_NAME_BYTES: usize = 1024;
/// Models that a copy may name as its origin.
const MAX_ORIGINALS: usize = 16;

/// A repository at a commit.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub(crate) repo: RepoId,
    pub(crate) commit: String,
    pub(crate) files: Vec<ListedFile>,
    /// What the model card says it was made from.
    pub(crate) originals: Vec<RepoId>,
}

/// A file in a listing. The hub may leave out size and checksum; the cache has no checksum.
#[derive(Clone, Debug)]
pub(crate) struct ListedFile {
    pub(crate) name: String,
    pub(crate) size: Option<u64>,
    pub(crate) blob: Option<BlobId>,
}

/// Size and checksum of one file, as needed to fetch it.
#[derive(Clone, Debug)]
pub(crate) struct FileIdentity {
    pub(crate) size: u64,
    pub(crate) blob: BlobId,
}

impl Listing {
    pub(crate) fn find(&self, name: &str) -> Option<&ListedFile> {
        self.files.iter().find(|file| file.name == name)
    }
}

/// Where a file of a commit is.
pub(crate) fn file_url(http: &HttpClient, repo: &RepoId, commit: &str, name: &str) -> String {
    format!("{}/{repo}/resolve/{}/{}", http.endpoint, url::segment(commit), url::path(name))
}

/// Asks the hub for the files of a revision.
pub(crate) fn list(
    http: &HttpClient,
    repo: &RepoId,
    revision: &str,
    watch: &mut dyn DownloadWatch,
) -> Result<Listing, HubError> {
    let endpoint = &http.endpoint;
    let url =
        format!("{endpoint}/api/models/{repo}/revision/{}?blobs=true", url::segment(revision));
    let bytes = http.text(&url, watch, &|reply| match reply.status {
        200 => Ok(()),
        _ => Err(refusal(http, repo, Some(revision), reply)),
    })?;
    parse(repo, &bytes).map_err(|why| HubError::answer(&url, why))
}

/// What a status other than success means for a repository.
pub(crate) fn refusal(
    http: &HttpClient,
    repo: &RepoId,
    revision: Option<&str>,
    reply: &HttpReply,
) -> TryError {
    let page = format!("{}/{repo}", http.endpoint);
    match (reply.status, revision, text_of(&reply.first, "x-error-code")) {
        (404, Some(revision), Some("RevisionNotFound")) => {
            HubError::NoRevision { repo: repo.clone(), revision: revision.into() }.into()
        }
        (404, Some(_), _) => HubError::NoRepo { repo: repo.clone(), url: page }.into(),
        (code @ (401 | 403), ..) => {
            HubError::Refused { repo: repo.clone(), url: page, code, token: http.sends_token() }
                .into()
        }
        _ => reply.fault(&page),
    }
}

/// Size and checksum of a file: from the listing, or else from the hub's headers.
pub(crate) fn identify(
    http: &HttpClient,
    listing: &Listing,
    file: &ListedFile,
    watch: &mut dyn DownloadWatch,
) -> Result<FileIdentity, HubError> {
    if let (Some(size), Some(blob)) = (file.size, file.blob.clone()) {
        return Ok(FileIdentity { size, blob });
    }
    let url = file_url(http, &listing.repo, &listing.commit, &file.name);
    let within = Some(http.patience.answer);
    let query = Query { url: &url, head: true, range: None, within };
    let reply = retry(&url, http.patience, watch, || {
        let reply = http.send(&query)?;
        match reply.status {
            200 | 301..=308 => Ok(reply),
            _ => Err(refusal(http, &listing.repo, None, &reply)),
        }
    })?;
    let linked = |name: &str| text_of(&reply.first, name);
    let own = |name: &str| text_of(&reply.headers, name).filter(|_| reply.status == 200);
    let blob = linked("x-linked-etag").or_else(|| own("etag")).and_then(BlobId::parse);
    let size = linked("x-linked-size").or_else(|| own("content-length"));
    match (blob, size.and_then(|size| size.trim().parse().ok())) {
        (Some(blob), Some(size)) => Ok(FileIdentity { size, blob }),
        _ => Err(HubError::answer(&url, "the server gives no checksum or no size for the file")),
    }
}

fn parse(repo: &RepoId, bytes: &[u8]) -> Result<Listing, String> {
    #[derive(Deserialize)]
    struct ListingResponse {
        sha: String,
        #[serde(default)]
        siblings: Vec<Sibling>,
        #[serde(default, rename = "cardData")]
        card: Option<Value>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Sibling {
        rfilename: String,
        size: Option<u64>,
        blob_id: Option<String>,
        lfs: Option<Lfs>,
    }
    #[derive(Deserialize)]
    struct Lfs {
        sha256: Option<String>,
        size: Option<u64>,
    }
    let answer: ListingResponse = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    if !is_commit(&answer.sha) {
        return Err(format!("`{}` is not a commit", answer.sha));
    }
    let mut names = BTreeSet::new();
    let mut files = Vec::new();
    for sibling in answer.siblings {
        check_name(&sibling.rfilename)?;
        if !names.insert(sibling.rfilename.clone()) {
            return Err(format!("`{}` is listed twice", sibling.rfilename));
        }
        let (etag, size) = match &sibling.lfs {
            Some(lfs) => (lfs.sha256.as_deref(), lfs.size.or(sibling.size)),
            None => (sibling.blob_id.as_deref(), sibling.size),
        };
        let blob = etag.and_then(BlobId::parse);
        files.push(ListedFile { name: sibling.rfilename, size, blob });
    }
    let originals = originals(answer.card.as_ref().and_then(|card| card.get("base_model")));
    Ok(Listing { repo: repo.clone(), commit: answer.sha, files, originals })
}

/// `base_model` is a string or a list; a model card may say anything.
fn originals(base_model: Option<&Value>) -> Vec<RepoId> {
    let named = match base_model {
        Some(Value::Array(several)) => several.iter().take(MAX_ORIGINALS).collect(),
        one => Vec::from_iter(one),
    };
    named.into_iter().filter_map(|name| name.as_str()?.parse().ok()).collect()
}

pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Refuses names that would lie outside a snapshot's folder on some system.
fn check_name(name: &str) -> Result<(), String> {
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    let hostile = name.contains('\\') || name.contains(char::is_control);
    if hostile || name.len() > MAX_NAME_BYTES || !name.split('/').all(plain) {
        return Err(format!("the file name {name:?} leads outside the repository; refused"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(siblings: &str, card: &str) -> Result<Listing, String> {
        let sha = "a".repeat(40);
        let text = format!(r#"{{"sha": "{sha}", "siblings": [{siblings}], "cardData": {card}}}"#);
        parse(&"o/n".parse().unwrap(), text.as_bytes())
    }

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        for name in ["../x", "/etc/x", "a/../../x", "a\\\\b", "", "a//b", "./a", "a\\u0000b"] {
            let error = listing(&format!(r#"{{"rfilename": "{name}"}}"#), "null").unwrap_err();
            assert!(error.contains("refused"), "{name}: {error}");
        }
        assert!(listing(r#"{"rfilename": "runs/10:00/a..b"}"#, "null").is_ok());
    }

    #[test]
    fn large_files_go_by_sha256_and_small_ones_by_git() {
        let (git, sha) = ("b".repeat(40), "c".repeat(64));
        let siblings = format!(
            r#"{{"rfilename": "a", "size": 3, "blobId": "{git}"}},
               {{"rfilename": "b", "size": 9, "blobId": "{git}",
                 "lfs": {{"sha256": "{sha}", "size": 9, "pointerSize": 1}}}},
               {{"rfilename": "c"}}"#
        );
        let found = listing(&siblings, "null").unwrap();
        let ids: Vec<_> = found.files.iter().map(|f| f.blob.as_ref().map(BlobId::as_str)).collect();
        assert_eq!(ids, [Some(git.as_str()), Some(sha.as_str()), None]);
    }

    #[test]
    fn originals_are_a_name_or_a_list_and_nonsense_is_none() {
        let names = |card: &str| -> Vec<String> {
            listing("", card).unwrap().originals.iter().map(ToString::to_string).collect()
        };
        assert_eq!(names(r#"{"base_model": "a/b"}"#), ["a/b"]);
        assert_eq!(names(r#"{"base_model": ["a/b", 3, "../x", "c/d"]}"#), ["a/b", "c/d"]);
        assert!(names(r#"{"base_model": {"x": 1}}"#).is_empty() && names("[1]").is_empty());
    }

    #[test]
    fn answers_that_are_no_listing_are_refused() {
        let repo = "o/n".parse().unwrap();
        for text in ["", "[]", "{}", r#"{"sha": "../../x"}"#, r#"{"sha": "abc", "siblings": 1}"#] {
            assert!(parse(&repo, text.as_bytes()).is_err(), "{text}");
        }
        assert!(listing(r#"{"rfilename": "a"}, {"rfilename": "a"}"#, "null").is_err());
    }
}
