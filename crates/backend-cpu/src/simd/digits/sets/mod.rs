//! Sets of instructions that multiply bytes.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod vnni;

#[cfg(all(test, target_arch = "x86_64"))]
pub(super) use avx2::Evex;
#[cfg(target_arch = "x86_64")]
pub(super) use avx2::{Halves, Pairs, Vex};
#[cfg(target_arch = "aarch64")]
pub(super) use neon::{Dots, Matrices};
#[cfg(target_arch = "x86_64")]
pub(super) use vnni::Vnni;

use super::super::Level;
use super::whole::Whole;

/// A set that is there; on other architectures there is none.
#[derive(Clone, Copy, Debug)]
pub(super) enum Set {
    #[cfg(target_arch = "x86_64")]
    Vnni(Vnni),
    #[cfg(target_arch = "x86_64")]
    Vex(Halves<Vex>),
    #[cfg(all(test, target_arch = "x86_64"))]
    Evex(Halves<Evex>),
    #[cfg(target_arch = "x86_64")]
    Pairs(Halves<Pairs>),
    #[cfg(target_arch = "aarch64")]
    Matrices(Matrices),
    #[cfg(target_arch = "aarch64")]
    Dots(Dots),
}

/// Something to be done with a set.
pub(super) trait WithSet {
    /// What it gives back.
    type Out;
    /// Does it.
    fn run<S: Whole>(self, simd: S) -> Self::Out;
}

impl Set {
    /// The set of a level, where the processor has it.
    pub(super) fn detect(level: Level) -> Option<Self> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Amx | Level::Vnni => Vnni::detect().map(Self::Vnni),
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => Halves::detect().map(Self::Vex),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Halves::detect().map(Self::Pairs),
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => Matrices::detect().map(Self::Matrices),
            #[cfg(target_arch = "aarch64")]
            Level::Dotprod => Dots::detect().map(Self::Dots),
            // Of another architecture, or better off with lanes: those of AVX-512 read prompts faster than pairs of bytes by AVX2.
            _ => None,
        }
    }

    /// Does `work` with the set.
    pub(super) fn with<W: WithSet>(self, work: W) -> W::Out {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Vnni(simd) => work.run(simd),
            #[cfg(target_arch = "x86_64")]
            Self::Vex(simd) => work.run(simd),
            #[cfg(all(test, target_arch = "x86_64"))]
            Self::Evex(simd) => work.run(simd),
            #[cfg(target_arch = "x86_64")]
            Self::Pairs(simd) => work.run(simd),
            #[cfg(target_arch = "aarch64")]
            Self::Matrices(simd) => work.run(simd),
            #[cfg(target_arch = "aarch64")]
            Self::Dots(simd) => work.run(simd),
        }
    }
}
