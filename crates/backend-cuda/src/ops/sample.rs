//! Choosing tokens: `sample.cu`.

use super::products::linear_in;
use super::{Done, softcap};
use crate::cuda::Device;
use crate::driver::{Address, Args};
use crate::kernels::SAMPLE;
use crate::products::Precision;
use crate::queue::site;
use forerun_backend::op::{HeadSample, HistoryEntry, Sample};

pub(crate) fn sample(device: &mut Device, op: Sample) -> Done {
    let scratch = device.queue.scratch(4 * op.logits.len as u64)?;
    choose(device, op, scratch)
}

/// The head multiplies in full precision even in `Precision::Half`. Logits that no later operation reads are adjusted
/// in place.
pub(crate) fn head_sample(device: &mut Device, op: HeadSample) -> Done {
    let (product, cap, choice) = op.parts();
    linear_in(device, product, Precision::Exact)?;
    if let Some(cap) = cap {
        softcap(device, cap)?;
    }
    let scratch = device.memory.at(choice.logits);
    choose(device, choice, scratch)
}

/// Logits that a block looks through for the largest.
const SHARE: usize = 4096;
/// Bytes of what blocks of a row have in common.
const BEST: usize = 16;

fn choose(device: &mut Device, op: Sample, scratch: Address) -> Done {
    let best = device.queue.counters(op.out.len * BEST / 4)?;
    let memory = &device.memory;
    let args = Args::new()
        .with(memory.at(op.logits))
        .with(memory.at(op.rows))
        .with(memory.at(op.history))
        .with(memory.at(op.ids))
        .with(memory.at(op.masks))
        .with(memory.at(op.out))
        .with(scratch)
        .with(best)
        .with(device.queue.fault)
        .with(site("sample"))
        .size(op.candidates)
        .size(op.vocabulary)
        .size(op.history.len / HistoryEntry::WORDS)
        .size(op.ids.len)
        .size(op.masks.len / Sample::mask_words(op.vocabulary));
    let shares = op.candidates.div_ceil(SHARE).max(1);
    device.queue.run((&SAMPLE, "sample"), [op.out.len, shares, 1], 512, &args)
}
