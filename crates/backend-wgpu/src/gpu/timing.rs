//! How long the adapter itself says that a submission took, where it has a clock.

use std::time::Duration;

/// Bytes of two times.
pub(crate) const BYTES: u64 = 16;

/// Notes when the first pass of a submission begins and when its last one ends.
pub(crate) struct Timer {
    times: wgpu::QuerySet,
    resolved: wgpu::Buffer,
}

impl Timer {
    /// One of a device that has a clock.
    pub(crate) fn new(device: &wgpu::Device) -> Option<Self> {
        if !device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            return None;
        }
        let times = device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("times"),
            ty: wgpu::QueryType::Timestamp,
            count: 2,
        });
        let resolved = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("times"),
            size: BYTES,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        Some(Self { times, resolved })
    }

    /// What pass number `pass` of `last`, counted from one, notes.
    pub(crate) fn of_pass(
        &self,
        pass: usize,
        last: usize,
    ) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        (pass == 1 || pass == last).then(|| wgpu::ComputePassTimestampWrites {
            query_set: &self.times,
            beginning_of_pass_write_index: (pass == 1).then_some(0),
            end_of_pass_write_index: (pass == last).then_some(1),
        })
    }

    /// Leaves the times in a buffer that the host reads.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder, to: &wgpu::Buffer, at: u64) {
        encoder.resolve_query_set(&self.times, 0..2, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, to, at, BYTES);
    }
}

/// The time between two that a timer left, in units of so many nanoseconds; nothing where they make no sense.
pub(crate) fn took(bytes: &[u8], period: f32) -> Option<Duration> {
    let (words, _) = bytes.as_chunks::<8>();
    let [began, ended] = words else { return None };
    let [began, ended] = [began, ended].map(|word| u64::from_le_bytes(*word));
    let ticks = ended.checked_sub(began).filter(|_| began > 0)?;
    Duration::try_from_secs_f64(ticks as f64 * f64::from(period) * 1e-9).ok()
}

#[cfg(test)]
mod tests {
    use super::took;
    use std::time::Duration;

    #[test]
    fn times_that_make_no_sense_are_none() {
        let bytes = |times: [u64; 2]| times.map(u64::to_le_bytes).concat();
        assert_eq!(took(&bytes([1000, 4000]), 2.0), Some(Duration::from_micros(6)));
        for wrong in [[0, 5], [9, 8], [0, 0]] {
            assert_eq!(took(&bytes(wrong), 1.0), None, "{wrong:?}");
        }
        assert_eq!(took(&bytes([1, 2]), f32::NAN), None);
    }
}
