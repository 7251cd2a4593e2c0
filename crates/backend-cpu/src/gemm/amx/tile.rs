//! The tile instructions, for which Rust has no stable intrinsics, and the operating system's permission to use them.
//!
//! Tiles 0 to 3 take sums, 4 and 5 weights, 6 and 7 activations.

use std::arch::asm;
use std::marker::PhantomData;
use std::ops::Range;

/// Tiles that hold weights; those below take sums, those above hold activations.
const WEIGHT_TILES: Range<usize> = 4..6;

/// Tile configuration, as `ldtilecfg` reads it.
#[repr(C, align(64))]
struct TileShapes {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// A tile configuration, on this thread until it is dropped.
pub(crate) struct Configured {
    /// Not `Send`: tiles are state of a thread.
    here: PhantomData<*const ()>,
}

impl Configured {
    /// Sums of `rows` rows; `pairs` pairs of bf16 columns in a step.
    ///
    /// # Safety
    /// The processor has AMX and the operating system lets this process use it (an [`Amx`](super::Amx) proves both). No
    /// other `Configured` lives on this thread. `rows ≤ 16`, `pairs ≤ 16`.
    pub(crate) unsafe fn new(rows: usize, pairs: usize) -> Self {
        // SAFETY: AMX is there, nothing else is configured, `rows ≤ 16` (contract above); `4 · pairs ≤ 64`.
        unsafe { Self::shaped(rows, 4 * pairs) }
    }

    /// Sums of `rows` rows in tiles 0 to 3; rows of `bytes` bytes of activations in tiles 6 and 7, weights in tiles 4
    /// and 5.
    ///
    /// # Safety
    /// As for [`Configured::new`], with `bytes ≤ 64`, a multiple of four.
    pub(crate) unsafe fn bytes(rows: usize, bytes: usize) -> Self {
        // SAFETY: AMX is there, nothing else is configured, `rows ≤ 16` and `bytes ≤ 64` (contract above).
        unsafe { Self::shaped(rows, bytes) }
    }

    /// Configures all eight tiles.
    ///
    /// # Safety
    /// As for [`Configured::bytes`].
    unsafe fn shaped(rows: usize, bytes: usize) -> Self {
        let mut shapes = TileShapes {
            palette: 1,
            start: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        for tile in 0..8 {
            let is_weight = WEIGHT_TILES.contains(&tile);
            shapes.rows[tile] = if is_weight { bytes / 4 } else { rows } as u8;
            shapes.row_bytes[tile] = if tile >= WEIGHT_TILES.end { bytes as u16 } else { 64 };
        }
        // SAFETY: `shapes` is the 64 bytes of a valid configuration: palette 1, at most sixteen rows of at most 64
        // bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack)) };
        Self { here: PhantomData }
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the value was made where AMX exists. Released tiles need not be saved on a context switch.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}

/// `sums ← activations · weights`, stored at `to`; tile numbers are `[sums, weights, activations]`.
macro_rules! product {
    ([$c:literal, $b:literal, $a:literal], $x:expr, $w:expr, $to:expr) => {
        asm!(
            concat!("tilezero tmm", $c),
            concat!("tileloadd tmm", $b, ", [{w} + {line}]"),
            concat!("tileloadd tmm", $a, ", [{x} + {line}]"),
            concat!("tdpbf16ps tmm", $c, ", tmm", $a, ", tmm", $b),
            concat!("tilestored [{to} + {line}], tmm", $c),
            x = in(reg) $x, w = in(reg) $w, to = in(reg) $to, line = in(reg) 64_usize,
            options(nostack),
        )
    };
}

/// `sums ← high · weights + middle · weights + low · weights`, stored at `to`.
macro_rules! product_of_parts {
    ([$c:literal, $b:literal], [$high:expr, $middle:expr, $low:expr], $w:expr, $to:expr) => {
        asm!(
            concat!("tilezero tmm", $c),
            concat!("tileloadd tmm", $b, ", [{w} + {line}]"),
            "tileloadd tmm6, [{high} + {line}]",
            concat!("tdpbf16ps tmm", $c, ", tmm6, tmm", $b),
            "tileloadd tmm7, [{middle} + {line}]",
            concat!("tdpbf16ps tmm", $c, ", tmm7, tmm", $b),
            "tileloadd tmm6, [{low} + {line}]",
            concat!("tdpbf16ps tmm", $c, ", tmm6, tmm", $b),
            concat!("tilestored [{to} + {line}], tmm", $c),
            high = in(reg) $high, middle = in(reg) $middle, low = in(reg) $low,
            w = in(reg) $w, to = in(reg) $to, line = in(reg) 64_usize,
            options(nostack),
        )
    };
}

/// Loads tile `$c` from memory, or stores it.
macro_rules! move_tile {
    (load $c:literal, $at:expr) => {
        asm!(
            concat!("tileloadd tmm", $c, ", [{at} + {line}]"),
            at = in(reg) $at, line = in(reg) 64_usize, options(nostack, readonly),
        )
    };
    (store $c:literal, $at:expr) => {
        asm!(
            concat!("tilestored [{at} + {line}], tmm", $c),
            at = in(reg) $at, line = in(reg) 64_usize, options(nostack),
        )
    };
}

pub(crate) use move_tile;
pub(crate) use {product, product_of_parts};

/// Zeroes the tiles of sums.
///
/// # Safety
/// A [`Configured`] lives on this thread.
#[inline(always)]
pub(crate) unsafe fn clear_sums() {
    // SAFETY: tiles are configured (contract above); no memory is touched.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            options(nostack, nomem),
        );
    }
}

/// Asks Linux for permission to use tile state (once per process); whether this process has it.
#[cfg(target_os = "linux")]
pub(crate) fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: `arch_prctl` with this request touches no user memory; the registers it changes are declared.
    unsafe {
        asm!(
            "syscall",
            inout("rax") result, in("rdi") REQUEST_PERMISSION, in("rsi") TILE_DATA,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Other systems are not supported.
#[cfg(not(target_os = "linux"))]
pub(crate) fn permitted() -> bool {
    false
}

/// Bytes of activations that stay in a 2 MiB L2 cache while all panels pass by.
const L2_BYTES: usize = 1 << 20;

/// How many tiles of rows, each of `len` f32, fit that.
pub(crate) fn l2_tiles(len: usize) -> usize {
    L2_BYTES.checked_div(len * 4).unwrap_or(1).max(1)
}
