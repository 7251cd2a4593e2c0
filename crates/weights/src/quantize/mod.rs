//! Numbers to MLX codes: the other direction of `read::mlx`.
//!
//! | mode | bits | group | scale | module |
//! |---|---|---|---|---|
//! | affine | 2, 3, 4, 5, 6, 8 | 32, 64, 128 | the model's float type, with a bias | `affine` |
//! | mxfp4 | 4 | 32 | E8M0 | `mxfp4` |
//! | mxfp8 | 8 | 32 | E8M0 | `mxfp8` |
//! | nvfp4 | 4 | 16 | e4m3 | `nvfp4` |
//!
//! The codes are those of `mx.quantize` bit for bit (`tests/quantize.rs` pins it). Where MLX's
//! own arithmetic gives out, this does better on purpose, in the float modes only: E8M0 stops at
//! its smallest scale, where MLX wraps around to one that is not a number; quotients too large to
//! tell codes apart take the largest code, not zero; and scales of f16 weights are computed in
//! f32, where MLX loses groups below about 2e-5 because it divides in f16.
//!
//! Numbers that are not finite are refused: no code stands for them.

mod affine;
mod encoder;
mod mxfp4;
mod mxfp8;
mod nvfp4;
mod pack;
mod shape;
mod small;

pub use encoder::{EncodeError, EncodedPlanes, Encoder};
pub use shape::logical_shape;
