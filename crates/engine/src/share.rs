//! How the rows of a step are shared by prompts.
//!
//! The prompt with the least left goes first within its priority: a short question is read at once while a long one
//! is under way, and of equal prompts the first is answered while the last is still read. What that could
//! starve is kept alive by a fixed share: one row in [`SHARE`] belongs to whoever came first, whatever its
//! length and priority. So everyone becomes the first in the end, and then gets through.

/// One row in so many, and one admission in so many, goes by arrival alone.
pub(crate) const SHARE: usize = 4;

/// A prompt that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Place among the sequences, which stand in the order of their arrival.
    pub(crate) at: usize,
    /// Lower goes first.
    pub(crate) priority: i32,
    /// Tokens left to read, at least one.
    pub(crate) left: usize,
    /// How many of them can be read in one step.
    pub(crate) most: usize,
    /// The answer: rows in this step.
    pub(crate) rows: usize,
}

/// Hands out `rows` rows; `turn` counts the calls. Leaves the claims in the order they were served.
pub(crate) fn share(claims: &mut [Claim], rows: usize, turn: u64) {
    let mut free = rows;
    claims.iter_mut().for_each(|claim| claim.rows = 0);
    if let Some(first) = claims.iter_mut().min_by_key(|claim| claim.at) {
        first.rows = kept(rows, turn).min(first.most);
        free -= first.rows;
    }
    claims.sort_unstable_by_key(|claim| (claim.priority, claim.left, claim.at));
    for claim in claims {
        let more = free.min(claim.most - claim.rows);
        claim.rows += more;
        free -= more;
    }
}

/// Rows that belong to the first comer; where a share is less than a row, all of them from time to time.
fn kept(rows: usize, turn: u64) -> usize {
    match rows / SHARE {
        0 if turn.is_multiple_of(SHARE as u64) => rows,
        share => share,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rows by order of arrival.
    fn shared(prompts: &[(i32, usize)], rows: usize, turn: u64) -> Vec<usize> {
        let claim = |(at, &(priority, left))| Claim { at, priority, left, most: left, rows: 0 };
        let mut claims: Vec<Claim> = prompts.iter().enumerate().map(claim).collect();
        share(&mut claims, rows, turn);
        claims.sort_by_key(|claim| claim.at);
        claims.iter().map(|claim| claim.rows).collect()
    }

    #[test]
    fn the_shortest_goes_first_and_the_first_keeps_its_share() {
        let cases = [
            (vec![(0, 1000)], vec![128]),
            (vec![(0, 1000), (0, 20)], vec![108, 20]),
            (vec![(0, 1000), (0, 500)], vec![32, 96]),
            (vec![(0, 1000), (0, 500), (0, 40)], vec![32, 56, 40]),
            (vec![(0, 10), (0, 1000), (0, 40)], vec![10, 78, 40]),
            (vec![(0, 500), (0, 500), (0, 500)], vec![128, 0, 0]),
        ];
        for (prompts, expected) in cases {
            assert_eq!(shared(&prompts, 128, 1), expected, "{prompts:?}");
        }
    }

    #[test]
    fn a_lower_priority_number_goes_before_a_shorter_prompt() {
        assert_eq!(shared(&[(0, 1000), (0, 20), (-1, 90)], 128, 1), vec![32, 6, 90]);
        assert_eq!(shared(&[(5, 1000), (0, 500)], 128, 1), vec![32, 96]);
        assert_eq!(shared(&[(i32::MIN, 900), (i32::MAX, 10)], 128, 1), vec![128, 0]);
    }

    #[test]
    fn with_less_than_a_row_to_share_the_first_has_every_fourth_turn() {
        let rows = |turn| shared(&[(0, 1000), (0, 20)], 2, turn);
        assert_eq!((0..5).map(|turn| rows(turn)[0]).collect::<Vec<_>>(), [2, 0, 0, 0, 2]);
    }

    proptest! {
        /// Nothing is handed out twice or kept back, and nobody gets more than is left to read.
        #[test]
        fn all_rows_are_used_while_anyone_can_use_them(
            prompts in prop::collection::vec((-2i32..3, 1usize..300), 0..9),
            rows in 0usize..200,
            turn in 0u64..8,
        ) {
            let given = shared(&prompts, rows, turn);
            let wanted: usize = prompts.iter().map(|&(_, left)| left).sum();
            prop_assert_eq!(given.iter().sum::<usize>(), rows.min(wanted));
            prop_assert!(given.iter().zip(&prompts).all(|(&rows, &(_, left))| rows <= left));
        }
    }
}
