//! Weights with scales (FP8): a block of steps of one tile of rows and one panel.
//!
//! # Layout
//! Sums are `[row][channel]` f32 between blocks. Up to four rows, the three parts of all rows are stacked as rows of
//! one tile; more rows take a tile for each part.

use super::pack::PARTS;
use super::unpack::TILE;
use crate::gemm::amx::tile::{product, product_of_parts};
use crate::simd::isa::LANES;
use std::arch::asm;
use std::arch::x86_64::*;

/// Up to this many rows all parts are stacked in one tile.
pub(crate) const STACKED: usize = 4;
/// Slots for results in flight.
const SLOTS: usize = 4;
/// How many products are started before the first result is read: a stored tile reaches loads only through the cache.
const LAG: usize = 3;
/// f32 of a stored tile of sums.
pub(crate) const RESULT: usize = 256;
/// f32 of all results in flight.
pub(crate) const RESULTS: usize = SLOTS * RESULT;

/// Operands of a block: `x`, `weights` and `scales` are readable for its steps, `sums` writable for a tile and
/// `results` for [`RESULTS`]; no other thread accesses the last two.
pub(crate) struct ScaledBlock {
    /// Activations and their sums, from the first step on.
    pub(crate) x: (*const u8, *const f32),
    /// Tiles of weights.
    pub(crate) weights: *const u8,
    /// `[group][2][channel]`, from the group of the first step on.
    pub(crate) scales: *const f32,
    /// Steps, or half steps of 16 columns.
    pub(crate) count: usize,
    /// How many of them share a scale.
    pub(crate) group: usize,
    /// How many of the first group were in the block before.
    pub(crate) before: usize,
    pub(crate) sums: *mut f32,
    /// Whether sums start at zero rather than at what is stored.
    pub(crate) fresh: bool,
    /// Room for [`RESULTS`].
    pub(crate) results: *mut f32,
}

impl ScaledBlock {
    /// Activations, column sums and weights of (half) step `i`.
    #[inline(always)]
    fn at<const M: usize, const HALF: bool>(&self, i: usize) -> (*const u8, *const f32, *const u8) {
        let (x, sums) = self.x;
        if HALF {
            let (step, half) = (i / 2, i % 2);
            (
                x.wrapping_add(step * M * PARTS * 64 + half * 32),
                sums.wrapping_add((3 * step + 1 + half) * M),
                self.weights.wrapping_add(i * TILE / 2),
            )
        } else {
            let weights = self.weights.wrapping_add(i * TILE);
            (x.wrapping_add(i * M * PARTS * 64), sums.wrapping_add(3 * i * M), weights)
        }
    }

    /// Starts the product of (half) step `i`.
    ///
    /// # Safety
    /// As for [`ScaledBlock::scaled`]; `i` is below `count`, `slot` below [`SLOTS`].
    #[inline(always)]
    unsafe fn start<const M: usize, const HALF: bool>(&self, i: usize, slot: usize) {
        let (x, _, w) = self.at::<M, HALF>(i);
        let parts = [x, x.wrapping_add(M * 64), x.wrapping_add(2 * M * 64)];
        let to = self.results.wrapping_add(slot * RESULT);
        // SAFETY: tiles are configured, and the loads and the store are of this step's operands and this slot (contract
        // above).
        unsafe {
            match (M > STACKED, slot) {
                (true, 0) => product_of_parts!([0, 4], [parts[0], parts[1], parts[2]], w, to),
                (true, 1) => product_of_parts!([1, 5], [parts[0], parts[1], parts[2]], w, to),
                (true, 2) => product_of_parts!([2, 4], [parts[0], parts[1], parts[2]], w, to),
                (true, _) => product_of_parts!([3, 5], [parts[0], parts[1], parts[2]], w, to),
                (false, 0) => product!([0, 4, 6], x, w, to),
                (false, 1) => product!([1, 5, 7], x, w, to),
                (false, 2) => product!([2, 4, 6], x, w, to),
                (false, _) => product!([3, 5, 7], x, w, to),
            }
        }
    }

    /// Adds the result of (half) step `i`, scaled.
    ///
    /// # Safety
    /// As for [`ScaledBlock::scaled`]; `i` is below `count`, `slot` below [`SLOTS`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn add<const M: usize, const HALF: bool, const OFFSET: bool>(
        &self,
        i: usize,
        slot: usize,
        scales: *const f32,
        sums: &mut [__m512; M],
    ) {
        let (_, columns, _) = self.at::<M, HALF>(i);
        // SAFETY: the slot holds the stored tile of step `i`; `scales` points to a group's scales and offsets (contract
        // above).
        unsafe {
            let result = self.results.add(slot * RESULT);
            let (scale, offset) = (_mm512_load_ps(scales), _mm512_load_ps(scales.add(LANES)));
            for m in 0..M {
                let mut part = _mm512_load_ps(result.add(m * LANES));
                if M <= STACKED {
                    part = _mm512_add_ps(part, _mm512_load_ps(result.add((M + m) * LANES)));
                    part = _mm512_add_ps(part, _mm512_load_ps(result.add((2 * M + m) * LANES)));
                }
                sums[m] = _mm512_fmadd_ps(scale, part, sums[m]);
                if OFFSET {
                    let columns = _mm512_set1_ps(*columns.add(m));
                    sums[m] = _mm512_fmadd_ps(offset, columns, sums[m]);
                }
            }
        }
    }

    /// All steps of a weight with scales, and with offsets where `OFFSET`.
    ///
    /// # Safety
    /// AMX and AVX-512 with BF16 are there. Tiles are configured for `M` rows (all parts up to [`STACKED`]) and steps
    /// of 32 columns or, where `HALF`, 16. The fields are as documented.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(crate) unsafe fn scaled<const M: usize, const HALF: bool, const OFFSET: bool>(&self) {
        let mut sums = [_mm512_setzero_ps(); M];
        let (mut scales, mut left) = (self.scales, self.group - self.before);
        // SAFETY: this function's contract. There are `SLOTS` slots and at most `LAG` products in flight, so a slot is
        // read before it is written again.
        unsafe {
            if !self.fresh {
                for m in 0..M {
                    sums[m] = _mm512_load_ps(self.sums.add(m * LANES));
                }
            }
            for i in 0..LAG.min(self.count) {
                self.start::<M, HALF>(i, i);
            }
            let mut i = 0;
            // Slots are constants after unrolling, so nothing branches on them.
            while i + SLOTS + LAG <= self.count {
                for slot in 0..SLOTS {
                    self.start::<M, HALF>(i + slot + LAG, (slot + LAG) % SLOTS);
                    self.add::<M, HALF, OFFSET>(i + slot, slot, scales, &mut sums);
                    left -= 1;
                    if left == 0 {
                        (scales, left) = (scales.add(2 * LANES), self.group);
                    }
                }
                i += SLOTS;
            }
            while i < self.count {
                if i + LAG < self.count {
                    self.start::<M, HALF>(i + LAG, (i + LAG) % SLOTS);
                }
                self.add::<M, HALF, OFFSET>(i, i % SLOTS, scales, &mut sums);
                left -= 1;
                if left == 0 {
                    (scales, left) = (scales.add(2 * LANES), self.group);
                }
                i += 1;
            }
            for m in 0..M {
                _mm512_store_ps(self.sums.add(m * LANES), sums[m]);
            }
        }
    }
}
