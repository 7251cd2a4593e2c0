//! Where a case is played: a device, the buffers made on it, and what is expected of each.
//!
//! Every buffer has a few guard elements before and after the view a case uses, so a kernel that
//! ignores a view's start or reaches past its end is caught.

use super::Rng;
use super::matrices::random_matrix;
use crate::op::{AttentionInputs, CacheLayout, CacheOrder, NewKeys, SpanEntry, Spans};
use crate::{
    Backend, BackendError, BufferId, BufferRole, BufferSpec, HostData, HostDataMut, Op, View,
    WeightId, submit_and_wait,
};
use forerun_base::{DType, Format, Matrix, MatrixError};

/// Guard elements before and after a view of numbers: no more than the seam promises, so that no view begins with two
/// vectors.
const GUARD: usize = View::VECTOR;
/// The same of indices. Odd on purpose: the seam promises them no alignment.
const INDEX_GUARD: usize = 3;
const GUARD_VALUE: f32 = -77.25;
const GUARD_INDEX: u32 = 0xdead_beef;
const GUARD_BYTE: u8 = 0xa5;
/// What outputs hold before the call.
const UNWRITTEN: u32 = 0x7fff_ffff;
/// Names of the two caches.
const CACHES: [&str; 2] = ["k_cache", "v_cache"];

/// What a buffer must hold after the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// The reference's bits: copies, indices, and everything that is only read.
    Same,
    /// The reference's numbers within a tolerance.
    Near,
    /// Anything.
    Whatever,
}

/// Contents read back.
#[derive(Clone, Debug)]
pub(super) enum BufferContents {
    F32(Vec<f32>),
    U32(Vec<u32>),
}

#[derive(Clone, Copy, Debug)]
struct Made {
    label: &'static str,
    view: View,
    len: usize,
    dtype: DType,
    expect: Expect,
    cache: Option<CacheContents>,
}

/// What a buffer is a cache of. A case thinks of it in the order of [`CacheOrder::Transposed`], whatever the device's
/// order is: contents are reordered on their way there and back.
#[derive(Clone, Copy, Debug)]
struct CacheContents {
    layout: CacheLayout,
    keys: bool,
}

impl CacheContents {
    /// Where each element lies on the device.
    fn places(&self, order: CacheOrder) -> Vec<usize> {
        let (from, to) = (self.layout, CacheLayout { order, ..self.layout });
        let place = if self.keys { CacheLayout::key } else { CacheLayout::value };
        // Scales lie where they lie.
        let mut places: Vec<usize> = (0..from.len()).collect();
        for (id, head) in (0..from.blocks).flat_map(|id| (0..from.kv_heads).map(move |h| (id, h))) {
            for (at, i) in (0..from.block).flat_map(|at| (0..from.head_dim).map(move |i| (at, i))) {
                places[place(&from, id, head, at, i)] = place(&to, id, head, at, i);
            }
        }
        places
    }
}

/// One buffer after the call.
#[derive(Clone, Debug)]
pub(super) struct BufferOutcome {
    pub(super) label: &'static str,
    pub(super) expect: Expect,
    /// The part the case uses; the rest is guard.
    pub(super) view: std::ops::Range<usize>,
    pub(super) numbers: BufferContents,
}

/// See the module's text.
pub struct ConformStage<'a> {
    pub(super) backend: &'a mut dyn Backend,
    /// Keyed by the case's name.
    pub rng: Rng,
    made: Vec<Made>,
    spans: Vec<(BufferId, Vec<SpanEntry>)>,
}

impl<'a> ConformStage<'a> {
    /// An empty stage for the case of this name.
    pub fn new(backend: &'a mut dyn Backend, name: &str) -> Self {
        Self { backend, rng: Rng::named(name), made: Vec::new(), spans: Vec::new() }
    }

    fn make(
        &mut self,
        label: &'static str,
        dtype: DType,
        len: usize,
        expect: Expect,
    ) -> Result<View, BackendError> {
        let guard = if dtype == DType::U32 { INDEX_GUARD } else { GUARD };
        let whole = len + 2 * guard;
        let spec = BufferSpec { label, dtype, len: whole, role: BufferRole::Scratch };
        let view = View { buffer: self.backend.alloc(spec)?, start: guard, len };
        self.made.push(Made { label, view, len: whole, dtype, expect, cache: None });
        Ok(view)
    }

    fn floats(
        &mut self,
        label: &'static str,
        values: &[f32],
        expect: Expect,
    ) -> Result<View, BackendError> {
        let view = self.make(label, DType::F32, values.len(), expect)?;
        let guard = [GUARD_VALUE; GUARD];
        let whole = [&guard, values, &guard].concat();
        self.backend.write(View::head(view.buffer, whole.len()), HostData::F32(&whole))?;
        Ok(view)
    }

    fn integers(&mut self, label: &'static str, values: &[u32]) -> Result<View, BackendError> {
        let view = self.make(label, DType::U32, values.len(), Expect::Same)?;
        let guard = [GUARD_INDEX; INDEX_GUARD];
        let whole = [&guard, values, &guard].concat();
        self.backend.write(View::head(view.buffer, whole.len()), HostData::U32(&whole))?;
        Ok(view)
    }

