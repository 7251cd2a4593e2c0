//! Choosing tokens: `sample.wgsl`.

use super::Lowered;
use crate::gpu::kernels::{SAMPLE, site};
use crate::gpu::launch::{Call, Words};
use crate::gpu::lowering::{Lowering, bound, portion};
use forerun_backend::op::{HistoryEntry, Sample};

/// Bytes of logits that are adjusted at once.
const TOGETHER: usize = 64 << 20;

pub(super) fn sample(to: &mut Lowering<'_>, op: Sample) -> Lowered {
    let rows = op.out.len;
    let each = (TOGETHER / (4 * op.candidates)).clamp(1, rows.max(1));
    let room = to.scratch(0, 4 * each * op.candidates);
    let work = to.work(op);
    for first in (0..rows).step_by(each) {
        let count = each.min(rows - first);
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
        let views = [op.logits, op.rows, op.history, op.ids, op.masks, op.out];
        to.calls.push(Call {
            kernel: &SAMPLE,
            constants: Vec::new(),
            operands: views.into_iter().map(bound).chain([room]).collect(),
            words: words.map(|words| words.float(-0.0)),
            grid: [count, 1, 1],
            work: portion(work, count, rows),
        });
    }
    Ok(())
}
