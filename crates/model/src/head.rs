//! The end of a pass: rows on their way to logits.

use forerun_backend::op::{Channels, HeadSample, Linear, Sample, Softcap};
use forerun_backend::{Op, View, WeightId};

/// What a pass leaves of its sampled rows. The caller of the pass knows what is wanted of them.
#[derive(Clone, Copy, Debug)]
pub enum Head {
    /// Rows whose product with a head is still to be made.
    Hidden(HeadProduct),
    /// Logits of the whole vocabulary, which a drafter found in a way of its own.
    Logits(View),
}

/// How tokens are chosen: a [`Sample`] without its logits.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "each field is documented at the operation")]
pub struct Choice {
    pub rows: View,
    pub history: View,
    pub ids: View,
    pub masks: View,
    pub out: View,
}

/// The product of rows with a head.
#[derive(Clone, Copy, Debug)]
pub struct HeadProduct {
    /// `[rows, hidden]`.
    pub(crate) x: View,
    /// `[vocabulary, hidden]`.
    pub(crate) weight: WeightId,
    /// Scratch of `[rows, vocabulary]`.
    pub(crate) logits: View,
    /// Logits stay below this.
    pub(crate) cap: Option<f32>,
    pub(crate) vocabulary: usize,
    /// Tokens that get logits, lowest ids first.
    pub(crate) tokens: usize,
}

impl Head {
    /// The same over the first `tokens` tokens alone, where it is not too late.
    #[must_use]
    pub fn first(self, tokens: usize) -> Self {
        match self {
            Self::Hidden(product) => Self::Hidden(HeadProduct { tokens, ..product }),
            Self::Logits(_) => self,
        }
    }

    /// Adds what is missing and the choice of a token per row. Nobody sees the logits.
    pub fn sample(self, ops: &mut Vec<Op>, choice: Choice) {
        let Choice { rows, history, ids, masks, out } = choice;
        let of = |logits: View, vocabulary| {
            let candidates = logits.len / out.len.max(1);
            Sample { logits, candidates, vocabulary, rows, history, ids, masks, out }
        };
        match self {
            Self::Hidden(product) => {
                let HeadProduct { x, weight, cap, vocabulary, .. } = product;
                let sample = of(product.logits(), vocabulary);
                ops.push(HeadSample { x, weight, cap, sample }.into());
            }
            Self::Logits(logits) => {
                ops.push(of(logits, logits.len / out.len.max(1)).into());
            }
        }
    }

    /// Adds what is missing; the rows' logits, side by side.
    pub fn logits(self, ops: &mut Vec<Op>) -> View {
        match self {
            Self::Hidden(product) => product.add(ops),
            Self::Logits(logits) => logits,
        }
    }
}

impl HeadProduct {
    /// Where the logits of its tokens go.
    fn logits(&self) -> View {
        self.logits.part(0, self.logits.len / self.vocabulary * self.tokens)
    }

    fn add(self, ops: &mut Vec<Op>) -> View {
        let Self { x, weight, cap, tokens, .. } = self;
        let out = self.logits();
        if out.len > 0 {
            ops.push(
                Linear { channels: Some(Channels::head(tokens)), ..Linear::set(x, weight, out) }
                    .into(),
            );
            if let Some(cap) = cap {
                ops.push(Softcap { x: out, cap }.into());
            }
        }
        out
    }
}
