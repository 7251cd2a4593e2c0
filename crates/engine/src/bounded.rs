//! Running a pass within the budget of a submission: whole where it fits, else cut between operations, and an operation
//! that is too large by itself cut by its rows, attention by chunks of keys, and the products of a single row by output
//! channels.
//!
//! No cut changes a bit. Rows and channels do not depend on each other, and an attention merges the same chunks in the
//! same order whether one call takes them or several do. What remains whole is small: a chunk of keys, a panel of
//! channels, and for one row whatever is neither a product nor attention.

use crate::EngineError;
use crate::programs::{PreparedPass, varies};
use crate::submissions::{Purpose, Submissions};
use forerun_backend::op::{Attention, AttentionPart, CacheOrder, Channels, Linear};
use forerun_backend::{
    Backend, BufferId, BufferInfo, Catalog, Cost, Op, View, WeightId, WeightInfo,
};
use forerun_model::{AttentionSpec, DrafterSpec, InputBlock, KV_BLOCK, Limits, ModelSpec};

/// What a device knows, and what the host has just written: costs that depend on positions are exact with it.
struct KnownWords<'a> {
    device: &'a dyn Catalog,
    block: &'a InputBlock,
}

impl Catalog for KnownWords<'_> {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.device.buffer(id)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.device.weight(id)
    }

    fn words(&self, view: View) -> Option<&[u32]> {
        self.block.words(view)
    }

    fn cache_order(&self) -> CacheOrder {
        self.device.cache_order()
    }
}

/// Rows that an attention cut by keys takes at most: enough to share the reading of keys.
const KEY_CUT_ROWS: usize = 32;

/// f32 of what is carried between the parts of an attention that is cut by keys.
pub(crate) fn key_state_len(spec: &ModelSpec, limits: &Limits) -> usize {
    let drafter = match &spec.drafter {
        Some(DrafterSpec::Head(layer)) => std::slice::from_ref(layer),
        Some(DrafterSpec::Assistant(drafter)) => &drafter.layers[..],
        None => &[],
    };
    let attentions = spec.layers.iter().chain(drafter).filter_map(|layer| layer.mixer.attention());
    let width = |op: &AttentionSpec| op.heads * AttentionPart::state_width(op.head_dim);
    let widest = attentions.map(width).max().unwrap_or(0);
    KEY_CUT_ROWS.min(limits.rows) * widest
}

/// Chunks of keys that an attention sees: those from `first` to before `end`, of `keys` each.
#[derive(Clone, Copy, Debug)]
struct Chunks {
    keys: usize,
    first: usize,
    end: usize,
}

/// Where a pass runs.
pub(crate) struct Bounded<'a> {
    pub(crate) backend: &'a mut dyn Backend,
    pub(crate) submissions: &'a mut Submissions,
    pub(crate) block: &'a InputBlock,
    /// What is carried between the parts of an attention.
    pub(crate) key_state: View,
    /// What its submissions belong to, but for the last one.
    pub(crate) purpose: Purpose,
}

