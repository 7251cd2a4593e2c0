//! Any JSON as the config of a model: a network or an error, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(config) = serde_json::from_slice(bytes) else { return };
    for has_mtp in [false, true] {
        let _ = forerun_model::spec_from_config(&config, has_mtp);
    }
});
