use super::norm::inverse_rms;
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::TurnTails;

pub(crate) fn turn_tails(memory: &mut Memory, op: TurnTails) -> Result<(), BackendError> {
    let mut weight = vec![0.0; if op.norm.is_some() { op.dim } else { 0 }];
    if let Some(norm) = op.norm {
        memory.vector(norm.weight, &mut weight);
    }
    memory.lend([op.x], |memory, [x]| {
        let table = memory.f32(op.table);
        for (i, head) in x.f32_mut(op.x).chunks_exact_mut(op.dim).enumerate() {
            let row = i / op.heads;
            turn_tail(&op, &weight, &table[row * op.rotary..(row + 1) * op.rotary], head);
        }
        Ok(())
    })
}

/// One head.
pub(crate) fn turn_tail(op: &TurnTails, weight: &[f32], angles: &[f32], head: &mut [f32]) {
    if let Some(norm) = op.norm {
        let scale = inverse_rms(head, norm.eps);
        head.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight);
    }
    let tail = head.len() - op.rotary;
    let (cos, sin) = angles.split_at(op.rotary / 2);
    let sign = if op.backwards { -1.0 } else { 1.0 };
    for ((pair, cos), sin) in head[tail..].chunks_exact_mut(2).zip(cos).zip(sin) {
        let (a, b, sin) = (pair[0], pair[1], sign * sin);
        (pair[0], pair[1]) = (a * cos - b * sin, b * cos + a * sin);
    }
}
