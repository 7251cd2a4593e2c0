//! The adapter of all tests: software unless `FORERUN_WGPU_ADAPTER` has the number of another. No adapter is a failure.

use forerun_backend_wgpu::{AdapterChoice, AdapterSelector, Api, Wgpu};

pub(crate) fn open_device() -> Wgpu {
    let number = std::env::var("FORERUN_WGPU_ADAPTER").ok();
    let selector = number.map_or(AdapterSelector::Software, |number| {
        AdapterSelector::Number(number.parse().expect("a number"))
    });
    Wgpu::open(AdapterChoice { api: Api::Any, selector }).expect("an adapter")
}
