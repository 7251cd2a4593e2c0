//! Running a pass within the budget of a submission: whole where it fits, else cut between operations, and an operation that is too
//! large by itself cut by its rows. No cut changes a bit: an operation's rows do not depend on each other.

use crate::EngineError;
use crate::programs::PreparedPass;
use crate::submissions::{Purpose, Submissions};
use forerun_backend::{
    Backend, BufferId, BufferInfo, Catalog, Cost, Op, View, WeightId, WeightInfo,
};
use forerun_model::InputBlock;

/// What a device knows, and what the host has just written: costs that depend on positions are exact with it.
struct Known<'a> {
    device: &'a dyn Catalog,
    block: &'a InputBlock,
}

impl Catalog for Known<'_> {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.device.buffer(id)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.device.weight(id)
    }

    fn words(&self, view: View) -> Option<&[u32]> {
        self.block.words(view)
    }
}

/// Where a pass runs.
pub(crate) struct Bounded<'a> {
    pub(crate) backend: &'a mut dyn Backend,
    pub(crate) submissions: &'a mut Submissions,
    pub(crate) block: &'a InputBlock,
    /// What its submissions belong to, but for the last one.
    pub(crate) purpose: Purpose,
}

impl Bounded<'_> {
    /// Queues a pass, and submits what is full on the way.
    pub(crate) fn run(&mut self, pass: &PreparedPass) -> Result<(), EngineError> {
        let ops = pass.program.ops();
        let attentions = pass.attentions.iter().map(|&i| self.cost(&ops[i]));
        let whole = attentions.fold(pass.fixed, |sum, cost| sum + cost);
        if self.submissions.fits(whole) {
            self.submissions.queue(whole);
            return Ok(self.backend.run(&pass.program)?);
        }
        for (op, &cost) in ops.iter().zip(&pass.costs) {
            let cost = if matches!(op, Op::Attention(_)) { self.cost(op) } else { cost };
            self.run_one(*op, cost)?;
        }
        Ok(())
    }

    fn cost(&self, op: &Op) -> Cost {
        op.desc(&Known { device: &*self.backend, block: self.block }).cost()
    }

    fn run_one(&mut self, op: Op, cost: Cost) -> Result<(), EngineError> {
        if !self.submissions.fits(cost) && !self.submissions.is_empty() {
            self.submissions.submit(self.backend, self.purpose)?;
        }
        let rows = op.rows(&*self.backend).filter(|&rows| rows > 1);
        let Some(rows) = rows.filter(|_| !self.submissions.limit().holds(cost)) else {
            self.submissions.queue(cost);
            return Ok(op.apply(self.backend)?);
        };
        // Halves until they fit: later rows of a prompt see more keys than earlier ones.
        let count = rows / 2;
        for (first, count) in [(0, count), (count, rows - count)] {
            let part = op.part(rows, first, count);
            let cost = self.cost(&part);
            self.run_one(part, cost)?;
        }
        Ok(())
    }
}
