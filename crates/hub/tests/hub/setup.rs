//! A server, an empty cache and a client between them.

use forerun_hub::{
    DownloadPlan, DownloadRequest, DownloadWatch, Downloaded, Hub, HubError, HubSettings, RepoPart,
    Timeouts, Unwatched,
};
use forerun_testkit::hub_server::{HubRepo, HubServer};
use std::path::PathBuf;
use std::time::Duration;

pub(crate) struct Setup {
    pub(crate) server: HubServer,
    pub(crate) home: tempfile::TempDir,
}

/// Content that differs at every offset.
pub(crate) fn content(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

/// A model of one large file.
pub(crate) fn simple() -> HubRepo {
    HubRepo::new("o/simple")
        .small("config.json", "{}")
        .small("README.md", "text")
        .large("model.safetensors", content(300_000, 1))
}

impl Setup {
    pub(crate) fn new(repos: Vec<HubRepo>) -> Self {
        Self { server: HubServer::start(repos), home: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.home.path().join("hub")
    }

    pub(crate) fn settings(&self) -> HubSettings {
        self.settings_with(&[])
    }

    pub(crate) fn settings_with(&self, more: &[(&str, &str)]) -> HubSettings {
        let (home, endpoint) = (self.home.path().display().to_string(), self.server.endpoint());
        let settings = HubSettings::read(&|name| match name {
            "HF_HOME" => Some(home.clone()),
            "HF_ENDPOINT" => Some(endpoint.clone()),
            other => more.iter().find(|(key, _)| *key == other).map(|(_, v)| (*v).to_owned()),
        });
        let patience = Timeouts {
            connect: Duration::from_secs(5),
            read: Duration::from_millis(500),
            answer: Duration::from_secs(5),
            tries: 3,
            first_wait: Duration::from_millis(1),
            longest_wait: Duration::from_secs(2),
        };
        HubSettings { patience, ..settings.unwrap() }
    }

    pub(crate) fn hub(&self) -> Hub {
        Hub::new(self.settings()).unwrap()
    }

    pub(crate) fn offline(&self) -> Hub {
        Hub::new(HubSettings { offline: true, ..self.settings() }).unwrap()
    }

    pub(crate) fn pull(&self, model: &str) -> Result<(DownloadPlan, Downloaded), HubError> {
        pull(&self.hub(), model, &mut Unwatched)
    }
}

pub(crate) fn ask(model: &str) -> DownloadRequest {
    DownloadRequest {
        model: model.parse().unwrap(),
        revision: "main".into(),
        part: RepoPart::Model,
    }
}

pub(crate) fn pull(
    hub: &Hub,
    model: &str,
    watch: &mut dyn DownloadWatch,
) -> Result<(DownloadPlan, Downloaded), HubError> {
    let plan = hub.plan(&ask(model), watch)?;
    let fetched = hub.fetch(&plan, watch)?;
    Ok((plan, fetched))
}

/// The error of a pull.
pub(crate) fn refused(result: Result<(DownloadPlan, Downloaded), HubError>) -> String {
    result.map(|(plan, _)| plan).expect_err("it was fetched").to_string()
}
