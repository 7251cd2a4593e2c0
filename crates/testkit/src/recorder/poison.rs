//! Spoiling memory: NaN in float buffers and in the scales of codes, an index that points nowhere in u32 buffers.

use forerun_backend::{Backend, BackendError, BufferId, BufferInfo, HostData, View};

/// An index that points nowhere.
pub const POISON_INDEX: u32 = u32::MAX;

/// Every bit set: NaN in every type of float.
const POISON_BYTE: u8 = u8::MAX;

/// Spoils all of a buffer.
pub(super) fn spoil(
    inner: &mut dyn Backend,
    buffer: BufferId,
    info: BufferInfo,
) -> Result<(), BackendError> {
    let bytes = vec![POISON_BYTE; info.len * info.dtype.size()];
    inner.write(View::head(buffer, info.len), HostData::Bytes(&bytes))
}
