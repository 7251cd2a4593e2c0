use super::index;
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{Embed, GatherRows, ScatterRows, ScatterWords};

pub(crate) fn embed(memory: &mut Memory, op: Embed) -> Result<(), BackendError> {
    memory.lend([op.out], |memory, [out]| {
        let table = memory.matrix(op.table);
        let rows = out.f32_mut(op.out).chunks_exact_mut(table.cols());
        for (&id, row) in memory.u32(op.ids).iter().zip(rows) {
            table.decode_row(index("embed", "ids", id, table.rows())?, row);
            row.iter_mut().for_each(|x| *x *= op.scale);
        }
        Ok(())
    })
}

pub(crate) fn gather_rows(memory: &mut Memory, op: GatherRows) -> Result<(), BackendError> {
    memory.lend([op.out], |memory, [out]| {
        let x = memory.f32(op.x);
        let rows = out.f32_mut(op.out).chunks_exact_mut(op.dim);
        for (&row, to) in memory.u32(op.rows).iter().zip(rows) {
            let row = index("gather_rows", "rows", row, x.len() / op.dim)?;
            to.copy_from_slice(&x[row * op.dim..(row + 1) * op.dim]);
        }
        Ok(())
    })
}

pub(crate) fn scatter_rows(memory: &mut Memory, op: ScatterRows) -> Result<(), BackendError> {
    memory.lend([op.out], |memory, [out]| {
        let (x, out) = (memory.f32(op.x), out.f32_mut(op.out));
        for (x, &row) in x.chunks_exact(op.dim).zip(memory.u32(op.rows)) {
            let row = index("scatter_rows", "rows", row, out.len() / op.dim)?;
            out[row * op.dim..(row + 1) * op.dim].copy_from_slice(x);
        }
        Ok(())
    })
}

pub(crate) fn scatter_words(memory: &mut Memory, op: ScatterWords) -> Result<(), BackendError> {
    memory.lend([op.out], |memory, [out]| {
        let (words, out) = (memory.u32(op.words), out.u32_mut(op.out));
        for (&from, &to) in memory.u32(op.from).iter().zip(memory.u32(op.to)) {
            let from = index("scatter_words", "from", from, words.len())?;
            let word = if words[from] < op.limit { words[from] } else { 0 };
            out[index("scatter_words", "to", to, out.len())?] = word;
        }
        Ok(())
    })
}
