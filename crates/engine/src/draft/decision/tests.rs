use super::*;
use proptest::prelude::*;
use std::time::Duration;

const TUNING: Tuning = Tuning::DEFAULT;

/// Prices that were all measured: steps by rows, and any draft pass.
fn costs(step: impl Fn(usize) -> f32, pass: f32) -> RoundCosts {
    let mut costs = RoundCosts::new(32, 4, None);
    for rows in 1..=32 {
        costs.note_calibration(rows, Duration::from_secs_f32(step(rows)));
        costs.note_step(rows, 0, Duration::from_secs_f32(step(rows)));
    }
    for entries in 1..=4 {
        costs.note_chain_calibration(entries, 1, Duration::from_secs_f32(pass));
        costs.note_chain_calibration(entries, 2, Duration::from_secs_f32(2.0 * pass));
    }
    costs
}

/// Acceptance after a hundred outcomes of each position, so many of them accepted.
fn known(chances: &[f32]) -> Acceptance {
    let mut acceptance = Acceptance::shared(Tuning { shared_memory: 1e6, ..TUNING });
    for i in 0..100 {
        let due = |chance: f32| ((i + 1) as f32 * chance).floor() > (i as f32 * chance).floor();
        for (k, &chance) in chances.iter().enumerate() {
            acceptance.note_position(k, due(chance));
        }
    }
    acceptance
}

fn even(chance: f32) -> Acceptance {
    known(&[chance; 8])
}

fn shape(others: usize, rows: usize) -> StepShape {
    StepShape { others, rows, context: 0 }
}

fn depth(acceptance: Acceptance, costs: &RoundCosts, limit: usize) -> usize {
    let mut one = [Candidate::new(acceptance, limit, false)];
    decide(&mut one, costs, shape(0, 32), 0.0, &TUNING);
    one[0].depth
}

fn depths<const N: usize>(
    mut batch: [Candidate; N],
    costs: &RoundCosts,
    rows: usize,
) -> [usize; N] {
    decide(&mut batch, costs, shape(0, rows), 0.0, &TUNING);
    batch.map(|c| c.depth)
}

#[test]
fn likely_drafts_that_cost_little_go_deep_and_unlikely_ones_do_not() {
    let cheap = costs(|rows| 1.0 + 0.02 * rows as f32, 0.1);
    assert!(depth(even(0.9), &cheap, 8) >= 4);
    assert_eq!(depth(even(0.05), &cheap, 8), 0);
    assert_eq!(depth(even(0.9), &cheap, 2), 2, "never past the limit");
    let expensive = costs(|rows| rows as f32, 0.5);
    assert_eq!(depth(even(0.95), &expensive, 8), 0, "when rows cost full price nothing is gained");
}

#[test]
fn a_batch_gives_its_rows_to_the_likeliest_drafts() {
    let costs = costs(|rows| 1.0 + 0.15 * rows as f32, 0.02);
    let with = |chance| Candidate::new(even(chance), 8, false);
    let [likely, unlikely] = depths([with(0.95), with(0.1)], &costs, 32);
    assert!(likely > unlikely);
    let tight = depths([with(0.95), with(0.95)], &costs, 3);
    assert!(tight[0] + tight[1] <= 1, "three rows hold two tokens and one draft");
}

#[test]
fn a_request_that_fixed_its_depth_keeps_it_and_its_rows_are_priced() {
    // A step of up to four rows costs one, and any more four.
    let costs = costs(|rows| if rows <= 4 { 1.0 } else { 4.0 }, 0.01);
    let auto = Candidate::new(even(0.9), 1, false);
    assert_eq!(depths([auto, Candidate::new(even(0.9), 1, false).fixed()], &costs, 32), [1, 1]);
    assert_eq!(depths([auto, Candidate::new(even(0.0), 2, false).fixed()], &costs, 32), [0, 2]);
}

#[test]
fn several_sequences_first_time_a_round_without_drafts() {
    let mut costs = RoundCosts::new(32, 4, None);
    let price = |rows: usize| Duration::from_secs_f32(1.0 + 0.02 * rows as f32);
    (1..=32).for_each(|rows| costs.note_calibration(rows, price(rows)));
    let two = [Candidate::new(even(0.9), 8, false); 2];
    assert!(depth(even(0.9), &costs, 8) > 0, "alone it harms nobody");
    assert_eq!(depths(two, &costs, 32), [0; 2]);
    costs.note_step(2, 0, price(2));
    assert!(depths(two, &costs, 32).iter().all(|&depth| depth > 0));
}

#[test]
fn those_without_drafts_have_a_row_too() {
    let costs = costs(|rows| if rows <= 4 { 1.0 } else { 4.0 }, 0.0);
    for (others, expected) in [(2, 1), (3, 0)] {
        let mut one = [Candidate::new(even(0.9), 1, true)];
        decide(&mut one, &costs, shape(others, 32), 0.0, &TUNING);
        assert_eq!(one[0].depth, expected, "{others} others");
    }
}

#[test]
fn where_rows_cost_in_stairs_a_stair_is_taken_whole_or_not_at_all() {
    for (high, expected) in [(1.5, [1; 4]), (4.0, [0; 4])] {
        let costs = costs(|rows| if rows <= 4 { 1.0 } else { high }, 0.0);
        let batch = [Candidate::new(even(0.9), 8, false); 4];
        assert_eq!(depths(batch, &costs, 8), expected, "{high}");
    }
}

