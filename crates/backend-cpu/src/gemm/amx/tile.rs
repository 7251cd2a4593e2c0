//! The tile instructions, which the language has no stable names for, and the kernel's permission to use them.
//!
//! Tiles 0 to 3 take sums, 4 and 5 weights, 6 and 7 activations.

use std::arch::asm;
use std::marker::PhantomData;
use std::ops::Range;

/// Tiles that hold weights; those below take sums, those above hold activations.
const WEIGHT_TILES: Range<usize> = 4..6;

/// Shapes of the tiles, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tiles with shapes, on this thread until it is dropped.
pub(crate) struct Configured {
    /// Tiles are state of a thread.
    here: PhantomData<*const ()>,
}

impl Configured {
    /// Sums of `rows` rows; `pairs` pairs of columns in a step.
    ///
    /// # Safety
    /// The processor has tiles, the system lets this process use them, and no other value of the type lives on the
    /// thread.
    pub(crate) unsafe fn new(rows: usize, pairs: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::shaped(rows, 4 * pairs) }
    }

    /// Sums of `rows` rows in tiles 0 to 3; lines of `bytes` activations in tiles 6 and 7, weights in tiles 4 and 5.
    ///
    /// # Safety
    /// As for [`Configured::new`].
    pub(crate) unsafe fn bytes(rows: usize, bytes: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::shaped(rows, bytes) }
    }

    /// Weights from one tile on, activations from another to the last.
    unsafe fn shaped(rows: usize, bytes: usize) -> Self {
        let mut shapes =
            Shapes { palette: 1, start: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for tile in 0..8 {
            let is_weight = WEIGHT_TILES.contains(&tile);
            shapes.rows[tile] = if is_weight { bytes / 4 } else { rows } as u8;
            shapes.row_bytes[tile] = if tile >= WEIGHT_TILES.end { bytes as u16 } else { 64 };
        }
        // SAFETY: 64 bytes of valid shapes: at most sixteen rows of 64 bytes each.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack)) };
        Self { here: PhantomData }
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the value was made where the instructions exist. Without state in the tiles a switch of threads
        // does not save them.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}

/// `sums ← activations · weights` stored at `to`; tile numbers are `[sums, weights, activations]`.
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

/// Moves tile `$c` from or to memory.
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

/// Clears the tiles of sums.
///
/// # Safety
/// Tiles are configured.
#[inline(always)]
pub(crate) unsafe fn clear_sums() {
    // SAFETY: the caller's promise.
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

/// Asks Linux for the tiles' state, once per process; whether this process has it now.
#[cfg(target_os = "linux")]
pub(crate) fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: the call reads no memory of ours; the kernel changes the registers named here alone.
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

/// Other systems are not asked.
#[cfg(not(target_os = "linux"))]
pub(crate) fn permitted() -> bool {
    false
}

/// Bytes of activations that stay in a 2 MiB second-level cache while all panels pass by.
const L2_BYTES: usize = 1 << 20;

/// Tiles of rows that are used together, each of `len` f32.
pub(crate) fn l2_tiles(len: usize) -> usize {
    L2_BYTES.checked_div(len * 4).unwrap_or(1).max(1)
}
