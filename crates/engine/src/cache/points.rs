//! Where a text is published.
//!
//! A state costs as much as the keys and values of hundreds of tokens, and a prompt is cut where one is
//! published, so positions are chosen: every mark, since whoever set it knows what comes again, and as many positions
//! between as leave no gap longer than the interval. A short prompt is not cut at all: it is read again sooner than
//! it pays to stop.

use super::prefix::FetchedEntry;
use super::{CacheUse, StateShape};
use forerun_model::KV_BLOCK;

/// What is published of a sequence and what will be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    /// What the request wants.
    pub(crate) cache_use: CacheUse,
    /// Whether the cache was asked; nothing is read before.
    pub(crate) started: bool,
    /// What came from disk before.
    pub(crate) fetched: FetchedEntry,
    /// Up to where the text is in the cache, as far as is known.
    pub(crate) upto: usize,
    /// Whether steps publish at all.
    pub(crate) active: bool,
    stops: Vec<u32>,
    rule: Rule,
}

/// Distances between restore points.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rule {
    /// Most tokens between two.
    pub(crate) interval: usize,
    /// Whether there must be a state, for which prompts are cut.
    pub(crate) states: bool,
}

impl Rule {
    pub(crate) fn new(interval: usize, shape: &StateShape) -> Self {
        Self { interval, states: shape.needs_state() }
    }

    /// Tokens that are not worth a cut.
    pub(crate) fn short(&self) -> usize {
        self.interval.min(KV_BLOCK)
    }

    /// Positions strictly inside `from..prompt` at which reading stops to publish, ascending.
    fn stops(&self, from: usize, prompt: usize, marks: &[u32]) -> Vec<u32> {
        let far_enough = |at: usize| at < prompt && at >= from + self.short();
        let mut chosen: Vec<usize> =
            marks.iter().map(|&mark| mark as usize).filter(|&at| far_enough(at)).collect();
        // Without marks the same prompt may come again: one token must be left to read.
        if marks.is_empty() && far_enough(prompt - 1) {
            chosen.push(prompt - 1);
        }
        let mut stops = Vec::new();
        let mut last = from;
        for next in chosen.into_iter().chain([prompt]) {
            while last + self.interval + self.short() <= next {
                last += self.interval;
                stops.push(last as u32);
            }
            if next < prompt {
                stops.push(next as u32);
                last = next;
            }
        }
        stops
    }
}

impl Published {
    pub(crate) fn new(cache_use: CacheUse) -> Self {
        Self { cache_use, ..Self::default() }
    }

    /// The sequence begins at `from`, with a cache that keeps what it publishes.
    pub(crate) fn begin(&mut self, from: usize, prompt: usize, rule: Rule) {
        self.upto = from;
        self.rule = rule;
        self.active = self.cache_use.write;
        self.stops = if rule.states && self.active {
            rule.stops(from, prompt, &self.cache_use.marks)
        } else {
            Vec::new()
        };
    }

    /// A retained sequence goes on with a longer prompt.
    pub(crate) fn resume(&mut self, before: &Self, prompt: usize) {
        if before.rule.interval > 0 {
            // What was published under another salt is not in reach of this one.
            let upto = if self.cache_use.salt == before.cache_use.salt { before.upto } else { 0 };
            self.begin(upto, prompt, before.rule);
        }
    }

    /// How many of the next `take` tokens after `committed` are read before the next stop.
    pub(crate) fn until_stop(&self, committed: usize, take: usize) -> usize {
        let next = self.stops.partition_point(|&stop| stop as usize <= committed);
        self.stops.get(next).map_or(take, |&stop| take.min(stop as usize - committed))
    }

    /// Whether a sequence that has come to `position` is to be published there.
    pub(crate) fn is_due(&self, position: usize, prompt: usize, ended: bool) -> bool {
        let behind = position.saturating_sub(self.upto);
        // Without states a cut costs nothing, and the prompt may be wanted before the answer is over.
        let read = !self.rule.states && self.upto < prompt && position >= prompt;
        let stop = self.stops.binary_search(&(position as u32)).is_ok();
        self.active && behind > 0 && (ended || stop || read || behind >= self.rule.interval)
    }

