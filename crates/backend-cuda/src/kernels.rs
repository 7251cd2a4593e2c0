//! The kernels' sources, one for each family of operations. A family is compiled as one module.

use crate::driver::{Driver, DriverError, KernelId, KernelSource, ModuleId};
use crate::products::sources;
use forerun_base::DType;
use std::collections::HashMap;

/// Compiled kernels, by the tag of their source ([`KernelSource::tag`]) and their name.
#[derive(Debug, Default)]
pub(crate) struct KernelCache {
    modules: HashMap<u64, ModuleId>,
    kernels: HashMap<(u64, &'static str), KernelId>,
}

impl KernelCache {
    /// A kernel, compiled at its first use.
    pub(crate) fn get(
        &mut self,
        driver: &mut dyn Driver,
        source: &KernelSource,
        name: &'static str,
    ) -> Result<KernelId, DriverError> {
        let tag = source.tag();
        if let Some(kernel) = self.kernels.get(&(tag, name)) {
            return Ok(*kernel);
        }
        let module = match self.modules.get(&tag) {
            Some(module) => *module,
            None => driver.load(source)?,
        };
        self.modules.insert(tag, module);
        let kernel = driver.kernel(module, name)?;
        self.kernels.insert((tag, name), kernel);
        Ok(kernel)
    }
}

/// What every family begins with: arithmetic with the same bits on a GPU and on the CPU, conversions, reductions, and
/// the only PTX there is.
pub const PRELUDE: &str = include_str!("../kernels/prelude.cuh");

/// The root mean square of wide rows.
pub(crate) const ROW_NORM: &str = include_str!("../kernels/row_norm.cuh");

/// The layout of packed weights, and the decoding of single elements.
pub(crate) const WEIGHT: &str = include_str!("../kernels/weight.cuh");

/// Rows of f32 as columns of bfloat16.
pub(crate) const LIMBS: &str = include_str!("../kernels/limbs.cuh");

/// Copies to shared memory that run beside the arithmetic.
pub(crate) const ASYNC: &str = include_str!("../kernels/async.cuh");

/// The step of the tensor core.
pub(crate) const MMA: &str = include_str!("../kernels/mma.cuh");

macro_rules! family {
    ($name:ident, $file:literal) => {
        pub(crate) const $name: KernelSource = KernelSource::new(
            $file,
            &[PRELUDE, include_str!(concat!("../kernels/", $file, ".cu"))],
        );
    };
}

family!(ELEMENTWISE, "elementwise");
family!(ROWS, "rows");
family!(ATTENTION_INPUTS, "attention_inputs");
family!(DELTA, "delta");
family!(ROUTER, "router");
family!(SAMPLE, "sample");
family!(STREAMS, "streams");

pub(crate) const NORM: KernelSource =
    KernelSource::new("norm", &[PRELUDE, ROW_NORM, include_str!("../kernels/norm.cu")]);

/// Embedding and products of single elements.
pub(crate) const CANONICAL: KernelSource =
    KernelSource::new("canonical", &[PRELUDE, WEIGHT, include_str!("../kernels/canonical.cu")]);

const ATTENTION_PARTS: &[&str] = &[PRELUDE, include_str!("../kernels/attention.cu")];

/// Attention over caches of a type, one text for each.
pub(crate) const ATTENTION: [KernelSource; 4] = [
    KernelSource::new("attention", ATTENTION_PARTS).with("KIND", 0),
    KernelSource::new("attention", ATTENTION_PARTS).with("KIND", 1),
    KernelSource::new("attention", ATTENTION_PARTS).with("KIND", 2),
    KernelSource::new("attention", ATTENTION_PARTS).with("KIND", 3),
];

/// Attention by the tensor core: for heads `dim` wide, caches of kind 1 or 2, and so many limbs.
pub(crate) const fn attention_mma(dim: usize, kind: u32, limbs: usize) -> KernelSource {
    const PARTS: &[&str] = &[PRELUDE, ASYNC, MMA, include_str!("../kernels/attention_mma.cu")];
    KernelSource::new("attention_mma", PARTS)
        .with("DIM", dim as i64)
        .with("KIND", kind as i64)
        .with("LIMBS", limbs as i64)
}

/// How kernels number the types of caches.
pub(crate) const fn cache_kind(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::I8 => 3,
        _ => 0,
    }
}

/// All families of an architecture such as `sm_90a`, with products of typical weights.
pub fn families_of(arch: &str) -> Vec<KernelSource> {
    let newer = matches!(arch, "sm_90a" | "sm_100" | "sm_120");
    let attention = [(64, 1, 1), (128, 2, 3), (256, 1, 1), (256, 1, 2)];
    let attention = attention.into_iter().filter(|_| newer);
    let attention = attention.map(|(dim, kind, limbs)| attention_mma(dim, kind, limbs));
    families().into_iter().chain(sources::of_arch(arch)).chain(attention).collect()
}

/// The families of every architecture, to compile them without a device.
pub fn families() -> Vec<KernelSource> {
    let single =
        [ELEMENTWISE, NORM, ROWS, ATTENTION_INPUTS, DELTA, ROUTER, SAMPLE, STREAMS, CANONICAL];
    let products = [sources::SPLIT, sources::GENERAL, sources::ROUTE];
    single.into_iter().chain(ATTENTION).chain(products).collect()
}
