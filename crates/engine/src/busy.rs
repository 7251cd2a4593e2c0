//! How long the device was busy, by submission.

use std::time::Duration;

/// What a device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    /// Time in submissions of steps.
    pub step: Duration,
    /// Steps that it has passed.
    pub steps: usize,
    /// Time in all others: drafts, and what the MTP head takes in.
    pub other: Duration,
    /// Submissions that it has passed.
    pub submissions: usize,
    /// Their times.
    pub times: BusyTimes,
    /// Submissions that it has now and has not passed.
    pub in_flight: usize,
    /// Most that it had at a time.
    pub most_in_flight: usize,
    /// How long the longest dispatch takes, by estimate, where the device bounds them.
    pub longest_dispatch: Option<Duration>,
}

impl Busy {
    /// Takes a submission that was passed.
    pub(crate) fn note(&mut self, time: Duration) {
        self.submissions += 1;
        self.times.note(time);
    }
}

/// Times of submissions, counted in classes of which each is a fifth longer than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyTimes {
    counts: [u32; Self::CLASSES],
    longest: Duration,
}

impl Default for BusyTimes {
    fn default() -> Self {
        Self { counts: [0; Self::CLASSES], longest: Duration::ZERO }
    }
}

impl BusyTimes {
    /// From a microsecond to half a minute.
    const CLASSES: usize = 4 * 25;
    /// Classes until times have doubled.
    const PER_DOUBLING: f64 = 4.0;

    /// Takes a time.
    pub fn note(&mut self, time: Duration) {
        let micros = time.as_secs_f64() * 1e6;
        let class = (micros.max(1.0).log2() * Self::PER_DOUBLING) as usize;
        self.add_to(class.min(Self::CLASSES - 1), 1);
        self.longest = self.longest.max(time);
    }

    /// Takes all times of another.
    pub fn add(&mut self, other: &Self) {
        for (class, &count) in other.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            self.add_to(class, count);
        }
        self.longest = self.longest.max(other.longest);
    }

    fn add_to(&mut self, class: usize, count: u32) {
        // Shares stay about the same where a count would overflow.
        if self.counts[class].checked_add(count).is_none() {
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
        self.counts[class] = self.counts[class].saturating_add(count);
    }

    /// The longest time.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// A time that so large a share of the submissions did not exceed, at most a fifth above the smallest such time;
    /// zero where there were none.
    pub fn quantile(&self, share: f64) -> Duration {
        let all: u64 = self.counts.iter().copied().map(u64::from).sum();
        let wanted = (share.clamp(0.0, 1.0) * all as f64).ceil().max(1.0) as u64;
        let mut counted = 0;
        for (class, &count) in self.counts.iter().enumerate() {
            counted += u64::from(count);
            // The last class has no end.
            if counted >= wanted && class + 1 < Self::CLASSES {
                let end = ((class + 1) as f64 / Self::PER_DOUBLING).exp2();
                return Duration::from_secs_f64(end * 1e-6).min(self.longest);
            }
        }
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_at_most_a_fifth_above_the_truth_and_never_below() {
        let mut parts = [BusyTimes::default(); 2];
        let times: Vec<Duration> =
            (1..=1000_u64).map(|i| Duration::from_micros(i * i * 7 % 90_001 + 3)).collect();
        times.iter().enumerate().for_each(|(i, &time)| parts[i % 2].note(time));
        let mut all = parts[0];
        all.add(&parts[1]);
        let mut sorted = times;
        sorted.sort_unstable();
        for (share, rank) in [(0.001, 1), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let (found, exact) = (all.quantile(share), sorted[rank - 1]);
            assert!(found >= exact, "{share}: {found:?} {exact:?}");
            assert!(
                found.as_secs_f64() <= 1.2 * exact.as_secs_f64(),
                "{share}: {found:?} {exact:?}"
            );
        }
        assert_eq!(all.longest(), sorted[999]);
        assert_eq!(all.quantile(1.0), sorted[999]);
    }

    #[test]
    fn no_times_and_times_beyond_all_classes_are_told() {
        assert_eq!(BusyTimes::default().quantile(0.99), Duration::ZERO);
        let mut times = BusyTimes::default();
        times.note(Duration::ZERO);
        times.note(Duration::from_secs(3600));
        assert_eq!(times.quantile(0.99), times.longest());
        assert!(times.quantile(0.5) <= Duration::from_micros(2));
        for _ in 0..3 {
            times.add(&BusyTimes { counts: [u32::MAX; BusyTimes::CLASSES], ..times });
        }
        assert!(times.quantile(0.5) > Duration::from_micros(2));
    }
}
