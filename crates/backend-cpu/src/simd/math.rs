//! The exponential and what is made of it.
//!
//! # Numerics
//! `exp` is good to about one unit in the last place between −87.3 and 88; below it is 0, above infinite, NaN
//! stays NaN. `tanh` and `gelu_tanh` are good to four units, the latter where it is not below 1e-37 in size,
//! which may become 0. Lanes do not influence each other, so an element's bits do not depend on its place.

use super::isa::{Isa, Kernel, LANES};

/// Below this `e^x` is no normal f32.
const LOWEST: f32 = -87.33;
/// Here `e^x` is so far below any normal f32 that the nearest `2^n` is one below the smallest.
const NOTHING: f32 = -88.0;
/// Above this `2^n` would need an exponent that f32 does not have.
const HIGHEST: f32 = 88.02;
/// Adding and taking away `1.5·2²³` leaves the nearest integer.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts, the first with few bits so that `n` times it is exact.
const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// `(e^r − 1 − r) / r²` for `|r| ≤ ln 2 / 2`, highest power first (Cephes).
const POLYNOMIAL: [f32; 6] =
    [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];

/// Beyond this in size `tanh` is ±1 in f32.
const TANH_FLAT: f32 = 10.0;
/// Below minus this `gelu_tanh` is no normal f32, and `eˣ` of its argument nearly none.
const GELU_FLAT: f32 = 10.03;
/// `2√(2/π)`, and what rounding took from it.
const GELU_LINEAR: [f32; 2] = [1.595_769_2, -4.534_068e-8];
/// 0.044715 times that, and what rounding took from it.
const GELU_CUBIC: [f32; 2] = [0.071_354_814, 2.398_832_5e-9];

/// `n`, `r` and `(eʳ − 1 − r) / r²` where `x = n·ln 2 + r`, `n` is whole and `|r| ≤ ln 2 / 2`.
#[inline(always)]
fn parts<S: Isa>(simd: S, near: S::F) -> [S::F; 3] {
    let round = simd.splat(ROUND);
    let n = simd.sub(simd.fma(near, simd.splat(std::f32::consts::LOG2_E), round), round);
    let r = simd.fma(n, simd.splat(-LN2[0]), near);
    let r = simd.fma(n, simd.splat(-LN2[1]), r);
    let mut p = simd.splat(POLYNOMIAL[0]);
    for c in &POLYNOMIAL[1..] {
        p = simd.fma(p, r, simd.splat(*c));
    }
    [n, r, p]
}

/// `n` and `eʳ − 1` of [`parts`]; `x` between the limits of [`exp`].
#[inline(always)]
fn reduced<S: Isa>(simd: S, near: S::F) -> (S::F, S::F) {
    let [n, r, p] = parts(simd, near);
    (n, simd.fma(p, simd.mul(r, r), r))
}

/// `x` where it is between the two, the nearer one elsewhere; NaN stays NaN.
#[inline(always)]
fn clamp<S: Isa>(simd: S, lowest: f32, highest: f32, x: S::F) -> S::F {
    simd.max(simd.splat(lowest), simd.min(simd.splat(highest), x))
}

/// `eˣ`.
#[inline(always)]
pub(crate) fn exp<S: Isa>(simd: S, x: S::F) -> S::F {
    let (n, p) = reduced(simd, clamp(simd, LOWEST, HIGHEST, x));
    let p = simd.add(p, simd.splat(1.0));
    // A NaN has no integer part; its power is any number and the product still NaN.
    let scaled = simd.mul(p, simd.pow2(n));
    let floored = simd.if_less([x, simd.splat(LOWEST)], simd.splat(0.0), scaled);
    simd.if_less([simd.splat(HIGHEST), x], simd.splat(f32::INFINITY), floored)
}

/// `eˣ` for `x ≤ 0`, as good as [`exp`] where that is not 0 and not much above 0 elsewhere: what a softmax needs, in
/// fewer operations.
#[inline(always)]
pub(crate) fn exp_nonpositive<S: Isa>(simd: S, x: S::F) -> S::F {
    let [n, r, p] = parts(simd, simd.max(simd.splat(NOTHING), x));
    let one = simd.splat(1.0);
    simd.mul(simd.fma(simd.fma(p, r, one), r, one), simd.pow2(n))
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Isa>(simd: S, x: S::F) -> S::F {
    let one = simd.splat(1.0);
    simd.div(one, simd.add(one, exp(simd, simd.sub(simd.splat(0.0), x))))
}

/// `x · sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu<S: Isa>(simd: S, x: S::F) -> S::F {
    simd.mul(x, sigmoid(simd, x))
}

