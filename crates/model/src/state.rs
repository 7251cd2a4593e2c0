//! What sequences remember, as typed buffers: whoever copies, plans or shows state iterates over them and never asks
//! which mixer they belong to.

use crate::{LayerSpec, Limits, ModelError, ModelSpec, Planner};
use forerun_backend::View;
use forerun_backend::op::{CacheLayout, CacheOrder, EntryLayout};
use forerun_base::DType;

/// How the pieces of a state buffer belong to sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// A piece for each block of the pool; a lease names its blocks.
    Paged(CacheLayout),
    /// A piece for each block of the slots' rings: the keys before a window are overwritten.
    Ring(CacheLayout),
    /// A piece for each block of the pool: entries of f32, which belong to positions as keys do.
    Entries(EntryLayout),
    /// A piece for each slot: the state at the committed position, less pending log rows.
    Slot,
    /// A piece for each slot: inputs of tentative rows, which mean nothing once they are folded.
    Log,
}

impl StateKind {
    /// The same with caches in a device's order.
    fn ordered(self, order: CacheOrder) -> Self {
        match self {
            Self::Paged(layout) => Self::Paged(CacheLayout { order, ..layout }),
            Self::Ring(layout) => Self::Ring(CacheLayout { order, ..layout }),
            Self::Entries(_) | Self::Slot | Self::Log => self,
        }
    }
}

/// A buffer that a mixer declares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateDecl {
    pub(crate) name: &'static str,
    pub(crate) kind: StateKind,
    /// Elements of a slot's piece; those of a block follow from its layout.
    pub(crate) len: usize,
}

/// One buffer of a layer's state, for all leases together.
#[derive(Clone, Copy, Debug)]
pub struct StateBuffer {
    /// What it holds, unique within the layer.
    pub name: &'static str,
    /// Whose its pieces are.
    pub kind: StateKind,
    /// Element type.
    pub dtype: DType,
    /// All pieces.
    pub view: View,
    /// How many there are.
    pub pieces: usize,
}

impl StateBuffer {
    fn new(
        decl: StateDecl,
        limits: &Limits,
        planner: &mut Planner<'_>,
    ) -> Result<Self, ModelError> {
        let StateDecl { name, kind, len } = decl;
        let kind = kind.ordered(planner.cache_order());
        let (line, dtype, pieces, len) = match kind {
            StateKind::Paged(layout) => ("kv cache", limits.kv, layout.blocks, layout.len()),
            StateKind::Ring(layout) => {
                ("kv cache, windows", limits.kv, layout.blocks, layout.len())
            }
            StateKind::Entries(layout) => ("kv cache", DType::F32, layout.blocks, layout.len()),
            StateKind::Slot => {
                ("recurrent state", DType::F32, limits.sequences, limits.sequences * len)
            }
            StateKind::Log => ("draft log", DType::F32, limits.sequences, limits.sequences * len),
        };
        let view = View::head(planner.state(line, dtype, len)?, len);
        Ok(Self { name, kind, dtype, view, pieces })
    }

    /// One piece.
    pub const fn piece(&self, number: usize) -> View {
        let len = self.view.len / self.pieces;
        self.view.part(number * len, len)
    }

    /// Bytes of a piece.
    pub fn piece_bytes(&self) -> usize {
        self.view.len / self.pieces.max(1) * self.dtype.size()
    }
}

/// Device memory of one layer, for all leases together.
#[derive(Clone, Debug)]
pub struct LayerState {
    buffers: Vec<StateBuffer>,
    shared: bool,
}

impl LayerState {
    /// Its buffers, in the order in which the mixer declares them.
    pub fn buffers(&self) -> &[StateBuffer] {
        &self.buffers
    }

    /// Whether the buffers are an earlier layer's.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// The views of the first `N` buffers.
    ///
    /// # Panics
    /// When there are fewer: a mixer asks for what it declares.
    pub(crate) fn views<const N: usize>(&self) -> [View; N] {
        std::array::from_fn(|i| self.buffers[i].view)
    }

    /// The views of the last `N` buffers.
    ///
    /// # Panics
    /// As above.
    pub(crate) fn last_views<const N: usize>(&self) -> [View; N] {
        let first = self.buffers.len() - N;
        std::array::from_fn(|i| self.buffers[first + i].view)
    }
}

/// What drafting remembers.
#[derive(Clone, Debug)]
pub struct DraftState {
    /// Keys and values of the MTP head's block; a separate drafter has none.
    pub cache: Option<LayerState>,
    /// `[slots, hidden_window, hidden]`: the trunk's final hidden state of position `p` at row
    /// `p % hidden_window`.
    pub hidden: View,
}

/// Device memory of all layers.
#[derive(Clone, Debug)]
pub struct StateBuffers {
    /// In layer order.
    pub layers: Vec<LayerState>,
    /// When a head or a separate drafter drafts.
    pub draft: Option<DraftState>,
}

impl StateBuffers {
    /// Makes (or plans) the state of every layer.
    pub fn new(
        spec: &ModelSpec,
        limits: &Limits,
        planner: &mut Planner<'_>,
    ) -> Result<Self, ModelError> {
        let draft = match spec.drafter.as_ref().filter(|_| limits.mtp) {
            Some(_) => {
                let len = limits.sequences * limits.hidden_window() * spec.hidden;
                let hidden = View::head(planner.state("hidden window", DType::F32, len)?, len);
                let block = spec.head_block();
                let cache = block.map(|block| layer_state(block, &[], limits, planner));
                Some(DraftState { cache: cache.transpose()?, hidden })
            }
            None => None,
        };
        let mut layers = Vec::with_capacity(spec.layers.len());
        for layer in &spec.layers {
            layers.push(layer_state(layer, &layers, limits, planner)?);
        }
        Ok(Self { layers, draft })
    }

    /// The buffers of all layers and of a drafter's own cache, each once.
    pub fn buffers(&self) -> impl Iterator<Item = &StateBuffer> {
        let draft = self.draft.iter().filter_map(|draft| draft.cache.as_ref());
        let layers = self.layers.iter().filter(|layer| !layer.shared).chain(draft);
        layers.flat_map(|layer| &layer.buffers)
    }
}

fn layer_state(
    layer: &LayerSpec,
    earlier: &[LayerState],
    limits: &Limits,
    planner: &mut Planner<'_>,
) -> Result<LayerState, ModelError> {
    if let Some(owner) = layer.mixer.shares() {
        return Ok(LayerState { shared: true, ..earlier[owner].clone() });
    }
    let declared = layer.state(limits).into_iter();
    let buffers = declared.map(|decl| StateBuffer::new(decl, limits, planner));
    Ok(LayerState { buffers: buffers.collect::<Result<_, _>>()?, shared: false })
}
