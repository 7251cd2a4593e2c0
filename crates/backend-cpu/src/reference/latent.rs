use super::attention_inputs::{RotationTable, write_codes};
use super::index;
use super::norm::inverse_rms;
use crate::{BufferStorage, Memory};
use forerun_backend::BackendError;
use forerun_backend::op::{CacheLayout, HeadLinear, LatentAttention, LatentInputs};
use forerun_base::bf16_to_f32;

pub(crate) fn head_linear(memory: &mut Memory, op: HeadLinear) -> Result<(), BackendError> {
    let HeadLinear { heads, carry, .. } = op;
    memory.lend([op.out], |memory, [out]| {
        let (weight, x) = (memory.matrix(op.weight), memory.f32(op.x));
        let (inner, each) = (weight.cols(), weight.rows() / heads);
        let out = out.f32_mut(op.out).chunks_exact_mut(carry + each);
        let mut line = vec![0.0; inner];
        for (i, (x, out)) in x.chunks_exact(carry + inner).zip(out).enumerate() {
            out[..carry].copy_from_slice(&x[..carry]);
            for (n, out) in out[carry..].iter_mut().enumerate() {
                weight.decode_row(i % heads * each + n, &mut line);
                *out = line.iter().zip(&x[carry..]).map(|(w, x)| w * x).sum();
            }
        }
    });
    Ok(())
}

pub(crate) fn latent_inputs(memory: &mut Memory, op: LatentInputs) -> Result<(), BackendError> {
    let CacheLayout { blocks, block, head_dim: width, coded, .. } = op.layout;
    let mut weight = vec![0.0; memory.matrix(op.norm.weight).cols()];
    memory.vector(op.norm.weight, &mut weight);
    let lead = width - weight.len();
    memory.lend([op.q, op.cache], |memory, [q, cache]| {
        let angles = RotationTable { table: memory.f32(op.table), rotary: op.rotary };
        for (i, head) in q.f32_mut(op.q).chunks_exact_mut(width).enumerate() {
            angles.rotate(head, i / op.heads);
        }
        let rows = memory.f32(op.kv).chunks_exact(width).zip(memory.u32(op.places));
        for (row, (kv, &place)) in rows.enumerate() {
            let place = index("latent_inputs", "places", place, blocks * block)?;
            let (id, at) = (place / block, place % block);
            let mut line = kv.to_vec();
            angles.rotate(&mut line, row);
            let scale = inverse_rms(&kv[lead..], op.norm.eps);
            line[lead..].iter_mut().zip(&weight).for_each(|(x, w)| *x = *x * scale * w);
            let element = |i| op.cache.start + op.layout.value(id, 0, at, i);
            if coded {
                let scale = |group| op.cache.start + op.layout.scale(id, 0, at, group);
                write_codes(&line, cache.codes_mut(), element, scale);
                continue;
            }
            line.iter().enumerate().for_each(|(i, &x)| cache.set(element(i), x));
        }
        Ok(())
    })
}

pub(crate) fn latent_attention(
    memory: &mut Memory,
    op: LatentAttention,
) -> Result<(), BackendError> {
    let CacheLayout { blocks, block, head_dim: width, .. } = op.layout;
    let lead = width - op.latent;
    memory.lend([op.out], |memory, [out]| {
        let (q, tables) = (memory.f32(op.q), memory.u32(op.tables));
        let cache = LatentRows { cache: memory.storage(op.cache.buffer), op: &op };
        let heads = q.chunks_exact(width).zip(out.f32_mut(op.out).chunks_exact_mut(op.latent));
        for (i, (q, out)) in heads.enumerate() {
            let (line, keys) = seen_keys(memory, &op, i / op.heads)?;
            let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0_f32);
            out.fill(0.0);
            for (b, &id) in tables[line..].iter().take(keys.div_ceil(block)).enumerate() {
                let id = index("latent_attention", "tables", id, blocks)?;
                let rows: Vec<Vec<f32>> =
                    (0..block.min(keys - b * block)).map(|at| cache.row(id, at)).collect();
                let dot = |row: &Vec<f32>| q.iter().zip(row).map(|(q, k)| q * k).sum::<f32>();
                let scores: Vec<f32> = rows.iter().map(|row| dot(row) * op.scale).collect();
                let most = scores.iter().copied().fold(max, f32::max);
                let shrink = (max - most).exp();
                sum *= shrink;
                out.iter_mut().for_each(|o| *o *= shrink);
                for (row, score) in rows.iter().zip(scores) {
                    let p = (score - most).exp();
                    sum += p;
                    out.iter_mut().zip(&row[lead..]).for_each(|(o, v)| *o += p * v);
                }
                max = most;
            }
            out.iter_mut().for_each(|o| *o /= sum);
        }
        Ok(())
    })
}

/// Where the row's line of the tables begins, and how many keys it sees.
pub(crate) fn seen_keys(
    memory: &Memory,
    op: &LatentAttention,
    row: usize,
) -> Result<(usize, usize), BackendError> {
    let (lines, context) = (op.tables.len / op.table_width, op.table_width * op.layout.block);
    let line = index("latent_attention", "span_of", memory.u32(op.span_of)[row], lines)?;
    let position = index("latent_attention", "positions", memory.u32(op.positions)[row], context)?;
    Ok((line * op.table_width, position + 1))
}

/// The cache by rows.
struct LatentRows<'a> {
    cache: &'a BufferStorage,
    op: &'a LatentAttention,
}

impl LatentRows<'_> {
    fn row(&self, id: usize, at: usize) -> Vec<f32> {
        let (layout, start) = (self.op.layout, self.op.cache.start);
        let scale = |i: usize| {
            if !layout.coded {
                return 1.0;
            }
            let from = start + layout.scale(id, 0, at, i / CacheLayout::GROUP);
            let bytes = &self.cache.codes()[from..];
            bf16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
        };
        let element = |i| self.cache.get(start + layout.value(id, 0, at, i)) * scale(i);
        (0..layout.head_dim).map(element).collect()
    }
}