/// `(e²ˣ − 1) / (e²ˣ + 1)`.
#[inline(always)]
pub(crate) fn tanh<S: Isa>(simd: S, x: S::F) -> S::F {
    let near = clamp(simd, -TANH_FLAT, TANH_FLAT, x);
    let (n, p) = reduced(simd, simd.add(near, near));
    // `e²ˣ − 1` without ever adding 1 to something small.
    let power = simd.pow2(n);
    let less = simd.fma(power, p, simd.sub(power, simd.splat(1.0)));
    simd.div(less, simd.add(less, simd.splat(2.0)))
}

/// `½x · (1 + tanh(√(2/π)·(x + 0.044715·x³)))`, as `x / (1 + e^−y)` with `y = x·(a + b·x²)`.
///
/// `y` is kept as a sum of two numbers: for negative `x` the result is about `x·e^y`, and an error of `y` in its
/// last place would be one of many places there.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Isa>(simd: S, x: S::F) -> S::F {
    let (zero, one) = (simd.splat(0.0), simd.splat(1.0));
    let ([a, a_rest], [b, b_rest]) = (GELU_LINEAR, GELU_CUBIC);
    let (a, b) = (simd.splat(a), simd.splat(b));
    let near = clamp(simd, -GELU_FLAT, GELU_FLAT, x);
    let square = simd.mul(near, near);
    let square_rest = simd.fma(near, near, simd.sub(zero, square));
    let cubic = simd.mul(b, square);
    let cubic_rest = simd.fma(b, square, simd.sub(zero, cubic));
    let cubic_rest = simd.fma(b, square_rest, simd.fma(simd.splat(b_rest), square, cubic_rest));
    let slope = simd.add(a, cubic);
    // What that addition rounded away, exactly.
    let back = simd.sub(slope, a);
    let lost = simd.add(simd.sub(a, simd.sub(slope, back)), simd.sub(cubic, back));
    let slope_rest = simd.add(simd.add(lost, cubic_rest), simd.splat(a_rest));
    let y = simd.mul(near, slope);
    let y_rest = simd.fma(near, slope_rest, simd.fma(near, slope, simd.sub(zero, y)));
    let e = exp(simd, simd.sub(zero, y));
    let e = simd.fma(e, simd.sub(zero, y_rest), e);
    let share = simd.div(one, simd.add(one, e));
    simd.mul(x, simd.if_less([x, simd.splat(-GELU_FLAT)], zero, share))
}

/// A function of an element and its partner.
pub(crate) trait Pairwise: Copy {
    /// The new element.
    fn of<S: Isa>(self, simd: S, x: S::F, other: S::F) -> S::F;
}

