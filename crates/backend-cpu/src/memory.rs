//! Host memory behind buffer and weight ids.
//!
//! An operation takes the buffers it writes out of the memory and reads the others in place. The backend trait promises
//! that a written buffer appears once among the operands, so no two borrows ever overlap.

use crate::Weight;
use crate::aligned_buf::AlignedBuf;
use forerun_backend::{
    BackendError, BufferId, BufferInfo, BufferSpec, Catalog, HostData, HostDataMut, View, WeightId,
    WeightInfo,
};
use forerun_base::{DType, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// The elements of one buffer.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names say all there is to say")]
pub enum BufferStorage {
    F32(AlignedBuf<f32>),
    F16(AlignedBuf<u16>),
    BF16(AlignedBuf<u16>),
    I8(AlignedBuf<u8>),
    U32(AlignedBuf<u32>),
}

impl BufferStorage {
    fn new(dtype: DType, len: usize) -> Option<Self> {
        Some(match dtype {
            DType::F32 => Self::F32(AlignedBuf::zeroed(len)?),
            DType::F16 => Self::F16(AlignedBuf::zeroed(len)?),
            DType::BF16 => Self::BF16(AlignedBuf::zeroed(len)?),
            DType::I8 => Self::I8(AlignedBuf::zeroed(len)?),
            DType::U32 => Self::U32(AlignedBuf::zeroed(len)?),
            _ => return None,
        })
    }

    /// An empty buffer of the same type.
    fn empty(&self) -> Self {
        match self {
            Self::F32(_) => Self::F32(AlignedBuf::default()),
            Self::F16(_) => Self::F16(AlignedBuf::default()),
            Self::BF16(_) => Self::BF16(AlignedBuf::default()),
            Self::I8(_) => Self::I8(AlignedBuf::default()),
            Self::U32(_) => Self::U32(AlignedBuf::default()),
        }
    }

    /// A checked range of elements; an empty one starts anywhere.
    fn part<T>(elements: &[T], view: View) -> &[T] {
        if view.len == 0 { &[] } else { &elements[view.start..view.start + view.len] }
    }

    fn part_mut<T>(elements: &mut [T], view: View) -> &mut [T] {
        if view.len == 0 { &mut [] } else { &mut elements[view.start..view.start + view.len] }
    }

    fn info(&self) -> BufferInfo {
        match self {
            Self::F32(v) => BufferInfo { dtype: DType::F32, len: v.len() },
            Self::F16(v) => BufferInfo { dtype: DType::F16, len: v.len() },
            Self::BF16(v) => BufferInfo { dtype: DType::BF16, len: v.len() },
            Self::I8(v) => BufferInfo { dtype: DType::I8, len: v.len() },
            Self::U32(v) => BufferInfo { dtype: DType::U32, len: v.len() },
        }
    }

    /// Element `i` of a buffer of floats or bytes, widened.
    #[inline]
    pub fn get(&self, i: usize) -> f32 {
        match self {
            Self::F32(v) => v[i],
            Self::F16(v) => f16_to_f32(v[i]),
            Self::BF16(v) => bf16_to_f32(v[i]),
            Self::I8(v) => f32::from(v[i] as i8),
            Self::U32(_) => unreachable!("operands were checked to be no indices"),
        }
    }

    /// The bytes of a quantised key/value cache.
    pub fn codes(&self) -> &[u8] {
        match self {
            Self::I8(v) => v,
            _ => unreachable!("operands were checked to be I8"),
        }
    }

    /// The same, mutable.
    pub fn codes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::I8(v) => v,
            _ => unreachable!("operands were checked to be I8"),
        }
    }

    /// Sets element `i` of a float buffer, rounded to nearest even.
    #[inline]
    pub fn set(&mut self, i: usize, x: f32) {
        match self {
            Self::F32(v) => v[i] = x,
            Self::F16(v) => v[i] = f32_to_f16(x),
            Self::BF16(v) => v[i] = f32_to_bf16(x),
            Self::I8(_) | Self::U32(_) => unreachable!("operands were checked to be floats"),
        }
    }

    fn bytes_to(&self, view: View, to: &mut [u8]) {
        fn lay<T: Copy, const N: usize>(from: &[T], to: &mut [u8], bytes: fn(T) -> [u8; N]) {
            let (to, _) = to.as_chunks_mut::<N>();
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = bytes(from));
        }
        match self {
            Self::F32(v) => lay(Self::part(v, view), to, f32::to_le_bytes),
            Self::F16(v) | Self::BF16(v) => lay(Self::part(v, view), to, u16::to_le_bytes),
            Self::I8(v) => to.copy_from_slice(Self::part(v, view)),
            Self::U32(v) => lay(Self::part(v, view), to, u32::to_le_bytes),
        }
    }

    fn set_bytes(&mut self, view: View, from: &[u8]) {
        fn take<T, const N: usize>(to: &mut [T], from: &[u8], value: fn([u8; N]) -> T) {
            let (from, _) = from.as_chunks::<N>();
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = value(from));
        }
        match self {
            Self::F32(v) => take(Self::part_mut(v, view), from, f32::from_le_bytes),
            Self::F16(v) | Self::BF16(v) => take(Self::part_mut(v, view), from, u16::from_le_bytes),
            Self::I8(v) => Self::part_mut(v, view).copy_from_slice(from),
            Self::U32(v) => take(Self::part_mut(v, view), from, u32::from_le_bytes),
        }
    }

    /// Bytes of some elements.
    fn bytes_of(&self, elements: usize) -> usize {
        elements * self.info().dtype.size()
    }

    /// The numbers of an f32 buffer.
    pub fn f32_mut(&mut self, view: View) -> &mut [f32] {
        match self {
            Self::F32(v) => Self::part_mut(v, view),
            _ => unreachable!("operands were checked to be F32"),
        }
    }

    /// The numbers of a u32 buffer.
    pub fn u32_mut(&mut self, view: View) -> &mut [u32] {
        match self {
            Self::U32(v) => Self::part_mut(v, view),
            _ => unreachable!("operands were checked to be U32"),
        }
    }
}

