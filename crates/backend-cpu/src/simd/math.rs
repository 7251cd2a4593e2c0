//! The exponential and what is made of it.
//!
//! # Numerics
//! `exp` is good to about one unit in the last place between −87.3 and 88; below it is 0, above infinite, NaN
//! stays NaN. Lanes do not influence each other, so an element's bits do not depend on its place.

use super::isa::{Isa, Kernel, LANES};

/// Below this `e^x` is no normal f32.
const LOWEST: f32 = -87.33;
/// Above this `2^n` would need an exponent that f32 does not have.
const HIGHEST: f32 = 88.02;
/// Adding and taking away `1.5·2²³` leaves the nearest integer.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts, the first with few bits so that `n` times it is exact.
const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// `(e^r − 1 − r) / r²` for `|r| ≤ ln 2 / 2`, highest power first (Cephes).
const POLYNOMIAL: [f32; 6] =
    [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];

/// `eˣ`.
#[inline(always)]
pub(super) fn exp<S: Isa>(simd: S, x: S::F) -> S::F {
    let (lowest, highest) = (simd.splat(LOWEST), simd.splat(HIGHEST));
    let near = simd.max(lowest, simd.min(highest, x));
    let round = simd.splat(ROUND);
    let n = simd.sub(simd.fma(near, simd.splat(std::f32::consts::LOG2_E), round), round);
    let r = simd.fma(n, simd.splat(-LN2[0]), near);
    let r = simd.fma(n, simd.splat(-LN2[1]), r);
    let mut p = simd.splat(POLYNOMIAL[0]);
    for c in &POLYNOMIAL[1..] {
        p = simd.fma(p, r, simd.splat(*c));
    }
    let p = simd.add(simd.fma(p, simd.mul(r, r), r), simd.splat(1.0));
    // A NaN has no integer part; its power is any number and the product still NaN.
    let scaled = simd.mul(p, simd.pow2(n));
    let floored = simd.if_less([x, lowest], simd.splat(0.0), scaled);
    simd.if_less([highest, x], simd.splat(f32::INFINITY), floored)
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub(super) fn sigmoid<S: Isa>(simd: S, x: S::F) -> S::F {
    let one = simd.splat(1.0);
    simd.div(one, simd.add(one, exp(simd, simd.sub(simd.splat(0.0), x))))
}

/// `x · sigmoid(x)`.
#[inline(always)]
pub(super) fn silu<S: Isa>(simd: S, x: S::F) -> S::F {
    simd.mul(x, sigmoid(simd, x))
}

/// What becomes of an element and its partner.
pub(super) trait Pairwise: Copy {
    /// The new element.
    fn of<S: Isa>(self, simd: S, x: S::F, other: S::F) -> S::F;
}

macro_rules! pairwise {
    ($text:literal, $name:ident $(($field:ty))?, |$this:ident, $simd:ident, $x:ident, $y:ident| $value:expr) => {
        #[doc = $text]
        #[derive(Clone, Copy)]
        pub(super) struct $name $((pub(super) $field))?;

        impl Pairwise for $name {
            #[inline(always)]
            fn of<S: Isa>(self, $simd: S, $x: S::F, $y: S::F) -> S::F {
                let $this = self;
                $value
            }
        }
    };
}

pairwise!("`silu(x) · y`.", SiluTimes, |_this, simd, x, y| simd.mul(silu(simd, x), y));
pairwise!("`x · silu(y)`.", TimesSilu, |_this, simd, x, y| simd.mul(x, silu(simd, y)));
pairwise!("`x · σ(y)`.", TimesSigmoid, |_this, simd, x, y| simd.mul(x, sigmoid(simd, y)));
pairwise!("`x · factor · y`.", ScaledTimes(f32), |this, simd, x, y| {
    simd.mul(simd.mul(x, simd.splat(this.0)), y)
});
pairwise!("`x + σ(gate) · y`.", PlusGated(f32), |this, simd, x, y| {
    simd.add(x, simd.mul(sigmoid(simd, simd.splat(this.0)), y))
});

/// Every element of `out` with its partner in `other`, in whole vectors and a partial last one.
#[inline(always)]
pub(super) fn zip<S: Isa>(simd: S, out: &mut [f32], other: &[f32], pair: impl Pairwise) {
    assert_eq!(out.len(), other.len(), "both sides have the same length");
    let (to, from, len) = (out.as_mut_ptr(), other.as_ptr(), out.len());
    let whole = len / LANES * LANES;
    // SAFETY: both slices have `len` elements; whole vectors end at `whole`, the rest is partial.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            let new = pair.of(simd, simd.load(to.add(i)), simd.load(from.add(i)));
            simd.store(to.add(i), new);
        }
        if whole < len {
            let (to, from, rest) = (to.add(whole), from.add(whole), len - whole);
            let new = pair.of(simd, simd.load_part(to, rest), simd.load_part(from, rest));
            simd.store_part(to, rest, new);
        }
    }
}

/// [`zip`] as a kernel.
pub(super) struct Zip<'a, P> {
    pub(super) out: &'a mut [f32],
    pub(super) other: &'a [f32],
    pub(super) pair: P,
}

impl<P: Pairwise> Kernel for Zip<'_, P> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        zip(simd, self.out, self.other, self.pair);
    }
}

/// `x ← x · factor`.
#[inline(always)]
pub(super) fn scale_all<S: Isa>(simd: S, x: &mut [f32], factor: f32) {
    let factor = simd.splat(factor);
    for part in x.chunks_mut(LANES) {
        let (at, count) = (part.as_mut_ptr(), part.len());
        // SAFETY: a chunk is touched as far as it goes.
        unsafe { simd.store_part(at, count, simd.mul(simd.load_part(at, count), factor)) };
    }
}

/// `Σ xᵢ²` in lanes.
#[inline(always)]
pub(super) fn squares<S: Isa>(simd: S, x: &[f32]) -> f32 {
    let mut sum = simd.splat(0.0);
    let whole = x.len() / LANES * LANES;
    // SAFETY: whole vectors end at `whole`, the rest is partial.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            let v = simd.load(x.as_ptr().add(i));
            sum = simd.fma(v, v, sum);
        }
        if whole < x.len() {
            let v = simd.load_part(x.as_ptr().add(whole), x.len() - whole);
            sum = simd.fma(v, v, sum);
        }
    }
    simd.sum(sum)
}
