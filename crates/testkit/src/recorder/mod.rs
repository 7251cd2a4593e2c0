//! A device that behaves like a GPU and watches its caller.
//!
//! [`Recorder`] wraps any device. Operations and host writes are only recorded; they run at
//! `submit`, cut into submissions within a [`Budget`]. On the way it refuses what a GPU would punish
//! silently:
//!
//! - a read while anything is queued or in flight;
//! - an operation whose operands do not fit its description, at the moment it is recorded;
//! - an operand read before anything was written to it;
//! - a stash used after its release, released twice, of another size than the views it goes to, over the limit, or read
//!   before it was submitted;
//! - an allocation after [`RecorderWatch::seal`];
//! - with [`Recorder::paranoid`]: an operation that changes memory its description does not declare.
//!
//! Memory is poisoned: new buffers hold NaN or an index that points nowhere, and scratch does so
//! again when the next step begins. A step ends with a wait that leaves the device idle; results can
//! be read until the next command is recorded.

mod paranoia;
mod poison;
mod posts;
mod queue;
mod shadow;
mod stashes;
mod stats;
#[cfg(test)]
mod tests;

pub use poison::POISON_INDEX;
pub use stats::{RecorderStats, RecorderWatch};

use forerun_backend::{
    Backend, BackendError, Budget, BufferId, BufferInfo, BufferRole, BufferSpec, Catalog, Cost,
    CutSizes, HostData, HostDataMut, Op, StashId, Ticket, View, WeightId, WeightInfo,
    bytes_of_views, for_each_operation, op,
};
use forerun_base::{Bytes, DType, Matrix, MatrixParts};
use paranoia::Snapshots;
use posts::Posts;
use queue::{Queued, QueuedCommand};
use shadow::{Shadow, Shadows};
use stashes::RecordedStashes;
use std::collections::HashMap;
use std::time::Duration;

/// Work handed to the inner device and not yet waited for.
#[derive(Debug)]
struct InFlight {
    ticket: Ticket,
    inner: Ticket,
    bytes: u64,
}

/// See the module's text.
pub struct Recorder {
    inner: Box<dyn Backend>,
    budget: Budget,
    /// Whether a submission over the budget is killed, as a GPU's watchdog does, or cut.
    kills: bool,
    shadows: Shadows,
    /// Index buffers that only the host has written, so that costs are exact.
    words: HashMap<BufferId, Vec<u32>>,
    snapshots: Option<Snapshots>,
    stashes: RecordedStashes,
    posts: Posts,
    queue: Vec<Queued>,
    in_flight: Vec<InFlight>,
    tickets: u64,
    /// Up to where reading stashes has waited.
    reached: Ticket,
    /// The last step is over: scratch is spoiled before the next command.
    step_over: bool,
    watch: RecorderWatch,
}

impl Recorder {
    /// A recorder without a budget.
    pub fn new(inner: Box<dyn Backend>) -> Self {
        Self::with_budget(inner, Budget::UNLIMITED)
    }

    /// A recorder that cuts what is submitted at a budget.
    pub fn with_budget(inner: Box<dyn Backend>, budget: Budget) -> Self {
        Self {
            inner,
            budget,
            kills: false,
            shadows: Shadows::default(),
            words: HashMap::new(),
            snapshots: None,
            stashes: RecordedStashes::default(),
            posts: Posts::default(),
            queue: Vec::new(),
            in_flight: Vec::new(),
            tickets: 0,
            reached: Ticket(0),
            step_over: false,
            watch: RecorderWatch::default(),
        }
    }

    /// A recorder that kills any submission over a limit, as a GPU's watchdog does.
    pub fn with_watchdog(inner: Box<dyn Backend>, limit: Budget) -> Self {
        Self { kills: true, ..Self::with_budget(inner, limit) }
    }

    /// Also compares all memory around every operation. Slow: meant for small cases.
    pub fn paranoid(mut self) -> Self {
        self.snapshots = Some(Snapshots::default());
        self
    }

    /// The handle on counts and seal.
    pub fn watch(&self) -> RecorderWatch {
        self.watch.clone()
    }

    fn refuse_when_sealed(&self, what: &str, label: &str) -> Result<(), BackendError> {
        if !self.watch.is_sealed() {
            return Ok(());
        }
        Err(BackendError::Protocol(format!("{what} of `{label}` after warm-up")))
    }

