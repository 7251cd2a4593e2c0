//! Orders of heads that GGUF files change.

use std::ops::Range;

/// Rows of a query or key projection in the order of half pairing. Files for interleaved pairing hold, per
/// head, row `2i + c` where the published form has row `c·d/2 + i`.
pub(super) fn halves(heads: usize, head_dim: usize) -> Vec<Range<usize>> {
    let mut rows = Vec::with_capacity(heads * head_dim);
    for head in 0..heads {
        for c in 0..2 {
            for i in 0..head_dim / 2 {
                let row = head * head_dim + 2 * i + c;
                rows.push(row..row + 1);
            }
        }
    }
    rows
}

/// Value heads grouped by key head, from a file that deals them out round-robin: head `(key k, copy c)`
/// lies at `c·key_heads + k`. `width` rows each, after `before` rows that stay.
pub(super) fn grouped(
    before: usize,
    key_heads: usize,
    value_heads: usize,
    width: usize,
) -> Vec<Range<usize>> {
    let copies = value_heads / key_heads.max(1);
    let mut ranges = Vec::with_capacity(value_heads + 1);
    if before > 0 {
        ranges.push(0..before);
    }
    for key in 0..key_heads {
        for copy in 0..copies {
            let first = before + (copy * key_heads + key) * width;
            ranges.push(first..first + width);
        }
    }
    ranges
}

/// One half of rows that alternate, `copies` of each per key head: the first half or the second.
pub(super) fn half_of(key_heads: usize, copies: usize, second: bool) -> Vec<Range<usize>> {
    let first = |key: usize| (2 * key + usize::from(second)) * copies;
    (0..key_heads).map(|key| first(key)..first(key) + copies).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_become_halves() {
        let rows: Vec<usize> = halves(2, 4).into_iter().map(|r| r.start).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 6, 5, 7]);
    }

    #[test]
    fn dealt_out_heads_come_together() {
        // Two key heads of three copies: stored k0c0 k1c0 k0c1 k1c1 k0c2 k1c2, five rows before.
        let ranges = grouped(5, 2, 6, 10);
        let firsts: Vec<usize> = ranges.iter().map(|r| r.start).collect();
        assert_eq!(firsts, [0, 5, 25, 45, 15, 35, 55]);
    }

    #[test]
    fn alternating_rows_split() {
        assert_eq!(half_of(2, 2, false), [0..2, 4..6]);
        assert_eq!(half_of(2, 2, true), [2..4, 6..8]);
    }
}
