//! Operations that run together.

use crate::Op;

/// A sequence of operations for one shape of step (its rows, spans and sampled rows), run whenever a step has that
/// shape. What changes from step to step is data in the buffers it reads, never part of an operation.
#[derive(Debug, Default)]
pub struct Program {
    ops: Vec<Op>,
    prepared: Option<PreparedProgram>,
}

/// What a device keeps of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedProgram {
    /// The device: two of them may run side by side in a process.
    pub device: u64,
    /// The program's number there.
    pub number: u64,
}

impl Program {
    /// An empty program that holds so many operations without allocating.
    pub fn with_capacity(ops: usize) -> Self {
        Self { ops: Vec::with_capacity(ops), prepared: None }
    }

    /// Its operations in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Empties the program, to be filled anew. Whoever prepared it was told to release it before.
    pub fn rewrite(&mut self) -> &mut Vec<Op> {
        self.prepared = None;
        self.ops.clear();
        &mut self.ops
    }

    /// What a device keeps of it.
    pub fn prepared(&self) -> Option<PreparedProgram> {
        self.prepared
    }

    /// Notes what a device keeps of it.
    pub fn set_prepared(&mut self, prepared: PreparedProgram) {
        self.prepared = Some(prepared);
    }
}
