//! Any bytes as `config.json` and as a shard index: neither panics, and an accepted index
//! stays inside its folder.
#![no_main]

use forerun_weights::{config, parse_index};
use libfuzzer_sys::fuzz_target;
use std::path::{Component, Path};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(config) = config::parse(bytes) {
        config.declared("model.layers.0.self_attn.q_proj");
    }
    if let Ok(map) = parse_index(bytes) {
        for file in map.values() {
            assert!(Path::new(file).components().all(|c| matches!(c, Component::Normal(_))));
        }
    }
});