impl Bounded<'_> {
    /// Queues a pass, and submits what is full on the way.
    pub(crate) fn run(&mut self, pass: &PreparedPass) -> Result<(), EngineError> {
        let ops = pass.program.ops();
        let varying = pass.varying.iter().map(|&i| self.cost(&ops[i]));
        let whole = varying.fold(pass.fixed, |sum, cost| sum + cost);
        if self.submissions.fits(whole) {
            self.submissions.queue(whole);
            return Ok(self.backend.run(&pass.program)?);
        }
        for (op, &cost) in ops.iter().zip(&pass.costs) {
            let cost = if varies(op) { self.cost(op) } else { cost };
            self.run_one(*op, cost)?;
        }
        Ok(())
    }

    fn known(&self) -> KnownWords<'_> {
        KnownWords { device: &*self.backend, block: self.block }
    }

    fn cost(&self, op: &Op) -> Cost {
        op.desc(&self.known()).cost()
    }

    /// Queues an operation, behind a submission where it does not fit the one that is being queued.
    fn queue(&mut self, op: Op, cost: Cost) -> Result<(), EngineError> {
        if !self.submissions.fits(cost) && !self.submissions.is_empty() {
            self.submissions.submit(self.backend, self.purpose)?;
        }
        self.submissions.queue(cost);
        Ok(op.apply(self.backend)?)
    }

    /// Queues an operation, in parts where it is too large.
    fn run_one(&mut self, op: Op, cost: Cost) -> Result<(), EngineError> {
        if self.submissions.limit().holds(cost) {
            return self.queue(op, cost);
        }
        let rows = op.rows(&*self.backend).unwrap_or(1);
        if let Op::Attention(op) = op
            && let Some(chunks) = self.chunks(&op, rows, cost)
        {
            return self.run_by_keys(op, chunks, cost);
        }
        if rows > 1 {
            // Halves until they fit, or nearly: a power of two, so that both parts begin where views may. Later rows of
            // a prompt see more keys than earlier ones.
            let count = rows.next_power_of_two() / 2;
            return [(0, count), (count, rows - count)]
                .into_iter()
                .try_for_each(|(first, count)| self.run_costed(op.part(rows, first, count)));
        }
        self.run_row(op, cost)
    }

    fn run_costed(&mut self, op: impl Into<Op>) -> Result<(), EngineError> {
        let op = op.into();
        let cost = self.cost(&op);
        self.run_one(op, cost)
    }

    /// The chunks of keys that an attention is cut into, where it is cut by keys: rows that see the same keys are
    /// better kept together than read them one after the other, as long as a chunk of keys for all of them fits.
    fn chunks(&self, op: &Attention, rows: usize, cost: Cost) -> Option<Chunks> {
        let keys = self.backend.cut_sizes(op.layout.block).keys;
        let width = op.heads * AttentionPart::state_width(op.layout.head_dim);
        if keys == 0 || rows * width > self.key_state.len {
            return None;
        }
        let seen = op.keys_seen(&self.known());
        let chunks = Chunks { keys, first: seen.start / keys, end: seen.end.div_ceil(keys) };
        let count = chunks.end.saturating_sub(chunks.first);
        let one = AttentionPart { ends: false, ..self.part(op, &chunks, chunks.first, 1) };
        let fits = || self.submissions.limit().holds(self.cost(&one.into()));
        (count > 1 && (rows == 1 || fits()) && cost != Cost::default()).then_some(chunks)
    }

    /// `count` chunks of an attention's keys from chunk `from` on.
    fn part(&self, op: &Attention, chunks: &Chunks, from: usize, count: usize) -> AttentionPart {
        let width = op.heads * AttentionPart::state_width(op.layout.head_dim);
        AttentionPart {
            whole: *op,
            first: from * chunks.keys,
            end: (from + count) * chunks.keys,
            begins: from == chunks.first,
            ends: from + count == chunks.end,
            state: self.key_state.part(0, op.positions.len * width),
        }
    }

    /// As many chunks of keys at a time as fit, in ascending order.
    fn run_by_keys(
        &mut self,
        op: Attention,
        chunks: Chunks,
        cost: Cost,
    ) -> Result<(), EngineError> {
        let share = self.submissions.limit().share(cost);
        let usual = ((chunks.end - chunks.first) as f64 * share) as usize;
        let mut from = chunks.first;
        while from < chunks.end {
            let mut count = usual.clamp(1, chunks.end - from);
            loop {
                let part = Op::from(self.part(&op, &chunks, from, count));
                let cost = self.cost(&part);
                if count == 1 || self.submissions.limit().holds(cost) {
                    self.queue(part, cost)?;
                    break;
                }
                count = count.div_ceil(2);
            }
            from += count;
        }
        Ok(())
    }

    /// One row that is too large: products channel by channel, after what makes their input. Whatever else cannot be
    /// cut runs whole.
    fn run_row(&mut self, op: Op, cost: Cost) -> Result<(), EngineError> {
        let grain = self.backend.cut_sizes(KV_BLOCK).channels;
        match op {
            _ if grain == 0 => self.queue(op, cost),
            Op::Linear(linear) if linear.out.len > grain => {
                let all = linear.out.len;
                let left = (all / 2).next_multiple_of(grain);
                let start = linear.channels.map_or(0, |channels| channels.first);
                [(0, left), (left, all - left)].into_iter().try_for_each(|(first, count)| {
                    let channels = Some(Channels { first: start + first, count });
                    let out = linear.out.part(first, count);
                    self.run_costed(Linear { channels, out, ..linear })
                })
            }
            Op::Linears(op) => {
                let (norm, mut products) = op.parts();
                norm.map_or(Ok(()), |norm| self.run_costed(norm))?;
                products.try_for_each(|product| self.run_costed(product))
            }
            Op::GatedLinear(op) => {
                let (norm, products, glu) = op.parts();
                norm.map_or(Ok(()), |norm| self.run_costed(norm))?;
                products.into_iter().try_for_each(|product| self.run_costed(product))?;
                self.run_costed(glu)
            }
            Op::HeadSample(op) => {
                let (product, cap, sample) = op.parts();
                self.run_costed(product)?;
                cap.map_or(Ok(()), |cap| self.run_costed(cap))?;
                self.run_costed(sample)
            }
            _ => self.queue(op, cost),
        }
    }
}
