//! Acceptance by a script, to measure rounds of models whose drafts mean nothing.
//!
//! A model of random weights accepts no draft, so what a round costs when some are taken could not be seen. A script
//! says how many are: the text is then not the model's, which whoever shows a result has to say.

use crate::{EngineError, Span};
use forerun_base::LeaseId;

/// Which share of the drafts at each place of a round is taken. See the module's text.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptedAcceptance(Vec<f32>);

impl ScriptedAcceptance {
    /// Shares by place, the first draft's first; drafts behind the last one are rejected.
    ///
    /// # Errors
    /// When a share is none, or larger than the one before it: a draft is only taken after those before it.
    pub fn new(rates: Vec<f32>) -> Result<Self, EngineError> {
        let shares = rates.iter().all(|rate| (0.0..=1.0).contains(rate));
        if rates.is_empty() || !shares || !rates.is_sorted_by(|a, b| a >= b) {
            return Err(EngineError::Settings(
                "scripted acceptance is shares from 0 to 1, by place, none larger than the one before it"
                    .to_owned(),
            ));
        }
        Ok(Self(rates))
    }

    /// The shares.
    pub fn rates(&self) -> &[f32] {
        &self.0
    }

    /// How many drafts of a span are taken. The same position of the same lease always gives the same number.
    pub(crate) fn accepted(&self, span: &Span) -> usize {
        let chance = chance(span.lease, span.start);
        self.0.iter().take(span.drafts).take_while(|&&rate| chance < rate).count()
    }
}

/// An even number in 0..1 for a position of a lease.
fn chance(LeaseId(lease): LeaseId, position: u32) -> f32 {
    let mut z = (u64::from(lease) << 32 | u64::from(position)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (z >> 40) as f32 / (1_u64 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SampleSpec;
    use forerun_base::SeqId;

    fn span(start: u32, drafts: usize) -> Span {
        Span {
            seq: SeqId(1),
            lease: LeaseId(0),
            start,
            tokens: 0..drafts + 1,
            drafts,
            pending: 0,
            blocks: 0..0,
            sample: Some(SampleSpec::GREEDY),
            next: None,
            taken: 0,
        }
    }

    #[test]
    fn drafts_at_each_place_are_taken_as_often_as_the_script_says() {
        let script = ScriptedAcceptance::new(vec![0.86, 0.74, 0.6]).unwrap();
        let mut taken = [0; 4];
        for position in 0..20_000 {
            let accepted = script.accepted(&span(position, 4));
            taken[..accepted].iter_mut().for_each(|n| *n += 1);
        }
        for (taken, expected) in taken.into_iter().zip([0.86, 0.74, 0.6, 0.0]) {
            let found = f64::from(taken) / 20_000.0;
            assert!((found - expected).abs() < 0.01, "{found} for {expected}");
        }
        assert_eq!(script.accepted(&span(7, 0)), 0);
        let all = ScriptedAcceptance::new(vec![1.0; 3]).unwrap();
        assert!((0..100).all(|position| all.accepted(&span(position, 3)) == 3));
    }

    #[test]
    fn what_is_no_share_or_grows_is_refused() {
        for rates in [vec![], vec![1.1], vec![-0.1], vec![f32::NAN], vec![0.5, 0.6]] {
            assert!(ScriptedAcceptance::new(rates.clone()).is_err(), "{rates:?}");
        }
    }
}
