//! A model hub on this machine: the part of the Hugging Face protocol that a client uses, over real
//! sockets, with faults on demand.
//!
//! Two ports stand for two hosts. The first answers the API and small files itself; for large files
//! it redirects to the second, as the hub does to its content network. Every request is remembered.

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// One repository at one commit.
#[derive(Clone, Debug, Default)]
pub struct HubRepo {
    /// `OWNER/NAME`.
    pub name: String,
    /// Forty digits.
    pub commit: String,
    /// Name, content, and whether it is a large file.
    pub files: Vec<(String, Vec<u8>, bool)>,
    /// `cardData.base_model`.
    pub base_model: Value,
    /// Leaves sizes and checksums out of the listing.
    pub bare_listing: bool,
}

impl HubRepo {
    /// An empty repository.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), commit: "0123456789".repeat(4), ..Self::default() }
    }

    /// Adds a file that git holds.
    pub fn small(mut self, name: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.into(), content.into(), false));
        self
    }

    /// Adds a file that the content network holds.
    pub fn large(mut self, name: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.into(), content.into(), true));
        self
    }
}

/// What goes wrong with one answer.
#[derive(Clone, Debug)]
pub enum ServerFault {
    /// A bare status.
    Status(u16),
    /// Status 429 with `retry-after`, in seconds.
    Busy(u64),
    /// The body ends after so many bytes, and so does the connection.
    CutAfter(usize),
    /// One byte of the body is another.
    Corrupt,
    /// The whole file, whatever range was requested.
    IgnoreRange,
    /// Another `content-range` than requested.
    WrongRange,
    /// The body comes in pieces of so many bytes with pauses between them.
    Drip(usize, Duration),
    /// Nothing comes for so long; then the connection ends.
    Stall(Duration),
    /// A redirect to this address.
    Redirect(String),
    /// Bytes of the body beyond what was announced in the listing.
    TooLong(usize),
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct SeenRequest {
    /// Whether the content network was asked.
    pub content_network: bool,
    /// `GET` or `HEAD`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Header names in lower case.
    pub headers: BTreeMap<String, String>,
}

#[derive(Default)]
struct State {
    repos: Vec<HubRepo>,
    token: Option<String>,
    faults: BTreeMap<String, VecDeque<ServerFault>>,
    seen: Vec<SeenRequest>,
}

struct HubState {
    state: Mutex<State>,
    closing: AtomicBool,
    hub: SocketAddr,
    content: SocketAddr,
}

/// A running server; it ends when dropped.
pub struct HubServer {
    shared: Arc<HubState>,
}

/// The git checksum of a file.
pub fn git_sha1(bytes: &[u8]) -> String {
    let mut sha = Sha1::new();
    sha.update(format!("blob {}\0", bytes.len()));
    sha.update(bytes);
    hex(&sha.finalize())
}

/// The checksum of a large file.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl HubServer {
    /// Starts to serve on two free ports.
    pub fn start(repos: Vec<HubRepo>) -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (hub, content) = (listen(), listen());
        let address = |l: &TcpListener| l.local_addr().expect("a bound socket");
        let shared = Arc::new(HubState {
            state: Mutex::new(State { repos, ..State::default() }),
            closing: AtomicBool::new(false),
            hub: address(&hub),
            content: address(&content),
        });
        for (listener, content_network) in [(hub, false), (content, true)] {
            let shared = shared.clone();
            std::thread::spawn(move || accept(&listener, content_network, &shared));
        }
        Self { shared }
    }

    /// The value for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.shared.hub)
    }

    /// From now on only this token opens anything.
    pub fn require_token(&self, token: &str) {
        self.shared.lock().token = Some(token.into());
    }

    /// Faults for the next answers whose target holds `part`, one each.
    pub fn fail(&self, part: &str, faults: impl IntoIterator<Item = ServerFault>) {
        self.shared.lock().faults.entry(part.into()).or_default().extend(faults);
    }

    /// Replaces what is served.
    pub fn set_repos(&self, repos: Vec<HubRepo>) {
        self.shared.lock().repos = repos;
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<SeenRequest> {
        self.shared.lock().seen.clone()
    }

    /// Forgets the requests so far.
    pub fn forget(&self) {
        self.shared.lock().seen.clear();
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // Wakes the accepting threads; whether it connects does not matter.
        for address in [self.shared.hub, self.shared.content] {
            let _ = TcpStream::connect(address);
        }
    }
}

impl HubState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the state")
    }
}

fn accept(listener: &TcpListener, content_network: bool, shared: &Arc<HubState>) {
    for stream in listener.incoming() {
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = shared.clone();
        // A client that goes away is no failure of the server.
        std::thread::spawn(move || {
            let _ = serve(stream, content_network, &shared);
        });
    }
}

fn read_request(stream: &TcpStream, content_network: bool) -> std::io::Result<SeenRequest> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    Ok(SeenRequest { content_network, method, target, headers })
}

/// An answer before anything goes wrong with it.
struct HubResponse {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Whether the body may be cut into ranges.
    ranges: bool,
}

impl HubResponse {
    fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), ranges: false }
    }

    fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.into(), value.to_string()));
        self
    }
}

