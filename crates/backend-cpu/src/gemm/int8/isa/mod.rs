//! Sets of instructions that multiply bytes.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) use avx2::Avx512VnniYmm;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::{Avx2Int8, AvxVnni, MaddubsPairs};
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512Vnni;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{NeonDotprod, NeonI8mm};

pub(crate) mod ops;

use self::ops::Int8Isa;
use crate::simd::Level;

/// A set that is there; on other architectures there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnyInt8Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(Avx512Vnni),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(Avx2Int8<AvxVnni>),
    #[cfg(all(test, target_arch = "x86_64"))]
    Avx512VnniYmm(Avx2Int8<Avx512VnniYmm>),
    #[cfg(target_arch = "x86_64")]
    MaddubsPairs(Avx2Int8<MaddubsPairs>),
    #[cfg(target_arch = "aarch64")]
    NeonI8mm(NeonI8mm),
    #[cfg(target_arch = "aarch64")]
    NeonDotprod(NeonDotprod),
}

/// Something to be done with a set.
pub(crate) trait WithInt8Isa {
    /// What it gives back.
    type Out;
    /// Does it.
    fn run<S: Int8Isa>(self, simd: S) -> Self::Out;
}

impl AnyInt8Isa {
    /// The set of a level, where the processor has it.
    pub(crate) fn detect(level: Level) -> Option<Self> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Amx | Level::Vnni => Avx512Vnni::detect().map(Self::Avx512Vnni),
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => Avx2Int8::detect().map(Self::AvxVnni),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Avx2Int8::detect().map(Self::MaddubsPairs),
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => NeonI8mm::detect().map(Self::NeonI8mm),
            #[cfg(target_arch = "aarch64")]
            Level::Dotprod => NeonDotprod::detect().map(Self::NeonDotprod),
            // Of another architecture, or better off with lanes: those of AVX-512 read prompts faster than pairs of
            // bytes by AVX2.
            _ => None,
        }
    }

    /// Does `work` with the set.
    pub(crate) fn with<W: WithInt8Isa>(self, work: W) -> W::Out {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(simd) => work.run(simd),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(simd) => work.run(simd),
            #[cfg(all(test, target_arch = "x86_64"))]
            Self::Avx512VnniYmm(simd) => work.run(simd),
            #[cfg(target_arch = "x86_64")]
            Self::MaddubsPairs(simd) => work.run(simd),
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm(simd) => work.run(simd),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod(simd) => work.run(simd),
        }
    }
}
