//! What rows cost in a mixture of experts: the weights of every expert that any of them chooses.

use forerun_model::{MlpSpec, ModelSpec};

/// The mixture of a model, as far as it decides what rows cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertCost {
    /// Experts in a layer.
    pub experts: usize,
    /// Experts that each row chooses.
    pub top_k: usize,
    /// Share of the weights that a step of one row reads which are those of the experts it chooses.
    pub share: f32,
}

impl ExpertCost {
    /// The mixture of a network; none where every layer is dense.
    pub fn of(spec: &ModelSpec) -> Option<Self> {
        let (mut chosen, mut all) = (0, spec.vocabulary * spec.hidden);
        let mut mixture = None;
        for layer in &spec.layers {
            let (dense, moe) = match &layer.mlp {
                MlpSpec::Dense(width) | MlpSpec::Sparse { ffn: width, .. } => (*width, None),
                MlpSpec::Moe(moe) | MlpSpec::Hashed(moe) => (0, Some(moe)),
                MlpSpec::Beside { dense, moe } => (*dense, Some(moe)),
                MlpSpec::None => (0, None),
            };
            let shared = moe.and_then(|moe| moe.shared).map_or(0, |shared| shared.width);
            let routed = moe.map_or(0, |moe| 3 * spec.hidden * moe.top_k * moe.ffn);
            chosen += routed;
            all += routed + 3 * spec.hidden * (dense + shared) + layer.mixer.weights(spec.hidden);
            mixture = mixture.or(moe);
        }
        let moe = mixture?;
        let share = chosen as f32 / all as f32;
        Some(Self { experts: moe.experts, top_k: moe.top_k, share })
    }

    /// The number of distinct experts that so many rows are expected to choose, if each row chooses on its own:
    /// `E·(1 − (1 − k/E)^n)`.
    pub fn touched(&self, rows: usize) -> f32 {
        let (experts, top_k) = (self.experts as f32, self.top_k as f32);
        experts * (1.0 - (1.0 - top_k / experts).powi(rows as i32))
    }
}

/// What a step of so many rows reads and computes beside one of a single row, as far as the network tells: all of the
/// dense weights once, those of each expert that is touched, and `row_share` of the rest for each further row. Times
/// that were measured come first; this is for the rows between and beyond them.
pub(super) fn relative_work(experts: Option<ExpertCost>, rows: usize, row_share: f32) -> f32 {
    let (share, touched) =
        experts.map_or((0.0, 1.0), |e| (e.share, e.touched(rows) / e.touched(1)));
    share * touched + (1.0 - share) * (1.0 + row_share * (rows.max(1) - 1) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERTS: ExpertCost = ExpertCost { experts: 256, top_k: 8, share: 0.5 };

    #[test]
    fn rows_touch_as_many_experts_as_chance_says() {
        for (rows, touched) in [(1, 8.0), (2, 15.75), (4, 30.5), (64, 222.4)] {
            assert!((EXPERTS.touched(rows) - touched).abs() < 0.1, "{rows}");
        }
        assert!(EXPERTS.touched(100_000) <= 256.0);
        assert_eq!(ExpertCost { experts: 4, top_k: 4, share: 1.0 }.touched(9), 4.0);
    }

    #[test]
    fn work_follows_the_experts_and_not_the_rows() {
        let work = |experts, rows| relative_work(experts, rows, 0.1);
        assert_eq!(work(None, 1), 1.0);
        assert!((work(None, 4) - 1.3).abs() < 1e-6);
        assert!((work(Some(EXPERTS), 1) - 1.0).abs() < 1e-6);
        // Half of a step is experts, of which four rows touch 3.8 times as many.
        assert!((work(Some(EXPERTS), 4) - (0.5 * 3.81 + 0.5 * 1.3)).abs() < 0.01);
        let further = work(Some(EXPERTS), 201) - work(Some(EXPERTS), 200);
        assert!(further < 0.06, "nearly all are touched by then: {further}");
    }
}
