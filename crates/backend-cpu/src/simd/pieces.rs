//! How a run of work is cut into tasks.

use super::crew::piece;
use std::ops::Range;

/// `0..units`, cut at multiples of `grain`.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    units: usize,
    grain: usize,
    count: usize,
    /// Grains of the largest piece and, where pieces shrink, of the smallest, and the threads that take them.
    largest: usize,
    shrink: Option<[usize; 2]>,
}

impl Pieces {
    /// Pieces of about one size.
    pub(super) fn equal(units: usize, grain: usize, count: usize) -> Self {
        let largest = units.div_ceil(grain).div_ceil(count);
        Self { units, grain, count, largest, shrink: None }
    }

    /// Pieces that get smaller towards the end, so that threads end together though none of them is as fast as another:
    /// whatever is left, each thread takes half of its share. None has less than `smallest` grains, except the last.
    pub(super) fn shrinking(units: usize, grain: usize, threads: usize, smallest: usize) -> Self {
        if threads == 1 {
            return Self::equal(units, grain, 1);
        }
        let grains = units.div_ceil(grain);
        let largest = grains.div_ceil(2 * threads).max(smallest).min(grains);
        let shrink = [smallest.max(1), threads];
        let mut this = Self { units, grain, count: 0, largest, shrink: Some(shrink) };
        this.count = this.sizes(shrink).count().max(1);
        this
    }

    /// Grains of the pieces, where they shrink.
    fn sizes(&self, [smallest, threads]: [usize; 2]) -> impl Iterator<Item = usize> {
        let (mut left, mut round, mut size) = (self.units.div_ceil(self.grain), 0, 0);
        std::iter::from_fn(move || {
            if round == 0 {
                size = left.div_ceil(2 * threads).max(smallest);
            }
            round = (round + 1) % threads;
            let now = size.min(left);
            left -= now;
            (now > 0).then_some(now)
        })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Most units of a piece.
    pub(super) fn largest(&self) -> usize {
        (self.largest * self.grain).min(self.units)
    }

    /// Units of piece `index`.
    pub(super) fn part(&self, index: usize) -> Range<usize> {
        let Some(shrink) = self.shrink else {
            return piece(self.units, self.count, self.grain, index);
        };
        let mut sizes = self.sizes(shrink);
        let start = sizes.by_ref().take(index).sum::<usize>();
        let end = start + sizes.next().unwrap_or(0);
        (start * self.grain).min(self.units)..(end * self.grain).min(self.units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(pieces: Pieces, units: usize, grain: usize) {
        let mut end = 0;
        for index in 0..pieces.count() {
            let part = pieces.part(index);
            assert_eq!(part.start, end, "pieces follow each other");
            assert!(part.len() <= pieces.largest());
            assert!(part.end == units || part.end.is_multiple_of(grain));
            end = part.end;
        }
        assert_eq!(end, units, "nothing is left");
        assert!(pieces.part(pieces.count()).is_empty());
    }

    #[test]
    fn every_unit_is_in_one_piece() {
        for units in [0, 1, 6, 16, 63, 64, 65, 1152, 4096, 248_320] {
            for grain in [1, 4, 16, 64] {
                for threads in [1, 2, 3, 8] {
                    for smallest in [0, 1, 5, 1000] {
                        holds(Pieces::shrinking(units, grain, threads, smallest), units, grain);
                    }
                    holds(Pieces::equal(units, grain, threads), units, grain);
                }
            }
        }
    }

    #[test]
    fn pieces_shrink_to_the_smallest() {
        let pieces = Pieces::shrinking(19 * 64, 64, 2, 1);
        let sizes: Vec<usize> = (0..pieces.count()).map(|i| pieces.part(i).len() / 64).collect();
        assert_eq!(sizes, [5, 5, 3, 3, 1, 1, 1]);
        let pieces = Pieces::shrinking(19 * 64, 64, 2, 4);
        let sizes: Vec<usize> = (0..pieces.count()).map(|i| pieces.part(i).len() / 64).collect();
        assert_eq!(sizes, [5, 5, 4, 4, 1]);
    }
}
