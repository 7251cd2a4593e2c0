//! Parts of a lease's state between a device and the host, as bytes.

use crate::submissions::Purpose;
use crate::{EngineError, ModelRunner, Part, StateShape};
use forerun_backend::{HostData, HostDataMut, View};
use forerun_base::{Bytes, DType};
use forerun_model::{Limits, StateBuffers, StateKind};
use std::ops::Range;

/// One buffer as a row of equal pieces: blocks of a cache, slots, rows of a window.
#[derive(Clone, Copy, Debug)]
struct Pieces {
    view: View,
    /// Elements of a piece.
    len: usize,
    /// Bytes of a piece.
    bytes: usize,
}

impl Pieces {
    fn new(view: View, count: usize, dtype: DType) -> Self {
        let len = view.len / count.max(1);
        Self { view, len, bytes: len * dtype.size() }
    }

    fn piece(&self, number: usize) -> View {
        self.view.part(number * self.len, self.len)
    }
}

/// Where everything a lease holds lies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    /// By block of the pool.
    blocks: Vec<Pieces>,
    /// By slot.
    slots: Vec<Pieces>,
    /// By block of the rings.
    rings: Vec<Pieces>,
    /// By row of the window of hidden states.
    hidden: Vec<Pieces>,
    ring_width: usize,
    hidden_window: usize,
    shape: StateShape,
}

impl Copies {
    pub(crate) fn new(states: &StateBuffers, limits: &Limits) -> Self {
        let mut copies = Self {
            ring_width: limits.ring_width(),
            hidden_window: limits.hidden_window(),
            ..Self::default()
        };
        for buffer in states.buffers() {
            let to = match buffer.kind {
                StateKind::Paged(_) => &mut copies.blocks,
                StateKind::Ring(_) => &mut copies.rings,
                StateKind::Slot => &mut copies.slots,
                // What is published is folded.
                StateKind::Log => continue,
            };
            to.push(Pieces::new(buffer.view, buffer.pieces, buffer.dtype));
        }
        if let Some(draft) = &states.draft
            && draft.cache.is_some()
        {
            let rows = limits.sequences * limits.hidden_window();
            copies.hidden.push(Pieces::new(draft.hidden, rows, DType::F32));
        }
        let sum = |pieces: &[Pieces]| pieces.iter().map(|piece| piece.bytes).sum();
        copies.shape = StateShape {
            block: sum(&copies.blocks),
            recurrent: sum(&copies.slots),
            ring_block: sum(&copies.rings),
            window: limits.window,
            hidden: sum(&copies.hidden),
        };
        copies
    }

    pub(crate) fn shape(&self) -> StateShape {
        self.shape
    }

    /// The views of a part, each with its place in the part's bytes.
    fn each(
        &self,
        part: Part,
        mut work: impl FnMut(View, Range<usize>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut at = 0;
        let mut pieces = |all: &[Pieces], number: usize| {
            all.iter().try_for_each(|pieces| {
                let from = at;
                at += pieces.bytes;
                work(pieces.piece(number), from..at)
            })
        };
        match part {
            Part::Block(block) => pieces(&self.blocks, block as usize),
            Part::State { lease, position, filled } => {
                let slot = lease.0 as usize;
                pieces(&self.slots, slot)?;
                for block in self.shape.ring_blocks(position as usize) {
                    pieces(&self.rings, slot * self.ring_width + block % self.ring_width)?;
                }
                for row in filled..position {
                    let row = row as usize % self.hidden_window;
                    pieces(&self.hidden, slot * self.hidden_window + row)?;
                }
                Ok(())
            }
        }
    }

    /// Bytes of a part.
    fn bytes(&self, part: Part) -> usize {
        match part {
            Part::Block(_) => self.shape.block,
            Part::State { position, filled, .. } => {
                self.shape.state(position as usize, filled as usize)
            }
        }
    }
}

impl ModelRunner {
    pub(crate) fn part_to_host(&mut self, part: Part, to: &mut [u8]) -> Result<(), EngineError> {
        self.check_part(part, to.len())?;
        self.settle()?;
        let backend = &mut *self.backend;
        self.copies
            .each(part, |view, bytes| Ok(backend.read(view, HostDataMut::Bytes(&mut to[bytes]))?))
    }

    pub(crate) fn parts_to_device(&mut self, parts: &[(Part, Bytes)]) -> Result<(), EngineError> {
        for (part, from) in parts {
            self.check_part(*part, from.len())?;
            let backend = &mut *self.backend;
            self.copies.each(*part, |view, bytes| {
                Ok(backend.write(view, HostData::Bytes(&from[bytes]))?)
            })?;
        }
        self.finish(Purpose::Other)
    }

    fn check_part(&self, part: Part, found: usize) -> Result<(), EngineError> {
        let expected = self.copies.bytes(part);
        if found == expected {
            return Ok(());
        }
        Err(EngineError::Settings(format!("{part:?} has {found} bytes, expected {expected}")))
    }
}
