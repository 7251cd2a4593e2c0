//! Buffers by their ids, and what goes between them and the host.

use crate::driver::Address;
use crate::mailbox::Mailbox;
use crate::queue::Queue;
use forerun_backend::{
    BackendError, BufferId, BufferInfo, BufferRole, BufferSpec, HostData, HostDataMut, View,
};
use forerun_base::{DType, bf16_to_f32, f16_to_f32};
use std::ops::Range;

/// All buffers of the device.
#[derive(Debug, Default)]
pub(crate) struct DeviceBuffers {
    buffers: Vec<(Address, BufferInfo)>,
}

impl DeviceBuffers {
    pub(crate) fn info(&self, id: BufferId) -> Option<BufferInfo> {
        self.buffers.get(id.0 as usize).map(|(_, info)| *info)
    }

    /// The address of a view, which `OpDesc::check` has compared with its buffer.
    pub(crate) fn at(&self, view: View) -> Address {
        let (address, info) = self.buffers[view.buffer.0 as usize];
        // An empty view may begin anywhere and is never dereferenced.
        let start = if view.len == 0 { 0 } else { view.start };
        address.offset((start * info.dtype.size()) as u64)
    }

    /// The addresses of a view.
    pub(crate) fn range(&self, view: View) -> Range<u64> {
        let at = self.at(view).0;
        at..at + (view.len * self.dtype(view).size()) as u64
    }

    /// The type of a view's elements.
    pub(crate) fn dtype(&self, view: View) -> DType {
        self.buffers[view.buffer.0 as usize].1.dtype
    }

    pub(crate) fn alloc(
        &mut self,
        queue: &mut Queue,
        spec: BufferSpec<'_>,
    ) -> Result<BufferId, BackendError> {
        let BufferSpec { label, dtype, len, role } = spec;
        let none = || BackendError::OutOfMemory { label: label.to_owned(), bytes: usize::MAX };
        let bytes = len.checked_mul(dtype.size()).ok_or_else(none)? as u64;
        let address = queue.alloc(label, bytes)?;
        if role == BufferRole::State {
            // Positions of a cache that were never written must not hold NaN, which a product with zero keeps.
            // SAFETY: `address` was just allocated with this size.
            unsafe { queue.driver_mut().fill(address, 0, bytes) }?;
        }
        self.buffers.push((address, BufferInfo { dtype, len }));
        Ok(BufferId(self.buffers.len() as u32 - 1))
    }

    /// A view of a call by the host, checked.
    pub(crate) fn check(&self, op: &'static str, view: View) -> Result<DType, BackendError> {
        let info = self
            .info(view.buffer)
            .filter(|info| view.start.checked_add(view.len).is_some_and(|end| end <= info.len));
        let info = info.ok_or(BackendError::OutOfRange { op, operand: "view" })?;
        Ok(info.dtype)
    }

    pub(crate) fn write(
        &mut self,
        queue: &mut Queue,
        dst: View,
        src: HostData<'_>,
    ) -> Result<(), BackendError> {
        let dtype = self.check("write", dst)?;
        let bytes = match src {
            HostData::F32(from) if dtype == DType::F32 => bytes_of(from),
            HostData::U32(from) if dtype == DType::U32 => bytes_of(from),
            HostData::Bytes(from) => from,
            _ => &[],
        };
        if bytes.len() != dst.len * dtype.size() {
            return Err(BackendError::Protocol("write: type or length differ".into()));
        }
        // SAFETY: `check` has compared the view with its buffer, and `bytes` has the view's size.
        Ok(unsafe { queue.driver_mut().copy_in(self.at(dst), bytes) }?)
    }

    pub(crate) fn read(
        &self,
        (queue, mailbox): (&mut Queue, &mut Mailbox),
        src: View,
        dst: HostDataMut<'_>,
    ) -> Result<(), BackendError> {
        let dtype = self.check("read", src)?;
        let at = self.at(src);
        let mut fetch = |bytes: &mut [u8]| {
            if bytes.len() != src.len * dtype.size() {
                return Err(BackendError::Protocol("read: type or length differ".into()));
            }
            if mailbox.take(queue, src, bytes) {
                return Ok(());
            }
            // SAFETY: `check` has compared the view with its buffer, and `bytes` has the view's size.
            Ok(unsafe { queue.driver_mut().copy_out(at, bytes) }?)
        };
        match (dst, dtype) {
            (HostDataMut::Bytes(to), _) => fetch(to),
            (HostDataMut::U32(to), DType::U32) => fetch(bytes_of_mut(to)),
            (HostDataMut::F32(to), DType::F32) => fetch(bytes_of_mut(to)),
            (HostDataMut::F32(to), DType::F16 | DType::BF16 | DType::I8) => {
                let mut bytes = vec![0; to.len() * dtype.size()];
                fetch(&mut bytes)?;
                widen(dtype, &bytes, to);
                Ok(())
            }
            _ => Err(BackendError::Protocol("read: type or length differ".into())),
        }
    }
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

/// Elements of four bytes without padding, any bits of which are a value.
pub(crate) trait Word: Copy {}
impl Word for f32 {}
impl Word for u32 {}

/// Elements as little-endian bytes: every host of CUDA is little-endian.
pub(crate) fn bytes_of<T: Word>(numbers: &[T]) -> &[u8] {
    // SAFETY: `Word` is implemented for f32 and u32 only, which have no padding, and `u8` has no alignment.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

fn bytes_of_mut<T: Word>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: `Word` is implemented for f32 and u32 only: no padding, and any four bytes are a value of either.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}
