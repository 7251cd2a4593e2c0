//! Dense weights: blocks of steps of one tile of rows and up to four panels.
//!
//! # Layout
//! Tiles 0 to 3 take the sums of a panel each, over all columns; 4 and 5 are weights, 6 and 7 activations. Sums are
//! `[row][channel]` f32 between blocks.
//!
//! # Order
//! In every step of 32 columns a sum takes the products of the low parts, then of the middle, then of the high ones. It
//! does so alone or beside others, whatever their number, so that rows have the same bits in any company.

use super::pack::PARTS;
use super::unpack::TILE;
use crate::gemm::amx::tile::{clear_sums, move_tile};
use crate::gemm::panels::MAX_PANELS;
use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// How far ahead of their use weights are asked for. Panels lie whole pages apart, so much more of each would not find
/// room in the first-level cache: twice as much makes decode a tenth slower.
const PREFETCH_BYTES: usize = 2 * TILE;

/// What a block reads and writes. The tiles are configured for its rows.
pub(crate) struct Dense {
    /// Activations, from the first step on.
    pub(crate) x: *const u8,
    /// Weights of each panel. Where there are fewer, the last one is multiplied again, for nobody.
    pub(crate) weights: [*const u8; MAX_PANELS],
    pub(crate) sums: [*mut f32; MAX_PANELS],
    /// Rows of the tile.
    pub(crate) tile_rows: usize,
    pub(crate) steps: usize,
    /// Whether the weights come from far.
    pub(crate) prefetch_bytes: bool,
    /// Whether the sums start here.
    pub(crate) fresh: bool,
}

impl Dense {
    /// All steps.
    ///
    /// # Safety
    /// The instructions of [`crate::gemm::amx::Amx`]; tiles are configured for the class; the fields are as they say.
    pub(crate) unsafe fn run(&self) {
        // SAFETY: the caller's promise.
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

    /// Adds the products of a step: two panels with all parts, then the other two, so that no product waits long for
    /// the one before it in its tile.
    ///
    /// # Safety
    /// As for [`Dense::run`].
    #[inline(always)]
    unsafe fn step(
        &self,
        high: *const u8,
        [first, second, third, fourth]: [*const u8; MAX_PANELS],
    ) {
        let [middle, low] = [1, 2].map(|part| high.wrapping_add(part * self.tile_rows * 64));
        // SAFETY: the caller's promise.
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
