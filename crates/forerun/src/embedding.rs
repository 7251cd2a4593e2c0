//! A text as a vector: the hidden states of its tokens, pooled.

use crate::Error;
use forerun_base::Token;
use forerun_engine::{Engine, ModelRunner, RowKind};

/// How the hidden states of a text's tokens become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// That of the last token, which has seen the whole text.
    Last,
}

impl Pooling {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Last => "last",
        }
    }
}

/// A text as a vector.
///
/// ```
/// # fn main() -> Result<(), forerun::Error> {
/// use forerun::{Model, Pooling};
///
/// let model = Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m"))?;
/// let embedding = model.embed("The king had three sons.", Pooling::Mean)?;
/// assert_eq!(embedding.cosine(&embedding) as f32, 1.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// As wide as the model's hidden states, of length 1.
    pub vector: Vec<f32>,
    /// Tokens of the text.
    pub tokens: usize,
}

impl Embedding {
    /// Runs the tokens through an engine and pools the hidden states behind the model's last norm.
    pub fn compute(
        engine: &mut Engine<ModelRunner>,
        tokens: &[Token],
        pooling: Pooling,
    ) -> Result<Self, Error> {
        let mut rows = PooledRows::new(pooling);
        engine.read_whole(tokens, RowKind::Hidden, &mut |row| rows.push(row))?;
        rows.finish()
    }

    /// The cosine of the angle between two of the same model.
    pub fn cosine(&self, other: &Self) -> f64 {
        let products = self.vector.iter().zip(&other.vector);
        products.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    }
}

/// Pools rows as they come.
#[derive(Debug)]
pub struct PooledRows {
    pooling: Pooling,
    sum: Vec<f64>,
    rows: usize,
}

impl PooledRows {
    /// No rows yet.
    pub fn new(pooling: Pooling) -> Self {
        Self { pooling, sum: Vec::new(), rows: 0 }
    }

    /// Takes the next row.
    pub fn push(&mut self, row: &[f32]) {
        self.rows += 1;
        let wide = row.iter().copied().map(f64::from);
        if self.rows == 1 || self.pooling == Pooling::Last {
            self.sum.clear();
            self.sum.extend(wide);
        } else {
            // The length comes to 1 either way, so that a sum does for a mean.
            self.sum.iter_mut().zip(wide).for_each(|(sum, value)| *sum += value);
        }
    }

    /// The vector of length 1.
    ///
    /// # Errors
    /// Where a state is not finite, or all are zero.
    pub fn finish(self) -> Result<Embedding, Error> {
        let length = self.sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        if !length.is_finite() || length == 0.0 {
            return Err(Error::Hidden);
        }
        let vector = self.sum.iter().map(|value| (value / length) as f32).collect();
        Ok(Embedding { vector, tokens: self.rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_has_all_rows_and_the_last_has_one_and_both_have_length_1() {
        let pooled = |pooling| {
            let mut rows = PooledRows::new(pooling);
            [[3.0, 0.0], [3.0, 8.0]].iter().for_each(|row| rows.push(row));
            rows.finish().unwrap()
        };
        assert_eq!(pooled(Pooling::Mean), Embedding { vector: vec![0.6, 0.8], tokens: 2 });
        let last = pooled(Pooling::Last).vector;
        assert!((last[0] - 3.0 / 73f32.sqrt()).abs() < 1e-6, "{last:?}");
        let mut broken = PooledRows::new(Pooling::Mean);
        broken.push(&[f32::NAN]);
        assert!(broken.finish().is_err());
        assert!(PooledRows::new(Pooling::Mean).finish().is_err());
    }
}
