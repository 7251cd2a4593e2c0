use super::index;
use crate::{BufferStorage, Memory};
use forerun_backend::BackendError;
use forerun_backend::op::{Attention, AttentionPart, CacheLayout};
use forerun_base::bf16_to_f32;
use std::ops::Range;

pub(crate) fn attention(memory: &mut Memory, op: Attention) -> Result<(), BackendError> {
    let state = op.out.part(0, 0);
    attend(
        memory,
        AttentionPart { whole: op, first: 0, end: usize::MAX, begins: true, ends: true, state },
    )
}

pub(crate) fn attention_part(memory: &mut Memory, op: AttentionPart) -> Result<(), BackendError> {
    check_part(&op, op.whole.layout.block)?;
    attend(memory, op)
}

/// Refuses parts that do not begin and end at multiples of `keys`.
pub(crate) fn check_part(op: &AttentionPart, keys: usize) -> Result<(), BackendError> {
    if op.first.is_multiple_of(keys) && (op.ends || op.end.is_multiple_of(keys)) {
        return Ok(());
    }
    let what = "keys are cut inside a chunk";
    Err(BackendError::Parameter { op: "attention_part", what })
}

fn attend(memory: &mut Memory, part: AttentionPart) -> Result<(), BackendError> {
    let op = part.whole;
    let CacheLayout { blocks, kv_heads, block, head_dim, .. } = op.layout;
    let width = AttentionPart::state_width(head_dim);
    memory.lend([op.out, part.state], |memory, [out, state]| {
        let (q, tables) = (memory.f32(op.q), memory.u32(op.tables));
        let (positions, span_of) = (memory.u32(op.positions), memory.u32(op.span_of));
        let (k, v) = (memory.storage(op.k_cache.buffer), memory.storage(op.v_cache.buffer));
        let state = state.f32_mut(part.state);
        let heads = q.chunks_exact(head_dim).zip(out.f32_mut(op.out).chunks_exact_mut(head_dim));
        for (i, (q, out)) in heads.enumerate() {
            let (row, head) = (i / op.heads, i % op.heads / (op.heads / kv_heads));
            let line = index("attention", "span_of", span_of[row], tables.len() / op.table_width)?;
            let keys = (positions[row] as usize).saturating_add(1);
            if keys > op.table_width * block {
                let (index, limit) = (keys - 1, op.table_width * block);
                let (op, operand) = ("attention", "positions");
                return Err(BackendError::Index { op, operand, index, limit });
            }
            let mut softmax = OnlineSoftmax::new(out);
            if !part.begins {
                softmax.resume(&state[i * width..(i + 1) * width]);
            }
            let first = Attention::first_key(op.window, keys - 1).max(part.first);
            let end = keys.min(part.end).max(first);
            for b in first / block..end.div_ceil(block) {
                let seen = first.saturating_sub(b * block)..block.min(end - b * block);
                if seen.is_empty() {
                    continue;
                }
                let id = tables[line * op.table_width + b];
                let id = index("attention", "tables", id, blocks)?;
                let at = op.layout.part(id, head);
                let (k_at, v_at) = (op.k_cache.start + at, op.v_cache.start + at);
                let cache = CacheBlock { k, v, k_at, v_at, layout: op.layout };
                softmax.block(q, cache, seen, op.scale);
            }
            match part.ends {
                true => softmax.finish(),
                false => softmax.keep(&mut state[i * width..(i + 1) * width]),
            }
        }
        Ok(())
    })
}

/// One head's keys and values of one block.
struct CacheBlock<'a> {
    k: &'a BufferStorage,
    v: &'a BufferStorage,
    k_at: usize,
    v_at: usize,
    layout: CacheLayout,
}

impl CacheBlock<'_> {
    /// Element `i` of a key.
    fn key(&self, key: usize, i: usize) -> f32 {
        let number = self.k.get(self.k_at + self.layout.key(0, 0, key, i));
        number * self.scale(self.k, self.k_at, key, i)
    }

    /// Element `i` of a key's value.
    fn value(&self, key: usize, i: usize) -> f32 {
        let number = self.v.get(self.v_at + self.layout.value(0, 0, key, i));
        number * self.scale(self.v, self.v_at, key, i)
    }

    /// What element `i` of a key or value is multiplied by, in a part that begins at `at`.
    fn scale(&self, cache: &BufferStorage, at: usize, key: usize, i: usize) -> f32 {
        if !self.layout.coded {
            return 1.0;
        }
        let scale = at + self.layout.scale(0, 0, key, i / CacheLayout::GROUP);
        let bytes = &cache.codes()[scale..];
        bf16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}

/// Softmax-weighted sum built block by block: running maximum, sum and weighted values.
struct OnlineSoftmax<'a> {
    max: f32,
    sum: f32,
    out: &'a mut [f32],
}

impl<'a> OnlineSoftmax<'a> {
    fn new(out: &'a mut [f32]) -> Self {
        out.fill(0.0);
        Self { max: f32::NEG_INFINITY, sum: 0.0, out }
    }

    fn block(&mut self, q: &[f32], cache: CacheBlock<'_>, seen: Range<usize>, scale: f32) {
        let score = |key: usize| -> f32 {
            let dot: f32 = q.iter().enumerate().map(|(i, q)| q * cache.key(key, i)).sum();
            dot * scale
        };
        let scores: Vec<f32> = seen.clone().map(score).collect();
        let max = scores.iter().copied().fold(self.max, f32::max);
        let shrink = (self.max - max).exp();
        self.sum *= shrink;
        self.out.iter_mut().for_each(|o| *o *= shrink);
        for (key, score) in seen.zip(scores) {
            let p = (score - max).exp();
            self.sum += p;
            for (i, o) in self.out.iter_mut().enumerate() {
                *o += p * cache.value(key, i);
            }
        }
        self.max = max;
    }

    /// Goes on from what [`Self::keep`] kept.
    fn resume(&mut self, state: &[f32]) {
        let (values, rest) = state.split_at(self.out.len());
        self.out.copy_from_slice(values);
        (self.max, self.sum) = (rest[0], rest[1]);
    }

    fn keep(self, state: &mut [f32]) {
        let (values, rest) = state.split_at_mut(self.out.len());
        values.copy_from_slice(self.out);
        rest.copy_from_slice(&[self.max, self.sum]);
    }

    fn finish(self) {
        self.out.iter_mut().for_each(|o| *o /= self.sum);
    }
}
