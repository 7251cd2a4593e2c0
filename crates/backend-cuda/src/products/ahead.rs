//! Which weights a program multiplies with next: a product that is about to end prefetches them.

use super::Products;
use crate::driver::{Address, Args};

/// Most runs of weights that are prefetched at a time.
const RUNS: usize = 4;
/// Bytes that are prefetched of a product's weights: what memory delivers while one product ends and the next begins,
/// and well below what the cache holds.
const MOST_AHEAD: usize = 32 << 20;
/// Bytes up to which a weight is prefetched whole, beside what is prefetched of the larger ones.
const SMALL: usize = 2 << 20;

/// A weight of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WeightRun {
    pub(crate) at: Address,
    pub(crate) bytes: usize,
}

/// The products of a program in order, each with its packed weights, and which of them comes next.
#[derive(Debug, Default)]
pub(super) struct WeightPlan {
    products: Vec<Vec<WeightRun>>,
    next: usize,
}

/// The beginnings of the next product's weights.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WeightsAhead([Option<WeightRun>; RUNS]);

impl WeightsAhead {
    fn of(weights: &[WeightRun]) -> Self {
        let mut runs = [None; RUNS];
        let large: Vec<&WeightRun> = weights.iter().filter(|run| run.bytes > SMALL).collect();
        // Two of a size are a gate and what it gates, which are read side by side; of others the largest is first.
        let most = large.iter().map(|run| run.bytes).max().unwrap_or(0);
        let first = large.iter().filter(|run| run.bytes == most).count().max(1);
        let begun =
            |run: &WeightRun| WeightRun { bytes: run.bytes.min(MOST_AHEAD / first), ..*run };
        let largest = large.iter().filter(|run| run.bytes == most).map(|run| begun(run));
        let small = weights.iter().filter(|run| run.bytes <= SMALL).copied();
        largest.chain(small).zip(&mut runs).for_each(|(run, place)| *place = Some(run));
        Self(runs)
    }

    /// The fields of a kernel's array of `WeightAhead`.
    pub(super) fn fields(&self, args: Args) -> Args {
        self.0.iter().fold(args, |args, run| {
            let WeightRun { at, bytes } = run.unwrap_or(WeightRun { at: Address::NULL, bytes: 0 });
            args.with(at).with(bytes as u64)
        })
    }
}

impl Products {
    /// Notes the products that will be asked for, in order; none ends the plan.
    pub(crate) fn plan_weights(&mut self, products: Vec<Vec<WeightRun>>) {
        self.plan = WeightPlan { products, next: 0 };
    }

    /// What is multiplied with after the weight at `at`.
    pub(super) fn ahead_of(&mut self, at: Address) -> WeightsAhead {
        let WeightPlan { products, next } = &mut self.plan;
        let found = products.get(*next..).and_then(|rest| {
            rest.iter().position(|weights| weights.iter().any(|weight| weight.at == at))
        });
        if let Some(found) = found {
            *next += found + 1;
        }
        products.get(*next).map_or(WeightsAhead::default(), |weights| WeightsAhead::of(weights))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_products_weights_are_begun_and_small_ones_taken_whole() {
        let run = |at, bytes| WeightRun { at: Address(at), bytes };
        let mut products = Products::default();
        products.plan_weights(vec![
            vec![run(1, 100 << 20)],
            vec![run(2, 90 << 20), run(3, 90 << 20)],
            vec![run(4, 50 << 20), run(5, 40 << 20), run(6, 1 << 20)],
        ]);
        let runs =
            |ahead: WeightsAhead| -> Vec<WeightRun> { ahead.0.into_iter().flatten().collect() };
        assert_eq!(runs(products.ahead_of(Address(1))), [run(2, 16 << 20), run(3, 16 << 20)]);
        assert_eq!(runs(products.ahead_of(Address(3))), [run(4, 32 << 20), run(6, 1 << 20)]);
        assert_eq!(runs(products.ahead_of(Address(5))), []);
        // A weight that nobody planned changes nothing.
        products.plan_weights(vec![vec![run(1, 16)], vec![run(2, 16)]]);
        assert_eq!(runs(products.ahead_of(Address(9))), [run(1, 16)]);
        assert_eq!(runs(products.ahead_of(Address(1))), [run(2, 16)]);
    }
}
