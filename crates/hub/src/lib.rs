//! Models from the Hugging Face hub into the cache that its other clients share.
//!
//! A [`Hub`] lists a repository, chooses the files the engine reads ([`Hub::plan`]) and fetches
//! them ([`Hub::fetch`]): resumed where a transfer broke, checked against the hub's checksums, and
//! laid out as `models--OWNER--NAME/{blobs,refs,snapshots}`, so that what another client fetched is
//! found here and the other way round. [`Hub::graft_mtp`] adds the MTP head of an original
//! to a quantised copy that lost it, by fetching those bytes alone.
//!
//! It is synchronous and small on purpose. Everything a server says is checked and bounded: sizes of
//! answers, redirects, tries, file names. The token goes to the endpoint and to nobody else.
#![forbid(unsafe_code)]

mod blob;
mod cache;
mod error;
mod fetch;
mod graft;
mod http;
mod kept;
mod link;
mod listing;
mod name;
mod plan;
mod retry;
mod select;
mod settings;
mod sidecar;
mod url;
mod watch;

pub use error::HubError;
pub use graft::Grafted;
pub use kept::CachedRepo;
pub use name::{ModelName, RepoId};
pub use plan::{DownloadPlan, DownloadRequest, Downloaded, Hub, PlannedFile, RepoPart};
pub use settings::{AccessToken, HubSettings, Proxies, Timeouts};
pub use watch::{DownloadWatch, Unwatched};
