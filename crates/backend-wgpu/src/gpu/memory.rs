//! Buffers by their ids, and what goes between them and the host.

use crate::gpu::kernels;
use crate::gpu::launch::{Call, Words, invocations};
use crate::gpu::pipelines::Pipelines;
use crate::gpu::queue::Queue;
use forerun_backend::{
    BackendError, BufferId, BufferInfo, BufferSpec, Cost, HostData, HostDataMut, View,
};
use forerun_base::{DType, bf16_to_f32, f16_to_f32};

/// Bytes that are copied at once, so that staging takes no more than this.
const PIECE: usize = 32 << 20;

/// All buffers of the device.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    buffers: Vec<(wgpu::Buffer, BufferInfo)>,
}

impl Memory {
    pub(crate) fn info(&self, id: BufferId) -> Option<BufferInfo> {
        self.buffers.get(id.0 as usize).map(|(_, info)| *info)
    }

    /// The buffer of a view, which was checked; none where the view is empty, since it may name any.
    pub(crate) fn buffer(&self, view: View) -> Option<&wgpu::Buffer> {
        (view.len > 0).then(|| &self.buffers[view.buffer.0 as usize].0)
    }

    /// A buffer that exists.
    pub(crate) fn by_id(&self, id: BufferId) -> &wgpu::Buffer {
        &self.buffers[id.0 as usize].0
    }

    /// The adapter clears memory before its first use, so what was never written is a number.
    pub(crate) fn alloc(
        &mut self,
        queue: &Queue,
        spec: BufferSpec<'_>,
    ) -> Result<BufferId, BackendError> {
        let BufferSpec { label, dtype, len, .. } = spec;
        let none = || BackendError::OutOfMemory { label: label.to_owned(), bytes: usize::MAX };
        let bytes = len.checked_mul(dtype.size()).ok_or_else(none)? as u64;
        let buffer = queue.storage(label, bytes)?;
        self.buffers.push((buffer, BufferInfo { dtype, len }));
        Ok(BufferId(self.buffers.len() as u32 - 1))
    }

    /// A view of a call by the host, checked.
    fn check(&self, op: &'static str, view: View) -> Result<DType, BackendError> {
        let info = self
            .info(view.buffer)
            .filter(|info| view.start.checked_add(view.len).is_some_and(|end| end <= info.len));
        let info = info.ok_or(BackendError::OutOfRange { op, operand: "view" })?;
        Ok(info.dtype)
    }

    pub(crate) fn write(
        &self,
        (queue, pipelines): (&mut Queue, &mut Pipelines),
        dst: View,
        src: HostData<'_>,
    ) -> Result<(), BackendError> {
        let dtype = self.check("write", dst)?;
        let owned: Vec<u8>;
        let bytes = match src {
            HostData::F32(from) if dtype == DType::F32 => {
                owned = from.iter().flat_map(|x| x.to_le_bytes()).collect();
                &owned[..]
            }
            HostData::U32(from) if dtype == DType::U32 => {
                owned = from.iter().flat_map(|x| x.to_le_bytes()).collect();
                &owned[..]
            }
            HostData::Bytes(from) => from,
            _ => &[],
        };
        if bytes.len() != dst.len * dtype.size() {
            return Err(BackendError::Protocol("write: type or length differ".into()));
        }
        let Some(buffer) = self.buffer(dst) else { return Ok(()) };
        let mut start = dst.start * dtype.size();
        for piece in bytes.chunks(PIECE) {
            if start.is_multiple_of(4) && piece.len().is_multiple_of(4) {
                queue.write(buffer, start as u64, piece)?;
            } else {
                write_inside_words((queue, pipelines), buffer, start, piece)?;
            }
            start += piece.len();
        }
        Ok(())
    }

    pub(crate) fn read(
        &self,
        queue: &mut Queue,
        src: View,
        dst: HostDataMut<'_>,
    ) -> Result<(), BackendError> {
        let dtype = self.check("read", src)?;
        if !queue.is_empty() {
            return Err(BackendError::Protocol("read: operations are queued".into()));
        }
        let len = match &dst {
            HostDataMut::Bytes(to) => to.len(),
            HostDataMut::U32(to) if dtype == DType::U32 => 4 * to.len(),
            HostDataMut::F32(to) if dtype != DType::U32 => dtype.size() * to.len(),
            _ => usize::MAX,
        };
        if len != src.len * dtype.size() {
            return Err(BackendError::Protocol("read: type or length differ".into()));
        }
        let Some(buffer) = self.buffer(src) else { return Ok(()) };
        let start = src.start * dtype.size();
        let first = start / 4 * 4;
        let whole = (start + len).next_multiple_of(4) - first;
        let mut bytes = Vec::with_capacity(whole);
        for at in (0..whole).step_by(PIECE) {
            let piece = PIECE.min(whole - at);
            bytes.extend(queue.read(buffer, (first + at) as u64, piece as u64)?);
        }
        let bytes = &bytes[start - first..][..len];
        let (words, _) = bytes.as_chunks::<4>();
        match dst {
            HostDataMut::Bytes(to) => to.copy_from_slice(bytes),
            HostDataMut::U32(to) => {
                to.iter_mut().zip(words).for_each(|(to, word)| *to = u32::from_le_bytes(*word));
            }
            HostDataMut::F32(to) if dtype == DType::F32 => {
                to.iter_mut().zip(words).for_each(|(to, word)| *to = f32::from_le_bytes(*word));
            }
            HostDataMut::F32(to) => widen(dtype, bytes, to),
        }
        Ok(())
    }
}

/// Bytes to a place that begins or ends inside a word.
fn write_inside_words(
    (queue, pipelines): (&mut Queue, &mut Pipelines),
    buffer: &wgpu::Buffer,
    start: usize,
    bytes: &[u8],
) -> Result<(), BackendError> {
    let (first, head) = (start / 4, start % 4);
    let end = start + bytes.len();
    let count = end.div_ceil(4) - first;
    let mut padded = vec![0; 4 * count];
    padded[head..head + bytes.len()].copy_from_slice(bytes);
    let tail = end - 4 * (first + count - 1);
    let words = queue.staged(&padded)?;
    let call = Call {
        kernel: &kernels::COPY,
        constants: Vec::new(),
        operands: Vec::new(),
        words: Words::of(&[first, count, head, tail]),
        grid: invocations(count),
        work: Cost::default(),
    };
    let operands = [Some(words), Some(buffer.clone())];
    if let Some(launch) = pipelines.launch(&queue.fault, &call, &operands)? {
        queue.push(launch);
    }
    Ok(())
}

fn widen(dtype: DType, bytes: &[u8], to: &mut [f32]) {
    for (x, bytes) in to.iter_mut().zip(bytes.chunks_exact(dtype.size())) {
        *x = match (dtype, bytes) {
            (DType::F16, &[low, high]) => f16_to_f32(u16::from_le_bytes([low, high])),
            (DType::BF16, &[low, high]) => bf16_to_f32(u16::from_le_bytes([low, high])),
            _ => f32::from(bytes[0] as i8),
        };
    }
}
