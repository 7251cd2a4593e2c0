//! `forerun serve`.

use super::engine::at_least_one;
use super::{DeviceArgs, EngineArgs, FetchArgs, ModelArgs, SpeculationArgs};
use clap::{ArgAction, Args, ValueEnum};
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forerun serve                                    the bundled model at http://127.0.0.1:8080
  forerun serve ~/models/qwen3.5 --ctx 32768 --max-sequences 4
  forerun serve ~/models/qwen3.5 --host 0.0.0.0 --api-key-file keys.txt
  forerun serve --models ~/models                  each model when a request names it
  forerun serve --config forerun.toml

A config file holds the same names as the options, without the dashes in front:
  model = \"~/models/qwen3.5\"
  port = 8000
  max-sequences = 16
Options that are typed win over the file.";

/// Serve a model over HTTP
///
/// Answers the OpenAI and Anthropic APIs and shows a chat page at /. It listens on this machine only
/// unless --host says otherwise.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_override_self = true)]
pub(crate) struct ServeArgs {
    /// Model folder, .safetensors or .gguf file, or a model of the hub: OWNER/NAME[:FILE]; the bundled model by default
    #[arg(value_name = "MODEL")]
    pub(crate) positional: Option<PathBuf>,

    /// The model, where a config file names it
    #[arg(long, value_name = "PATH", conflicts_with = "positional", hide = true)]
    pub(crate) model: Option<PathBuf>,

    /// Serve several models: a folder with model folders and .gguf files, or a TOML or JSON file that names them
    ///
    /// Each is loaded when a request names it, and unloaded when it is idle or another needs its memory.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["positional", "model", "name", "alias", "drafter"])]
    pub(crate) models: Option<PathBuf>,

    /// Seconds after which a model that nobody uses is unloaded, with --models; 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 300, help_heading = "Server")]
    pub(crate) unload_after: u32,

    /// Read options from this TOML file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Address to listen at, or a name of this machine: of its addresses the first, IPv4 before IPv6
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", value_parser = host)]
    #[arg(help_heading = "Server")]
    pub(crate) host: IpAddr,

    /// Port to listen at; 0 takes any free one
    #[arg(long, value_name = "N", default_value_t = 8080, help_heading = "Server")]
    pub(crate) port: u16,

    /// Key that clients must send; may be repeated. FORERUN_API_KEY gives one, too
    #[arg(long, value_name = "KEY", help_heading = "Server")]
    pub(crate) api_key: Vec<String>,

    /// File with keys, one per line
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// File with keys, one per line, that show what belongs to others, too: /debug is off without one
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) admin_key_file: Option<PathBuf>,

    /// Further name the server answers to (the `Host` header); may be repeated. On this machine only, any other
    /// name but localhost is refused; elsewhere, any is answered until one is given
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub(crate) allow_host: Vec<String>,

    /// Origin whose pages a browser lets read the answers (CORS), such as http://localhost:3000; may be repeated,
    /// `*` is any. By default none
    #[arg(long, value_name = "ORIGIN", value_parser = origin, help_heading = "Server")]
    pub(crate) allow_origin: Vec<String>,

    /// Let requests with different API keys share the prefix cache
    #[arg(long, value_name = "BOOL", default_value = "false", default_missing_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    #[arg(help_heading = "Server")]
    pub(crate) share_cache: bool,

    /// Name the model is served under [default: the name of its folder or file]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub(crate) name: Option<String>,

    /// Further name the model answers to; may be repeated. `*` at the end stands for any ending: `claude-*`, `*`
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub(crate) alias: Vec<String>,

    /// Take special tokens that messages spell, such as <|im_end|>, for special tokens instead of text
    #[arg(long, help_heading = "Server")]
    pub(crate) parse_special: bool,

    /// Answers generated at a time; each has a whole context of memory
    #[arg(long, value_name = "N", default_value = "8", value_parser = at_least_one)]
    #[arg(help_heading = "Server")]
    pub(crate) max_sequences: usize,

    /// Answers that may wait beyond those; more are refused
    #[arg(long, value_name = "N", default_value = "256", help_heading = "Server")]
    pub(crate) queue: usize,

    /// Host memory in MiB for what prompts have in common; 0 turns the prefix cache off [default: 1024, and at most
    /// an eighth of free memory]
    #[arg(long, value_name = "MIB", help_heading = "Server")]
    pub(crate) cache: Option<u32>,

    /// Folder for the prefix cache, which outlives the process; it holds what was said
    #[arg(long, value_name = "FOLDER", help_heading = "Server")]
    pub(crate) cache_dir: Option<PathBuf>,

    /// MiB of files in that folder
    #[arg(long, value_name = "MIB", default_value = "4096", requires = "cache_dir")]
    #[arg(help_heading = "Server")]
    pub(crate) cache_disk: u32,

    /// Memory in MiB for each API key's conversations of the Responses API, which `previous_response_id` goes on from;
    /// by default nothing that was said is kept
    #[arg(long, value_name = "MIB", default_value = "0", help_heading = "Server")]
    pub(crate) store_responses: u32,

    /// Connections at a time
    #[arg(long, value_name = "N", default_value = "1024", value_parser = at_least_one)]
    #[arg(help_heading = "Server")]
    pub(crate) max_connections: usize,

    /// Longest request body in MiB
    #[arg(long, value_name = "MIB", default_value = "16", value_parser = mebibytes)]
    #[arg(help_heading = "Server")]
    pub(crate) max_body: usize,

    /// Refuse fields that are otherwise ignored and listed in the header `x-forerun-notes`
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false)]
    #[arg(action = clap::ArgAction::Set, value_name = "BOOL", require_equals = true)]
    #[arg(help_heading = "Server")]
    pub(crate) strict: bool,

    /// Seconds that a shutdown waits for answers to end
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "Server")]
    pub(crate) drain: u32,

    /// Form of the log on stderr
    #[arg(long, value_enum, default_value_t = LogForm::Text, help_heading = "Server")]
    pub(crate) log: LogForm,

    /// How much is logged
    #[arg(long, value_enum, default_value_t = LogLevel::Info, help_heading = "Server")]
    pub(crate) log_level: LogLevel,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,

    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogForm {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

/// An address as it stands, in brackets or not, or what a name stands for.
fn host(text: &str) -> Result<IpAddr, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse() {
        return Ok(address);
    }
    let found =
        (text, 0).to_socket_addrs().map_err(|why| format!("no address of that name: {why}"))?;
    let mut found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    found.sort_by_key(IpAddr::is_ipv6);
    found.first().copied().ok_or_else(|| "no address of that name".to_owned())
}

/// What browsers send: a scheme and a host, with a port or without, and no path.
fn origin(text: &str) -> Result<String, String> {
    let whole = text.split_once("://").is_some_and(|(scheme, host)| {
        !scheme.is_empty() && !host.is_empty() && !host.contains(['/', ' ', '*'])
    });
    if text == "*" || whole {
        return Ok(text.to_ascii_lowercase());
    }
    Err("expected `*`, or scheme and host without a path, such as http://localhost:3000".to_owned())
}

fn mebibytes(text: &str) -> Result<usize, String> {
    at_least_one(text)
        .ok()
        .filter(|&n| n <= 1024)
        .ok_or_else(|| "expected an integer from 1 to 1024".to_owned())
}
