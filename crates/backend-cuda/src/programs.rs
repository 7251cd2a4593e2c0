//! Programs as graphs.
//!
//! The first run of a program queues its kernels one by one, which compiles them and makes the memory that they
//! share. The second records them, and from then on a run is a few launches of graphs. A shape of step that comes once
//! (the last chunk of a prompt) is never recorded. A graph keeps the addresses it was recorded with, and all of them
//! stay: buffers and weights live as long as the device, and scratch that grows is not given back.
//!
//! Launching a graph takes the host about a microsecond a kernel, and the device waits until all of them are handed
//! over. So a program is several graphs of growing size: the device begins with the first while the host launches the
//! others.

use crate::driver::GraphId;
use forerun_backend::{PreparedProgram, Program};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is known of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It was never run.
    New,
    /// It was run once: everything that its kernels need is there.
    Warm,
    /// It is graphs.
    Recorded(Graphs),
}

/// The graphs of a program, in order.
pub(crate) type Graphs = [Option<GraphId>; GRAPH_OPS.len()];

/// Operations of each graph of a program, at least.
pub(crate) const GRAPH_OPS: [usize; 3] = [8, 64, usize::MAX];

/// Programs of a device by number.
#[derive(Debug)]
pub(crate) struct Programs {
    device: u64,
    stages: HashMap<u64, Stage>,
    last: u64,
}

impl Programs {
    pub(crate) fn new() -> Self {
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        let device = DEVICES.fetch_add(1, Ordering::Relaxed);
        Self { device, stages: HashMap::new(), last: 0 }
    }

    /// Takes a program in.
    pub(crate) fn add(&mut self) -> PreparedProgram {
        self.last += 1;
        self.stages.insert(self.last, Stage::New);
        PreparedProgram { device: self.device, number: self.last }
    }

    /// The number and stage of a program that was prepared here.
    pub(crate) fn stage(&self, program: &Program) -> Option<(u64, Stage)> {
        let prepared = program.prepared().filter(|prepared| prepared.device == self.device)?;
        self.stages.get(&prepared.number).map(|&stage| (prepared.number, stage))
    }

    pub(crate) fn set(&mut self, number: u64, stage: Stage) {
        self.stages.insert(number, stage);
    }

    /// Forgets a program; its graphs, if it had any.
    pub(crate) fn remove(&mut self, program: &Program) -> Graphs {
        let Some((number, stage)) = self.stage(program) else { return Graphs::default() };
        self.stages.remove(&number);
        match stage {
            Stage::Recorded(graphs) => graphs,
            Stage::New | Stage::Warm => Graphs::default(),
        }
    }
}
