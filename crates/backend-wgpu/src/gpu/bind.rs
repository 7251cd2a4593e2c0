//! From calls to launches: what a call's operands stand for, as buffers.

use crate::gpu::device::{Device, Launches};
use crate::gpu::kernels::EMBED;
use crate::gpu::launch::{BoundOperand, Call, Launch, Words, folded};
use crate::gpu::layout::WeightLayout;
use crate::gpu::lowering::{LayoutLookup, Lowering, SCRATCH};
use forerun_backend::{BackendError, Cost, Op, WeightId};

impl LayoutLookup for Device {
    fn layout(&self, id: WeightId) -> &WeightLayout {
        &self.weights.get(id).layout
    }
}

impl Device {
    /// Calls as launches, in order.
    fn bind(
        &mut self,
        calls: &[Call],
        scratch: [usize; SCRATCH],
    ) -> Result<Vec<Launch>, BackendError> {
        for (number, bytes) in scratch.into_iter().enumerate().filter(|(_, bytes)| *bytes > 0) {
            self.scratch(number, bytes)?;
        }
        let mut launches = Vec::with_capacity(calls.len());
        for call in calls {
            let operands: Result<Vec<_>, _> =
                call.operands.iter().map(|operand| self.operand(*operand)).collect();
            launches.extend(self.pipelines.launch(&self.queue.fault, call, &operands?)?);
        }
        Ok(launches)
    }

    fn operand(&mut self, operand: BoundOperand) -> Result<Option<wgpu::Buffer>, BackendError> {
        Ok(match operand {
            BoundOperand::Absent => None,
            BoundOperand::Buffer(id) => Some(self.memory.by_id(id).clone()),
            BoundOperand::WeightPiece(id, number) => {
                Some(self.weights.get(id).buffers[number].clone())
            }
            BoundOperand::Plain(id) => Some(self.plain(id)?),
            BoundOperand::Scratch(number) => self.scratch[number].clone(),
        })
    }

    /// A weight's numbers in f32, row by row. They are made when first asked for, ahead of whatever runs.
    fn plain(&mut self, id: WeightId) -> Result<wgpu::Buffer, BackendError> {
        let weight = self.weights.get(id);
        if let Some(plain) = &weight.plain {
            return Ok(plain.clone());
        }
        let (rows, cols) = (weight.layout.info.rows, weight.layout.info.cols);
        let plain = self.queue.storage("numbers of a weight", 4 * (rows * cols) as u64)?;
        for (piece, buffer) in weight.layout.pieces.iter().zip(&weight.buffers) {
            let layout = &weight.layout;
            let shape = [rows, cols, rows, piece.first, piece.channels, 0, layout.style];
            let words = Words::of(&[0, 0]).and_then(|words| words.sizes(&shape));
            let words = words.and_then(|words| words.sizes(&layout.planes(piece)));
            let call = Call {
                kernel: &EMBED,
                constants: layout.constants.clone(),
                operands: Vec::new(),
                words: words.map(|words| words.float(1.0)),
                grid: folded(rows),
                work: Cost::default(),
            };
            let operands = [None, Some(plain.clone()), Some(buffer.clone())];
            let launch = self.pipelines.launch(&self.queue.fault, &call, &operands)?;
            launch.into_iter().for_each(|launch| self.queue.push(launch));
        }
        self.weights.get_mut(id).plain = Some(plain.clone());
        Ok(plain)
    }

    /// Scratch memory number `number` of at least so many bytes. Whoever was given a smaller one keeps that.
    fn scratch(&mut self, number: usize, bytes: usize) -> Result<(), BackendError> {
        if self.scratch[number].as_ref().is_some_and(|buffer| buffer.size() >= bytes as u64) {
            return Ok(());
        }
        let most = self.queue.device.limits().max_storage_buffer_binding_size;
        let rounded = (bytes as u64).next_multiple_of(1 << 20);
        let rounded = if rounded > most { bytes as u64 } else { rounded };
        self.scratch[number] = Some(self.queue.storage("scratch", rounded)?);
        Ok(())
    }

    /// Lowers operations that follow each other and were checked.
    pub(crate) fn lowered(&mut self, ops: &[Op]) -> Result<Launches, BackendError> {
        let mut lowering = Lowering::new(self, self.bound.most());
        lowering.lower(ops)?;
        let Lowering { calls, scratch, .. } = lowering;
        let (work, rates) = (self.bound.note(&calls), self.bound.rates());
        Ok(Launches { launches: self.bind(&calls, scratch)?, work, rates })
    }
}
