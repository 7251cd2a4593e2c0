//! How work is partitioned into tasks.

use std::ops::Range;

/// `0..len`, divided at multiples of `grain` into runs of about one size, one for each thread that may take it, and
/// those into parts.
#[derive(Clone, Copy)]
pub(crate) struct Partition {
    len: usize,
    grain: usize,
    runs: usize,
    /// Parts of a run: half of it, half of what is left, and so on.
    each: usize,
}

impl Partition {
    /// Parts of about one size.
    pub(crate) fn equal(len: usize, grain: usize, count: usize) -> Self {
        Self { len, grain, runs: count, each: 1 }
    }

    /// Parts that get smaller towards the end of each run (guided scheduling), so that threads end together though none
    /// is as fast as another. None has less than `smallest` grains, unless that is all there is.
    pub(crate) fn shrinking(len: usize, grain: usize, threads: usize, smallest: usize) -> Self {
        let grains = len.div_ceil(grain);
        let smallest = smallest.max(1);
        let runs = (grains / smallest).clamp(1, threads);
        let each = (grains / runs / smallest).checked_ilog2().unwrap_or(0) as usize + 1;
        Self { len, grain, runs, each }
    }

    pub(crate) fn count(&self) -> usize {
        self.runs * self.each
    }

    /// Most elements of a part.
    pub(crate) fn largest(&self) -> usize {
        let run = self.len.div_ceil(self.grain).div_ceil(self.runs);
        let largest = if self.each == 1 { run } else { run.div_ceil(2) };
        (largest * self.grain).min(self.len)
    }

    /// Elements of part `index`.
    pub(crate) fn part(&self, index: usize) -> Range<usize> {
        let grains = self.len.div_ceil(self.grain);
        let at = |index: usize| {
            let [start, end] = [0, 1].map(|i| grains * (index / self.each + i) / self.runs);
            // What is left of the run where the part begins.
            let left = (end - start) >> (index % self.each);
            ((end - left) * self.grain).min(self.len)
        };
        at(index)..at(index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(parts: Partition, len: usize, grain: usize) {
        let mut end = 0;
        for index in 0..parts.count() {
            let part = parts.part(index);
            assert_eq!(part.start, end, "parts are consecutive");
            assert!(part.len() <= parts.largest());
            assert!(part.end == len || part.end.is_multiple_of(grain));
            end = part.end;
        }
        assert_eq!(end, len, "nothing is left");
        assert!(parts.part(parts.count()).is_empty());
    }

    #[test]
    fn every_element_is_in_one_part() {
        for len in [0, 1, 6, 16, 63, 64, 65, 1152, 4096, 248_320] {
            for grain in [1, 4, 16, 64] {
                for threads in [1, 2, 3, 8] {
                    for smallest in [0, 1, 5, 1000] {
                        holds(Partition::shrinking(len, grain, threads, smallest), len, grain);
                    }
                    holds(Partition::equal(len, grain, threads), len, grain);
                }
            }
        }
    }

    #[test]
    fn parts_shrink_to_the_smallest() {
        let parts = Partition::shrinking(19 * 64, 64, 2, 1);
        let sizes: Vec<usize> = (0..parts.count()).map(|i| parts.part(i).len() / 64).collect();
        assert_eq!(sizes, [5, 2, 1, 1, 5, 3, 1, 1]);
        let parts = Partition::shrinking(19 * 64, 64, 2, 4);
        let sizes: Vec<usize> = (0..parts.count()).map(|i| parts.part(i).len() / 64).collect();
        assert_eq!(sizes, [5, 4, 5, 5]);
    }
}
