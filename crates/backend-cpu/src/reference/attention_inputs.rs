use super::index;
use super::norm::inverse_rms;
use crate::{BufferStorage, Memory};
use forerun_backend::op::{AttentionInputs, CacheLayout, HeadNorm, NewKeys, code, encode};
use forerun_backend::{BackendError, View};

/// A norm's weight and what is added to the mean square.
type NormWeights = Option<(Vec<f32>, f32)>;

pub(crate) fn attention_inputs(
    memory: &mut Memory,
    op: AttentionInputs,
) -> Result<(), BackendError> {
    let norm = |memory: &Memory, norm: Option<HeadNorm>| -> NormWeights {
        norm.map(|norm| {
            let mut weight = vec![0.0; op.head_dim];
            memory.vector(norm.weight, &mut weight);
            (weight, norm.eps)
        })
    };
    if let Some(queries) = op.queries {
        let norm = norm(memory, queries.norm);
        memory.lend([queries.q], |memory, [q]| {
            let angles = RotationTable { table: memory.f32(op.table), rotary: op.rotary };
            let heads = q.f32_mut(queries.q).chunks_exact_mut(op.head_dim);
            for (i, head) in heads.enumerate() {
                apply_norm(head, &norm);
                angles.rotate(head, i / queries.heads);
            }
        });
    }
    let Some(keys) = op.keys else { return Ok(()) };
    let norms = [norm(memory, keys.k_norm), norm(memory, keys.v_norm)];
    memory.lend([keys.k_cache, keys.v_cache], |memory, caches| {
        let angles = RotationTable { table: memory.f32(op.table), rotary: op.rotary };
        keep(memory, &keys, &norms, &angles, caches)
    })
}

fn apply_norm(head: &mut [f32], norm: &NormWeights) {
    if let Some((weight, eps)) = norm {
        let scale = inverse_rms(head, *eps);
        for (x, w) in head.iter_mut().zip(weight) {
            *x = *x * scale * w;
        }
    }
}

/// Cosines and sines, `rotary` for each row.
pub(super) struct RotationTable<'a> {
    pub(super) table: &'a [f32],
    pub(super) rotary: usize,
}

impl RotationTable<'_> {
    pub(super) fn rotate(&self, head: &mut [f32], row: usize) {
        let half = self.rotary / 2;
        let (cos, sin) = self.table[row * self.rotary..(row + 1) * self.rotary].split_at(half);
        for j in 0..half {
            let (a, b) = (head[j], head[j + half]);
            head[j] = a * cos[j] - b * sin[j];
            head[j + half] = b * cos[j] + a * sin[j];
        }
    }
}

/// Keys and values of all rows to the cache.
fn keep(
    memory: &Memory,
    keys: &NewKeys,
    [k_norm, v_norm]: &[NormWeights; 2],
    angles: &RotationTable<'_>,
    [k_cache, v_cache]: [&mut BufferStorage; 2],
) -> Result<(), BackendError> {
    let layout = keys.layout;
    let CacheLayout { blocks, kv_heads, block, head_dim, coded, .. } = layout;
    for (row, &place) in memory.u32(keys.places).iter().enumerate() {
        let place = index("attention_inputs", "places", place, blocks * block)?;
        let (id, at) = (place / block, place % block);
        for head in 0..kv_heads {
            let from = (row * kv_heads + head) * head_dim;
            let part = |view: View| memory.f32(view)[from..from + head_dim].to_vec();
            let (mut k, mut v) = (part(keys.k), part(keys.v));
            apply_norm(&mut k, k_norm);
            angles.rotate(&mut k, row);
            apply_norm(&mut v, v_norm);
            let key = |i| keys.k_cache.start + layout.key(id, head, at, i);
            let value = |i| keys.v_cache.start + layout.value(id, head, at, i);
            if coded {
                let scale = |group| layout.scale(id, head, at, group);
                write_codes(&k, k_cache.codes_mut(), key, |i| keys.k_cache.start + scale(i));
                write_codes(&v, v_cache.codes_mut(), value, |i| keys.v_cache.start + scale(i));
                continue;
            }
            for i in 0..head_dim {
                k_cache.set(key(i), k[i]);
                v_cache.set(value(i), v[i]);
            }
        }
    }
    Ok(())
}

/// Writes a key or value as codes, whose places `place` gives, and scales, whose places `scale` gives.
pub(super) fn write_codes(
    x: &[f32],
    to: &mut [u8],
    place: impl Fn(usize) -> usize,
    scale: impl Fn(usize) -> usize,
) {
    for (group, numbers) in x.chunks(CacheLayout::GROUP).enumerate() {
        let (bits, inverse) = encode(numbers);
        to[scale(group)..][..2].copy_from_slice(&bits.to_le_bytes());
        for (i, &x) in numbers.iter().enumerate() {
            to[place(group * CacheLayout::GROUP + i)] = code(x, inverse) as u8;
        }
    }
}
