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
use crate::calls::Loosened;
use crate::ids;
use crate::metrics::Metrics;
use crate::model::{Facts, ServedModel};
use crate::origins::Origins;
use crate::service::{Places, Service, Thread, Watchers};
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

/// A bound server whose engine has generated its first token.
pub struct Server {
    runtime: Runtime,
    listener: TcpListener,
    app: Arc<App>,
    thread: Thread,
    gone: oneshot::Receiver<()>,
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
        mut engine: Engine<ModelRunner>,
        model: ServedModel,
        settings: Settings,
    ) -> Result<Self, StartError> {
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
        let facts = Facts::of(&mut engine);
        let places = Places::new(facts.sequences.saturating_add(settings.queue));
        let watchers = Watchers { metrics: Arc::new(Metrics::new(&facts)), traces: Arc::default() };
        let tokenizer = model.tokenizer.clone();
        let (model, text) = model.into_parts(&facts);
        let started =
            Service::start(engine, tokenizer.clone(), Arc::clone(&places), watchers.clone())?;
        if started.warmed.blocking_recv().is_err() {
            return Err(StartError::Engine(last_words(started.thread)));
        }
        // Learnt before the first request needs it; without, requests with a grammar are told why.
        let _ = text.grammars();
        let app = Arc::new(App {
            text,
            tokenizer,
            openapi: api::openapi::document(&model, &facts, places.capacity()),
            model,
            facts,
            service: started.service,
            places,
            metrics: watchers.metrics,
            loosened: Loosened::default(),
            traces: watchers.traces,
            keys: Keys::new(&settings.api_keys, &settings.admin_keys),
            hosts: Hosts::new(address.ip(), &settings.hosts),
            origins: Origins::new(&settings.origins),
            memory: api::BodyMemory::new(settings.body_bytes, settings.return_memory),
            settings,
            since: ids::now(),
        });
        let (stop, _) = watch::channel(false);
        let (thread, gone) = (started.thread, started.gone);
        Ok(Self { runtime, listener, app, thread, gone, stop, signals })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What its engine was built for.
    pub fn facts(&self) -> &Facts {
        &self.app.facts
    }

    /// A way to stop it.
    pub fn handle(&self) -> Handle {
        Handle(self.stop.clone())
    }

    /// Answers until it is stopped; then lets answers end, for as long as the settings say.
    pub fn run(self) -> Result<(), StartError> {
        let Self { runtime, listener, app, thread, gone, stop, mut signals } = self;
        let router = api::router(Arc::clone(&app));
        let mut stopped = stop.subscribe();
        let broke = runtime.block_on(async {
            let connections = Connections::new(&app.settings, router);
            let accepting = tokio::spawn(connections.clone().accept(listener));
            let broke = tokio::select! {
                _ = stopped.wait_for(|&stop| stop) => false,
                () = asked(&mut signals) => false,
                _ = gone => true,
            };
            if !broke {
                drain(&app, &mut signals).await;
            }
            app.service.stop();
            accepting.abort();
            connections.close(CLOSING).await;
            broke
        });
        runtime.shutdown_timeout(CLOSING);
        match thread.join() {
            Ok(Ok(())) if !broke => Ok(()),
            Ok(Ok(())) => Err(StartError::Engine("the engine's thread ended".to_owned())),
            Ok(Err(why)) => Err(StartError::Engine(why)),
            Err(_) => Err(StartError::Engine("the engine's thread panicked".to_owned())),
        }
    }
}

/// Lets nobody in and waits for those inside; a second signal ends the patience.
async fn drain(app: &App, signals: &mut Option<Signals>) {
    tracing::info!(answers = app.places.taken(), "shutting down");
    app.places.close();
    let empty = async {
        while app.places.taken() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = empty => {}
        () = tokio::time::sleep(app.settings.drain) => {
            tracing::warn!(answers = app.places.taken(), "answers cut off: the time to drain is over");
        }
        () = asked(signals) => {}
    }
}

fn last_words(thread: Thread) -> String {
    match thread.join() {
        Ok(Err(why)) => why,
        Ok(Ok(())) | Err(_) => "the engine's thread ended before it was ready".to_owned(),
    }
}
