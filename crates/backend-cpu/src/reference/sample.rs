use super::{index, linear, softcap};
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{
    HeadSample, HistoryEntry, Sample, SampleRow, gumbel, passes, reaches, weight,
};

pub(crate) fn sample(memory: &mut Memory, op: Sample) -> Result<(), BackendError> {
    memory.lend([op.out], |memory, [out]| {
        let words = memory.u32(op.rows).chunks_exact(SampleRow::WORDS);
        let logits = memory.f32(op.logits).chunks_exact(op.candidates);
        for ((words, logits), out) in words.zip(logits).zip(out.u32_mut(op.out)) {
            let row = SampleRow::from_words(words);
            let mut logits = logits.to_vec();
            let before = Before {
                vocabulary: op.vocabulary,
                history: memory.u32(op.history),
                ids: memory.u32(op.ids),
                masks: memory.u32(op.masks),
            };
            adjust(&mut logits, &row, before)?;
            logits.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = f32::NEG_INFINITY);
            let any = logits.iter().any(|&x| x > f32::NEG_INFINITY);
            *out = if any { sample_row(&logits, &row) } else { Sample::NO_TOKEN };
        }
        Ok(())
    })
}

pub(crate) fn head_sample(memory: &mut Memory, op: HeadSample) -> Result<(), BackendError> {
    let (product, cap, choice) = op.parts();
    linear(memory, product)?;
    if let Some(cap) = cap {
        softcap(memory, cap)?;
    }
    sample(memory, choice)
}

/// What rows point into for the tokens before them.
#[derive(Clone, Copy)]
pub(crate) struct Before<'a> {
    /// Tokens there are; the first ones have logits.
    pub(crate) vocabulary: usize,
    pub(crate) history: &'a [u32],
    pub(crate) ids: &'a [u32],
    pub(crate) masks: &'a [u32],
}

impl<'a> Before<'a> {
    /// The mask a row names, if it names one.
    pub(crate) fn mask(&self, row: &SampleRow) -> Result<Option<&'a [u32]>, BackendError> {
        let Some(number) = row.mask.checked_sub(1) else { return Ok(None) };
        let words = Sample::mask_words(self.vocabulary);
        let at = index("sample", "masks", number, self.masks.len() / words)?;
        Ok(Some(&self.masks[at * words..(at + 1) * words]))
    }
}

/// Sets the logits of tokens `first..` that a mask leaves out to −∞.
pub(crate) fn mask_out(logits: &mut [f32], first: usize, mask: &[u32]) {
    let (mut rest, mut token) = (logits, first);
    while !rest.is_empty() {
        let (word, bit) = (mask[token / 32] >> (token % 32), token % 32);
        let (some, next) = rest.split_at_mut(rest.len().min(32 - bit));
        if word == 0 {
            some.fill(f32::NEG_INFINITY);
        } else if word != u32::MAX >> bit {
            let left_out = some.iter_mut().enumerate().filter(|(i, _)| (word >> i) & 1 == 0);
            left_out.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
        (token, rest) = (token + some.len(), next);
    }
}

/// Applies the mask, bias and penalties: what the committed text and the span's own tokens ask for.
pub(crate) fn adjust(
    logits: &mut [f32],
    row: &SampleRow,
    before: Before<'_>,
) -> Result<(), BackendError> {
    let Before { vocabulary, history, ids, .. } = before;
    if let Some(mask) = before.mask(row)? {
        mask_out(logits, 0, mask);
    }
    let part = |operand, first: u32, len: u32, limit: usize| {
        let end = first.saturating_add(len);
        index("sample", operand, end, limit + 1)?;
        Ok(first as usize..end as usize)
    };
    let entries = history.len() / HistoryEntry::WORDS;
    let entries = part("history", row.history_first, row.history_len, entries)?;
    let ids = &ids[part("ids", row.ids_first, row.ids_len, ids.len())?];
    let (prompt, fresh) = ids.split_at((row.ids_prompt as usize).min(ids.len()));
    let count = |token: u32| fresh.iter().filter(|&&id| id == token).count() as u32;
    for entry in history.chunks_exact(HistoryEntry::WORDS).take(entries.end).skip(entries.start) {
        let entry = HistoryEntry::from_words(entry);
        let token = index("sample", "history", entry.token, vocabulary)?;
        let Some(logit) = logits.get_mut(token) else { continue };
        let generated = entry.generated + count(entry.token);
        let seen = entry.seen || ids.contains(&entry.token);
        *logit = penalised(*logit, row, seen, generated) + entry.bias;
    }
    if !row.has_penalties() {
        return Ok(());
    }
    for (i, &id) in prompt.iter().chain(fresh).enumerate() {
        let known = history.chunks_exact(HistoryEntry::WORDS).take(entries.end).skip(entries.start);
        if ids[..i].contains(&id) || known.into_iter().any(|e| e[0] == id) {
            continue;
        }
        let token = index("sample", "ids", id, vocabulary)?;
        let Some(logit) = logits.get_mut(token) else { continue };
        *logit = penalised(*logit, row, true, count(id));
    }
    Ok(())
}

fn penalised(logit: f32, row: &SampleRow, seen: bool, generated: u32) -> f32 {
    let repeated = match (seen, logit > 0.0) {
        (false, _) => logit,
        (true, true) => logit / row.repetition,
        (true, false) => logit * row.repetition,
    };
    let present = if generated > 0 { row.presence } else { 0.0 };
    repeated - present - row.frequency * generated as f32
}

fn sample_row(logits: &[f32], row: &SampleRow) -> u32 {
    let better = |best: (u32, f32), next: (u32, f32)| if next.1 > best.1 { next } else { best };
    let tokens = 0..logits.len() as u32;
    if row.temperature == 0.0 {
        let scored = tokens.map(|t| (t, logits[t as usize]));
        return scored.reduce(better).map_or(0, |best| best.0);
    }
    let scaled: Vec<f32> = logits.iter().map(|l| l / row.temperature).collect();
    let mut order: Vec<u32> = tokens.collect();
    order.sort_by(|&a, &b| scaled[b as usize].total_cmp(&scaled[a as usize]));
    filter(&scaled, &mut order, row);
    // Noise is drawn in order of id, so equal sums fall to the lower id.
    order.sort_unstable();
    let noisy = |t: u32| (t, scaled[t as usize] + gumbel(row.seed, row.position, t));
    order.into_iter().map(noisy).reduce(better).map_or(0, |best| best.0)
}

/// Leaves the tokens of `order`, best first, that pass the filters. At least one.
fn filter(scaled: &[f32], order: &mut Vec<u32>, row: &SampleRow) {
    let max = scaled[order[0] as usize];
    let weight = |t: &u32| weight(scaled[*t as usize] - max);
    if row.top_k > 0 {
        order.truncate(row.top_k as usize);
    }
    if row.top_p < 1.0 {
        let total = order.iter().map(weight).sum();
        let mut sum = 0;
        let reach = order.iter().position(|t| {
            sum += weight(t);
            reaches(row.top_p, sum, total)
        });
        order.truncate(reach.map_or(order.len(), |last| last + 1));
    }
    if row.min_p > 0.0 {
        let best = order[0];
        order.retain(|t| *t == best || passes(row.min_p, weight(t)));
    }
}
