//! Norms, biases and kernels as the tuned kernels read them.

use crate::Memory;
use forerun_backend::WeightId;

/// Small weights as f32, decoded when first used.
#[derive(Debug, Default)]
pub(crate) struct SmallWeights(Vec<Box<[f32]>>);

impl SmallWeights {
    pub(crate) fn get(&self, id: WeightId) -> &[f32] {
        &self.0[id.0 as usize]
    }

    /// Decodes a weight unless that was done; with `transposed` its columns become rows.
    pub(crate) fn prepare(&mut self, memory: &Memory, id: WeightId, transposed: bool) {
        let (at, matrix) = (id.0 as usize, memory.matrix(id));
        let (rows, cols) = (matrix.rows(), matrix.cols());
        if self.0.len() <= at {
            self.0.resize_with(at + 1, Box::default);
        }
        if self.0[at].len() == rows * cols {
            return;
        }
        let mut all = vec![0.0; rows * cols];
        let mut line = vec![0.0; cols];
        for row in 0..rows {
            matrix.decode_row(row, &mut line);
            for (col, &x) in line.iter().enumerate() {
                all[if transposed { col * rows + row } else { row * cols + col }] = x;
            }
        }
        self.0[at] = all.into();
    }

    /// All rows of a weight, most often one.
    pub(crate) fn vector(&mut self, memory: &Memory, id: WeightId) -> &[f32] {
        self.prepare(memory, id, false);
        self.get(id)
    }
}