    fn record(&mut self, op: Op) -> Result<(), BackendError> {
        self.begin_step()?;
        let desc = op.desc(self);
        let operands = desc.operands().to_vec();
        let cost = desc.check()?;
        self.shadows.follow(&op, &operands)?;
        for operand in operands.iter().filter(|operand| operand.access.writes()) {
            self.words.remove(&operand.view.buffer);
            self.posts.written(operand.view)?;
        }
        self.queue.push(Queued { command: QueuedCommand::Run(op), cost });
        Ok(())
    }

    /// Spoils scratch when this is the first command after a step.
    fn begin_step(&mut self) -> Result<(), BackendError> {
        if !std::mem::take(&mut self.step_over) {
            return Ok(());
        }
        for (id, shadow) in self.shadows.iter().filter(|(_, s)| s.role == BufferRole::Scratch) {
            poison::spoil(&mut *self.inner, id, shadow.info)?;
        }
        self.shadows.forget_scratch();
        self.settle()
    }

    /// Lets the recorder's own changes reach the inner device before anything is compared.
    fn settle(&mut self) -> Result<(), BackendError> {
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.refresh(&mut *self.inner, &self.shadows)?;
        }
        Ok(())
    }

    /// Runs a queue in pieces within the budget, or kills it; the ticket of the last piece.
    fn run_queue(&mut self, queue: &[Queued]) -> Result<Option<Ticket>, BackendError> {
        let cost = queue::total(queue);
        if self.kills && !self.budget.holds(cost) {
            let names: Vec<&str> = queue.iter().map(|q| q.command.name()).collect();
            return Err(BackendError::Protocol(format!(
                "the watchdog killed a submission of {} bytes and {} flops: {}",
                cost.bytes,
                cost.flops,
                names.join(", ")
            )));
        }
        let mut inner = None;
        for piece in queue::cut(queue, self.budget) {
            inner = Some(self.run_piece(&queue[piece])?);
        }
        Ok(inner)
    }

    fn run_piece(&mut self, piece: &[Queued]) -> Result<Ticket, BackendError> {
        for Queued { command, .. } in piece {
            command.run(&mut *self.inner, &mut self.stashes)?;
            if self.snapshots.is_some() {
                let written = self.written_by(command);
                if let Some(snapshots) = &mut self.snapshots {
                    snapshots.check(&mut *self.inner, &self.shadows, command, &written)?;
                }
            }
        }
        let ticket = self.inner.submit()?;
        self.count_piece(piece);
        Ok(ticket)
    }

    fn note_stashes(&self) {
        let (held, bytes) = (self.stashes.books.count() as u64, self.stashes.books.bytes());
        self.watch.count(|stats| {
            (stats.stashes_held, stats.stash_bytes) = (held, bytes);
            stats.peak_stash_bytes = stats.peak_stash_bytes.max(bytes);
        });
    }

    fn written_by(&self, command: &QueuedCommand) -> Vec<View> {
        match command {
            QueuedCommand::Write(view, _) => vec![*view],
            QueuedCommand::Unstash(_, views) => views.clone(),
            QueuedCommand::Stash(..) | QueuedCommand::Release(_) => Vec::new(),
            QueuedCommand::Run(op) => {
                let desc = op.desc(self);
                desc.operands().iter().filter(|o| o.access.writes()).map(|o| o.view).collect()
            }
        }
    }

    fn count_piece(&self, piece: &[Queued]) {
        let cost = queue::total(piece);
        self.watch.count(|stats| {
            stats.submissions += 1;
            for queued in piece {
                match queued.command {
                    QueuedCommand::Run(_) => stats.ops += 1,
                    QueuedCommand::Write(..) => stats.writes += 1,
                    QueuedCommand::Stash(..) => stats.stashes += 1,
                    QueuedCommand::Unstash(..) => stats.unstashes += 1,
                    QueuedCommand::Release(_) => {}
                }
            }
            stats.largest.bytes = stats.largest.bytes.max(cost.bytes);
            stats.largest.flops = stats.largest.flops.max(cost.flops);
            if !self.budget.holds(cost) {
                stats.oversized.extend(piece.iter().map(|q| q.command.name()));
            }
        });
    }
}

/// What a copy moves.
fn copied(bytes: usize) -> Cost {
    Cost { bytes: bytes as u64, ..Cost::default() }
}

