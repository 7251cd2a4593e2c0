//! Spoiling memory: NaN in float buffers, an index that points nowhere in u32 buffers.

use forerun_backend::op::{CacheLayout, CacheWrite};
use forerun_backend::{
    Backend, BackendError, BufferId, BufferInfo, BufferRole, BufferSpec, HostData, View,
};
use forerun_base::DType;

/// An index that points nowhere.
pub const POISON_INDEX: u32 = u32::MAX;

/// Elements of a half-precision buffer spoiled by one call.
const CHUNK: usize = 4096;

/// Buffers of the inner device, unknown to the caller, from which halves are spoiled: the seam
/// has no host write to half buffers, but a cache write converts.
#[derive(Debug)]
struct Source {
    nan: View,
    place: View,
    /// The second cache a cache write needs, by element type.
    waste: [(DType, BufferId); 2],
}

/// Spoils buffers of one inner device.
#[derive(Debug, Default)]
pub(super) struct Poison {
    source: Option<Source>,
}

impl Poison {
    pub(super) fn spoil(
        &mut self,
        inner: &mut dyn Backend,
        buffer: BufferId,
        info: BufferInfo,
    ) -> Result<(), BackendError> {
        let all = View::head(buffer, info.len);
        match info.dtype {
            DType::F32 => inner.write(all, HostData::F32(&vec![f32::NAN; info.len])),
            DType::U32 => inner.write(all, HostData::U32(&vec![POISON_INDEX; info.len])),
            _ => self.spoil_halves(inner, all, info.dtype),
        }
    }

    fn spoil_halves(
        &mut self,
        inner: &mut dyn Backend,
        all: View,
        dtype: DType,
    ) -> Result<(), BackendError> {
        let source = match &mut self.source {
            Some(source) => source,
            none => none.insert(Source::new(inner)?),
        };
        let waste = source.waste.iter().find(|(d, _)| *d == dtype).map(|(_, id)| *id);
        let Some(waste) = waste else { return Ok(()) };
        for start in (0..all.len).step_by(CHUNK) {
            let len = CHUNK.min(all.len - start);
            inner.cache_write(CacheWrite {
                k: source.nan.part(0, len),
                v: source.nan.part(0, len),
                places: source.place,
                k_cache: all.part(start, len),
                v_cache: View::head(waste, len),
                layout: CacheLayout { blocks: 1, kv_heads: 1, block: 1, head_dim: len },
            })?;
        }
        Ok(())
    }
}

impl Source {
    fn new(inner: &mut dyn Backend) -> Result<Self, BackendError> {
        let mut make = |dtype, len| {
            inner.alloc(BufferSpec { label: "poison", dtype, len, role: BufferRole::State })
        };
        let nan = View::head(make(DType::F32, CHUNK)?, CHUNK);
        let place = View::head(make(DType::U32, 1)?, 1);
        let waste =
            [(DType::F16, make(DType::F16, CHUNK)?), (DType::BF16, make(DType::BF16, CHUNK)?)];
        inner.write(nan, HostData::F32(&[f32::NAN; CHUNK]))?;
        inner.write(place, HostData::U32(&[0]))?;
        Ok(Self { nan, place, waste })
    }
}
