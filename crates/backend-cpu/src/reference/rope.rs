use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::RopeTable;

/// A shifted position, as f32.
pub(crate) fn shifted(position: u32, shift: u32) -> f32 {
    (u64::from(position) + u64::from(shift)) as f32
}

pub(crate) fn rope_table(memory: &mut Memory, op: RopeTable) -> Result<(), BackendError> {
    let pairs = memory.matrix(op.inv_freq).cols();
    let mut inv_freq = vec![0.0; pairs];
    memory.vector(op.inv_freq, &mut inv_freq);
    if pairs == 0 {
        return Ok(());
    }
    memory.lend([op.out], |memory, [out]| {
        let rows = out.f32_mut(op.out).chunks_exact_mut(2 * pairs);
        for (&position, row) in memory.u32(op.positions).iter().zip(rows) {
            let (cos, sin) = row.split_at_mut(pairs);
            for ((cos, sin), &inv) in cos.iter_mut().zip(sin).zip(&inv_freq) {
                let angle = shifted(position, op.shift) * inv;
                *cos = angle.cos() * op.scale;
                *sin = angle.sin() * op.scale;
            }
        }
        Ok(())
    })
}
