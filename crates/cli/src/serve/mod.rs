//! `forerun serve`: a model behind HTTP.

mod catalogue;
mod config;
mod keys;
mod log;

use crate::args::{EngineArgs, ServeArgs};
use crate::exit::Outcome;
use crate::fetch::{self, Fetched};
use crate::load::ModelSource;
use crate::report::bytes_text;
use crate::{bundled, sizing, terminal};
use anyhow::{Context, anyhow};
use forerun_engine::{CacheSettings, DiskSettings, Settings as EngineSettings};
use forerun_server::{ModelDetails, ServedModel, Server, Settings};
use forerun_text::{ChatTemplate, GenerationDefaults, Tokenizer};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Of the prefix cache, where nothing else is typed and memory is not short.
const CACHE_BYTES: u64 = 1 << 30;

pub(crate) fn serve(args: ServeArgs) -> anyhow::Result<Outcome> {
    let args = config::with_file(args)?;
    log::start(args.log, args.log_level);
    let settings = settings(&args)?;
    check_free(settings.address)?;
    if let Some(models) = args.models.clone() {
        return serve_several(&models, &Arc::new(args), settings);
    }
    let path = match args.positional.as_ref().or(args.model.as_ref()) {
        Some(path) => path.clone(),
        None => bundled::find()?,
    };
    if let Fetched::Stopped(outcome) = fetch::ensure(&path, args.fetch.offline)? {
        return Ok(outcome);
    }
    let source = ModelSource::open(&path, &args.model_options)?;
    let model = served(&args, &source, &path)?;
    let name = model.name.clone();
    let sized = sizes(&args, &args.engine, &source);
    let sized = sizing::fit(sized, &args.engine, &source, args.device.device)?;
    let mut loaded = source.load(&sized, args.device)?;
    if let Some(folder) = &args.cache_dir {
        let found = loaded.engine.open_disk_cache(&DiskSettings {
            folder: folder.clone(),
            bytes: mebibytes(args.cache_disk),
            identity: source.blueprint.fingerprint(),
        })?;
        let bytes = bytes_text(found.tier.bytes);
        terminal::note(&format!("disk cache   {} holds {bytes}", folder.display()));
    }
    let open = settings.api_keys.is_empty();
    let server = Server::bind(loaded.engine, model, settings)?;
    tell(&server, &name, open)?;
    server.run()?;
    Ok(Outcome::Done)
}

/// Serves models that are loaded when they are asked for.
fn serve_several(
    models: &Path,
    args: &Arc<ServeArgs>,
    settings: Settings,
) -> anyhow::Result<Outcome> {
    let open = settings.api_keys.is_empty();
    let entries = catalogue::entries(models, args)?;
    let names: Vec<String> = entries.iter().map(|entry| entry.name.clone()).collect();
    let server = Server::bind_models(entries, settings)?;
    let address = server.address()?;
    terminal::show(&format!("http://{address}\n"))?;
    terminal::note(&format!("models       {}", names.join(", ")));
    warn_if_open(open, address);
    server.run()?;
    Ok(Outcome::Done)
}

/// The sizes of an engine that serves.
fn sizes(args: &ServeArgs, engine: &EngineArgs, source: &ModelSource) -> EngineSettings {
    let sized = sizing::for_answers(engine, &args.speculation, &source.blueprint.spec);
    EngineSettings {
        sequences: args.max_sequences,
        step_budget: EngineSettings::SHARED_STEP,
        cache: CacheSettings { bytes: cache_bytes(args), ..CacheSettings::default() },
        ..sized
    }
}

