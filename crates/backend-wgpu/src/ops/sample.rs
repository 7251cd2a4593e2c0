//! Choosing tokens: `sample.wgsl`.

use super::Lowered;
use crate::device::Device;
use crate::kernels::{SAMPLE, site};
use crate::launch::Words;
use crate::pipelines::Call;
use forerun_backend::op::{HistoryEntry, Sample};

/// Bytes of logits that are adjusted at once.
const TOGETHER: usize = 64 << 20;

pub(super) fn sample(device: &mut Device, op: Sample) -> Lowered {
    let rows = op.out.len;
    let each = (TOGETHER / (4 * op.candidates)).clamp(1, rows.max(1));
    let room = device.scratch(0, 4 * each * op.candidates)?;
    for first in (0..rows).step_by(each) {
        let words = Words::of(&[
            op.logits.start,
            op.rows.start,
            op.history.start,
            op.ids.start,
            op.masks.start,
            op.out.start,
            op.candidates,
            op.vocabulary,
            op.history.len / HistoryEntry::WORDS,
            op.ids.len,
            op.masks.len / Sample::mask_words(op.vocabulary),
            site("sample") as usize,
            first,
        ]);
        let memory = &device.memory;
        let call = Call {
            kernel: &SAMPLE,
            constants: &[],
            operands: &[
                memory.buffer(op.logits),
                memory.buffer(op.rows),
                memory.buffer(op.history),
                memory.buffer(op.ids),
                memory.buffer(op.masks),
                memory.buffer(op.out),
                Some(&room),
            ],
            words: words.map(|words| words.float(-0.0)),
            grid: [each.min(rows - first), 1, 1],
        };
        Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)?;
    }
    Ok(())
}
