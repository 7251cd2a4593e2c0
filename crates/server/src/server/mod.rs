//! A server from start to end: bind, warm up, answer, drain, stop.

mod connection;
mod hosts;
mod signals;
mod slots;
mod write_timeout;

pub(crate) use hosts::Hosts;
pub(crate) use slots::ConnectionSlot;

use crate::api;
use crate::app::App;
use crate::auth::Keys;
use crate::cache_traces::CacheTraces;
use crate::ids;
use crate::metrics::HttpMetrics;
use crate::model::{Facts, ServedModel};
use crate::models::{ModelEntry, Models, Shared};
use crate::origins::Origins;
use crate::responses_store::ResponsesStore;
use crate::settings::Settings;
use connection::Connections;
use forerun_engine::{Engine, ModelRunner};
use signals::{Signals, asked};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};

/// Threads for connections: parsing and writing is little work, and the engine wants the cores.
const THREADS: usize = 2;
/// Threads for templates and tokenizers.
const SIDE_THREADS: usize = 4;
/// How long connections may take to close once every answer is out.
const CLOSING: Duration = Duration::from_secs(2);

/// Why a server does not run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Threads or signals could not be had.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// The engine did not generate its first token, or broke later.
    #[error("{0}")]
    Engine(String),
}

/// A bound server. A model that it serves for good has generated its first token.
pub struct Server {
    runtime: Runtime,
    listener: TcpListener,
    app: Arc<App>,
    /// Ends with the thread of a model that is served for good.
    gone: Option<oneshot::Receiver<()>>,
    stop: watch::Sender<bool>,
    signals: Option<Signals>,
}

/// Stops a server from elsewhere.
#[derive(Clone, Debug)]
pub struct Handle(watch::Sender<bool>);

impl Handle {
    /// Begins the shutdown: no new answers, those begun may end.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Listens and brings the engine to its thread.
    pub fn bind(
        engine: Engine<ModelRunner>,
        model: ServedModel,
        settings: Settings,
    ) -> Result<Self, StartError> {
        let socket = Socket::open(settings)?;
        let (known, loaded) = model.with_engine(engine);
        let pinned = Models::pinned(known, loaded, socket.shared());
        let (models, gone) = socket.runtime.block_on(pinned).map_err(StartError::Engine)?;
        Ok(socket.serve(models, Some(gone)))
    }

    /// Listens; models are loaded when they are asked for, and unloaded when they are not used or others need their
    /// memory.
    pub fn bind_models(models: Vec<ModelEntry>, settings: Settings) -> Result<Self, StartError> {
        let socket = Socket::open(settings)?;
        let models = Models::on_demand(models, socket.shared());
        Ok(socket.serve(models, None))
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What the engine of a model that is served for good was built for.
    pub fn facts(&self) -> Option<Facts> {
        match self.app.models.entries() {
            [only] => only.loaded().map(|model| model.facts.clone()),
            _ => None,
        }
    }

    /// A way to stop it.
    pub fn handle(&self) -> Handle {
        Handle(self.stop.clone())
    }

    /// Answers until it is stopped; then lets answers end, for as long as the settings say.
    pub fn run(self) -> Result<(), StartError> {
        let Self { runtime, listener, app, gone, stop, mut signals } = self;
        let router = api::router(Arc::clone(&app));
        let mut stopped = stop.subscribe();
        let broke = runtime.block_on(async {
            let connections = Connections::new(&app.settings, router);
            let accepting = tokio::spawn(connections.clone().accept(listener));
            if app.models.is_on_demand() {
                tokio::spawn(Arc::clone(&app.models).tend());
            }
            let broke = tokio::select! {
                _ = stopped.wait_for(|&stop| stop) => false,
                () = asked(&mut signals) => false,
                () = ended(gone) => true,
            };
            if !broke {
                drain(&app, &mut signals).await;
            }
            app.models.tell_to_stop();
            accepting.abort();
            connections.close(CLOSING).await;
            broke
        });
        runtime.shutdown_timeout(CLOSING);
        match app.models.join() {
            Ok(()) if !broke => Ok(()),
            Ok(()) => Err(StartError::Engine("the engine's thread ended".to_owned())),
            Err(why) => Err(StartError::Engine(why)),
        }
    }
}

/// Listens, and knows the rules; no model yet.
struct Socket {
    runtime: Runtime,
    listener: TcpListener,
    signals: Option<Signals>,
    settings: Arc<Settings>,
    traces: Arc<CacheTraces>,
}

impl Socket {
    fn open(settings: Settings) -> Result<Self, StartError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(SIDE_THREADS)
            .thread_name("http")
            .enable_all()
            .build()?;
        let address = settings.address;
        let listener = runtime
            .block_on(TcpListener::bind(address))
            .map_err(|source| StartError::Bind { address, source })?;
        let signals = {
            let _inside = runtime.enter();
            settings.signals.then(Signals::new).transpose()?
        };
        let (settings, traces) = (Arc::new(settings), Arc::default());
        Ok(Self { runtime, listener, signals, settings, traces })
    }

    fn shared(&self) -> Arc<Shared> {
        let (settings, traces) = (Arc::clone(&self.settings), Arc::clone(&self.traces));
        Arc::new(Shared { settings, traces })
    }

    fn serve(self, models: Arc<Models>, gone: Option<oneshot::Receiver<()>>) -> Server {
        let Self { runtime, listener, signals, settings, traces } = self;
        let app = Arc::new(App {
            openapi: api::openapi::document(&models),
            models,
            metrics: HttpMetrics::new(),
            traces,
            responses: ResponsesStore::new(settings.response_bytes),
            keys: Keys::new(&settings.api_keys, &settings.admin_keys),
            hosts: Hosts::new(settings.address.ip(), &settings.hosts),
            origins: Origins::new(&settings.origins),
            memory: api::BodyMemory::new(settings.body_bytes, settings.return_memory),
            settings,
            since: ids::now(),
        });
        let (stop, _) = watch::channel(false);
        Server { runtime, listener, app, gone, stop, signals }
    }
}

/// Waits for the thread of a model that stays; for ever where there is none.
async fn ended(gone: Option<oneshot::Receiver<()>>) {
    match gone {
        Some(gone) => drop(gone.await),
        None => std::future::pending().await,
    }
}

/// Lets nobody in and waits for those inside; a second signal ends the patience.
async fn drain(app: &App, signals: &mut Option<Signals>) {
    let models = &app.models;
    tracing::info!(answers = models.answers(), "shutting down");
    models.close();
    let empty = async {
        while models.answers() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = empty => {}
        () = tokio::time::sleep(app.settings.drain) => {
            tracing::warn!(answers = models.answers(), "answers cut off: the time to drain is over");
        }
        () = asked(signals) => {}
    }
}
