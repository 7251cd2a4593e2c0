//! Long runs of bytes, shared out to threads.

use std::panic::resume_unwind;

/// Bytes below which starting threads costs more than it saves.
const ALONE: usize = 1 << 20;

/// Threads for work on so many bytes.
pub fn threads_for(bytes: usize) -> usize {
    if bytes < ALONE { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

/// Runs `work` on every share, each on a thread of its own; a single one on the calling thread. Results are in the
/// order of the shares.
pub fn on_threads<S: Send, R: Send>(shares: Vec<S>, work: impl Fn(S) -> R + Sync) -> Vec<R> {
    if shares.len() < 2 {
        return shares.into_iter().map(work).collect();
    }
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            shares.into_iter().map(|share| scope.spawn(move || work(share))).collect();
        // A panic of a thread is resumed here.
        threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// The first place that `find` finds in bytes that all cores search together, in shares of a multiple of `unit`
/// bytes. `find` names the first place in its share.
pub fn find_first(
    bytes: &[u8],
    unit: usize,
    find: impl Fn(&[u8]) -> Option<usize> + Sync,
) -> Option<usize> {
    let each = bytes.len().div_ceil(threads_for(bytes.len())).next_multiple_of(unit).max(unit);
    let found = on_threads(bytes.chunks(each).collect(), find);
    found.into_iter().enumerate().find_map(|(share, at)| at.map(|at| share * each + at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_place_is_found_whichever_share_it_lies_in() {
        let mut bytes = vec![0_u8; 3 * ALONE + 5];
        let find = |share: &[u8]| share.iter().position(|&byte| byte != 0);
        assert_eq!(find_first(&bytes, 16, find), None);
        for at in [3 * ALONE + 4, 2 * ALONE, ALONE + 1, 17, 0] {
            bytes[at] = 1;
            assert_eq!(find_first(&bytes, 16, find), Some(at));
        }
        assert_eq!(find_first(&[], 16, find), None);
        assert_eq!(find_first(&bytes[..40], 16, find), Some(0));
    }
}
