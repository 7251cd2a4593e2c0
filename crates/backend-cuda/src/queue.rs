//! The driver with its compiled kernels, scratch memory, and the report in which kernels record bad indices.

use crate::driver::{
    Address, Args, Driver, DriverError, FaultReport, KernelId, KernelSource, Launch, Passed,
    QueueMark,
};
use crate::growing_buffer::GrowingBuffer;
use crate::kernels::KernelCache;
use forerun_backend::BackendError;
use std::time::Duration;

/// Operands that hold indices, by operation. A fault report names them by number: see [`site`].
const SITES: [(&str, &[&str]); 12] = [
    ("embed", &["ids"]),
    ("gather_rows", &["rows"]),
    ("scatter_rows", &["rows"]),
    ("scatter_words", &["from", "to"]),
    ("attention_inputs", &["places"]),
    ("attention", &["span_of", "positions", "tables"]),
    ("short_conv", SPANS),
    ("delta_gates", SPANS),
    ("delta_inputs", SPANS),
    ("delta_rule", SPANS),
    ("experts", &["chosen"]),
    ("sample", &["masks", "rows", "history", "ids"]),
];
const SPANS: &[&str] =
    &["spans.slot", "spans.pending", "spans.confirmed", "spans.drafts", "spans.rows"];
/// Tokens in a weight, which is no operand.
const MEMBERS: (&str, &str) = ("cluster_head", "members");

/// The number of an operation's first operand of indices; the others follow it.
pub(crate) fn site(op: &str) -> u32 {
    let at = SITES.iter().position(|(name, _)| *name == op).unwrap_or(SITES.len());
    (at as u32 + 1) << 8
}

/// A fault report as an error.
fn noted([site, index, limit, _]: FaultReport) -> BackendError {
    let at = (site >> 8).wrapping_sub(1) as usize;
    let found = SITES.get(at).and_then(|(op, operands)| {
        operands.get((site & 255) as usize).map(|operand| (*op, *operand))
    });
    let (op, operand) = found.unwrap_or(MEMBERS);
    BackendError::Index { op, operand, index: index as usize, limit: limit as usize }
}

impl From<DriverError> for BackendError {
    fn from(error: DriverError) -> Self {
        Self::Device(error.to_string())
    }
}

/// See the module's text.
pub(crate) struct Queue {
    driver: Box<dyn Driver>,
    kernels: KernelCache,
    /// Where kernels record a bad index: [`FaultReport`].
    pub(crate) fault: Address,
    scratch: GrowingBuffer,
    counters: GrowingBuffer,
}

impl Queue {
    pub(crate) fn new(mut driver: Box<dyn Driver>) -> Result<Self, BackendError> {
        let fault = driver.alloc(size_of::<FaultReport>() as u64)?;
        // SAFETY: `fault` was just allocated with this size.
        unsafe { driver.fill(fault, 0, size_of::<FaultReport>() as u64) }?;
        let (kernels, scratch) = (KernelCache::default(), GrowingBuffer::default());
        Ok(Self { driver, kernels, fault, scratch, counters: GrowingBuffer::zeroed() })
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    pub(crate) fn driver_mut(&mut self) -> &mut dyn Driver {
        &mut *self.driver
    }

    /// Makes memory, named in the error where there is none.
    pub(crate) fn alloc(&mut self, label: &str, bytes: u64) -> Result<Address, BackendError> {
        self.driver.alloc(bytes).map_err(|error| Self::named(label, error))
    }

    /// The error for an allocation, naming the buffer it was for.
    pub(crate) fn named(label: &str, error: DriverError) -> BackendError {
        match error {
            DriverError::Memory { bytes, .. } => {
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                BackendError::OutOfMemory { label: label.to_owned(), bytes }
            }
            error => error.into(),
        }
    }

    /// A kernel, compiled at its first use.
    pub(crate) fn kernel(
        &mut self,
        source: &KernelSource,
        name: &'static str,
    ) -> Result<KernelId, BackendError> {
        Ok(self.kernels.get(&mut *self.driver, source, name)?)
    }

    /// Queues a kernel; a launch without blocks does nothing.
    pub(crate) fn launch(&mut self, launch: &Launch<'_>) -> Result<(), BackendError> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        // SAFETY: operations write a kernel's struct as its text has it, the driver compares the sizes, and the
        // addresses in it are views that the operation's desc checked, weights, or scratch of the size that the kernel
        // needs.
        Ok(unsafe { self.driver.launch(launch) }?)
    }

    /// Queues a kernel of `source` in blocks of one dimension.
    pub(crate) fn run(
        &mut self,
        (source, name): (&KernelSource, &'static str),
        grid: [usize; 3],
        threads: u32,
        args: &Args,
    ) -> Result<(), BackendError> {
        let kernel = self.kernel(source, name)?;
        let grid = grid_of(name, grid)?;
        self.launch(&Launch { grid, ..Launch::line(kernel, 1, threads, args) })
    }

    /// Scratch memory, shared by all operations: its contents last for one call.
    pub(crate) fn scratch(&mut self, bytes: u64) -> Result<Address, BackendError> {
        let bytes = bytes as usize;
        self.scratch.of(&mut *self.driver, bytes).map_err(|error| Self::named("scratch", error))
    }

    /// So many u32 that are zero whenever a launch begins: a kernel that counts with them sets them back.
    pub(crate) fn counters(&mut self, count: usize) -> Result<Address, BackendError> {
        let counters = self.counters.of(&mut *self.driver, count * 4);
        counters.map_err(|error| Self::named("counters", error))
    }

    /// Marks the end of the queue.
    pub(crate) fn mark(&mut self) -> Result<QueueMark, BackendError> {
        // SAFETY: `fault` was allocated as a `FaultReport` and lives as long as the queue.
        Ok(unsafe { self.driver.mark(self.fault) }?)
    }

    /// Waits for a mark; how long the device was busy. A bad index that a kernel recorded before it is the error,
    /// reported once.
    pub(crate) fn wait(&mut self, mark: QueueMark) -> Result<Duration, BackendError> {
        let Passed { report, busy } = self.driver.wait(mark)?;
        if report[0] == 0 {
            return Ok(busy);
        }
        // SAFETY: `fault` was allocated as a `FaultReport` and lives as long as the queue.
        unsafe { self.driver.fill(self.fault, 0, size_of::<FaultReport>() as u64) }?;
        Err(noted(report))
    }
}

/// Blocks in each dimension, within what a device takes.
pub(crate) fn grid_of(name: &str, grid: [usize; 3]) -> Result<[u32; 3], BackendError> {
    let most = [i32::MAX as usize, 65535, 65535];
    if grid.iter().zip(most).any(|(size, most)| *size > most) {
        return Err(BackendError::Device(format!(
            "{name}: a launch of {grid:?} blocks is too large"
        )));
    }
    Ok(grid.map(|size| size as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_site_names_its_operand() {
        for (op, operands) in SITES {
            for (i, operand) in operands.iter().enumerate() {
                let error = noted([site(op) + i as u32, 7, 3, 0]);
                assert_eq!(error, BackendError::Index { op, operand, index: 7, limit: 3 });
            }
        }
        let error = noted([site("cluster_head"), 7, 3, 0]);
        assert!(matches!(error, BackendError::Index { op: "cluster_head", .. }), "{error}");
    }
}
