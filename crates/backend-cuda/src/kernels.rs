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

/// The layout of packed weights, and the decoding of single elements.
pub(crate) const WEIGHT: &str = include_str!("../kernels/weight.cuh");

macro_rules! family {
    ($name:ident, $file:literal) => {
        pub(crate) const $name: KernelSource = KernelSource::new(
            $file,
            &[PRELUDE, include_str!(concat!("../kernels/", $file, ".cu"))],
        );
    };
}

family!(ELEMENTWISE, "elementwise");
family!(NORM, "norm");
family!(ROWS, "rows");
family!(ATTENTION_INPUTS, "attention_inputs");
family!(DELTA, "delta");
family!(ROUTER, "router");
family!(SAMPLE, "sample");

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
    families().into_iter().chain(sources::of_arch(arch)).collect()
}

/// The families of every architecture, to compile them without a device.
pub fn families() -> Vec<KernelSource> {
    let single = [ELEMENTWISE, NORM, ROWS, ATTENTION_INPUTS, DELTA, ROUTER, SAMPLE, CANONICAL];
    let products = [sources::SPLIT, sources::GENERAL, sources::ROUTE];
    single.into_iter().chain(ATTENTION).chain(products).collect()
}
