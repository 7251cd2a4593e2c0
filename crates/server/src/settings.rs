//! How a server behaves. None of it changes a token, but for what special tokens in messages are and drafts that are
//! taken unchecked.

use forerun_engine::Depth;
use std::net::SocketAddr;
use std::time::Duration;

/// Where a server listens, whom it lets in and what it bounds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address and port; port 0 takes any free one.
    pub address: SocketAddr,
    /// Keys that open it; none lets everyone in.
    pub api_keys: Vec<String>,
    /// Keys that also show what belongs to others; none turns that off.
    pub admin_keys: Vec<String>,
    /// Names beside those of this machine under which it answers.
    pub hosts: Vec<String>,
    /// Origins whose pages may read what it answers (CORS); `*` is any.
    pub origins: Vec<String>,
    /// Whether requests with different API keys share the prefix cache.
    pub share_cache: bool,
    /// Requests that wait beyond those that run.
    pub queue: usize,
    /// Memory for each API key's conversations of the Responses API, which later requests go on from; 0 keeps none.
    pub response_bytes: usize,
    /// Longest request body.
    pub body_bytes: usize,
    /// Connections at a time.
    pub connections: usize,
    /// Longest wait for the rest of a request, and for a reader to take some of an answer.
    pub patience: Duration,
    /// How often a stream says that it is alive while nothing else is to say.
    pub keep_alive: Duration,
    /// How long a shutdown waits for answers to end.
    pub drain: Duration,
    /// How long a model stays loaded when nobody uses it, where models come and go; none is for good.
    pub unload_after: Option<Duration>,
    /// Whether special tokens that messages spell are special tokens; otherwise they are text.
    pub parse_special: bool,
    /// Drafts of a round where a request does not say.
    pub depth: Depth,
    /// Whether SIGINT and SIGTERM shut it down.
    pub signals: bool,
    /// Refuse what would otherwise be ignored and told.
    pub strict: bool,
    /// Gives memory that was freed back to the system, where its allocator keeps it; called behind long requests.
    pub return_memory: fn(),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8080)),
            api_keys: Vec::new(),
            admin_keys: Vec::new(),
            hosts: Vec::new(),
            origins: Vec::new(),
            share_cache: false,
            queue: 256,
            response_bytes: 0,
            body_bytes: 32 << 20,
            connections: 1024,
            patience: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
            drain: Duration::from_secs(30),
            unload_after: Some(Duration::from_secs(300)),
            parse_special: false,
            depth: Depth::Auto,
            signals: false,
            strict: false,
            return_memory: || {},
        }
    }
}