fn serve(stream: TcpStream, content_network: bool, shared: &HubState) -> std::io::Result<()> {
    let request = read_request(&stream, content_network)?;
    let (answer, fault) = {
        let mut state = shared.lock();
        state.seen.push(request.clone());
        let queue = state
            .faults
            .iter_mut()
            .find(|(part, queue)| request.target.contains(part.as_str()) && !queue.is_empty());
        let fault = queue.and_then(|(_, queue)| queue.pop_front());
        (answer(&state, &request, shared.content), fault)
    };
    let answer = match &fault {
        Some(ServerFault::Status(status)) => HubResponse::status(*status),
        Some(ServerFault::Busy(seconds)) => HubResponse::status(429).with("retry-after", seconds),
        Some(ServerFault::Redirect(to)) => HubResponse::status(302).with("location", to),
        Some(ServerFault::Stall(time)) => {
            std::thread::sleep(*time);
            return Ok(());
        }
        _ => answer,
    };
    send(stream, &request, ranged(answer, &request, fault.as_ref()), fault)
}

fn answer(state: &State, request: &SeenRequest, content: SocketAddr) -> HubResponse {
    let target = request.target.split('?').next().unwrap_or_default();
    if request.content_network {
        let bytes = state.repos.iter().flat_map(|r| &r.files).map(|(_, bytes, _)| bytes);
        let found = bytes.into_iter().find(|bytes| target == format!("/{}", sha256(bytes)));
        // The content network's own etag is no checksum of the file.
        return found.map_or(HubResponse::status(404), |bytes| HubResponse {
            ranges: true,
            body: bytes.clone(),
            ..HubResponse::status(200).with("etag", "\"content-network\"")
        });
    }
    let bearer = state.token.as_ref().map(|token| format!("Bearer {token}"));
    if bearer.is_some() && request.headers.get("authorization") != bearer.as_ref() {
        return HubResponse::status(401).with("x-error-code", "GatedRepo");
    }
    for repo in &state.repos {
        if let Some(revision) = target.strip_prefix(&format!("/api/models/{}/revision/", repo.name))
        {
            return listing(repo, revision);
        }
        let files = format!("/{}/resolve/{}/", repo.name, repo.commit);
        if let Some(file) = target.strip_prefix(&files) {
            return resolve(repo, file, content);
        }
    }
    HubResponse::status(404).with("x-error-code", "RepoNotFound")
}

fn listing(repo: &HubRepo, revision: &str) -> HubResponse {
    if ![repo.commit.as_str(), "main", "refs%2Fpr%2F1"].contains(&revision) {
        return HubResponse::status(404).with("x-error-code", "RevisionNotFound");
    }
    let sibling = |(name, bytes, large): &(String, Vec<u8>, bool)| {
        let mut sibling = json!({ "rfilename": name });
        if !repo.bare_listing {
            sibling["size"] = bytes.len().into();
            sibling["blobId"] = git_sha1(bytes).into();
        }
        if *large && !repo.bare_listing {
            sibling["lfs"] =
                json!({ "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134 });
        }
        sibling
    };
    let siblings: Vec<Value> = repo.files.iter().map(sibling).collect();
    let card = json!({ "base_model": repo.base_model });
    let body =
        json!({ "id": repo.name, "sha": repo.commit, "siblings": siblings, "cardData": card });
    HubResponse { body: body.to_string().into_bytes(), ..HubResponse::status(200) }
}

fn resolve(repo: &HubRepo, file: &str, content: SocketAddr) -> HubResponse {
    let Some((_, bytes, large)) = repo.files.iter().find(|(name, ..)| name == file) else {
        return HubResponse::status(404).with("x-error-code", "EntryNotFound");
    };
    if *large {
        let sha = sha256(bytes);
        return HubResponse::status(302)
            .with("x-repo-commit", &repo.commit)
            .with("x-linked-etag", format!("\"{sha}\""))
            .with("x-linked-size", bytes.len())
            .with("location", format!("http://{content}/{sha}"));
    }
    let etag = format!("\"{}\"", git_sha1(bytes));
    let found = HubResponse::status(200).with("x-repo-commit", &repo.commit).with("etag", etag);
    HubResponse { body: bytes.clone(), ranges: true, ..found }
}

/// Cuts the body to the requested range.
fn ranged(
    mut answer: HubResponse,
    request: &SeenRequest,
    fault: Option<&ServerFault>,
) -> HubResponse {
    let range = request.headers.get("range").and_then(|r| r.strip_prefix("bytes="));
    let Some((first, last)) = range.and_then(|range| range.split_once('-')) else { return answer };
    if !answer.ranges || matches!(fault, Some(ServerFault::IgnoreRange)) {
        return answer;
    }
    let len = answer.body.len();
    let first: usize = first.parse().unwrap_or(0);
    let last = last.parse().map_or(len, |last: usize| (last + 1).min(len));
    if first >= last {
        return HubResponse::status(416);
    }
    answer.body = answer.body[first..last].to_vec();
    answer.status = 206;
    let shift = usize::from(matches!(fault, Some(ServerFault::WrongRange)));
    answer.with("content-range", format!("bytes {}-{}/{len}", first + shift, last - 1))
}

fn send(
    mut stream: TcpStream,
    request: &SeenRequest,
    answer: HubResponse,
    fault: Option<ServerFault>,
) -> std::io::Result<()> {
    let HubResponse { status, headers, mut body, .. } = answer;
    match fault {
        Some(ServerFault::Corrupt) => body[0] ^= 1,
        Some(ServerFault::TooLong(more)) => body.resize(body.len() + more, 0),
        _ => {}
    }
    let mut head = format!("HTTP/1.1 {status} Status\r\nconnection: close\r\n");
    head += &format!("content-length: {}\r\n", body.len());
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method == "HEAD" {
        return Ok(());
    }
    match fault {
        Some(ServerFault::CutAfter(bytes)) => stream.write_all(&body[..bytes.min(body.len())]),
        Some(ServerFault::Drip(bytes, pause)) => body.chunks(bytes).try_for_each(|piece| {
            std::thread::sleep(pause);
            stream.write_all(piece)
        }),
        _ => stream.write_all(&body),
    }
}
