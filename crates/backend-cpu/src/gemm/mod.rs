//! Matrix products: `out = x · Wᵀ`, for any number of rows of `x` and every format of `W`.
//!
//! One promise shapes this module: **a product is batch-invariant.** A row of `out` has the same bits whatever rows
//! share the call and however many threads run it, so a draft that is verified in a batch of five equals the token
//! decoded alone. Floating-point addition is not associative, so each family of kernels fixes its order of summation:
//!
//! | weight | kernels | order along K |
//! |---|---|---|
//! | f32, f16; all without int8 products | [`product`], [`micro_kernel`] | sixteen f32 lanes, then one fixed tree |
//! | integer codes (2 to 8 bits, tables) | [`int8`] | exact integers inside a unit, units ascending in f32 |
//! | bf16, FP8 on AMX | [`amx::bf16`](amx) | steps of 32 columns ascending, three bf16 parts low to high |
//!
//! # Limb decomposition
//! Integer dot products (`vpdpbusd`, `sdot`, `smmla`, AMX tiles) multiply bytes, but an f32 activation has 24
//! significant bits. Rounding it to one byte would change the model's answer. Instead a row is scaled once, by its own
//! largest value, to 24-bit integers (23 bits and a sign), and each integer is cut into three signed bytes, its
//! *limbs*:
//!
//! ```text
//! x[k] ≈ row_scale · n[k]        n[k] = round(x[k] / row_scale),  |n[k]| ≤ 8 353 780 < 2²³
//! n[k] = 65536 · a[k] + 256 · b[k] + c[k]                         a, b, c in −128..=127
//!
//! Σ n[k]·w[k] = 65536 · Σ a·w + 256 · Σ b·w + Σ c·w               three int8 dot products
//! ```
//!
//! An activation is off by at most 2⁻²⁴ of its row's largest, about what the additions of an f32 sum lose anyway.
//!
//! # Why integer sums are exact
//! A limb times an 8-bit code is below 2¹⁵ and a unit has at most 64 columns, so a sum is below 2²¹; a superblock of a
//! K-quant has 256 columns of 16-bit products `sub-scale · code`, so a sum is below 2³⁰. Both fit 32 bits. Integer
//! addition without overflow is associative: the same sum comes out whether one row meets a panel by `vpdpbusd`, four
//! rows by `smmla`, or sixteen by a tile, in whatever order a kernel likes best.
//!
//! # The order that is left
//! Scales are floats, so unit sums become f32 and are added with `sum ← fma(f32(dot), scale · limb weight, sum)`, in
//! ascending order of units, high limb first. That order is a property of the weight's format alone. Every
//! kernel for a format must keep it; nothing else about a kernel can change a bit.
//!
//! # Zero points
//! Stored codes are unsigned, values often are not: `value = code − z`. The kernels multiply codes and use
//! *zero-point compensation*: `Σ n·(code − z) = Σ n·code − z · Σ n`. The last term depends on the row alone, so packing
//! computes it once and the integer sums start from it. A format with float offsets (min) needs `Σ n` as well.
//!
//! # Panels
//! A weight is repacked once, at upload, into panels of sixteen output channels, so that one 64-byte vector holds four
//! consecutive K bytes of each channel (the *VNNI layout*), and every load is whole, aligned and sequential:
//!
//! ```text
//!   canonical W [N][K]                     panel p = channels 16p .. 16p+15
//!
//!          k →                             vector j: columns 4j .. 4j+3 (8-bit codes)
//!   n=0  ┌───────────────┐                 ┌────────┬────────┬────────┬─── ─┬────────┐
//!   n=1  │               │                 │ n=0    │ n=1    │ n=2    │ ... │ n=15   │
//!    ↓   ├── 16 rows ────┤  ── pack ──▶    │ k k k k│ k k k k│ k k k k│     │ k k k k│
//!        │               │                 └────────┴────────┴────────┴─── ─┴────────┘
//!        └───────────────┘                  one 32-bit lane per channel: vpdpbusd sums in place
//! ```
//!
//! Codes below eight bits share bytes across vectors of a chunk of 32 columns, see [`packed_weight`].
//!
//! # Tiles of rows
//! Activations are packed too, in tiles of up to sixteen rows (eight where there is no AMX). Inside a unit each limb
//! plane is contiguous, so that a tile load or a broadcast takes it as it lies, see [`int8::layout`]:
//!
//! ```text
//!   tile of M rows   unit 0                          unit 1 ...
//!                    ┌ plane a ─┬ plane b ─┬ plane c ─┐
//!                    │ row 0    │ row 0    │ row 0    │   a row: `unit` bytes of one limb
//!                    │ row 1    │ row 1    │ row 1    │
//!                    │  ...     │  ...     │  ...     │
//!                    └──────────┴──────────┴──────────┘   then per row and unit: Σ n, compensation; then row scales
//! ```
//!
//! # The path of a product
//! ```text
//! linear        an operation is partitioned into tasks of rows × channels
//! packed_rows   activations are packed once and kept for the next product with the same input
//! product       what a task multiplies; f32 kernels for canonical weights
//! packed_weight the layout of a packed weight (made by pack_weight), and who multiplies it
//! panels        the panels of a task, and where their sums go
//! int8          limbs: layout, pack, code, isa (one file per instruction set), gemv kernels, k_quant
//! amx           tile instructions; bf16 and int8 products by tiles
//! ```
//!
//! The cost model is the usual roofline: a few rows are bound by memory, so GEMV kernels unpack codes in registers and
//! read each stored byte once; many rows are bound by arithmetic, so a block of columns is unpacked to L1 and shared.
#![allow(
    clippy::needless_range_loop,
    reason = "register blocks are indexed by row and channel; iterators over them hide which"
)]

#[cfg_attr(not(target_arch = "x86_64"), path = "no_amx.rs")]
pub(crate) mod amx;
pub(crate) mod decode;
pub(crate) mod int8;
pub(crate) mod linear;
pub(crate) mod micro_kernel;
pub(crate) mod pack_weight;
pub(crate) mod packed_rows;
pub(crate) mod packed_weight;
pub(crate) mod panels;
pub(crate) mod product;