/// Refuses an address that cannot be listened at before weights are read, which may take minutes.
fn check_free(address: SocketAddr) -> anyhow::Result<()> {
    let Err(error) = TcpListener::bind(address) else { return Ok(()) };
    let advice = match error.kind() {
        ErrorKind::AddrInUse => {
            "another program listens there; --port N takes another port, --port 0 any free one"
        }
        ErrorKind::AddrNotAvailable => {
            "this machine has no such address; --host 0.0.0.0 listens at all it has"
        }
        ErrorKind::PermissionDenied => "ports below 1024 need rights; --port N takes another",
        _ => return Err(anyhow!(error).context(format!("cannot listen at {address}"))),
    };
    Err(anyhow!("cannot listen at {address}: {error}; {advice}"))
}

/// Bytes of the prefix cache: what was typed, or else [`CACHE_BYTES`] and at most an eighth of what is free.
fn cache_bytes(args: &ServeArgs) -> u64 {
    let room = || args.engine.room(args.device.device).unwrap_or(u64::MAX);
    args.cache.map_or_else(|| CACHE_BYTES.min(room() / 8), mebibytes)
}

fn mebibytes(count: u32) -> u64 {
    u64::from(count) << 20
}

fn settings(args: &ServeArgs) -> anyhow::Result<Settings> {
    Ok(Settings {
        address: SocketAddr::new(args.host, args.port),
        api_keys: keys::api(args)?,
        admin_keys: keys::admin(args)?,
        hosts: args.allow_host.clone(),
        origins: args.allow_origin.clone(),
        share_cache: args.share_cache,
        queue: args.queue,
        response_bytes: (args.store_responses as usize) << 20,
        body_bytes: args.max_body << 20,
        connections: args.max_connections,
        drain: Duration::from_secs(args.drain.into()),
        unload_after: (args.unload_after > 0)
            .then(|| Duration::from_secs(args.unload_after.into())),
        depth: args.speculation.draft,
        parse_special: args.parse_special,
        signals: true,
        strict: args.strict,
        return_memory: crate::device::return_freed_memory,
        ..Settings::default()
    })
}

/// The text side of the model.
fn served(args: &ServeArgs, source: &ModelSource, path: &Path) -> anyhow::Result<ServedModel> {
    let named = path.file_stem().filter(|_| path.is_file()).or_else(|| path.file_name());
    let own = || named.map_or_else(|| source.path.clone(), |n| n.to_string_lossy().into_owned());
    let (tokenizer, template, defaults) = text_of(source)?;
    Ok(ServedModel {
        // A name of the hub is the model's name as it stands.
        name: match &args.name {
            Some(name) => name.clone(),
            None if path.exists() => own(),
            None => source.path.clone(),
        },
        aliases: args.alias.clone(),
        tokenizer,
        template,
        defaults,
        pooling: source.text.pooling,
        details: ModelDetails::of(source),
    })
}

fn text_of(
    source: &ModelSource,
) -> anyhow::Result<(Tokenizer, Option<ChatTemplate>, GenerationDefaults)> {
    let tokenizer = source.text.need_tokenizer().context("a server needs text")?.clone();
    Ok((tokenizer, source.text.template()?, source.text.defaults.clone()))
}

/// Says what is served, where, and what it takes.
fn tell(server: &Server, name: &str, open: bool) -> anyhow::Result<()> {
    let address = server.address()?;
    let facts = server.facts().context("the model is gone")?;
    terminal::show(&format!("http://{address}\n"))?;
    let memory: Vec<String> =
        facts.memory.items.iter().map(|i| format!("{} {}", i.label, bytes_text(i.bytes))).collect();
    terminal::note(&format!(
        "model        {name}\n\
         device       {}\n\
         context      {} tokens, {} answers at a time\n\
         memory       {}: {}\n\
         speculation  {}",
        facts.device,
        facts.context,
        facts.sequences,
        bytes_text(facts.memory.total()),
        memory.join(", "),
        facts.speculation_off.map_or("on".to_owned(), |why| format!("off: {why}")),
    ));
    warn_if_open(open, address);
    Ok(())
}

fn warn_if_open(open: bool, address: SocketAddr) {
    if open && !address.ip().is_loopback() {
        terminal::note("warning: everyone who reaches this address is let in; give --api-key");
    }
}