    /// Whether an unfinished sequence at `position` leaves something worth having.
    pub(crate) fn is_worthwhile(&self, position: usize) -> bool {
        self.active && position >= self.upto + self.rule.short()
    }

    /// The furthest position at most `limit` that this sequence will publish of its prompt, if it lies ahead.
    pub(crate) fn promises(&self, limit: usize, prompt: usize) -> Option<usize> {
        if !self.active || self.upto >= prompt {
            return None;
        }
        let promised = if self.rule.states {
            let after = self.stops.partition_point(|&stop| stop as usize <= limit);
            *self.stops.get(after.checked_sub(1)?)? as usize
        } else {
            limit.min(prompt)
        };
        (promised > self.upto).then_some(promised)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule { interval: 512, states: true };

    #[test]
    fn prompts_are_cut_at_marks_and_intervals() {
        struct Case {
            from: usize,
            prompt: usize,
            marks: &'static [u32],
            stops: &'static [u32],
        }
        let cases = [
            // Nothing is worth a cut.
            Case { from: 0, prompt: 60, marks: &[], stops: &[] },
            Case { from: 0, prompt: 60, marks: &[10, 50], stops: &[] },
            Case { from: 900, prompt: 960, marks: &[940], stops: &[] },
            // Without marks: all but the last token.
            Case { from: 0, prompt: 100, marks: &[], stops: &[99] },
            // Every mark counts, unless it is close to where reading begins.
            Case { from: 0, prompt: 300, marks: &[100, 200, 290], stops: &[100, 200, 290] },
            Case { from: 150, prompt: 300, marks: &[100, 200, 290], stops: &[290] },
            // Marks outside the prompt mean nothing.
            Case { from: 0, prompt: 300, marks: &[290, 300, 4000], stops: &[290] },
            // Long stretches are filled.
            Case { from: 0, prompt: 1500, marks: &[1400], stops: &[512, 1024, 1400] },
            Case { from: 0, prompt: 1500, marks: &[100], stops: &[100, 612, 1124] },
            Case { from: 0, prompt: 1040, marks: &[1030], stops: &[512, 1030] },
        ];
        for Case { from, prompt, marks, stops } in cases {
            assert_eq!(RULE.stops(from, prompt, marks), stops, "{from}..{prompt} {marks:?}");
        }
    }

    #[test]
    fn reading_stops_at_the_next_stop_only() {
        let mut published =
            Published::new(CacheUse { marks: vec![100, 290], ..CacheUse::default() });
        published.begin(0, 300, RULE);
        assert_eq!(published.until_stop(0, 300), 100);
        assert_eq!(published.until_stop(0, 70), 70);
        assert_eq!(published.until_stop(100, 200), 190);
        assert_eq!(published.until_stop(290, 10), 10);
        assert!(published.is_due(100, 300, false) && published.is_due(290, 300, false));
        assert!(!published.is_due(300, 300, false) && published.is_due(300, 300, true));
    }

    #[test]
    fn an_answer_is_published_every_interval() {
        let mut published = Published::new(CacheUse::default());
        published.begin(0, 10, RULE);
        assert!(!published.is_due(511, 10, false) && published.is_due(512, 10, false));
        published.upto = 512;
        assert!(!published.is_due(600, 10, false) && published.is_due(1030, 10, false));
    }

    #[test]
    fn a_promise_is_a_stop_ahead() {
        let mut published =
            Published::new(CacheUse { marks: vec![100, 290], ..CacheUse::default() });
        published.begin(0, 300, RULE);
        assert_eq!(published.promises(299, 300), Some(290));
        assert_eq!(published.promises(200, 300), Some(100));
        assert_eq!(published.promises(50, 300), None);
        published.upto = 100;
        assert_eq!(published.promises(200, 300), None);
    }
}
