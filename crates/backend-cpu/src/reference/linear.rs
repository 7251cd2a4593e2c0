use super::{glu, rms_norm};
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{Channels, GatedLinear, GroupedLinear, Linear, Linears, Store};

pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(crate) fn linear(memory: &mut Memory, op: Linear) -> Result<(), BackendError> {
    memory.lend([op.out], |memory, [out]| {
        let weight = memory.matrix(op.weight);
        let Channels { first, count: n } = op.channels.unwrap_or(Channels::head(weight.rows()));
        let k = weight.cols();
        let mut bias = vec![0.0; weight.rows()];
        if let Some(id) = op.bias {
            memory.vector(id, &mut bias);
        }
        let x = memory.f32(op.x);
        let out = out.f32_mut(op.out);
        let mut line = vec![0.0; k];
        for channel in 0..n {
            weight.decode_row(first + channel, &mut line);
            for (row, x) in x.chunks_exact(k).enumerate() {
                let product = dot(x, &line) + bias[first + channel];
                let out = &mut out[row * n + channel];
                *out = if op.store == Store::Add { *out + product } else { product };
            }
        }
        Ok(())
    })
}

pub(crate) fn linears(memory: &mut Memory, op: Linears) -> Result<(), BackendError> {
    let (norm, mut products) = op.parts();
    if let Some(norm) = norm {
        rms_norm(memory, norm)?;
    }
    products.try_for_each(|part| linear(memory, part))
}

pub(crate) fn gated_linear(memory: &mut Memory, op: GatedLinear) -> Result<(), BackendError> {
    let (norm, products, join) = op.parts();
    if let Some(norm) = norm {
        rms_norm(memory, norm)?;
    }
    products.into_iter().try_for_each(|part| linear(memory, part))?;
    glu(memory, join)
}

pub(crate) fn grouped_linear(memory: &mut Memory, op: GroupedLinear) -> Result<(), BackendError> {
    in_groups(memory, op, linear)
}

/// The operation with the given product.
pub(crate) fn in_groups(
    memory: &mut Memory,
    op: GroupedLinear,
    mut linear: impl FnMut(&mut Memory, Linear) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    let GroupedLinear { groups, gathered, products, weight, .. } = op;
    let matrix = memory.matrix(weight);
    let (cols, count) = (matrix.cols(), matrix.rows() / groups);
    let rows = op.x.len / (groups * cols);
    memory.lend([gathered], |memory, [to]| {
        transpose(memory.f32(op.x), [rows, groups, cols], to.f32_mut(gathered));
    });
    for group in 0..groups {
        let x = gathered.part(group * rows * cols, rows * cols);
        let out = products.part(group * rows * count, rows * count);
        let channels = Some(Channels { first: group * count, count });
        linear(memory, Linear { channels, ..Linear::set(x, weight, out) })?;
    }
    memory.lend([op.out], |memory, [to]| {
        transpose(memory.f32(products), [groups, rows, count], to.f32_mut(op.out));
    });
    Ok(())
}

/// `[a, b, width]` as `[b, a, width]`.
fn transpose(from: &[f32], [a, b, width]: [usize; 3], to: &mut [f32]) {
    for (i, from) in from.chunks_exact(width).enumerate() {
        let at = (i % b * a + i / b) * width;
        to[at..at + width].copy_from_slice(from);
    }
}