    /// Caches of keys and values that hold codes, of which each byte is read, or replaced by one byte alone.
    pub fn coded_caches(
        &mut self,
        layout: CacheLayout,
        codes: [&[u8]; 2],
    ) -> Result<[View; 2], BackendError> {
        let mut cache = |i: usize| {
            let view = self.make(CACHES[i], DType::I8, codes[i].len(), Expect::Same)?;
            let there = self.reordered(CacheContents { layout, keys: i == 0 }, codes[i]);
            let guard = [GUARD_BYTE; GUARD];
            let whole = [&guard[..], &there, &guard].concat();
            self.backend.write(View::head(view.buffer, whole.len()), HostData::Bytes(&whole))?;
            Ok::<_, BackendError>(view)
        };
        Ok([cache(0)?, cache(1)?])
    }

    /// A cache's layout on this device.
    pub fn layout(&self, layout: CacheLayout) -> CacheLayout {
        CacheLayout { order: self.backend.cache_order(), ..layout }
    }

    /// Contents in the device's order; the buffer that was made last is read back in the case's.
    fn reordered<T: Copy>(&mut self, cache: CacheContents, contents: &[T]) -> Vec<T> {
        if let Some(made) = self.made.last_mut() {
            made.cache = Some(cache);
        }
        let mut there = contents.to_vec();
        for (from, to) in cache.places(self.backend.cache_order()).into_iter().enumerate() {
            there[to] = contents[from];
        }
        there
    }

    /// Numbers that are only read.
    pub fn input(&mut self, label: &'static str, values: &[f32]) -> Result<View, BackendError> {
        self.floats(label, values, Expect::Same)
    }

    /// Random numbers that are only read.
    pub fn random(&mut self, label: &'static str, len: usize) -> Result<View, BackendError> {
        let values = self.rng.values(len);
        self.input(label, &values)
    }

    /// Indices that are only read.
    pub fn indices(&mut self, label: &'static str, values: &[u32]) -> Result<View, BackendError> {
        self.integers(label, values)
    }

    /// Numbers that are computed from nothing but other operands.
    pub fn output(&mut self, label: &'static str, len: usize) -> Result<View, BackendError> {
        self.floats(label, &vec![f32::from_bits(UNWRITTEN); len], Expect::Near)
    }

    /// Numbers that are copied from other operands.
    pub fn copied(&mut self, label: &'static str, len: usize) -> Result<View, BackendError> {
        self.floats(label, &vec![f32::from_bits(UNWRITTEN); len], Expect::Same)
    }

    /// Indices that are computed.
    pub fn chosen(&mut self, label: &'static str, len: usize) -> Result<View, BackendError> {
        self.integers(label, &vec![UNWRITTEN; len])
    }

    /// Numbers that are read and computed.
    pub fn updated(&mut self, label: &'static str, values: &[f32]) -> Result<View, BackendError> {
        self.floats(label, values, Expect::Near)
    }

    /// Numbers that are read and replaced by copies.
    pub fn moved(&mut self, label: &'static str, values: &[f32]) -> Result<View, BackendError> {
        self.floats(label, values, Expect::Same)
    }

    /// A buffer whose contents an operation leaves unspecified.
    pub fn scratch(&mut self, label: &'static str, len: usize) -> Result<View, BackendError> {
        self.floats(label, &vec![f32::from_bits(UNWRITTEN); len], Expect::Whatever)
    }

    /// A weight.
    pub fn weight(&mut self, matrix: Matrix) -> Result<WeightId, BackendError> {
        self.backend.upload("weight", matrix)
    }

    /// A random weight.
    pub fn matrix(&mut self, shape: [usize; 2], format: Format) -> Result<WeightId, BackendError> {
        let matrix = random_matrix(&mut self.rng, shape, format).map_err(not_a_matrix)?;
        self.weight(matrix)
    }

    /// A one-row f32 weight.
    pub fn vector(&mut self, values: &[f32]) -> Result<WeightId, BackendError> {
        self.table([1, values.len()], values)
    }

    /// An f32 weight.
    pub fn table(
        &mut self,
        [rows, cols]: [usize; 2],
        values: &[f32],
    ) -> Result<WeightId, BackendError> {
        self.weight(Matrix::from_f32(rows, cols, values).map_err(not_a_matrix)?)
    }

    /// A one-row f32 weight around one.
    pub fn norm_weight(&mut self, len: usize) -> Result<WeightId, BackendError> {
        let values: Vec<f32> = (0..len).map(|_| 1.0 + 0.3 * self.rng.signed()).collect();
        self.vector(&values)
    }

    /// A span table.
    pub fn span_table(&mut self, entries: &[SpanEntry]) -> Result<View, BackendError> {
        let words: Vec<u32> = entries.iter().flat_map(|entry| entry.words()).collect();
        let view = self.indices("spans", &words)?;
        self.spans.push((view.buffer, entries.to_vec()));
        Ok(view)
    }

