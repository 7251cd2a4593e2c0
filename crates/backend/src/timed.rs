//! A device that measures what another one does.
//!
//! [`Timed`] hands every call on. While its [`Meter`] runs, each operation runs alone: what was queued before is
//! waited for first, then the operation is submitted and waited for, and its time is put down beside what its
//! description says it cost. Costs are exact, because the contents of its index operands are read beforehand,
//! outside the time. While the meter stands still a call costs one look at a flag.

use crate::{
    Backend, BackendError, BufferId, BufferInfo, BufferSpec, Catalog, Cost, CutSizes, HostData,
    HostDataMut, Op, StashId, Ticket, View, WeightId, WeightInfo, for_each_operation, op,
    submit_and_wait,
};
use forerun_base::{Bytes, DType, Format, Matrix, MatrixParts};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many rows a product has, in the classes that kernels tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowClass {
    /// One row: decoding.
    One,
    /// 2 to 4 rows.
    Few,
    /// 5 to 16 rows.
    Some,
    /// More: reading a prompt.
    Many,
}

impl RowClass {
    /// The class of a number of rows.
    pub const fn of(rows: usize) -> Self {
        match rows {
            0 | 1 => Self::One,
            2..=4 => Self::Few,
            5..=16 => Self::Some,
            _ => Self::Many,
        }
    }

    /// The numbers of rows in it, in a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "1",
            Self::Few => "2-4",
            Self::Some => "5-16",
            Self::Many => "17+",
        }
    }
}

/// What calls are summed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpKind {
    /// The operation.
    pub op: &'static str,
    /// Of products with weights, the format of the (first) weight and the rows.
    pub product: Option<(Format, RowClass)>,
}

impl OpKind {
    fn of(op: &Op, catalog: &dyn Catalog) -> Self {
        Self { op: op.name(), product: product(op, catalog) }
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op)?;
        match self.product {
            Some((format, width)) => write!(f, " {} x{}", format.name(), width.name()),
            None => Ok(()),
        }
    }
}

/// The weight's format and the rows, where the operation is a product.
fn product(op: &Op, catalog: &dyn Catalog) -> Option<(Format, RowClass)> {
    let (weight, x, cols) = match op {
        Op::Linear(op) => (op.weight, op.x, None),
        Op::Linears(op) => (op.parts.iter().flatten().next()?.weight, op.x, None),
        Op::GatedLinear(op) => (op.gate, op.x, None),
        Op::Experts(op) => (op.gate.weight, op.x, Some(op.dim)),
        Op::ClusterHead(op) => (op.head, op.x, None),
        Op::HeadSample(op) => (op.weight, op.x, None),
        _ => return None,
    };
    let info = catalog.weight(weight)?;
    let rows = x.len / cols.unwrap_or(info.cols).max(1);
    Some((info.format, RowClass::of(rows)))
}

/// Calls of one kind, summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedEntry {
    /// What was called.
    pub kind: OpKind,
    /// How often.
    pub calls: u64,
    /// How long, in all.
    pub time: Duration,
    /// What they cost, in all.
    pub cost: Cost,
}

/// The switch of a [`Timed`] device and what it has put down. Clones are the same meter.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Board>);

#[derive(Debug, Default)]
struct Board {
    running: AtomicBool,
    entries: Mutex<Vec<TimedEntry>>,
}

impl Meter {
    /// Measures from now on.
    pub fn start(&self) {
        self.0.running.store(true, Ordering::Relaxed);
    }

    /// Stops measuring and hands over what was put down, in order of first call.
    pub fn stop(&self) -> Vec<TimedEntry> {
        self.0.running.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.entries())
    }

    fn is_running(&self) -> bool {
        self.0.running.load(Ordering::Relaxed)
    }

    fn entries(&self) -> MutexGuard<'_, Vec<TimedEntry>> {
        // Entries are whole whatever happened to whoever held them.
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, kind: OpKind, time: Duration, cost: Cost) {
        let mut entries = self.entries();
        match entries.iter_mut().find(|entry| entry.kind == kind) {
            Some(entry) => {
                entry.calls += 1;
                entry.time += time;
                entry.cost = entry.cost + cost;
            }
            None => entries.push(TimedEntry { kind, calls: 1, time, cost }),
        }
    }
}

/// See the module's text.
pub struct Timed {
    inner: Box<dyn Backend>,
    meter: Meter,
    /// Contents of the current operation's index operands.
    peeked: Vec<(View, Vec<u32>)>,
}

impl Timed {
    /// A device that does what `inner` does, and its meter, which stands still.
    pub fn new(inner: Box<dyn Backend>) -> (Self, Meter) {
        let meter = Meter::default();
        (Self { inner, meter: meter.clone(), peeked: Vec::new() }, meter)
    }

