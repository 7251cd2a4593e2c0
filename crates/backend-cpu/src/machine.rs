//! The roofline of this machine, measured: memory bandwidth, peak arithmetic, dispatch latency.

use crate::simd::{ExecCtx, Level, probe};
use std::fs;
use std::time::{Duration, Instant};

/// The bandwidth test reads this many times the largest cache, within [`SMALLEST`] and [`LARGEST`].
const TIMES_CACHE: usize = 3;
const SMALLEST: usize = 256 << 20;
const LARGEST: usize = 768 << 20;

/// What a number of threads can do on this machine at best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Threads measured with.
    pub threads: usize,
    /// Bytes a second of all threads reading memory that is too large for the caches.
    pub read_bytes_per_s: f64,
    /// Bytes a second of all threads copying such memory, each byte counted once read and once written.
    pub copy_bytes_per_s: f64,
    /// f32 operations a second of all threads, counting a multiply-add as two.
    pub flops_per_s: f64,
    /// Time of a parallel job in which every thread takes part and does nothing.
    pub dispatch: Duration,
    /// The largest cache, if the system tells (Linux).
    pub cache_bytes: Option<usize>,
}

impl Machine {
    /// Measures with `threads` threads, or as many as a device takes by itself. Takes about a second.
    ///
    /// # Errors
    /// The number of bytes that could not be allocated.
    pub fn measure(threads: Option<usize>) -> Result<Self, usize> {
        let ctx = Level::ALL.into_iter().find_map(|level| ExecCtx::new(level, threads));
        let mut ctx = ctx.expect("the portable level is always there");
        let cache_bytes = cache_bytes();
        let bytes = cache_bytes.unwrap_or(0).saturating_mul(TIMES_CACHE).clamp(SMALLEST, LARGEST);
        let (read_bytes_per_s, copy_bytes_per_s) = bandwidths(&mut ctx, bytes)?;
        Ok(Self {
            threads: ctx.threads(),
            read_bytes_per_s,
            copy_bytes_per_s,
            flops_per_s: peak(&mut ctx),
            dispatch: dispatch(&mut ctx),
            cache_bytes,
        })
    }
}

/// Of reading `bytes`, and of copying one half of them to the other.
fn bandwidths(ctx: &mut ExecCtx, bytes: usize) -> Result<(f64, f64), usize> {
    let len = bytes / size_of::<f32>();
    let mut data = Vec::new();
    data.try_reserve_exact(len).map_err(|_| bytes)?;
    data.resize(len, 1.0_f32);
    let read = best(5, || probe::read(ctx, &data));
    let (from, to) = data.split_at_mut(len / 2);
    let copied = size_of_val(from) + size_of_val(from);
    let copy = best(3, || probe::copy(ctx, from, to));
    Ok((bytes as f64 / read, copied as f64 / copy))
}

fn peak(ctx: &mut ExecCtx) -> f64 {
    let mut rate = |wide| {
        let mut flops = 0;
        let seconds = best(50, || flops = probe::multiply(ctx, wide));
        flops as f64 / seconds
    };
    rate(false).max(rate(true))
}

fn dispatch(ctx: &mut ExecCtx) -> Duration {
    const JOBS: u32 = 200;
    let seconds = best(20, || (0..JOBS).for_each(|_| probe::barrier(ctx)));
    Duration::from_secs_f64(seconds) / JOBS
}

/// Seconds of the fastest run: interference only ever makes a run slower.
fn best(runs: usize, mut work: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..runs).map(time).fold(f64::INFINITY, f64::min)
}

fn cache_bytes() -> Option<usize> {
    let levels = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let size = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("size")).ok()?;
        size_in_bytes(text.trim())
    };
    levels.flatten().filter_map(size).max()
}

/// `32K`, `2M` or a plain number, as the kernel writes sizes.
fn size_in_bytes(text: &str) -> Option<usize> {
    let (digits, unit) = match text.char_indices().last()? {
        (at, 'K') => (&text[..at], 1 << 10),
        (at, 'M') => (&text[..at], 1 << 20),
        (at, 'G') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_kernel_writes_them() {
        for (text, bytes) in [
            ("48K", Some(49152)),
            ("105M", Some(110_100_480)),
            ("64", Some(64)),
            ("", None),
            ("K", None),
        ] {
            assert_eq!(size_in_bytes(text), bytes, "{text}");
        }
    }

    #[test]
    fn everything_measured_is_a_positive_number() {
        let machine = Machine::measure(Some(2)).expect("memory");
        assert_eq!(machine.threads, 2);
        for rate in [machine.read_bytes_per_s, machine.copy_bytes_per_s, machine.flops_per_s] {
            assert!(rate.is_finite() && rate > 0.0, "{machine:?}");
        }
        assert!(!machine.dispatch.is_zero(), "{machine:?}");
    }
}