    /// The entries of a table made by [`ConformStage::span_table`].
    pub(super) fn entries(&self, spans: &Spans) -> Vec<SpanEntry> {
        let found = self.spans.iter().find(|(id, _)| *id == spans.table.buffer);
        found.map(|(_, entries)| entries.clone()).unwrap_or_default()
    }

    /// Two caches `[k, v]` of f32 that hold `values` and are changed.
    pub fn updated_caches(
        &mut self,
        layout: CacheLayout,
        values: [&[f32]; 2],
    ) -> Result<[View; 2], BackendError> {
        let mut cache = |i: usize| {
            let view = self.updated(CACHES[i], values[i])?;
            let there = self.reordered(CacheContents { layout, keys: i == 0 }, values[i]);
            self.backend.write(view, HostData::F32(&there))?;
            Ok::<_, BackendError>(view)
        };
        Ok([cache(0)?, cache(1)?])
    }

    /// Two caches `[k, v]` of the same type of floats that hold `values`.
    pub fn caches(
        &mut self,
        dtype: DType,
        layout: CacheLayout,
        values: [&[f32]; 2],
    ) -> Result<[View; 2], BackendError> {
        let k_cache = self.make(CACHES[0], dtype, layout.len(), Expect::Same)?;
        let keys = self.reordered(CacheContents { layout, keys: true }, values[0]);
        let v_cache = self.make(CACHES[1], dtype, layout.len(), Expect::Same)?;
        let values = self.reordered(CacheContents { layout, keys: false }, values[1]);
        // Half buffers are filled as a model fills them. One big row will do;
        // the guards, which it cannot reach, are filled through views of their own.
        let whole = layout.len() + 2 * GUARD;
        let guarded =
            |values: &[f32]| [&[GUARD_VALUE; GUARD], values, &[GUARD_VALUE; GUARD]].concat();
        // Their order is the device's own.
        let k = self.floats("keys", &guarded(&keys), Expect::Whatever)?;
        let v = self.floats("values", &guarded(&values), Expect::Whatever)?;
        let places = self.indices("places", &[0])?;
        self.backend.attention_inputs(AttentionInputs::plain(NewKeys {
            k,
            v,
            k_norm: None,
            v_norm: None,
            places,
            k_cache: View::head(k_cache.buffer, whole),
            v_cache: View::head(v_cache.buffer, whole),
            layout: self.layout(CacheLayout {
                blocks: 1,
                kv_heads: 1,
                head_dim: whole,
                ..CacheLayout::NONE
            }),
        }))?;
        Ok([k_cache, v_cache])
    }

    /// Runs operations in order and reads everything back.
    pub(super) fn play(mut self, ops: &[Op]) -> Result<Vec<BufferOutcome>, BackendError> {
        for op in ops {
            op.apply(self.backend)?;
        }
        submit_and_wait(self.backend)?;
        let made = std::mem::take(&mut self.made);
        made.iter().map(|made| self.read(made)).collect()
    }

    fn read(&mut self, made: &Made) -> Result<BufferOutcome, BackendError> {
        let whole = View::head(made.view.buffer, made.len);
        let view = made.view.start..made.view.start + made.view.len;
        // What is left unspecified may not even be readable; its guards are.
        let parts = match made.expect {
            Expect::Whatever => [0..view.start, view.end..made.len],
            Expect::Same | Expect::Near => [0..made.len, 0..0],
        };
        let numbers = if made.dtype == DType::U32 {
            let mut values = vec![0; made.len];
            self.backend.read(whole, HostDataMut::U32(&mut values))?;
            BufferContents::U32(values)
        } else if made.dtype == DType::I8 {
            let mut bytes = vec![0; made.len];
            self.backend.read(whole, HostDataMut::Bytes(&mut bytes))?;
            BufferContents::U32(bytes.into_iter().map(u32::from).collect())
        } else {
            let mut values = vec![0.0; made.len];
            for part in parts {
                let from = whole.part(part.start, part.len());
                self.backend.read(from, HostDataMut::F32(&mut values[part]))?;
            }
            BufferContents::F32(values)
        };
        let numbers = match made.cache {
            Some(cache) => numbers.reordered(view.start, &cache.places(self.backend.cache_order())),
            None => numbers,
        };
        Ok(BufferOutcome { label: made.label, expect: made.expect, view, numbers })
    }
}

impl BufferContents {
    /// Element `i` of a view that begins at `start` comes from `places[i]` of it.
    fn reordered(mut self, start: usize, places: &[usize]) -> Self {
        fn of<T: Copy>(numbers: &mut [T], start: usize, places: &[usize]) {
            let there = numbers.to_vec();
            places
                .iter()
                .enumerate()
                .for_each(|(i, from)| numbers[start + i] = there[start + from]);
        }
        match &mut self {
            Self::F32(numbers) => of(numbers, start, places),
            Self::U32(numbers) => of(numbers, start, places),
        }
        self
    }
}

fn not_a_matrix(why: MatrixError) -> BackendError {
    BackendError::Protocol(format!("a case asks for a matrix that cannot be: {why}"))
}
