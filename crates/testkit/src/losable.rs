//! A device that is lost when a test says so, and can be opened again.

use forerun_backend::{
    Backend, BackendError, BufferId, BufferInfo, BufferSpec, Catalog, CutSizes, HostData,
    HostDataMut, Program, Stashes, Ticket, View, WeightId, WeightInfo, for_each_operation, op,
    read_views, stashes_on_the_host, submit_and_wait,
};
use forerun_base::{Bytes, Matrix, MatrixParts};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Makes the device that is inside.
pub type MakeDevice = Box<dyn Fn() -> Box<dyn Backend> + Send>;

/// See the module's text.
pub struct Losable {
    make: MakeDevice,
    inner: Box<dyn Backend>,
    switch: LossSwitch,
    /// On the host, where no loss takes them.
    stashes: Stashes<Bytes>,
}

/// Decides when a [`Losable`] is lost. Clones are the same switch.
#[derive(Clone, Debug, Default)]
pub struct LossSwitch(Arc<Mutex<Loss>>);

#[derive(Clone, Copy, Debug, Default)]
struct Loss {
    /// Calls that still succeed, where one is to fail.
    calls_left: Option<usize>,
    lost: bool,
    /// Times that opening it again fails first.
    refusals: usize,
    reopened: usize,
}

impl LossSwitch {
    /// Loses the device after so many more calls.
    pub fn lose_after(&self, calls: usize) {
        self.state().calls_left = Some(calls);
    }

    /// Lets so many attempts to open it again fail.
    pub fn refuse(&self, times: usize) {
        self.state().refusals = times;
    }

    /// Whether a loss that was asked for has yet to come.
    pub fn is_due(&self) -> bool {
        self.state().calls_left.is_some()
    }

    /// How often it was opened again.
    pub fn reopened(&self) -> usize {
        self.state().reopened
    }

    fn state(&self) -> MutexGuard<'_, Loss> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One call more.
    fn pass(&self) -> Result<(), BackendError> {
        let mut state = self.state();
        match state.calls_left {
            Some(0) => (state.calls_left, state.lost) = (None, true),
            Some(left) => state.calls_left = Some(left - 1),
            None => {}
        }
        if state.lost { Err(BackendError::Lost("a test lost it".into())) } else { Ok(()) }
    }
}

impl Losable {
    /// The device that `make` makes, and its switch.
    pub fn new(make: MakeDevice) -> (Self, LossSwitch) {
        let switch = LossSwitch::default();
        let inner = make();
        (Self { make, inner, switch: switch.clone(), stashes: Stashes::default() }, switch)
    }

    /// What views hold at this point of the queue, for which this waits.
    fn copied(&mut self, views: &[View]) -> Result<Vec<u8>, BackendError> {
        submit_and_wait(self)?;
        read_views(self, views)
    }
}

impl Catalog for Losable {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.inner.buffer(id)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.inner.weight(id)
    }

    fn cache_order(&self) -> op::CacheOrder {
        self.inner.cache_order()
    }
}

macro_rules! passed_on {
    ($($name:ident: $op:ident),* $(,)?) => {$(
        fn $name(&mut self, op: op::$op) -> Result<(), BackendError> {
            self.switch.pass()?;
            self.inner.$name(op)
        }
    )*};
}

impl Backend for Losable {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn arithmetic(&self) -> String {
        self.inner.arithmetic()
    }

    fn reopens(&self) -> bool {
        true
    }

    fn reopen(&mut self) -> Result<(), BackendError> {
        let mut state = self.switch.state();
        if state.refusals > 0 {
            state.refusals -= 1;
            return Err(BackendError::Device("there is no device yet".into()));
        }
        (state.lost, state.reopened) = (false, state.reopened + 1);
        self.inner = (self.make)();
        Ok(())
    }

    fn missing(&self) -> &'static [&'static str] {
        self.inner.missing()
    }

    fn cut_sizes(&self, block: usize) -> CutSizes {
        self.inner.cut_sizes(block)
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<BufferId, BackendError> {
        self.switch.pass()?;
        self.inner.alloc(spec)
    }

    fn upload(&mut self, label: &str, matrix: Matrix) -> Result<WeightId, BackendError> {
        self.switch.pass()?;
        self.inner.upload(label, matrix)
    }

    fn upload_parts(&mut self, label: &str, parts: &MatrixParts) -> Result<WeightId, BackendError> {
        self.switch.pass()?;
        self.inner.upload_parts(label, parts)
    }

    fn write(&mut self, dst: View, src: HostData<'_>) -> Result<(), BackendError> {
        self.switch.pass()?;
        self.inner.write(dst, src)
    }

    fn submit(&mut self) -> Result<Ticket, BackendError> {
        self.switch.pass()?;
        self.inner.submit()
    }

    fn wait(&mut self, ticket: Ticket) -> Result<Duration, BackendError> {
        self.switch.pass()?;
        self.inner.wait(ticket)
    }

    fn post(&mut self, src: View) -> Result<(), BackendError> {
        self.switch.pass()?;
        self.inner.post(src)
    }

    fn read(&mut self, src: View, dst: HostDataMut<'_>) -> Result<(), BackendError> {
        self.switch.pass()?;
        self.inner.read(src, dst)
    }

    fn run(&mut self, program: &Program) -> Result<(), BackendError> {
        self.switch.pass()?;
        self.inner.run(program)
    }

    stashes_on_the_host! { stashes, Self::copied }

    for_each_operation! { passed_on }
}