#[test]
fn a_depth_behind_a_stair_is_found_past_one_that_does_not_pay() {
    // Two rows cost nearly two, and four no more than that.
    let costs = costs(|rows| if rows == 1 { 1.0 } else { 1.95 }, 0.01);
    assert_eq!(depth(even(0.9), &costs, 1), 0);
    assert_eq!(depth(even(0.9), &costs, 3), 3);
}

#[test]
fn drafts_from_the_text_cost_no_pass() {
    let costs = costs(|rows| 1.0 + 0.1 * rows as f32, 0.6);
    let of = |free| depths([Candidate::new(even(0.6), 3, free)], &costs, 32)[0];
    assert_eq!((of(false), of(true) > 0), (0, true));
}

#[test]
fn what_is_not_known_is_tried_when_there_is_credit_for_it_and_only_then() {
    // A draft would pay if it were accepted, but none was.
    let costs = costs(|rows| 0.25 + 0.75 * rows as f32, 0.05);
    let mut acceptance = even(0.1);
    (0..400).for_each(|_| acceptance.fade(0.98));
    let try_with = |credit| {
        let mut one = [Candidate::new(acceptance, 8, false)];
        let lost = decide(&mut one, &costs, shape(0, 32), credit, &TUNING);
        (one[0].depth, lost)
    };
    let (deep, lost) = try_with(2.0);
    assert_eq!(deep, 1, "one draft, not many");
    assert!(lost > 0.0 && lost <= 2.0);
    assert_eq!(try_with(0.9 * lost), (0, 0.0));
    // Where even accepted drafts would not pay, there is nothing to learn.
    let hopeless = super::tests::costs(|rows| rows as f32, 0.5);
    let mut one = [Candidate::new(acceptance, 8, false)];
    assert_eq!(decide(&mut one, &hopeless, shape(0, 32), 9.0, &TUNING), 0.0);
    assert_eq!(one[0].depth, 0);
}

/// A curve of steps: what further rows add to one of a single row, none of them less than nothing.
fn increments() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(0.0f32..1.2, 31)
}

fn curve(increments: &[f32], scale: f32) -> impl Fn(usize) -> f32 + '_ {
    move |rows| 1.0 + scale * increments[..rows - 1].iter().sum::<f32>()
}

fn chances() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(0.0f32..1.0, 8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cheaper_rows_never_lower_the_depth(
        added in increments(), chances in chances(), pass in 0.0f32..0.3, cheaper in 0.0f32..1.0,
    ) {
        let acceptance = known(&chances);
        let before = depth(acceptance, &costs(curve(&added, 1.0), pass), 8);
        // Passes are rows that drafts add, too.
        let after = depth(acceptance, &costs(curve(&added, cheaper), cheaper * pass), 8);
        prop_assert!(after >= before, "{before} -> {after}");
    }

    #[test]
    fn higher_acceptance_never_lowers_the_depth(
        added in increments(), chances in chances(), pass in 0.0f32..0.3, more in prop::collection::vec(0.0f32..0.5, 8),
    ) {
        let costs = costs(curve(&added, 1.0), pass);
        let higher: Vec<f32> = chances.iter().zip(&more).map(|(c, m)| c + m * (1.0 - c)).collect();
        let (before, after) = (depth(known(&chances), &costs, 8), depth(known(&higher), &costs, 8));
        prop_assert!(after >= before, "{before} -> {after}");
    }

    #[test]
    fn depth_is_the_best_where_one_pays_and_never_one_that_is_slower_than_plain(
        added in increments(), chances in chances(), pass in 0.0f32..0.3,
    ) {
        let (costs, acceptance) = (costs(curve(&added, 1.0), pass), known(&chances));
        let one = [Candidate::new(acceptance, 8, false)];
        let search = Search { costs: &costs, shape: shape(0, 32), sequences: 1, tuning: &TUNING };
        let rate = |depth| search.round(&one, |_| depth, Outlook::Expected).0.rate();
        let pays = (1..=8).any(|depth| rate(depth) > TUNING.least_gain * rate(0));
        let chosen = depth(acceptance, &costs, 8);
        if pays {
            prop_assert!(chosen > 0);
            prop_assert!((1..=8).all(|other| rate(chosen) >= 0.9999 * rate(other)));
        } else {
            // What may pay, and is not expected to be slower, may be tried without credit.
            prop_assert!(rate(chosen) >= 0.9999 * rate(0));
        }
    }

    /// Whatever is accepted, no more is expected to be lost to exploration than its share of the rounds and what was
    /// saved up.
    #[test]
    fn exploration_costs_its_share_of_rounds_at_most(
        added in increments(), pass in 0.0f32..0.3, outcomes in prop::collection::vec(0usize..9, 200),
    ) {
        let costs = costs(curve(&added, 1.0), pass);
        let mut chooser = crate::draft::DepthChooser::with_capacity(1);
        let mut acceptance = Acceptance::like(&Acceptance::shared(TUNING));
        let (rounds, mut lost) = (outcomes.len(), 0.0);
        for accepted in outcomes {
            let before = chooser.credit();
            let chosen = chooser.one(Candidate::new(acceptance, 8, false), &costs);
            lost += (before + TUNING.exploration).min(TUNING.most_credit) - chooser.credit();
            prop_assert!(chooser.credit() >= 0.0);
            acceptance.note(chosen, accepted.min(chosen));
        }
        prop_assert!(lost <= TUNING.most_credit + rounds as f32 * TUNING.exploration + 1e-3, "{lost}");
    }
}