/// Identifies the contents of an operand: equal versions mean equal contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataVersion {
    view: View,
    written: u64,
}

/// All buffers and weights of the device.
#[derive(Debug, Default)]
pub struct Memory {
    buffers: Vec<BufferStorage>,
    /// Value of `writes` when each buffer was last written.
    written: Vec<u64>,
    writes: u64,
    weights: Vec<Weight>,
}

impl Memory {
    /// Makes a buffer.
    pub fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<BufferId, BackendError> {
        let storage = BufferStorage::new(spec.dtype, spec.len).ok_or_else(|| {
            let bytes = spec.len.saturating_mul(spec.dtype.size());
            BackendError::OutOfMemory { label: spec.label.to_owned(), bytes }
        })?;
        self.buffers.push(storage);
        self.written.push(0);
        Ok(BufferId(self.buffers.len() as u32 - 1))
    }

    /// Adds a weight.
    pub fn upload(&mut self, weight: Weight) -> WeightId {
        self.weights.push(weight);
        WeightId(self.weights.len() as u32 - 1)
    }

    /// The weight; operands were checked, so it exists.
    pub fn matrix(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    /// A one-row weight as numbers.
    ///
    /// # Panics
    /// When the weight is not dense F32: small vectors are uploaded so.
    pub fn vector(&self, id: WeightId, out: &mut [f32]) {
        self.matrix(id).decode_row(0, out);
    }

    /// Elements of a float or index buffer.
    pub fn storage(&self, id: BufferId) -> &BufferStorage {
        &self.buffers[id.0 as usize]
    }

    /// An f32 operand.
    pub fn f32(&self, view: View) -> &[f32] {
        match self.storage(view.buffer) {
            BufferStorage::F32(v) => BufferStorage::part(v, view),
            _ => unreachable!("operands were checked to be F32"),
        }
    }

    /// A u32 operand.
    pub fn u32(&self, view: View) -> &[u32] {
        match self.storage(view.buffer) {
            BufferStorage::U32(v) => BufferStorage::part(v, view),
            _ => unreachable!("operands were checked to be U32"),
        }
    }

    /// Lends the buffers that an operation writes to `work`, which reads the others through the memory.
    pub fn lend<const N: usize, R>(
        &mut self,
        views: [View; N],
        work: impl FnOnce(&Self, [&mut BufferStorage; N]) -> R,
    ) -> R {
        // Empty operands may alias others, so they get an empty buffer instead.
        let mut lent = views.map(|v| {
            let buffer = &mut self.buffers[v.buffer.0 as usize];
            if v.len == 0 { buffer.empty() } else { std::mem::replace(buffer, buffer.empty()) }
        });
        let result = work(self, lent.each_mut());
        for (view, storage) in views.into_iter().zip(lent).filter(|(view, _)| view.len > 0) {
            self.buffers[view.buffer.0 as usize] = storage;
            self.note_write(view);
        }
        result
    }

    /// The current version of an operand's contents.
    pub(crate) fn version(&self, view: View) -> DataVersion {
        DataVersion { view, written: self.written[view.buffer.0 as usize] }
    }

    /// Notes that a buffer is written: its contents get a new version.
    fn note_write(&mut self, view: View) {
        self.writes += 1;
        self.written[view.buffer.0 as usize] = self.writes;
    }

    /// Copies from the host.
    pub fn write(&mut self, dst: View, src: HostData<'_>) -> Result<(), BackendError> {
        self.check("write", dst)?;
        self.note_write(dst);
        match (&mut self.buffers[dst.buffer.0 as usize], src) {
            (BufferStorage::F32(to), HostData::F32(from)) if from.len() == dst.len => {
                to[dst.start..dst.start + dst.len].copy_from_slice(from);
            }
            (BufferStorage::U32(to), HostData::U32(from)) if from.len() == dst.len => {
                to[dst.start..dst.start + dst.len].copy_from_slice(from);
            }
            (to, HostData::Bytes(from)) if from.len() == to.bytes_of(dst.len) => {
                to.set_bytes(dst, from);
            }
            _ => return Err(BackendError::Protocol("write: type or length differ".into())),
        }
        Ok(())
    }

    /// Copies to the host.
    pub fn read(&self, src: View, dst: HostDataMut<'_>) -> Result<(), BackendError> {
        self.check("read", src)?;
        let storage = self.storage(src.buffer);
        match (storage, dst) {
            (BufferStorage::U32(_), HostDataMut::U32(to)) if to.len() == src.len => {
                to.copy_from_slice(self.u32(src));
            }
            (
                BufferStorage::F32(_)
                | BufferStorage::F16(_)
                | BufferStorage::BF16(_)
                | BufferStorage::I8(_),
                HostDataMut::F32(to),
            ) if to.len() == src.len => {
                for (i, x) in to.iter_mut().enumerate() {
                    *x = storage.get(src.start + i);
                }
            }
            (_, HostDataMut::Bytes(to)) if to.len() == storage.bytes_of(src.len) => {
                storage.bytes_to(src, to);
            }
            _ => return Err(BackendError::Protocol("read: type or length differ".into())),
        }
        Ok(())
    }

    fn check(&self, op: &'static str, view: View) -> Result<(), BackendError> {
        let inside = self.buffer(view.buffer).is_some_and(|info| {
            view.start.checked_add(view.len).is_some_and(|end| end <= info.len)
        });
        if inside { Ok(()) } else { Err(BackendError::OutOfRange { op, operand: "view" }) }
    }
}

impl Catalog for Memory {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.buffers.get(id.0 as usize).map(BufferStorage::info)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.weights.get(id.0 as usize).map(|m| WeightInfo {
            rows: m.rows(),
            cols: m.cols(),
            format: m.format(),
            bytes: m.bytes(),
        })
    }
}
