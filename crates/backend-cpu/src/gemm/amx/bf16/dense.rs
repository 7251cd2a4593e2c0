//! Dense weights: a block of steps of one tile of rows and up to four panels.
//!
//! # Layout
//! Tiles 0 to 3 take the sums of a panel each, over all columns; 4 and 5 are weights, 6 and 7 activations. Sums are
//! `[row][channel]` f32 between blocks.
//!
//! # Order
//! In every step of 32 columns a sum takes the products of the low parts, then of the middle, then of the high ones,
//! alone or beside other rows: the kernel is batch-invariant.

use super::pack::PARTS;
use super::unpack::TILE;
use crate::gemm::amx::tile::{clear_sums, move_tile};
use crate::gemm::panels::MAX_PANELS;
use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// How far ahead weights are prefetched. Panels lie whole pages apart, so more of each would not fit the sets of an L1
/// cache: twice as much makes decode a tenth slower.
const PREFETCH_BYTES: usize = 2 * TILE;

/// Operands of a block. `weights` and `x` are readable for `steps` steps, `sums` writable for a tile; no other thread
/// accesses `sums`.
pub(crate) struct DenseBlock {
    /// Activations, from the first step on.
    pub(crate) x: *const u8,
    /// Weights of each panel. With fewer than four panels the last one is repeated, and its extra results dropped.
    pub(crate) weights: [*const u8; MAX_PANELS],
    pub(crate) sums: [*mut f32; MAX_PANELS],
    /// Rows of the tile.
    pub(crate) tile_rows: usize,
    pub(crate) steps: usize,
    /// Whether weights should be prefetched: the first tile of rows reads them from memory.
    pub(crate) prefetch_bytes: bool,
    /// Whether sums start at zero rather than at what is stored.
    pub(crate) fresh: bool,
}

impl DenseBlock {
    /// All steps.
    ///
    /// # Safety
    /// AMX is there and tiles are configured for `tile_rows` rows and steps of 32 bf16 columns; the fields are as
    /// documented.
    pub(crate) unsafe fn run(&self) {
        // SAFETY: tiles are configured; all addresses are of operands that the contract covers, and prefetches may
        // point anywhere.
        unsafe {
            if self.fresh {
                clear_sums();
            } else {
                move_tile!(load 0, self.sums[0]);
                move_tile!(load 1, self.sums[1]);
                move_tile!(load 2, self.sums[2]);
                move_tile!(load 3, self.sums[3]);
            }
            for step in 0..self.steps {
                let weights = self.weights.map(|panel| panel.wrapping_add(step * TILE));
                if self.prefetch_bytes {
                    for line in (0..TILE).step_by(64) {
                        for panel in weights {
                            _mm_prefetch::<_MM_HINT_T0>(
                                panel.wrapping_add(PREFETCH_BYTES + line).cast(),
                            );
                        }
                    }
                }
                self.step(self.x.wrapping_add(step * PARTS * self.tile_rows * 64), weights);
            }
            move_tile!(store 0, self.sums[0]);
            move_tile!(store 1, self.sums[1]);
            move_tile!(store 2, self.sums[2]);
            move_tile!(store 3, self.sums[3]);
        }
    }

    /// Adds the products of a step: all parts with two panels, then with the other two, so that a product rarely waits
    /// for the one before it in its accumulator tile.
    ///
    /// # Safety
    /// As for [`DenseBlock::run`]; `high` and the panels are readable for a step.
    #[inline(always)]
    unsafe fn step(
        &self,
        high: *const u8,
        [first, second, third, fourth]: [*const u8; MAX_PANELS],
    ) {
        let [middle, low] = [1, 2].map(|part| high.wrapping_add(part * self.tile_rows * 64));
        // SAFETY: each load reads one tile of the step (contract above); tiles are configured.
        unsafe {
            asm!(
                "tileloadd tmm4, [{first} + {line}]",
                "tileloadd tmm6, [{low} + {line}]",
                "tdpbf16ps tmm0, tmm6, tmm4",
                "tileloadd tmm5, [{second} + {line}]",
                "tdpbf16ps tmm1, tmm6, tmm5",
                "tileloadd tmm7, [{middle} + {line}]",
                "tdpbf16ps tmm0, tmm7, tmm4",
                "tdpbf16ps tmm1, tmm7, tmm5",
                "tileloadd tmm6, [{high} + {line}]",
                "tdpbf16ps tmm0, tmm6, tmm4",
                "tdpbf16ps tmm1, tmm6, tmm5",
                "tileloadd tmm4, [{third} + {line}]",
                "tileloadd tmm7, [{low} + {line}]",
                "tdpbf16ps tmm2, tmm7, tmm4",
                "tileloadd tmm5, [{fourth} + {line}]",
                "tdpbf16ps tmm3, tmm7, tmm5",
                "tileloadd tmm6, [{middle} + {line}]",
                "tdpbf16ps tmm2, tmm6, tmm4",
                "tdpbf16ps tmm3, tmm6, tmm5",
                "tileloadd tmm7, [{high} + {line}]",
                "tdpbf16ps tmm2, tmm7, tmm4",
                "tdpbf16ps tmm3, tmm7, tmm5",
                high = in(reg) high, middle = in(reg) middle, low = in(reg) low,
                first = in(reg) first, second = in(reg) second,
                third = in(reg) third, fourth = in(reg) fourth,
                line = in(reg) 64_usize, options(nostack, readonly),
            );
        }
    }
}