macro_rules! pairwise {
    ($text:literal, $name:ident $(($field:ty))?, |$this:ident, $simd:ident, $x:ident, $y:ident| $value:expr) => {
        #[doc = $text]
        #[derive(Clone, Copy)]
        pub(crate) struct $name $((pub(crate) $field))?;

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
pairwise!(
    "`silu(min(x, limit)) · y`, y between ± limit.",
    ClampedSiluTimes(f32),
    |this, simd, x, y| {
        let (least, most) = (simd.splat(-this.0), simd.splat(this.0));
        let y = simd.max(least, simd.min(most, y));
        simd.mul(silu(simd, simd.min(most, x)), y)
    }
);
pairwise!("`gelu(x) · y`.", GeluTimes, |_this, simd, x, y| simd.mul(gelu_tanh(simd, x), y));
pairwise!("`max(x, 0) · y`.", ReluTimes, |_this, simd, x, y| {
    simd.mul(simd.max(simd.splat(0.0), x), y)
});
pairwise!("`x · y`.", Times, |_this, simd, x, y| simd.mul(x, y));
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
pub(crate) fn zip<S: Isa>(simd: S, out: &mut [f32], other: &[f32], pair: impl Pairwise) {
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
pub(crate) struct Zip<'a, P> {
    pub(crate) out: &'a mut [f32],
    pub(crate) other: &'a [f32],
    pub(crate) pair: P,
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
pub(crate) fn scale_all<S: Isa>(simd: S, x: &mut [f32], factor: f32) {
    let factor = simd.splat(factor);
    for part in x.chunks_mut(LANES) {
        let (at, count) = (part.as_mut_ptr(), part.len());
        // SAFETY: exactly the `count` elements of the chunk are loaded and stored.
        unsafe { simd.store_part(at, count, simd.mul(simd.load_part(at, count), factor)) };
    }
}

/// `Σ xᵢ²` in lanes.
#[inline(always)]
pub(crate) fn squares<S: Isa>(simd: S, x: &[f32]) -> f32 {
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

/// `x ← cap · tanh(x / cap)`.
pub(crate) struct Cap<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) cap: f32,
}

impl Kernel for Cap<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let cap = simd.splat(self.cap);
        for part in self.x.chunks_mut(LANES) {
            let (at, count) = (part.as_mut_ptr(), part.len());
            // SAFETY: exactly the `count` elements of the chunk are loaded and stored.
            unsafe {
                let x = simd.load_part(at, count);
                simd.store_part(at, count, simd.mul(cap, tanh(simd, simd.div(x, cap))));
            }
        }
    }
}

/// [`scale_all`] as a kernel.
pub(crate) struct Scale<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) factor: f32,
}

impl Kernel for Scale<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        scale_all(simd, self.x, self.factor);
    }
}

#[cfg(test)]
mod tests {
    use super::super::isa::Task;
    use super::super::{Level, Scratch};
    use super::*;
    use crate::pool::SharedSlice;
    use crate::simd::exec_ctx::ExecCtx;