    fn run(&mut self, op: Op) -> Result<(), BackendError> {
        if !self.meter.is_running() {
            return op.apply(&mut *self.inner);
        }
        submit_and_wait(&mut *self.inner)?;
        self.peek(&op)?;
        let cost = op.desc(self).check()?;
        let kind = OpKind::of(&op, self);
        let start = Instant::now();
        op.apply(&mut *self.inner)?;
        submit_and_wait(&mut *self.inner)?;
        self.meter.put(kind, start.elapsed(), cost);
        Ok(())
    }

    /// Reads the index operands of an operation that fits its description.
    fn peek(&mut self, op: &Op) -> Result<(), BackendError> {
        self.peeked.clear();
        let desc = op.desc(self);
        let operands: Vec<View> =
            desc.operands().iter().filter(|o| !o.access.writes()).map(|o| o.view).collect();
        desc.check()?;
        for view in operands {
            let index = self.inner.buffer(view.buffer).is_some_and(|info| info.dtype == DType::U32);
            if index && view.len > 0 {
                let mut words = vec![0; view.len];
                self.inner.read(view, HostDataMut::U32(&mut words))?;
                self.peeked.push((view, words));
            }
        }
        Ok(())
    }
}

impl Catalog for Timed {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.inner.buffer(id)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.inner.weight(id)
    }

    fn words(&self, view: View) -> Option<&[u32]> {
        self.peeked.iter().find(|(known, _)| *known == view).map(|(_, words)| &words[..])
    }

    fn cache_order(&self) -> op::CacheOrder {
        self.inner.cache_order()
    }
}

macro_rules! timed {
    ($($name:ident: $op:ident),* $(,)?) => {$(
        fn $name(&mut self, op: op::$op) -> Result<(), BackendError> {
            self.run(op.into())
        }
    )*};
}

impl Backend for Timed {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn arithmetic(&self) -> String {
        self.inner.arithmetic()
    }

    fn free_memory(&self) -> Option<u64> {
        self.inner.free_memory()
    }

    fn largest_buffer(&self) -> Option<u64> {
        self.inner.largest_buffer()
    }

    fn longest_dispatch(&self) -> Option<Duration> {
        self.inner.longest_dispatch()
    }

    fn missing(&self) -> &'static [&'static str] {
        self.inner.missing()
    }

    fn reopens(&self) -> bool {
        self.inner.reopens()
    }

    fn reopen(&mut self) -> Result<(), BackendError> {
        self.inner.reopen()
    }

    fn cut_sizes(&self, block: usize) -> CutSizes {
        self.inner.cut_sizes(block)
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<BufferId, BackendError> {
        self.inner.alloc(spec)
    }

    fn upload(&mut self, label: &str, matrix: Matrix) -> Result<WeightId, BackendError> {
        self.inner.upload(label, matrix)
    }

    fn upload_parts(&mut self, label: &str, parts: &MatrixParts) -> Result<WeightId, BackendError> {
        self.inner.upload_parts(label, parts)
    }

    fn write(&mut self, dst: View, src: HostData<'_>) -> Result<(), BackendError> {
        self.inner.write(dst, src)
    }

    fn submit(&mut self) -> Result<Ticket, BackendError> {
        self.inner.submit()
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Duration, BackendError> {
        self.inner.wait(ticket)
    }

    fn post(&mut self, src: View) -> Result<(), BackendError> {
        self.inner.post(src)
    }

    fn read(&mut self, src: View, dst: HostDataMut<'_>) -> Result<(), BackendError> {
        self.inner.read(src, dst)
    }

    fn stash(&mut self, views: &[View]) -> Result<StashId, BackendError> {
        self.inner.stash(views)
    }

    fn stash_host(&mut self, bytes: Bytes) -> Result<StashId, BackendError> {
        self.inner.stash_host(bytes)
    }

    fn unstash(&mut self, stash: StashId, views: &[View]) -> Result<(), BackendError> {
        self.inner.unstash(stash, views)
    }

    fn read_stash(&mut self, stash: StashId) -> Result<Bytes, BackendError> {
        self.inner.read_stash(stash)
    }

    fn release_stash(&mut self, stash: StashId) -> Result<(), BackendError> {
        self.inner.release_stash(stash)
    }

    fn limit_stashes(&mut self, bytes: u64) {
        self.inner.limit_stashes(bytes);
    }

    fn stash_bytes(&self) -> u64 {
        self.inner.stash_bytes()
    }

    for_each_operation! { timed }
}
