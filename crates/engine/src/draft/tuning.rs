//! The numbers that the choice of depths is tuned by. There are no others.
//!
//! They were chosen on the recordings of `tests/drafting`, which hold them to what they are for: `auto` about as fast
//! as the best fixed depth, and never slower than plain decoding.

/// Constants of the estimators and of the decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// The chance that a first draft is accepted before any was seen. Heads that are worth shipping reach 0.5 to 0.9;
    /// too high costs a few drafts of the first answer, too low leaves a good head to be found by exploration.
    pub(crate) first_chance: f32,
    /// How much less likely a draft is than the one before it, until outcomes are seen. Most heads lose about a tenth.
    pub(crate) next_chance: f32,
    /// For how many outcomes the expectation counts that a sequence begins with. Few: texts differ more than heads do.
    pub(crate) prior_weight: f32,
    /// Rounds that a sequence's outcomes are remembered. Shorter follows the text, longer has less noise; the depth
    /// that pays best changes slowly, and noise costs more than being late.
    pub(crate) memory: f32,
    /// The same for all sequences together, which is what the next one begins with.
    pub(crate) shared_memory: f32,
    /// How much a time counts that is lower or higher than the price known. Hiccups only ever add time, so a lower one
    /// counts for more. A price that jumped with one hiccup would stop drafts, and their price would then not be taken
    /// again.
    pub(crate) fall: f32,
    pub(crate) rise: f32,
    /// Steps after which a price that was not taken again is forgotten: the machine may have been busy with something
    /// else then, and a depth that once seemed too expensive would never be tried again.
    pub(crate) stale_after: u32,
    /// What a row adds to a step, as a share of a step of one row, where nothing is measured. Low, since a round of it
    /// soon tells the truth and a fear never would.
    pub(crate) row_share: f32,
    /// How much faster drafts must promise to be than plain decoding. Smaller gains are within the scatter of times,
    /// and an error costs as much as the gain.
    pub(crate) least_gain: f32,
    /// Share of rounds that may be lost to trying what seems worse, to learn whether it still is. This bounds what is
    /// lost where drafts never pay.
    pub(crate) exploration: f32,
    /// Rounds of such losses that may be saved up: enough for one round of a batch at the price of several.
    pub(crate) most_credit: f32,
    /// Repeated tokens from which on the text is trusted over the MTP head. Shorter repetitions are common by chance.
    pub(crate) long_repeat: usize,
}

impl Tuning {
    /// What the engine runs with.
    pub(crate) const DEFAULT: Self = Self {
        first_chance: 0.7,
        next_chance: 0.9,
        prior_weight: 3.0,
        memory: 40.0,
        shared_memory: 200.0,
        fall: 0.2,
        rise: 0.1,
        stale_after: 64,
        row_share: 0.1,
        least_gain: 1.03,
        exploration: 0.01,
        most_credit: 4.0,
        long_repeat: 6,
    };
}