impl Catalog for Recorder {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.shadows.get(id).map(|shadow| shadow.info)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.inner.weight(id)
    }

    fn words(&self, view: View) -> Option<&[u32]> {
        self.words.get(&view.buffer)?.get(view.start..view.start + view.len)
    }

    fn cache_order(&self) -> op::CacheOrder {
        self.inner.cache_order()
    }
}

macro_rules! recorded {
    ($($name:ident: $op:ident),* $(,)?) => {$(
        fn $name(&mut self, op: op::$op) -> Result<(), BackendError> {
            self.record(op.into())
        }
    )*};
}

impl Backend for Recorder {
    fn name(&self) -> String {
        format!("recorded {}", self.inner.name())
    }

    fn arithmetic(&self) -> String {
        self.inner.arithmetic()
    }

    fn missing(&self) -> &'static [&'static str] {
        self.inner.missing()
    }

    fn cut_sizes(&self, block: usize) -> CutSizes {
        self.inner.cut_sizes(block)
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<BufferId, BackendError> {
        self.refuse_when_sealed("an allocation", spec.label)?;
        let id = self.inner.alloc(spec)?;
        let shadow = Shadow::new(&spec);
        poison::spoil(&mut *self.inner, id, shadow.info)?;
        self.shadows.insert(id, shadow);
        self.watch.count(|stats| {
            stats.buffers += 1;
            stats.buffer_bytes += (spec.len * spec.dtype.size()) as u64;
        });
        self.settle()?;
        Ok(id)
    }

    fn upload(&mut self, label: &str, matrix: Matrix) -> Result<WeightId, BackendError> {
        self.upload_parts(label, &matrix.into())
    }

    fn upload_parts(&mut self, label: &str, parts: &MatrixParts) -> Result<WeightId, BackendError> {
        self.refuse_when_sealed("an upload", label)?;
        let id = self.inner.upload_parts(label, parts)?;
        self.watch.count(|stats| {
            stats.uploads += 1;
            stats.weight_bytes += parts.bytes() as u64;
        });
        Ok(id)
    }

    fn write(&mut self, dst: View, src: HostData<'_>) -> Result<(), BackendError> {
        let dtype = self.shadows.check("write", dst)?.info.dtype;
        let fits = match src {
            HostData::F32(values) => dtype == DType::F32 && values.len() == dst.len,
            HostData::U32(values) => dtype == DType::U32 && values.len() == dst.len,
            HostData::Bytes(values) => values.len() == dst.len * dtype.size(),
        };
        if !fits {
            return Err(BackendError::Protocol("write: type or length differ".into()));
        }
        self.begin_step()?;
        self.posts.written(dst)?;
        self.shadows.written(dst);
        if let HostData::U32(values) = src {
            let words = self.words.entry(dst.buffer).or_default();
            words.resize(words.len().max(dst.start + dst.len), 0);
            words[dst.start..dst.start + dst.len].copy_from_slice(values);
        }
        let cost = copied(dst.len * dtype.size());
        self.queue.push(Queued { command: QueuedCommand::Write(dst, src.into()), cost });
        Ok(())
    }

    fn submit(&mut self) -> Result<Ticket, BackendError> {
        // Taken first: after a failed submission nothing of it may run later.
        let queue = std::mem::take(&mut self.queue);
        let bytes = queue::total(&queue).bytes;
        let inner = self.run_queue(&queue);
        if inner.is_err() {
            self.stashes.abandon(&mut *self.inner, &queue);
            self.posts.abandon();
        }
        let inner = inner?;
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.stashes.submitted(&queue, ticket);
        self.posts.submitted(ticket);
        self.watch.count(|stats| {
            stats.submit_calls += 1;
            stats.bytes_in_flight += bytes;
            stats.in_flight += u64::from(inner.is_some());
            stats.most_in_flight = stats.most_in_flight.max(stats.in_flight);
            stats.peak_bytes_in_flight = stats.peak_bytes_in_flight.max(stats.bytes_in_flight);
        });
        if let Some(inner) = inner {
            self.in_flight.push(InFlight { ticket, inner, bytes });
        }
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Duration, BackendError> {
        if ticket.0 > self.tickets {
            return Err(BackendError::Protocol(format!("wait for {ticket:?}, never given out")));
        }
        self.posts.passed(ticket);
        let busy = !self.in_flight.is_empty();
        let (passed, rest) = std::mem::take(&mut self.in_flight)
            .into_iter()
            .partition::<Vec<_>, _>(|work| work.ticket <= ticket);
        self.in_flight = rest;
        let mut time = Duration::ZERO;
        for work in &passed {
            time += self.inner.wait(work.inner)?;
        }
        let done: u64 = passed.iter().map(|work| work.bytes).sum();
        self.watch.count(|stats| {
            stats.bytes_in_flight -= done;
            stats.in_flight -= passed.len() as u64;
            stats.waits += 1;
        });
        if busy && self.in_flight.is_empty() && self.queue.is_empty() {
            self.step_over = true;
            self.watch.count(|stats| stats.steps += 1);
        }
        Ok(time)
    }

    fn post(&mut self, src: View) -> Result<(), BackendError> {
        self.shadows.check("post", src)?;
        self.shadows.require_written("post", src)?;
        self.posts.post(src);
        Ok(())
    }

    fn read(&mut self, src: View, dst: HostDataMut<'_>) -> Result<(), BackendError> {
        if self.posts.take(src) {
            self.watch.count(|stats| stats.reads += 1);
            return self.inner.read(src, dst);
        }
        if !self.queue.is_empty() {
            return Err(BackendError::Protocol(format!(
                "read while {} commands are queued; submit and wait first",
                self.queue.len()
            )));
        }
        if !self.in_flight.is_empty() {
            return Err(BackendError::Protocol(format!(
                "read while {} submissions are in flight; wait first",
                self.in_flight.len()
            )));
        }
        self.shadows.check("read", src)?;
        self.shadows.require_written("read: the host", src)?;
        self.watch.count(|stats| stats.reads += 1);
        self.inner.read(src, dst)
    }

    fn stash(&mut self, views: &[View]) -> Result<StashId, BackendError> {
        let bytes = bytes_of_views(self, "stash", views)?;
        views.iter().try_for_each(|view| self.shadows.require_written("stash", *view))?;
        self.begin_step()?;
        let stash = self.stashes.record(bytes)?;
        let command = QueuedCommand::Stash(stash, views.to_vec());
        self.queue.push(Queued { command, cost: copied(bytes) });
        self.note_stashes();
        Ok(stash)
    }

    fn stash_host(&mut self, bytes: Bytes) -> Result<StashId, BackendError> {
        let len = bytes.len();
        self.stashes.books.require_room(len)?;
        let stash = self.stashes.adopt(len, self.inner.stash_host(bytes)?)?;
        self.note_stashes();
        Ok(stash)
    }

    fn unstash(&mut self, stash: StashId, views: &[View]) -> Result<(), BackendError> {
        let bytes = bytes_of_views(self, "unstash", views)?;
        self.stashes.books.get_sized(stash, bytes)?;
        self.begin_step()?;
        for view in views {
            self.shadows.written(*view);
            self.words.remove(&view.buffer);
        }
        let command = QueuedCommand::Unstash(stash, views.to_vec());
        self.queue.push(Queued { command, cost: copied(bytes) });
        Ok(())
    }

    fn read_stash(&mut self, stash: StashId) -> Result<Bytes, BackendError> {
        let (inner, ticket) = self.stashes.made(stash)?;
        let waits =
            ticket > self.reached && self.in_flight.iter().any(|work| work.ticket == ticket);
        self.reached = self.reached.max(ticket);
        self.watch.count(|stats| {
            stats.stash_reads += 1;
            stats.waits += u64::from(waits);
        });
        self.inner.read_stash(inner)
    }

    fn release_stash(&mut self, stash: StashId) -> Result<(), BackendError> {
        self.stashes.books.remove(stash)?;
        self.note_stashes();
        if self.queue.iter().any(|queued| queued.command.uses(stash)) {
            let command = QueuedCommand::Release(stash);
            self.queue.push(Queued { command, cost: Cost::default() });
            return Ok(());
        }
        self.stashes.release(&mut *self.inner, stash)
    }

    fn limit_stashes(&mut self, bytes: u64) {
        self.stashes.books.set_limit(bytes);
    }

    fn stash_bytes(&self) -> u64 {
        self.stashes.books.bytes()
    }

    for_each_operation! { recorded }
}