    /// [`exp_nonpositive`] of whole vectors.
    struct Down<'a>(SharedSlice<'a, f32>);

    impl Kernel for &Down<'_> {
        type Out = ();
        #[inline(always)]
        fn run<S: Isa>(self, simd: S) {
            // SAFETY: there is one task.
            let x = unsafe { self.0.part(0, self.0.len()) };
            for part in x.chunks_exact_mut(LANES) {
                // SAFETY: a chunk is sixteen f32.
                unsafe {
                    let y = exp_nonpositive(simd, simd.load(part.as_ptr()));
                    simd.store(part.as_mut_ptr(), y);
                }
            }
        }
    }

    impl Task for Down<'_> {
        fn run<S: Isa>(&self, simd: S, _index: usize, _scratch: &mut Scratch) {
            simd.call(self);
        }
    }

    fn down(level: Level, x: &[f32]) -> Vec<f32> {
        let mut out = x.to_vec();
        out.resize(x.len().next_multiple_of(LANES), 0.0);
        let mut ctx = ExecCtx::new(level, Some(1)).expect("the level is available");
        ctx.run_inline(1, &Down(SharedSlice::new(&mut out)));
        out.truncate(x.len());
        out
    }

    #[test]
    fn the_exponential_downwards_is_within_two_units_and_ends_in_zero() {
        let x: Vec<f32> = arguments().into_iter().filter(|x| *x <= 0.0 && *x > LOWEST).collect();
        let (units, at) = worst(&down(Level::Portable, &x), &x, |x| f64::from(x).exp(), 0.0);
        assert!(units <= 2.0, "{units} units at {at}");
        let far = [-87.4, -87.7, -88.0, -1e30, f32::NEG_INFINITY, f32::NAN, -0.0];
        let found = down(Level::Portable, &far);
        assert!(found[0] < 1.2e-38 && found[0] > 0.0, "{found:?}");
        assert_eq!(found[2..5], [0.0; 3]);
        assert!(found[5].is_nan());
        assert_eq!(found[6], 1.0);
    }

    #[test]
    fn the_exponential_downwards_has_the_same_bits_on_every_level() {
        let x: Vec<f32> = arguments().into_iter().filter(|x| *x <= 0.0).collect();
        let expected = down(Level::Portable, &x);
        for level in Level::ALL.into_iter().filter(|level| level.available()) {
            let found = down(level, &x);
            let differ = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
            let at = found.iter().zip(&expected).position(differ);
            assert_eq!(at.map(|i| x[i]), None, "{level:?}");
        }
    }

    /// `act(x)·1` or `1·tanh(x/1)` of all numbers.
    struct Each<'a> {
        x: SharedSlice<'a, f32>,
        gelu: bool,
    }

    impl Task for Each<'_> {
        fn run<S: Isa>(&self, simd: S, _index: usize, _scratch: &mut Scratch) {
            // SAFETY: there is one task.
            let x = unsafe { self.x.part(0, self.x.len()) };
            if self.gelu {
                let ones = vec![1.0; x.len()];
                simd.call(Zip { out: x, other: &ones, pair: GeluTimes });
            } else {
                simd.call(Cap { x, cap: 1.0 });
            }
        }
    }

    fn apply(level: Level, gelu: bool, x: &[f32]) -> Vec<f32> {
        let mut out = x.to_vec();
        let mut ctx = ExecCtx::new(level, Some(1)).expect("the level is available");
        ctx.run_inline(1, &Each { x: SharedSlice::new(&mut out), gelu });
        out
    }

    /// Zero, every size of number down to the smallest, and a fine grid where the functions bend; both signs.
    fn arguments() -> Vec<f32> {
        let sizes = (0..0x7f80_0000_u32).step_by(0x1_2345).map(f32::from_bits);
        let grid = (0..400_000).map(|i| i as f32 * 3.1e-5);
        sizes.chain(grid).chain([f32::MAX]).flat_map(|x| [x, -x]).collect()
    }

    /// Distance to `exact` in units of the last place of an f32 of its size.
    fn units(found: f32, exact: f64) -> f64 {
        let size = (exact.abs() as f32).max(f32::MIN_POSITIVE);
        let unit = f64::from(f32::from_bits(size.to_bits() & 0x7f80_0000)) / f64::from(1 << 23);
        (f64::from(found) - exact).abs() / unit
    }

    fn gelu_f64(x: f32) -> f64 {
        let x = f64::from(x);
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
        // `(1 + tanh(t)) / 2 = 1 / (1 + e^−2t)`, which does not cancel.
        x / (1.0 + (-2.0 * inner).exp())
    }

    fn worst(found: &[f32], x: &[f32], exact: impl Fn(f32) -> f64, least: f64) -> (f64, f32) {
        let far = |(&found, &x): (&f32, &f32)| {
            let exact = exact(x);
            let tiny = exact.abs() < least && f64::from(found).abs() < least;
            (if tiny { 0.0 } else { units(found, exact) }, x)
        };
        let all = found.iter().zip(x).map(far);
        all.fold((0.0, 0.0), |a, b| if b.0 > a.0 || b.0.is_nan() { b } else { a })
    }

    #[test]
    fn tanh_is_within_four_units_of_the_last_place_everywhere() {
        let x = arguments();
        let (units, at) =
            worst(&apply(Level::Portable, false, &x), &x, |x| f64::from(x).tanh(), 0.0);
        assert!(units <= 4.0, "{units} units at {at}");
    }

    #[test]
    fn gelu_is_within_four_units_of_the_last_place_everywhere() {
        let x = arguments();
        let (units, at) = worst(&apply(Level::Portable, true, &x), &x, gelu_f64, 1e-37);
        assert!(units <= 4.0, "{units} units at {at}");
    }

    #[test]
    fn both_have_the_same_bits_on_every_level_and_keep_nan() {
        let mut x = arguments();
        x.extend([f32::INFINITY, f32::NAN]);
        for gelu in [true, false] {
            let expected = apply(Level::Portable, gelu, &x);
            let [.., at_infinity, at_nan] = expected[..] else { panic!("two were added") };
            assert_eq!(at_infinity, if gelu { f32::INFINITY } else { 1.0 });
            assert!(at_nan.is_nan());
            for level in Level::ALL.into_iter().filter(|level| level.available()) {
                let found = apply(level, gelu, &x);
                let differ = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !a.is_nan();
                let at = found.iter().zip(&expected).position(differ);
                assert_eq!(at.map(|i| x[i]), None, "{level:?}, gelu: {gelu}");
            }
        }
    }
}
